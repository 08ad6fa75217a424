"""What several verbs share: the parser, options about a log, and what they mean."""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn

from ringfence.errors import InvalidSetting
from ringfence.limits import DISCOUNT, Limit
from ringfence.values import LARGEST_COUNT

LOG_HELP = "a log file (.h5, .hdf5, .npz, .parquet, .csv), a Minari dataset, or a built-in task's name"
TASK_HELP = "a built-in task, a Gymnasium id, MODULE:ENV-ID, or MODULE:NAME of a class or function that makes it"
COST_HELP = "MODULE:FUNCTION for the cost of a step, where the task's info has none (see docs/your-own-simulator.md)"


LARGEST_SEED = 2**32 - 1
PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")


class Gather(argparse.Action):
    """Several words for one option. An option that is given twice has the words of both; argparse forgets the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        earlier = getattr(namespace, self.dest, None)
        given = [] if earlier is None or earlier is self.default else earlier
        setattr(namespace, self.dest, [*given, *values])


class Parser(argparse.ArgumentParser):
    """argparse, with errors on one line and with `Gather` for every option that takes a list."""

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        if options.get("nargs") == "+" and names[0].startswith("-"):
            options.setdefault("action", Gather)
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def add_verb(verbs: Any, name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> Parser:
    description, _, details = text.partition("\n")
    parser: Parser = verbs.add_parser(
        name,
        help=description,
        description=description,
        epilog=details.strip("\n") or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_log_options(parser: Parser) -> None:
    parser.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="OURS=THEIRS",
        help="what a Parquet or CSV file calls its columns, e.g. rewards=profit observations=speed,angle",
    )
    for bound, word in {"low": "least", "high": "greatest"}.items():
        parser.add_argument(
            f"--action-{bound}",
            type=float,
            nargs="+",
            metavar="X",
            help=f"the {word} action allowed: one number, or one per action (default: the file's, else from the log)",
        )
    parser.add_argument("--csv-delimiter", metavar="C", help="what divides the columns of a CSV file, e.g. ';'")
    parser.add_argument("--csv-decimal", metavar="C", help="the decimal point of a CSV file: . (default) or ,")
    parser.add_argument(
        "--discount", type=float, default=DISCOUNT, help=f"discount of rewards and costs (default {DISCOUNT})"
    )
    parser.add_argument("--limit", type=float, metavar="L", help="the most cost that is allowed")
    parser.add_argument(
        "--limit-kind",
        choices=("discounted", "episode", "step"),
        default="discounted",
        help="what L bounds: the discounted sum of costs from any state (default), an episode's total, or a step's mean",
    )
    parser.add_argument(
        "--horizon",
        type=float,
        metavar="H",
        help="steps in an episode, logged or simulated (default: the log's longest)",
    )


def whole(least: int, most: int = LARGEST_COUNT) -> Callable[[str], int]:
    """The type of an option that is a whole number within bounds."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most} is needed, not {text[:40]!r}")
        return number

    return parse


def picture(text: str) -> Path:
    """The type of an option that names a picture to be drawn."""
    path = Path(text)
    if path.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"a picture's name ends in {', '.join(PICTURES)}, not {path.name[:40]!r}")
    return path


def load_log(options: argparse.Namespace) -> Any:
    from ringfence import api

    return api.load(options.log, **reading_options(options))


def reading_options(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line says about how to read the log, as plain values: a run keeps them to read it again."""
    given = {
        "columns": asdict(parse_columns(options.columns)) if options.columns else None,
        "action_low": options.action_low,
        "action_high": options.action_high,
        "csv_delimiter": "\t" if options.csv_delimiter in ("\\t", "tab") else options.csv_delimiter,
        "csv_decimal": options.csv_decimal,
    }
    return {name: value for name, value in given.items() if value is not None}


def parse_columns(words: Sequence[str]) -> Any:
    """The `ColumnMapping` of words such as "rewards=profit" or "observations=speed,angle"; "costs=" leaves a column out.
    A name that has a comma of its own stands in double quotes, as it does in a CSV file."""
    from ringfence.data import ColumnMapping
    from ringfence.data.columnmapping import split_names

    given: dict[str, Any] = {}
    for word in words:
        ours, equals, theirs = word.partition("=")
        if not equals:
            known = ", ".join(field.name for field in fields(ColumnMapping))
            raise InvalidSetting(f"a column mapping is OURS=THEIRS with OURS one of {known}, not {word!r}")
        if ours in given:
            raise InvalidSetting(f"the column for {ours} is given twice")
        given[ours] = split_names(theirs) or None
    return ColumnMapping.of(given)


def limit_of(options: argparse.Namespace, log: Any, discount: float) -> Any:
    """The limit that was asked for, at the discount that is used: that of the method, where there is one."""
    if options.limit is None and options.limit_kind != "discounted":
        raise InvalidSetting(f"--limit-kind {options.limit_kind} says what a limit bounds: give the --limit too")
    return None if options.limit is None else _limit(options.limit, options, log, discount)


def limits_of(options: argparse.Namespace, log: Any, discount: float) -> tuple[Any, Any]:
    """Both ends of the range of limits that was asked for."""
    least, greatest = (_limit(value, options, log, discount) for value in options.limit_range)
    return least, greatest


def _limit(value: float, options: argparse.Namespace, log: Any, discount: float) -> Any:
    horizon = float(log.horizon) if options.horizon is None else options.horizon
    return Limit.of(value, options.limit_kind, discount=discount, horizon=horizon)


def note_what_is_given(parser: Parser) -> None:
    """Make the parser set `options.given`, the names of the options that the user typed. The others have their defaults."""
    standard = {action.dest: action.default for action in parser._actions if action.option_strings}
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            action.default = argparse.SUPPRESS
    run = parser.get_default("run")

    def complete_and_run(options: argparse.Namespace) -> int | None:
        options.given = {dest for dest in standard if hasattr(options, dest)}
        for dest, default in standard.items():
            if not hasattr(options, dest):
                setattr(options, dest, default)
        result: int | None = run(options)
        return result

    parser.set_defaults(run=complete_and_run)


def refuse(given: Collection[str], why: str) -> None:
    """Raise if any of these options, which have no effect here, was given."""
    if given:
        raise InvalidSetting(f"{', '.join('--' + name.replace('_', '-') for name in sorted(given))}: {why}")


def warn_of_unfinished(policies: Mapping[str, Any]) -> None:
    """Warn of policies whose training was stopped early."""
    for name, policy in policies.items():
        done, planned = (policy.metadata.get(name) for name in ("steps_done", "steps_planned"))
        if done is not None and planned is not None and done < planned:
            print(f"warning: {name} had {done:,} of {planned:,} planned steps of training", file=sys.stderr)


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE words; a value is JSON where it is valid JSON, else text."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InvalidSetting(f"--set takes NAME=VALUE, not {pair!r}")
        if name in settings:
            raise InvalidSetting(f"--set gives {name} twice; keep the one that is meant")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings
