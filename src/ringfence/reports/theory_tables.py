"""The tables of `ringfence theory`: the paper's claims, what can be promised instead, and every method, for the terminal
and as Markdown."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table as RichTable

from ringfence.tabular.methods import TIE_NAMES

PAPER_TITLE, PROMISE_TITLE = "The paper's claims, computed", "What can be promised instead"

Row = tuple[str, str, str]


def paper_rows(numbers: dict[str, Any]) -> list[Row]:
    """One line per claim of the paper: what it says, what was found, and a verdict."""
    one, operator, cpq = numbers["theorem1"], numbers["operator"], numbers["cpq"]
    small, exact, noisy = numbers["counterexamples"], cpq["theorem2_exact"], cpq["theorem2_noisy"]
    cases, fails, runs = one["cases"], one["alpha_fails"], exact["cases"] + noisy["cases"]
    ratio = {
        name.replace("_", " "): _median(noisy["bound_over_gap"][name], ".0f")
        for name in ("as_stated", "as_sketched", "corrected", "concentrated")
    }

    def broken(bound: str) -> str:
        return f"fails in {exact['fails'][bound] + noisy['fails'][bound]} of {runs}"

    return [
        ("Theorem 1, fixed point", f"largest relative error {one['fixed_point_error']:.1e} in {cases}", "holds"),
        ("Theorem 1, printed α read on the diagonal", f"too small in {fails['diagonal']} of {cases}", "holds"),
        ("… read as an operator", f"too small in {fails['operator']} of {cases}", "fails"),
        ("… read as a row sum", f"too small in {fails['row sum']} of {cases}", "fails"),
        (
            "our α: 2ε max(l − Qc); pair by pair",
            f"too small in {fails['ours']} and {fails['pair by pair']} of {cases}; over the least, medians "
            f"{_median(one['our_alpha_over_smallest'], '.1f')} and {_median(one['pair_by_pair_over_smallest'], '.1f')}",
            "holds",
        ),
        (
            "penalized operator contracts (max norm; not claimed)",
            f"largest ratio {operator['over_discount']:.2f} × discount in {operator['cases']}",
            "holds",
        ),
        (
            "0 is pessimistic (the paper assumes r ≥ 0)",
            f"with negative rewards CPQ pays {small['negative_rewards_cost_floor_0']:g} against a limit of "
            f"{small['negative_rewards_limit']:g}; with a low floor {small['negative_rewards_cost_low_floor']:g}",
            "needs r ≥ 0",
        ),
        *(_limit_row(ties, name, cpq) for ties, name in TIE_NAMES.items()),
        (
            "Theorem 2.2 as stated, exact operators",
            f"bound 0 but gap > 0 in {exact['fails']['as_stated']} of {exact['cases']}",
            "fails",
        ),
        ("Theorem 2.2 with the sketch's δ", f"{broken('as_sketched')}; see the counter-examples", "measured"),
        ("our bound for Theorem 2.2", broken("corrected"), "holds"),
        ("median bound / gap, noisy Qr", ", ".join(f"{name} {value}" for name, value in ratio.items()), "loose"),
    ]


def _limit_row(ties: str, name: str, cpq: dict[str, Any]) -> Row:
    found = cpq["ties"][ties]
    ends, slow = found["ends"], found["slow"]["inside_limit_from_start"]
    return (
        f"Theorem 2.1, lim Vc ≤ l, {name} where nothing is safe",
        f"{ends['converged']} converge ({found['converged_outside_the_limit']} of them outside), {ends['cycle']} cycle; "
        f"slow policy inside in {slow:.0%} of {cpq['cases']}",
        "fails",
    )


def promise_rows(numbers: dict[str, Any]) -> list[Row]:
    """One line per statement of ours: proved ones hold, the others are measured."""
    settling, default, samples, projected = (numbers[key] for key in ("settling", "default", "samples", "projected"))
    recovery, stay = settling["ties"]["least cost"], settling["ties"]["stay"]
    broken, errors = samples["broken"], samples["median_error"]
    return [
        (
            "ceilings and suboptimality bounds of the default",
            f"broken {default['bounds_broken']} times in {default['cases']} CMDPs",
            "holds",
        ),
        (
            "ceiling on Vc of any fixed point, over l",
            f"median {_median(default['ceiling_over_limit'], '.2f')}; with the hinge's slack "
            f"{_median(default['ceiling_with_slack_over_limit'], '.2f')}",
            "holds",
        ),
        *(
            (
                f"default: {name}",
                f"inside in {found['inside_limit_from_start']:.0%}, from each state in "
                f"{found['inside_limit_from_each_state']:.0%}; median return "
                f"{_median(found['return_over_optimum'], '.0%')} of the optimum",
                "measured",
            )
            for name, found in default["settings"].items()
        ),
        (
            "slow CPQ hovers: average over rounds",
            f"bound broken in {settling['hover_bound_broken']} of {settling['cases']}",
            "holds",
        ),
        (
            "slow CPQ, recovery: late rounds from the start",
            f"over l in {recovery['ever_over_limit_from_start']} of {settling['cases']}, by at most "
            f"{max(recovery['most_over_limit_in_limits'], 0):.0%}",
            "measured",
        ),
        (
            "slow CPQ, stays put: late rounds from the start",
            f"over l in {stay['ever_over_limit_from_start']} of {settling['cases']}; trapped at once in "
            f"{stay['trapped_at_start']}",
            "measured",
        ),
        (
            f"Vc from a log, with probability {1 - samples['delta']:g}",
            f"broken in {broken['worst_model']} (worst model), {broken['judge']} (judge) of {samples['logs']} logs; without "
            f"a bound in {broken['counted']}",
            "holds",
        ),
        (
            "error of that bound by rows (worst model / judge)",
            "; ".join(f"{rows}: {found['worst_model']:.2f} / {found['judge']:.2f}" for rows, found in errors.items()),
            "measured",
        ),
        (
            "operator in the log's norm",
            f"expands in {projected['expands_in_log_norm']} of {projected['cases']}, linear critic diverges in "
            f"{projected['linear_critic_diverges']}",
            "measured",
        ),
        (
            "diverging example: growth per round by anchor",
            ", ".join(f"{weight}: {found['factor']:.2f}" for weight, found in projected["diverging_example"].items()),
            "holds",
        ),
    ]


def claims_table(title: str, rows: Sequence[Row]) -> RichTable:
    table = RichTable(title=title, show_lines=False)
    for heading in ("claim", "found", "verdict"):
        table.add_column(heading, overflow="fold")
    colours = {"holds": "green", "fails": "red"}
    for claim, found, verdict in rows:
        table.add_row(claim, found, f"[{colours.get(verdict, 'yellow')}]{verdict}")
    return table


METHOD_HEADINGS = ("method", "return", "cost", "return from logs", "cost from logs", "logs over limit")


def method_rows(numbers: dict[str, Any]) -> list[list[str]]:
    """One line per method: exact (a cycle has several values), then means over the sampled logs."""
    rows = []
    for method, row in numbers["methods"].items():
        exact = [" / ".join(map(_short, row[key])) if key in row else "" for key in ("return", "cost")]
        drawn = row.get("from_logs")
        logs = [f"{drawn['return']:.3g}", f"{drawn['cost']:.3g}", f"{drawn['over_limit']:.0%}"] if drawn else [""] * 3
        rows.append([method, *exact, *logs])
    return rows


def methods_table(name: str, numbers: dict[str, Any]) -> RichTable:
    table = RichTable(title=f"{name}: limit {numbers['limit']:g}")
    for heading in METHOD_HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in method_rows(numbers):
        table.add_row(*row)
    return table


def markdown(numbers: dict[str, Any]) -> str:
    """All tables as one Markdown page; docs/theory.md quotes it."""

    def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        lines = [headings, ["---"] * len(headings), *rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    parts = [
        f"# Theory, computed\n\nMade by `ringfence theory --seed {numbers['seed']}`; docs/theory.md explains each line.",
        f"## {PAPER_TITLE}\n\n" + table(("claim", "found", "verdict"), paper_rows(numbers)),
        f"## {PROMISE_TITLE}\n\n" + table(("claim", "found", "verdict"), promise_rows(numbers)),
    ]
    for name, found in numbers["examples"].items():
        logs = next(row["from_logs"]["logs"] for row in found["methods"].values() if "from_logs" in row)
        title = f"## {name}, limit {found['limit']:g}, {logs} logs"
        parts.append(f"{title}\n\n" + table(METHOD_HEADINGS, method_rows(found)))
    return "\n\n".join(parts) + "\n"


def _median(quartiles: dict[str, float | None], form: str) -> str:
    """The median, or a dash where there was no case."""
    return "–" if quartiles["median"] is None else format(quartiles["median"], form)


def _short(value: float) -> str:
    """Three digits, and rounding errors shown as 0."""
    return f"{round(value, 9):.3g}"
