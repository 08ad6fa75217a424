"""The pages speak of the code as it is: names in backticks, links, defaults."""

import argparse
import ast
import inspect
import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import ringfence
from ringfence import algorithms
from ringfence.algorithms import (
    BC,
    CBPL,
    CPQ,
    BCQLag,
    BCSafe,
    BEARLag,
    PaperCPQ,
    cpq_clone,
    cpq_departures,
    cpq_expected,
    cpq_handout,
    cpq_imagined,
)
from ringfence.cli import build_parser
from ringfence.data import summarise
from ringfence.deploy import guard_rules, reference
from ringfence.deploy.guard_rules import Rules
from ringfence.evaluation import evaluate
from ringfence.evaluation.ope import Judge, calibration, choose, dynamics, features, fqe, judge, opinion, regression
from ringfence.evaluation.ope.judge import DRAWS, MOST_BACKED_UP, MOST_ROWS
from ringfence.evaluation.ope.judge_inputs import discount_of, steps_that_count
from ringfence.evaluation.ope.judgement import (
    LEAST_JUDGING,
    MOST_DISTANCE,
    MOST_ERROR,
    MOST_FOREIGN,
    MOST_FOREIGN_MODELLED,
    MOST_LEAVING,
)
from ringfence.experiments.paper import figure_grid
from ringfence.limits import DISCOUNT, Limit
from ringfence.reports.html.log_page import log_page
from ringfence.reports.html.pages import Asked
from ringfence.reports.judgement import SHORTER
from ringfence.reports.log import plot_summary
from ringfence.reports.theory import run_theory
from ringfence.steps import LEAST_STEPS, STEPS
from ringfence.tasks import Task
from ringfence.training import defaults
from ringfence.training.defaults import critic_steps, steps_of

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
OTHERS = sorted([*(ROOT / "results").rglob("*.md"), *(ROOT / "tests").rglob("*.md")])
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)

# Names of other projects' code, and of files that the reader is to make.
FOREIGN = {
    "docs/add-a-method.md": {"test_cautious_bc"},
    "docs/cluster.md": {"abfs"},
    "docs/speed.md": {"tensorfloat32", "taskset"},
    "docs/baselines.md": {
        "continuous_BCQ", "BCQ", "algos", "readme", "BCQ_L", "projects", "safe", "cppo_pid", "bear", "version", "sum_norm",
        "exponentiated_gradient", "fitted_off_policy_evaluation", "optimization_problem", "config_lake", "config_car",
        "replay_buffer",
    },
}  # fmt: skip


# Names


@cache
def vocabulary():
    """Every identifier in the code and every word of its strings, docstrings left out: they may be out of date as well."""
    words = set()
    files = [f for folder in ("src", "tests", "benchmarks") for f in (ROOT / folder).rglob("*.py")]
    for file in files:
        words |= set(file.relative_to(ROOT).with_suffix("").parts)
        if file == Path(__file__):
            continue
        tree = ast.parse(file.read_text())
        docstrings = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            for part in ("id", "attr", "name", "arg", "asname", "module"):
                value = getattr(node, part, None)
                if isinstance(value, str):
                    words |= set(value.split("."))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                words |= set(re.findall(r"[A-Za-z_]\w*", node.value))
    for file in ("Makefile", "pyproject.toml", "constraints.txt", ".gitignore"):
        words |= set(re.findall(r"[A-Za-z_]\w*", (ROOT / file).read_text()))
    return words


@cache
def options():
    """The options of every verb, and under "" of all together."""
    parser = build_parser()
    [verbs] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    found = {verb: {o for a in sub._actions for o in a.option_strings} for verb, sub in verbs.choices.items()}
    return {**found, "": {option for known in found.values() for option in known} | {"--version", "--help"}}


def code_spans(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return re.findall(r"`([^`\n]+)`", text.replace("\n", " "))


def unknown_in(span, page):
    """What a span of code names that is not there."""
    words = span.split()
    if words[0] == "ringfence" and len(words) > 1 and not words[1].startswith("--"):
        return [w for w in words[1:2] if w not in options()] or [
            w for w in words[2:] if w.startswith("--") and w.split("=")[0] not in options()[words[1]]
        ]
    if words[0] in ("make", "pip") or words[0].endswith("python"):
        named = words[0] == "make" and words[1:]
        return [w for w in named or () if not re.search(rf"^{re.escape(w)}:", (ROOT / "Makefile").read_text(), re.M)]
    if words[0] == "ringfence" or words[0].startswith("--"):
        ours = [w for w in words if w.startswith("--") and not w.startswith("--xla_")]
        return [w for w in ours if w.split("=")[0] not in options()[""]]
    places = (ROOT, ROOT / "docs", ROOT / "src" / "ringfence", ROOT / "tests" / "equations")
    if any((place / span).exists() for place in places):
        return []
    known = vocabulary() | FOREIGN.get(str(page.relative_to(ROOT)), set())
    names = re.findall(r"(?<![\w.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", span)
    parts = [part for name in names for part in name.split(".") if len(part) > 2]
    ours = [part for part in parts if not part.startswith(("JAX_", "CUDA_"))]
    return [part for part in ours if not {part, part.rstrip("0123456789")} & known] or unknown_of_ours(span)


def unknown_of_ours(span):
    """What a span such as `CPQ.paper(limit=30.0)` asks of a name of the package that it does not have."""
    try:
        tree = ast.parse(span.strip(), mode="eval")
    except SyntaxError:
        return []
    missing = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and inspect.isclass(owner := object_of(node.value)):
            fields_of = {field for kind in owner.__mro__ for field in getattr(kind, "__annotations__", {})}
            missing += [] if hasattr(owner, node.attr) or node.attr in fields_of else [node.attr]
        if isinstance(node, ast.Call) and callable(called := object_of(node.func)):
            parameters = inspect.signature(called).parameters
            free = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            missing += [k.arg for k in node.keywords if k.arg is not None and k.arg not in parameters and not free]
    return missing


def object_of(node):
    """The object of the package that an expression names, or None."""
    if isinstance(node, ast.Name):
        return ringfence if node.id == "ringfence" else getattr(ringfence, node.id, getattr(algorithms, node.id, None))
    if isinstance(node, ast.Attribute) and (owner := object_of(node.value)) is not None:
        return getattr(owner, node.attr, None)
    return None


@every_page
def test_every_name_in_backticks_exists(page):
    missing = {span: unknown for span in code_spans(page) if (unknown := unknown_in(span, page))}
    assert not missing


@pytest.mark.parametrize(
    "span", ["ood_cost", "CPQ.penalised_loss", "ringfence trian", "ringfence train --stepz 3", "--presett paper",
             "algorithms/cqp.py", "make tests", "CPQ(backup='floor')"],
)  # fmt: skip
def test_a_name_that_does_not_exist_is_found(span):
    assert unknown_in(span, PAGES[0])


@pytest.mark.parametrize(
    "span",
    ["PaperCPQ.update", "ringfence train --limit 30", "--preset paper", "algorithms/cpq.py", "make test", "tau=0.01"],
)
def test_a_name_that_exists_is_known(span):
    assert not unknown_in(span, PAGES[0])


# Placeholders


def placeholders_in(text):
    """Words such as SENTENCE_TO_COME outside code, in whose place a text was to come. T_P is mathematics."""
    prose = re.sub(r"`[^`]*`", "", re.sub(r"```.*?```", "", text, flags=re.S))
    return re.findall(r"\b[A-Z][A-Z0-9]+_[A-Z0-9_]*\b", prose)


@every_page
def test_no_placeholder_was_left(page):
    assert placeholders_in(page.read_text()) == []


def test_a_placeholder_is_found():
    text = "After `MAX_STEPS` steps: SENTENCE_TO_COME\n```\nexport A_B=1\n```\n`a\nB_C` and `d`, TABLE_2"
    assert placeholders_in(text) == ["SENTENCE_TO_COME", "TABLE_2"]


# Links


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "")).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert there.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(there), target


def test_the_readme_links_to_every_page():
    linked = re.findall(r"\]\(docs/([^)#]+)\)", (ROOT / "README.md").read_text())
    assert {page.name for page in (ROOT / "docs").glob("*.md")} == set(linked)


def test_contributing_says_where_every_package_and_module_is():
    source = ROOT / "src" / "ringfence"
    named = {span.split("/")[0] for span in code_spans(ROOT / "CONTRIBUTING.md")}
    assert {folder.parent.name for folder in source.glob("*/__init__.py")} <= named
    assert {file.name for file in source.glob("*.py") if not file.name.startswith("_")} <= named


# Defaults


def table_rows(page, first_cell):
    """The cells of the rows under a heading row that begins with this cell."""
    lines = page.read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(f"| {first_cell} |")]
    for start in starts:
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            yield [cell.strip() for cell in line.strip("|").split("|")]


def numbers(cell):
    """The numbers of a cell that holds numbers alone, with commas between them or inside them: 20,000 or 3e-4, 256."""
    words = [word.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", word) else word for word in cell.split(", ")]
    return [float(word) for word in words] if all(re.fullmatch(r"[\d.]+(e-?\d+)?", word) for word in words) else []


def quoted_defaults():
    """(page, class, setting, number): every default that a table of the docs quotes."""
    found = []
    for cells in table_rows(ROOT / "docs" / "cpq.md", "setting"):
        for kind, cell in ((CPQ, cells[1]), (PaperCPQ, cells[2])):
            names = re.findall(r"`(\w+)`", cells[0])
            if values := numbers(cell):
                found += [("cpq.md", kind, *pair) for pair in zip(names, values, strict=True)]
    kind = None
    sections = {"*BCQ*": BCQLag, "*BEAR*": BEARLag, "*CBPL*": CBPL, "*PID*": BCQLag}
    for cells in table_rows(ROOT / "docs" / "baselines.md", "constant"):
        kind = sections.get(cells[0], kind)
        names = [name for name in re.findall(r"`(\w+)`", cells[0]) if name in {f.name for f in fields(kind)}]
        if len(numbers(cells[1])) == len(names):
            found += [("baselines.md", kind, *pair) for pair in zip(names, numbers(cells[1]), strict=True)]
    return found


QUOTED = quoted_defaults()


def test_the_tables_quote_defaults():
    assert sum(page == "cpq.md" for page, *_ in QUOTED) >= 20
    assert sum(page == "baselines.md" for page, *_ in QUOTED) >= 15


@pytest.mark.parametrize(("page", "kind", "name", "value"), QUOTED, ids=lambda x: getattr(x, "__name__", str(x)))
def test_a_quoted_default_is_the_codes(page, kind, name, value):
    assert getattr(kind(), name) == pytest.approx(value)


def test_the_widths_of_the_networks_are_the_codes():
    ours, printed = (" x ".join(map(str, method.hidden)) for method in (CPQ(), PaperCPQ()))
    row = f"| `hidden`, the widths of the hidden layers | {ours} | {printed} |"
    assert row in (ROOT / "docs" / "cpq.md").read_text()


def test_how_many_steps_critics_need_is_said_once_and_is_what_the_verdict_says():
    text = (ROOT / "docs" / "cpq.md").read_text()
    section = text.split("## How many steps the critics need")[1].split("\n## ")[0]
    for method in (CPQ(), PaperCPQ()):
        needed = 3 / (method.tau * (1 - method.discount))
        assert f"{needed:,.0f}" in section
        assert f"{method.tau:g}" in section
    elsewhere = [page.name for page in PAGES if re.search(r"critics? (needs?|takes?) some [\d,]+", page.read_text())]
    assert elsewhere == []


def test_one_discount_is_the_default_everywhere():
    for function in (Limit, Limit.of, Task, summarise, plot_summary, log_page, Asked, Judge):
        assert inspect.signature(function).parameters["discount"].default == DISCOUNT, function
    for function in (judge, choose):  # the policy's own, or of one that has none:
        assert inspect.signature(function).parameters["discount"].default is None, function
    assert discount_of([lambda observations: observations], None) == DISCOUNT
    for method in algorithms.METHODS.values():
        assert method().discount == DISCOUNT, method
    assert build_parser().parse_args(["inspect", "log.csv"]).discount == DISCOUNT


def test_the_command_line_has_the_defaults_of_the_functions_it_calls():
    for words, function, compared in (
        ("evaluate policy --task t", evaluate, {"episodes", "seed"}),
        ("choose run", choose, {"confidence", "seed"}),
        ("reproduce figure1", figure_grid, {"seeds", "evaluate_every", "test_episodes", "scale"}),
        ("theory", run_theory, {"cases", "logs", "seed"}),
    ):
        options = build_parser().parse_args(words.split())
        for name in compared:
            given = getattr(options, name)
            default = inspect.signature(function).parameters[name].default
            assert (tuple(given) if isinstance(given, list) else given) == default, (words, name)


RULES = Rules()
OURS, PRINTED, BCQ, BEAR, OF_CBPL = map(steps_of, (CPQ(), PaperCPQ(), BCQLag(), BEARLag(), CBPL()))
IN_SENTENCES = [
    ("cpq.md", f"Without `--steps` the default makes {OURS:,}, or"),
    ("cpq.md", f"as many as their critics need, at least {LEAST_STEPS:,}: {PRINTED:,} with their own settings"),
    (
        "cpq.md",
        f"as its rounds have room for, at most {OF_CBPL:,}, and BC and BC-Safe, which have no critics, make {STEPS:,}",
    ),
    ("cpq.md", f"**Why {OURS:,} and not {critic_steps(CPQ().tau, CPQ().discount):,}**"),
    (
        "theory.md",
        f"its weight is {CPQ().recovery_weight:g} and its anchor {CPQ().anchor:g} (times 1 + {CPQ().termination_anchor:g} x",
    ),
    ("limits.md", f"Without `--steps` a range of limits makes {steps_of(CPQ(limits=(20.0, 60.0))):,} now"),
    ("cluster.md", f"The default makes {OURS:,} steps now: without `steps` a cell"),
    ("runs.md", f"CPQ's default makes {OURS:,}, more than they need"),
    ("cluster.md", f"as many as `ringfence train` does: CPQ {OURS:,}, BEAR-Lag {BEAR:,}, ..."),
    ("baselines.md", f"Without `--steps` a run makes {STEPS:,} steps, BCQ-Lagrangian and BEAR-Lagrangian {BCQ:,}"),
    ("add-a-method.md", f"computes what critics need); without it {STEPS:,} |"),
    ("deploy.md", f"outside the log's range by more than {RULES.range:.0%} of it"),
    ("deploy.md", f"{reference.QUANTILE:.0%} quantile of the log"),
    ("deploy.md", f"at least {guard_rules.LEAST_STILLNESS} steps"),
    ("deploy.md", f"after `patience` steps in a row ({RULES.patience})"),
    ("deploy.md", f"`release_after` quiet steps in a row ({RULES.release_after})"),
    ("deploy.md", f"`release_at` ({RULES.release_at})"),
    ("how-sure.md", f"sets episodes aside (`--holdout {defaults.HOLDOUT}`)"),
    ("how-sure.md", f"shorter than {SHORTER} times the log's"),
    ("how-sure.md", f"Logs of fewer than {defaults.LEAST_EPISODES_TO_HOLD_OUT} episodes are learned from whole"),
    ("how-sure.md", f"linear in {features.COUNT} fixed features"),
    ("how-sure.md", f"more unlike the log than {200 * fqe.FOREIGN:.0f} of 200 logged pairs"),
    ("how-sure.md", f"from {dynamics.LEAST_ROWS:,} rows on"),
    ("how-sure.md", f"each of {fqe.GROUPS} groups of episodes"),
    ("how-sure.md", f"A log of fewer than {fqe.GROUPS} episodes has as many groups as episodes"),
    ("how-sure.md", f"Each half needs {LEAST_JUDGING} episodes, and {dynamics.LEAST_ROWS:,} rows"),
    ("how-sure.md", f"Below {LEAST_JUDGING} judging episodes"),
    ("how-sure.md", f"at least {calibration.LEAST_ERROR:.0%}, widens every interval"),
    ("how-sure.md", f"if more than {MOST_FOREIGN:.0%} of the actions"),
    ("how-sure.md", f"or {MOST_FOREIGN_MODELLED:.0%} of its steps in the model"),
    ("how-sure.md", f"missed by more than {MOST_ERROR:.0%}"),
    ("how-sure.md", f"within {MOST_DISTANCE} of a source's noise"),
    ("how-sure.md", f"at most {MOST_LEAVING:.0%} of its episodes in the model leave"),
    ("how-sure.md", f"if the networks differ more than on {dynamics.USUAL:.0%} of logged rows"),
    ("how-sure.md", f"more disputed steps than {dynamics.USUAL_EPISODES:.0%} of logged episodes"),
    ("how-sure.md", f"At most {MOST_ROWS:,} rows judge"),
    ("how-sure.md", f"steps 2, 5, 7 and 10 take {MOST_BACKED_UP:,} of them"),
    ("how-sure.md", f"only {dynamics.BEHIND} of the column's standard deviation behind the level"),
    ("how-sure.md", f"A share of {regression.EARLY} of each batch is drawn from the early steps"),
    ("how-sure.md", f"{dynamics.DISTURBED} of the networks' error on rows that they have not seen"),
    ("how-sure.md", f"at least {opinion.LEAST_EFFECTIVE:.0f} effective episodes"),
    ("how-sure.md", f"within a factor of {opinion.MOST_APART:.0f} of 1"),
    ("how-sure.md", f"differ by less than {dynamics.ROUNDING:.1%} of its own standard deviation"),
    ("how-sure.md", f"roll-outs from the {dynamics.STARTS} first states"),
    ("how-sure.md", f"where backups decide (4) {DRAWS} draws are evaluated"),
    ("how-sure.md", f"(after {steps_that_count(0.99):,} steps at a discount of 0.99)"),
    ("how-sure.md", f"Where at most {dynamics.RARELY:.0%} of the logged episodes terminated"),
    ("cpq.md", f"at the rate `alpha_rate` ({PaperCPQ().alpha_rate:g})"),
    ("cpq.md", f"for {cpq_expected.EPISODES} whole episodes"),
    ("cpq.md", f"{cpq_expected.NOISE} of what a network leaves unexplained as noise"),
    ("cpq.md", f"is seen in {cpq_expected.SHAKEN_EPISODES} other episodes"),
    ("cpq.md", f"where the model gives termination more than {cpq_expected.TERMINATED}"),
    ("cpq.md", f"gains, from {1 - cpq_expected.FARTHEST} to {1 + cpq_expected.FARTHEST}"),
    ("cpq.md", f"averaged over its last {cpq_clone.CLONE_MEMORY} steps"),
    ("cpq.md", f"as it is and with a gain of {cpq_expected.CLONE_GAIN}"),
    ("cpq.md", f"{cpq_imagined.AIM} l for a gain up to 1; {cpq_handout.RAISED} l for a greater one"),
    (
        "cpq.md",
        f"with a gain of 1 (by {cpq_handout.MORE_EARLY_ENDS:.0%}), or than with the clone (by "
        f"{cpq_handout.MORE_THAN_CLONE:.0%})",
    ),
    ("cpq.md", f"only if it is expected to earn {cpq_handout.LEAD:.0%} more than the clone"),
    ("cpq.md", f"alone expects it to cost more than {cpq_handout.DISPUTED} l"),
    ("cpq.md", "({} to {}), and the slack is set by".format(*cpq_imagined.SLACK)),
    (
        "cpq.md",
        f"in the first {cpq_imagined.SETTLED:,} steps, where the model leaves more than {cpq_imagined.PREDICTED:.0%}",
    ),
    ("limits.md", f"if less than {cpq_departures.LEAST_SAFE:.0%} of the logged actions are safe"),
]


def test_the_table_of_limits_has_the_steps_that_the_page_says_were_measured():
    lines = (ROOT / "results" / "limits" / "rows.jsonl").read_text().splitlines()
    fewer, more = sorted({row["steps"] for row in map(json.loads, lines) if row["how"] == "range"})
    assert f"**Only {fewer:,} and {more:,} steps were measured.**" in (ROOT / "docs" / "limits.md").read_text()


def test_how_long_the_demo_takes_is_said_alike():
    (said,) = re.findall(r"make demo .*\((\w+ to \w+ minutes)\)", (ROOT / "Makefile").read_text())
    [verbs] = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert f"({said})" in verbs.choices["demo"].description
    assert re.findall(r"make demo .*: (\w+ to \w+ minutes)", (ROOT / "README.md").read_text()) == [said]


def test_methods_that_a_sentence_names_together_make_as_many_steps():
    assert PRINTED == BCQ == BEAR
    assert steps_of(BC()) == steps_of(BCSafe()) == OF_CBPL == STEPS


@pytest.mark.parametrize(("page", "sentence"), IN_SENTENCES)
def test_a_number_in_a_sentence_is_the_codes(page, sentence):
    """Percent signs stand apart in the docs."""
    text = " ".join((ROOT / "docs" / page).read_text().split())
    assert re.sub(r"(\d)%", r"\1 %", sentence) in text


# Numbers that were measured


def test_how_often_the_lower_bound_of_the_cost_held_is_that_of_the_results():
    """On Walker2d not always, elsewhere for every policy that was judged."""
    lines = (ROOT / "results" / "ope" / "policies.jsonl").read_text().splitlines()
    judged = [row for row in map(json.loads, lines) if row["judgeable"]]
    held = {(row["task"], row["policy"]): row["cost_lower"] <= row["true_cost"] for row in judged}
    walker = [kept for (task, _), kept in held.items() if task == "walker2d-torque"]
    assert all(kept for (task, _), kept in held.items() if task != "walker2d-torque")
    text = " ".join((ROOT / "docs" / "how-sure.md").read_text().split())
    assert f"HalfCheetah and Hopper, and for {sum(walker)} of {len(walker)} on Walker2d" in text


def test_the_judges_table_is_that_of_its_results():
    by_task = json.loads((ROOT / "results" / "ope" / "summary.json").read_text())["by task"]
    text = (ROOT / "docs" / "how-sure.md").read_text()
    tasks = ("tabular", "reactor", "halfcheetah-torque", "hopper-torque", "walker2d-torque")
    for signal in ("cost", "return"):
        (row,) = [
            line for line in text.splitlines() if line.startswith(f"| rank correlation of estimate and truth, {signal}")
        ]
        found = [cell.strip(" *") for cell in row.split("|")[3:8]]
        assert found == [f"{by_task[task][f'rank correlation of {signal}']:.2f}" for task in tasks]
    everything = by_task["all"]
    judged = everything["policies"] - everything["unjudgeable"]
    assert f"Measured on {everything['policies']} different policies" in text
    assert f"coverage {100 * everything['cover']:.1f} % of {judged}" in text


def test_what_cpq_earns_beside_the_baselines_is_what_the_demo_measured():
    demo = json.loads((ROOT / "results" / "demo" / "results.json").read_text())
    (cpq,) = [row for row in demo["policies"] if (row["policy"], row["limit"]) == ("CPQ", 30.0)]
    earned, cost = (cpq["summary"][name]["mean"] for name in ("return", "discounted cost"))
    text = " ".join((ROOT / "docs" / "baselines.md").read_text().split())
    assert f"CPQ on the same log earns {earned:.0f} at {cost:.1f} (one seed, {demo['seed']};" in text


def return_and_costs(row):
    return f"{row['return']:.0f}, {row['discounted_cost']:.1f}, {row['episode_cost'] / row['length']:.3f}"


def test_the_table_of_limits_is_that_of_its_results():
    """Returns and costs of each cell, and the ratios of the page worked out again."""
    lines = (ROOT / "results" / "limits" / "rows.jsonl").read_text().splitlines()
    rows = {(r["task"].split("-")[0], r["limit"], r["how"], r["steps"]): r for r in map(json.loads, lines)}
    cells = list(table_rows(ROOT / "docs" / "limits.md", "robot"))
    assert len(cells) == 10
    for robot, limit, alone, *ranged in cells:
        place = robot.lower(), float(limit)
        one = rows[*place, "separate", 15_000]
        assert alone == return_and_costs(one)
        for steps, (found, ratio) in {15_000: ranged[:2], 22_500: ranged[2:]}.items():
            row = rows[*place, "range", steps]
            assert found == return_and_costs(row)
            assert ratio == f"{row['return'] / one['return']:.2f}"
            assert row["discounted_cost"] <= row["limit"]
