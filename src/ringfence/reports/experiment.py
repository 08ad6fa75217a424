"""The report of an experiment: tables and figures of the results that are there."""

import warnings
from collections.abc import Collection
from pathlib import Path

from ringfence.reports.figures import SUFFIXES, curves_figure, limits_figure
from ringfence.reports.results import Described, gather
from ringfence.reports.tables import FORMATS, aggregate_table, results_table, write_table


def write_report(results: Path, described: Described | None = None) -> list[Path]:
    """Write what the finished cells in `results` give and return the files: the cells that `experiment.json` lists, or
    those of another description. Earlier versions are replaced, or removed where there is nothing to put in their place."""
    gathered = gather(results, described)
    if gathered.codes > 1:
        warnings.warn(f"{results} has results of {gathered.codes} different states of ringfence's code", stacklevel=2)
    written = write_table(results_table(gathered), results / "table", gathered.notes)
    aggregate = aggregate_table(gathered)
    if len(aggregate) > 1:
        written += write_table(aggregate, results / "aggregate", gathered.notes)
    if all(group.tested for group in gathered.groups):
        draw = limits_figure if gathered.varies_limit else curves_figure
        written += draw(gathered, results / "figure")
    remove_stale(results, written)
    return written


def remove_stale(results: Path, written: Collection[Path]) -> None:
    """An aggregate or a figure of an earlier report would stand beside a table of other numbers."""
    for name, suffixes in (("aggregate", FORMATS), ("figure", SUFFIXES)):
        for suffix in suffixes:
            file = results / f"{name}.{suffix.removeprefix('.')}"
            if file not in written:
                file.unlink(missing_ok=True)
