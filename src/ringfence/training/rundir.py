"""The files of a run:

config.json         method, settings, members, log and its fingerprint, versions (`configuration.py`)
metrics.jsonl       one line per member and log interval
evaluations.jsonl   one line per member and evaluation, if a task was given
warnings.jsonl      what the run warned of, and when
learned.json        digests of the episodes that it learns from, so that they never judge its policies
checkpoints/        the newest two
policy*.safetensors one per member
kept/step-N/        the policies after N steps, where the run was asked to keep some on the way
verdict.json        whether each policy is inside its limit, with the reasons; verdict.txt in words
judgement.json      what episodes that were set aside say of each policy
result.png          the picture
report.html         the page for the browser
.lock               held by the process that works on the run
"""

import json
import os
import re
import socket
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ringfence.data.recognise import KnownEpisodes
from ringfence.deploy import Artifact
from ringfence.errors import CheckpointError, RunInUse, WouldOverwrite
from ringfence.files import TEMPORARY, sealed, unsealed, write_json
from ringfence.training import streams
from ringfence.training.configuration import Configuration, Member, parse
from ringfence.training.streams import Row

try:
    import fcntl
except ImportError:  # not a Unix: there is no lock
    fcntl = None  # type: ignore[assignment]

STREAMS = ("metrics", "evaluations", "warnings")
JUDGEMENT_FILE = "judgement.json"
LEARNED_FILE = "learned.json"
ABOUT_POLICIES = ("verdict.json", "verdict.txt", JUDGEMENT_FILE, "result.png", "report.html")
LOCK = ".lock"
KEPT = "kept"
KEPT_STEP = re.compile(r"step-\d{9,18}").fullmatch
CHECKPOINT_FILE = re.compile(r"step-(\d{1,18})\.(json|safetensors)")


class RunDirectory:
    """Where a run's files go."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    # One process at a time

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Work on the run alone. The lock is the kernel's: it ends with the process, however that ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / LOCK, "a+", encoding="utf-8") as file:
            self._take(file)
            self.clean()
            yield
            file.truncate(0)

    def _take(self, file: Any) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read(200).strip() or "another process"
            raise RunInUse(f"{self.path} is in use by {owner}; wait for it, or stop it first") from None
        except OSError as error:  # some network file systems have no locks
            warnings.warn(f"{self.path} cannot be locked ({error}); let no other process work on it", stacklevel=4)
            return
        file.seek(0)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()

    def clean(self) -> None:
        """Remove what a killed process left half-written. Only for the owner of the lock."""
        for folder in (self.path, self.checkpoints, *self.kept().values()):
            for file in folder.iterdir() if folder.is_dir() else ():
                if TEMPORARY.fullmatch(file.name) and file.is_file():
                    file.unlink(missing_ok=True)
        manifests = {file.stem for file in self.checkpoints.glob("step-*.json")}
        for file in self.checkpoints.glob("step-*.safetensors"):
            if file.stem not in manifests and CHECKPOINT_FILE.fullmatch(file.name):
                file.unlink(missing_ok=True)

    # Its beginning

    def require_free(self) -> None:
        """Raise unless the directory is still to be made, empty, or left by a run that was killed before it began."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise WouldOverwrite(f"{self.path} exists already and is a file; choose another --out")
        content = [file.name for file in self.path.iterdir()]
        if any(name != LOCK and not TEMPORARY.fullmatch(name) for name in content):
            advice = f", or go on with it by --resume {self.path}" if "config.json" in content else ""
            raise WouldOverwrite(f"{self.path} exists already; choose another --out{advice}")

    def create(self, configuration: Configuration) -> None:
        self.require_free()
        self.write(configuration)

    def free_if_not_begun(self) -> None:
        """Remove the configuration of a run that was refused, so that its directory can be used again."""
        if not self.has_begun:
            for name in (LEARNED_FILE, "config.json"):
                (self.path / name).unlink(missing_ok=True)

    def write(self, configuration: Configuration) -> None:
        write_json(self.path / "config.json", configuration.to_json())

    def _hint(self) -> str:
        """What to do about a directory without a configuration."""
        if not (self.path / LOCK).exists():
            return ""
        try:
            self.require_free()
        except WouldOverwrite:
            return "; it was a run and has lost it: restore it, or start a new run with another --out"
        return "; it was stopped before it began: start it again with --out"

    @property
    def is_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.json").is_file()

    @property
    def has_begun(self) -> bool:
        """Whether the run has left anything of its training."""
        return self.checkpoints.exists() or (self.path / "metrics.jsonl").exists()

    def configuration(self) -> Configuration:
        file = self.path / "config.json"
        try:
            content = json.loads(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(f"{self.path} is not a run directory: it has no config.json{self._hint()}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{file} is damaged ({error})") from None
        return parse(content, str(file))

    # What it learned from

    def remember(self, episodes: KnownEpisodes) -> None:
        """Keep by which digests the episodes that the run learns from are known again."""
        write_json(self.path / LEARNED_FILE, sealed(episodes.to_json()))

    def learned_episodes(self) -> KnownEpisodes | None:
        """The episodes that the run learned from; None if it was made before runs remembered them."""
        file = self.path / LEARNED_FILE
        try:
            return KnownEpisodes.from_json(unsealed(json.loads(file.read_bytes())))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{file} is damaged ({error}); write it again: ringfence train --resume {self.path}"
            ) from None

    # Its lines

    def append(self, stream: str, rows: Iterable[Mapping[str, Any]]) -> None:
        streams.append(self.path / f"{stream}.jsonl", rows)

    def read(self, stream: str) -> tuple[list[Row], list[str]]:
        """The stream's sound rows, and a sentence for each damaged line."""
        return streams.read(self.path / f"{stream}.jsonl")

    def last_step(self) -> int | None:
        """How far the run is, over all its stages; None before its first line of metrics."""
        row = streams.last(self.path / "metrics.jsonl")
        return None if row is None else int(row["overall_step"])

    # Its policies

    def save(self, artifacts: Iterable[Artifact], members: Iterable[Member]) -> None:
        """Write what training left of each member. If that replaces other policies, what was said of them
        (`ABOUT_POLICIES`) is removed first."""
        members = tuple(members)
        files = {}
        for member, artifact in zip(members, artifacts, strict=True):
            files[self.policy_path(member, members, "policy" if artifact.has_policy else "values")] = artifact
        if any(file.is_file() and file.read_bytes() != artifact.to_bytes() for file, artifact in files.items()):
            for name in ABOUT_POLICIES:
                (self.path / name).unlink(missing_ok=True)
        for file, artifact in files.items():
            artifact.save(file, overwrite=True)

    def policy_path(self, member: Member, members: Iterable[Member], stem: str = "policy") -> Path:
        return self.path / policy_file(member, members, stem)

    def keep(self, step: int, artifacts: Iterable[Artifact], members: Iterable[Member]) -> None:
        """Keep the policies of this step beside those of the end. A run that is resumed writes the same bytes again."""
        members, folder = tuple(members), self.path / KEPT / f"step-{step:09d}"
        folder.mkdir(parents=True, exist_ok=True)
        for member, artifact in zip(members, artifacts, strict=True):
            artifact.save(folder / policy_file(member, members), overwrite=True)

    def kept(self) -> dict[int, Path]:
        """Where the policies of each kept step are, in order."""
        found = {int(folder.name[5:]): folder for folder in (self.path / KEPT).glob("step-*") if KEPT_STEP(folder.name)}
        return dict(sorted(found.items()))


def policy_file(member: Member, members: Iterable[Member], stem: str = "policy") -> str:
    """The policy's file name: plain for a single member, else with the seed and the limit where members differ in them."""
    members = tuple(members)
    parts = [stem]
    if len({m.seed for m in members}) > 1:
        parts.append(f"seed{member.seed}")
    if len({m.limit for m in members}) > 1:
        short = f"{member.limit:g}"
        parts.append(f"limit{short if float(short) == member.limit else repr(member.limit)}")
    return "-".join(parts) + ".safetensors"
