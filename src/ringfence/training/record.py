"""A run as an object: what `ringfence.train` returns, and what `Run.load` finds in a run directory.

Reports, comparisons, resuming and the command line read it, so that only this file knows how a run lies on the disk.
Reading needs no JAX.
"""

import warnings as python_warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from ringfence.deploy import Artifact, Policy
from ringfence.errors import CheckpointError, RingfenceError
from ringfence.files import atomic_write, digest, read_json, write_json
from ringfence.training.configuration import Configuration, Member
from ringfence.training.handed_out import HandedOutFacts
from ringfence.training.rundir import JUDGEMENT_FILE, STREAMS, RunDirectory, policy_file
from ringfence.training.streams import Row
from ringfence.training.verdict import Verdict, judge


class Run:
    """One run: its configuration, what was measured, and a policy per member (seed and limit).

    `metrics`, `evaluations` and `warnings` are lists of rows (dictionaries with at least stage, step, overall_step, seed
    and limit), in the order they were made. `damage` names the lines of the files that could not be read.
    """

    def __init__(
        self,
        configuration: Configuration,
        metrics: list[Row] | None = None,
        evaluations: list[Row] | None = None,
        warnings: list[Row] | None = None,
        *,
        path: Path | None = None,
        artifacts: Sequence[Artifact] | None = None,
        interrupted: bool = False,
        damage: Sequence[str] = (),
    ):
        self.configuration = configuration
        self.metrics: list[Row] = metrics if metrics is not None else []
        self.evaluations: list[Row] = evaluations if evaluations is not None else []
        self.warnings: list[Row] = warnings if warnings is not None else []
        self.path = path
        self.interrupted = interrupted
        self.damage = tuple(damage)
        self._artifacts = artifacts
        self.steps_done: int | None = None  # of the policies, where training has just ended
        self.judgements: list[Any] = []  # of each policy, by episodes set aside; see `ringfence.evaluation.ope`

    @classmethod
    def load(cls, path: str | Path) -> "Run":
        """The run in this directory, finished or not. `CheckpointError` if it is none, or its configuration is damaged; a
        damaged line of metrics is left out with a warning."""
        directory = RunDirectory(path)
        configuration = directory.configuration()
        rows, found = zip(*(directory.read(stream) for stream in STREAMS), strict=True)
        damage = [sentence for sentences in found for sentence in sentences]
        for sentence in damage:
            python_warnings.warn(sentence, stacklevel=2)
        return cls(configuration, *rows, path=directory.path, damage=damage)

    @property
    def members(self) -> tuple[Member, ...]:
        return self.configuration.members

    @property
    def directory(self) -> RunDirectory:
        if self.path is None:
            raise CheckpointError("the run was kept in memory only; train with out=... to have its files")
        return RunDirectory(self.path)

    @cached_property
    def artifacts(self) -> list[Artifact]:
        """What training left, one per member; none while the policy's own training has not begun."""
        if self._artifacts is not None:
            return list(self._artifacts)
        for stem in ("policy", "values"):
            files = [self.directory.policy_path(member, self.members, stem) for member in self.members]
            if all(file.exists() for file in files):
                found = [Artifact.load(file) for file in files]
                self._require_own(files, found)
                return found
        return []

    @property
    def kept(self) -> dict[int, list[Artifact]]:
        """What was kept on the way (`keep_every`), by the number of policy steps; the end itself is not among them."""
        if self.path is None:
            return {}
        found: dict[int, list[Artifact]] = {}
        for step, files in self.kept_files.items():
            found[step] = [Artifact.load(file) for file in files]
            self._require_own(files, found[step])
        return found

    @property
    def kept_files(self) -> dict[int, list[Path]]:
        """The files of `kept`. A step of which the process died while it was being written is left out."""
        ends = {artifact.steps_done for artifact in self.artifacts}
        files = {
            step: [folder / policy_file(member, self.members) for member in self.members]
            for step, folder in self.directory.kept().items()
            if step not in ends
        }
        return {step: paths for step, paths in files.items() if all(path.exists() for path in paths)}

    def _require_own(self, files: Sequence[Path], artifacts: Sequence[Artifact]) -> None:
        for file, artifact, member in zip(files, artifacts, self.members, strict=True):
            if not self.made(artifact, member):
                raise CheckpointError(
                    f"{file} was not made by this run (seed {member.seed}, limit {member.limit:g}); restore it, or make it "
                    f"again: ringfence train --resume {self.path}"
                )

    def made(self, artifact: Artifact, member: Member | None = None) -> bool:
        """Whether method, seed and limit fit, and the run that it names, if it names one, is this one."""
        mark = digest(self.configuration.identity())
        ours = artifact.method == self.configuration.method and artifact.metadata.get("run", mark) == mark
        return ours and any(
            artifact.seed == m.seed and artifact.limit in (None, m.limit)  # none: it takes any limit of a range
            for m in ([member] if member else self.members)
        )

    @property
    def artifact(self) -> Artifact:
        """What training left of the first member."""
        if not self.artifacts:
            raise CheckpointError(
                f"{self.path or 'the run'} has left nothing yet: its last stage has not begun or saved"
            )
        return self.artifacts[0]

    @property
    def policies(self) -> list[Policy]:
        """One per member; none while the policy's own training has not begun, and none of a learner of values."""
        return [Policy(artifact) for artifact in self.artifacts if artifact.has_policy]

    @property
    def policy(self) -> Policy:
        """The first member's policy."""
        if not self.policies:
            raise CheckpointError(
                f"{self.path or 'the run'} has no policy yet: its policy stage has not begun or saved"
            )
        return self.policies[0]

    @property
    def finished(self) -> bool:
        """Whether every member's policy had all of the planned steps."""
        planned = self.configuration.schedule.steps
        return bool(self.artifacts) and all(artifact.steps_done == planned for artifact in self.artifacts)

    @property
    def kept_judgements(self) -> tuple[Mapping[str, Any] | None, ...]:
        """What episodes set aside said of each member's policy, as `Judgement.to_dict` has it: in this process, or when
        the run was trained; None where nothing did."""
        found: Any = [judgement.to_dict() for judgement in self.judgements]
        if not found and self.path is not None:
            found = read_json(self.path / JUDGEMENT_FILE)
        whole = isinstance(found, list) and len(found) == len(self.members) and all(map(is_judgement, found))
        return tuple(found) if whole else (None,) * len(self.members)

    def rows_of(self, member: Member, stream: str = "metrics") -> list[Row]:
        """One member's rows of "metrics", "evaluations" or "warnings"."""
        return [row for row in getattr(self, stream) if (row["seed"], row["limit"]) == (member.seed, member.limit)]

    @property
    def judged(self) -> bool:
        """Whether episodes that were set aside have judged the policies, in this process or before."""
        return None not in self.kept_judgements

    def verdict_on(self, member: Member) -> Verdict:
        rows = (self.metrics, self.evaluations, self.warnings)
        return judge(
            self.configuration,
            member,
            *rows,
            steps=self.steps_done,
            damaged=bool(self.damage),
            judged=self.judged,
            handed_out=self._handed_out(member),
        )

    def _handed_out(self, member: Member) -> HandedOutFacts | None:
        """What a method that chooses between several policies says of the one in the member's file."""
        try:
            artifacts = self.artifacts
        except RingfenceError:  # a verdict does not need the policy's file
            return None
        return HandedOutFacts.read(artifacts[self.members.index(member)].metadata) if artifacts else None

    @property
    def verdicts(self) -> list[Verdict]:
        """Whether each member's policy is inside its limit."""
        return [self.verdict_on(member) for member in self.members]

    @property
    def verdict(self) -> Verdict:
        """The first member's verdict."""
        return self.verdict_on(self.members[0])

    def write_verdict(self) -> None:
        """`verdict.json`, and in words `verdict.txt`."""
        verdicts = self.verdicts
        write_json(self.directory.path / "verdict.json", [asdict(verdict) for verdict in verdicts])
        lines = [f"seed {v.seed}, limit {v.limit:g}: {v.judgement}. {v.words}\n" for v in verdicts]
        with atomic_write(self.directory.path / "verdict.txt") as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")

    def __repr__(self) -> str:
        steps, where = self.configuration.schedule.steps, self.path or "in memory"
        return f"Run({self.configuration.method}, {steps} steps, {len(self.members)} member(s), {where})"


def is_judgement(value: Any) -> bool:
    """Whether it has what reports show of a judgement."""
    if not isinstance(value, dict) or not {"returned", "cost", "sentence", "advice", "support", "limit"} <= set(value):
        return False
    estimates = [value["returned"], value["cost"]]
    bounds = ("value", "lower", "upper")
    return all(isinstance(e, dict) and all(isinstance(e.get(b), int | float) for b in bounds) for e in estimates)
