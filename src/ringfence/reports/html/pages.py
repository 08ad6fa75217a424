"""From what a user names (a log, a run, several runs, a sweep, a guard's log) to its page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence import api
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting, RingfenceError, WouldOverwrite
from ringfence.limits import DISCOUNT
from ringfence.reports.html.guard_numbers import guard_numbers
from ringfence.reports.html.guard_page import guard_page
from ringfence.reports.html.log_page import log_page
from ringfence.reports.html.parts import Page
from ringfence.reports.html.render import require_bokeh, write_page
from ringfence.reports.results import Described
from ringfence.training import Run, RunDirectory

NAME = "report.html"


@dataclass(frozen=True)
class Asked:
    """What the command line gives besides the paths. `load` reads a log with the options about its columns."""

    load: Callable[[str], Any]
    limit_of: Callable[[Any, float], Any]  # of a log, at a discount; None if no limit was given
    discount: float = DISCOUNT
    log: str | None = None  # the log of a run or of a guard's policy, where it is now


def kind_of(path: str) -> str:
    """ "run", "sweep", "guard" or "log": by what lies there. What is no file may be the name of a built-in log."""
    place = Path(path)
    if RunDirectory(place).is_run:
        return "run"
    if sweep_folder(place) is not None:
        return "sweep"
    if place.is_dir():
        raise InvalidSetting(
            f"{path} is a directory without config.json (a run) or experiment.json (the results of a sweep); name a log "
            "file, a run's directory, the results of a sweep, or a guard's log"
        )
    return "guard" if place.suffix == ".jsonl" else "log"


def kind_of_all(paths: Sequence[str]) -> str:
    """The kind of what is named; only runs can be several."""
    kinds = {kind_of(path) for path in paths}
    if len(paths) > 1 and kinds != {"run"}:
        raise InvalidSetting(
            f"only runs are compared on one page, not {' and '.join(sorted(kinds))}s; make one page of each"
        )
    return kinds.pop()


def sweep_folder(place: Path) -> Path | None:
    """The results of an experiment: this directory, or the only one of its subdirectories that holds some."""
    if (place / "experiment.json").is_file():
        return place
    found = sorted(file.parent for file in place.glob("*/experiment.json")) if place.is_dir() else []
    return found[0] if len(found) == 1 else None


def report(paths: Sequence[str], asked: Asked, out: Path | None = None, *, overwrite: bool = False) -> Path:
    """Write the page of what was named and return its file. The page of a run or a sweep goes into its directory, where an
    earlier one is replaced; any other file that exists stays unless `overwrite` is given."""
    require_bokeh()
    kind = kind_of_all(paths)
    home = Path(paths[0]) if kind == "run" else sweep_folder(Path(paths[0])) if kind == "sweep" else None
    ours = home is not None and len(paths) == 1 and out is None
    target = home / NAME if ours and home is not None else out or Path(NAME)
    if target.exists() and not (overwrite or ours):
        raise WouldOverwrite(f"{target} exists; choose another --out or pass --overwrite")
    return write_page(page_of(kind, paths, asked), target)


def page_of(kind: str, paths: Sequence[str], asked: Asked) -> Page:
    if len(paths) > 1:
        return page_of_runs([Path(path) for path in paths], asked)
    if kind == "run":
        return page_of_run(Path(paths[0]), asked)
    if kind == "sweep":
        return page_of_sweep(Path(paths[0]))
    if kind == "guard":
        return page_of_guard(Path(paths[0]), asked)
    log = asked.load(paths[0])
    return log_page(log, asked.discount, asked.limit_of(log, asked.discount))


def page_of_run(path: Path, asked: Asked) -> Page:
    from ringfence.reports.html.run_page import run_page  # imports JAX

    run = Run.load(path)
    log, why_not = log_of(run, asked)
    limit = asked.limit_of(log, run.configuration.discount) if log is not None else None
    if limit is not None and not run.configuration.settings.get("limits"):
        raise InvalidSetting(f"{path} has a limit of its own; --limit is for a log, a range of limits or several runs")
    return run_page(run, log, why_not, None if limit is None else limit.discounted)


def page_of_runs(paths: Sequence[Path], asked: Asked) -> Page:
    """The limit, if one is given, is what `choose` takes."""
    from ringfence.reports.html.compare_page import compare_page  # imports JAX
    from ringfence.reports.html.compare_runs import runs_numbers  # imports JAX

    first = Run.load(paths[0])
    log, why_not = log_of(first, asked)
    limit = asked.limit_of(log, first.configuration.discount) if log is not None else None
    return compare_page(runs_numbers(paths, log, None if limit is None else limit.discounted, why_not))


def page_of_sweep(place: Path, described: Described | None = None) -> Page:
    from ringfence.reports.html.compare_page import compare_page  # imports JAX
    from ringfence.reports.html.compare_sweep import sweep_numbers  # imports JAX

    folder = place if described else sweep_folder(place)
    assert folder is not None
    return compare_page(sweep_numbers(folder, described))


def write_sweep_page(results: Path, described: Described | None = None) -> Path:
    """The page of an experiment, beside its tables: of the one that `experiment.json` names unless another is given."""
    require_bokeh()
    return write_page(page_of_sweep(results, described), results / NAME)


def page_of_guard(path: Path, asked: Asked) -> Page:
    """Compared with the training log, or with the policy alone, if one of them is named."""
    reference = None
    if asked.log is not None:
        reference = Policy.load(asked.log) if asked.log.endswith(".safetensors") else asked.load(asked.log)
    return guard_page(guard_numbers(path, reference))


def log_of(run: Any, asked: Asked) -> tuple[Any, str]:
    """The log that a run learned from, or None and why it is not there. One that the user names must be the right one."""
    if asked.log is not None:
        log = asked.load(asked.log)
        if log.fingerprint != run.configuration.log.fingerprint:
            raise InvalidSetting(f"{asked.log} is not the log that {run.path} was trained on (its fingerprint differs)")
        return log, ""
    try:
        log = api.log_of_run(run.path)
    except (RingfenceError, OSError) as error:
        return None, str(error)
    if log.fingerprint != run.configuration.log.fingerprint:
        return None, f"{log.name} has changed since the run learned from it"
    return log, ""


def write_run_page(run: Any, log: Any) -> Path:
    """The page of a run that has just ended, in its directory."""
    from ringfence.reports.html.run_page import run_page  # imports JAX

    require_bokeh()
    return write_page(run_page(run, log), run.directory.path / NAME)
