"""The command line: one verb per function, no logic. Heavy imports wait until a verb needs them."""

import io
import sys
import warnings
from collections.abc import Sequence

from ringfence import __version__
from ringfence.cli.deploy import add_export
from ringfence.cli.doctor import add_doctor
from ringfence.cli.experiments import add_reproduce, add_sweep
from ringfence.cli.faults import report as report_fault
from ringfence.cli.judging import add_choose, add_judge
from ringfence.cli.logs import add_behaviour, add_collect, add_inspect
from ringfence.cli.options import Parser
from ringfence.cli.policies import add_evaluate, add_methods
from ringfence.cli.report import add_report
from ringfence.cli.shows import add_demo, add_theory
from ringfence.cli.training import add_train


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. 0 if it worked, 2 for a request that cannot be met, 1 if the machine (or ringfence) failed, 3 if a
    limit that was required does not hold, 130 if interrupted."""
    show_what_cannot_be_encoded()
    options = build_parser().parse_args(arguments)
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        status = int(options.run(options) or 0)
        if sys.stdout is not None:  # as after `>&-`
            sys.stdout.flush()  # a full disk behind `> file` shows here
        return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        sys.stderr.close()
        return 0
    except Exception as error:
        return report_fault(error, options.verb)


def show_what_cannot_be_encoded() -> None:
    """Where the output is not UTF-8, a character that its encoding lacks is written by its number; nothing is raised."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def build_parser() -> Parser:
    parser = Parser(prog="ringfence", description="Learn a safe policy from logged data.")
    parser.add_argument("--version", action="version", version=f"ringfence {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    for add in (
        *(add_inspect, add_train, add_evaluate, add_methods, add_collect, add_behaviour, add_theory, add_demo),
        *(add_judge, add_choose, add_reproduce, add_sweep, add_report, add_export, add_doctor),
    ):
        add(verbs)
    return parser
