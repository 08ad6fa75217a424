"""The verb that makes a page for the browser: `ringfence report`."""

import argparse
from pathlib import Path
from typing import Any

from ringfence.cli.options import add_log_options, add_verb, limit_of, note_what_is_given, reading_options, refuse
from ringfence.training.configuration import READING

ALWAYS = {"out", "overwrite"}
A_LIMIT = {"limit", "limit_kind", "horizon"}
HONOURED = {  # the options that a page of each kind takes; a run has its own discount
    "log": {*ALWAYS, *READING, *A_LIMIT, "discount"},
    "run": {*ALWAYS, *READING, *A_LIMIT, "log"},
    "sweep": ALWAYS,
    "guard": {*ALWAYS, *READING, "log"},
}


def add_report(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "report",
        report,
        "make a page for the browser of a log, a run, several runs, a sweep or a guard's log\n"
        "examples:\n"
        "  ringfence report my_logs.parquet --limit 30 --out my_logs.html\n"
        "  ringfence report runs/my_run\n"
        "  ringfence report runs/my_run runs/other_run --out compared.html\n"
        "  ringfence report sweeps/grid\n"
        "  ringfence report guard.jsonl --log my_logs.parquet\n\n"
        "The page is one file that needs no network. That of a run or a sweep goes into its directory, others into "
        "report.html, unless --out names another file.",
    )
    parser.add_argument("paths", nargs="+", metavar="LOG|RUN|SWEEP", help="what the page is about")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the page")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.add_argument(
        "--log", metavar="LOG", help="the log of a run, if it has moved; for a guard, the training log or the policy"
    )
    add_log_options(parser)
    note_what_is_given(parser)


def report(options: argparse.Namespace) -> None:
    from ringfence import api
    from ringfence.reports.html.pages import Asked, kind_of_all, report

    kind = kind_of_all(options.paths)
    refuse(options.given - HONOURED[kind], f"a page of a {kind} has no use for it")
    if kind != "log" and options.log is None:
        refuse(options.given & set(READING), "only for a LOG that is named")
    asked = Asked(
        load=lambda source: api.load(source, **reading_options(options)),
        limit_of=lambda log, discount: limit_of(options, log, discount),
        discount=options.discount,
        log=options.log,
    )
    print(f"page: {report(options.paths, asked, options.out, overwrite=options.overwrite)}")
