"""The page of a run: the verdict, what it earns and costs, where it differs from the operators, whether to believe it."""

from itertools import groupby
from typing import Any

import numpy as np

from ringfence.data import Dataset
from ringfence.limits import over_horizon
from ringfence.reports.html import plots
from ringfence.reports.html.again import command_of
from ringfence.reports.html.change_parts import change_parts
from ringfence.reports.html.health import health_parts, learning_plots
from ringfence.reports.html.limit_parts import limit_curves, limit_parts
from ringfence.reports.html.parts import (
    Cell,
    Command,
    Facts,
    Folded,
    Headline,
    Notice,
    Page,
    Part,
    Plot,
    Plots,
    Section,
    Table,
    Tone,
    Words,
    counted,
    number,
    row,
    share,
    short,
)
from ringfence.reports.html.run_numbers import Expectation, RunNumbers, named, run_numbers
from ringfence.training import Configuration, Run
from ringfence.training.verdict import DISAGREE, last_row

TONES: dict[str | None, Tone] = {
    "inside": "good", "outside": "bad", "unsure": "unsure", "no estimate": "unsure", "cannot tell": "unsure",
}  # fmt: skip
SUMS: dict[str | None, str] = {
    "cost critic": "cost critic, over an infinite horizon",
    "simulation": "simulation, to the end of its episodes",
}
MOST_HEADLINES = 3


def run_page(run: Run, log: Dataset | None, why_no_log: str = "", limit: float | None = None) -> Page:
    """`log` is the one that the run learned from; without it the page has no comparison with the operators. `limit` is where
    the page of a policy for a range of limits begins."""
    found = run_numbers(run, log, limit)
    changed, variants = change_parts(found)
    curves = limit_curves(run, log) if log is not None else ()
    by_limit, curve = limit_parts(
        curves,
        tuple(named(run, c.member) for c in curves),
        run.configuration,
        run.members[0].limit if limit is None else limit,
    )
    missing = (Notice(f"The log is not here, so the policy cannot be compared with it: {why_no_log}",
                      "name it with --log where it is now"),) if log is None else ()  # fmt: skip
    sections = (
        *((Section("The verdicts", (_verdict_table(found),)),) if len(run.members) > 1 else ()),
        Section("What it earns and what it costs", (*missing, *_comparison(found))),
        *((Section("Every limit of the range", by_limit),) if by_limit else ()),
        *((Section("Where it acts unlike the operators", changed),) if changed else ()),
        Section("Learning", learning_plots(run)),
        Section("Health", health_parts(run)),
        Section("What made it", _making(run)),
    )
    title = run.path.name if run.path is not None else run.configuration.method
    data = {**({"variants": variants} if variants else {}), **curve}
    return Page("run", title, _lead(run), sections, _headlines(found), data)


def _lead(run: Run) -> str:
    configuration = run.configuration
    limits = ", ".join(f"{limit:g}" for limit in sorted({member.limit for member in run.members}))
    ranged = configuration.settings.get("limits")
    limited = (
        f"with a limit of {limits}" if ranged is None else
        f"for every limit from {ranged[0]:g} to {ranged[1]:g} (experimental; watched at {limits})"
    )  # fmt: skip
    policies = counted(len(run.members), "policy", "policies")
    state = "" if run.finished else " The run has not finished; this is what it has reached."
    return (
        f"{policies} by {configuration.method} from {configuration.log.rows:,} steps of {configuration.log.name}, {limited} "
        f"on the discounted cost (at {configuration.discount:g}); "
        f"{configuration.schedule.steps:,} steps of training.{state}"
    )


def _headlines(found: RunNumbers) -> tuple[Headline, ...]:
    """The verdict of training, and what the episodes that were set aside say. Of many policies the counts."""
    members = found.run.members
    if len(members) > MOST_HEADLINES:
        inside = sum(verdict.inside for verdict in found.verdicts)
        tone: Tone = "good" if inside == len(members) else "unsure"
        text = "By the cost critic or by simulation; each policy is in the table below."
        return (Headline(f"{inside} of {len(members)} policies inside the limit", tone, text),)
    lines = []
    for member, verdict, judgement in zip(members, found.verdicts, found.judgements, strict=True):
        who = f"{named(found.run, member)}, " if len(members) > 1 else ""
        word = capitalised(f"{who}verdict of training: {verdict.judgement}")
        lines.append(Headline(word, TONES[verdict.judgement], verdict.words))
        if judgement is not None:
            cost, returned = judgement["cost"], judgement["returned"]
            least = f"at least {short(returned['lower'])}" if judgement.get("return_is_bounded") else "without a bound"
            text = (
                f"{capitalised(judgement['sentence'])}. Expected discounted cost {short(cost['value'])}, between "
                f"{short(cost['lower'])} and {short(cost['upper'])}; expected discounted return {short(returned['value'])}, "
                f"{least} (over {judgement['horizon']} steps, each bound "
                f"at {judgement['confidence']:.0%})."
            )
            word = capitalised(f"{who}judged by episodes set aside: {judgement['verdict'] or 'no limit'}")
            differ = {verdict.judgement, judgement["verdict"]} == {"inside", "outside"}
            advice = "; ".join(filter(None, (judgement["advice"], DISAGREE if differ else "")))
            lines.append(Headline(word, TONES.get(judgement["verdict"], ""), text, advice))
    return tuple(lines)


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _verdict_table(found: RunNumbers) -> Table:
    rows = []
    for verdict, judgement in zip(found.verdicts, found.judgements, strict=True):
        judged = (judgement or {}).get("verdict")
        cells = (
            Cell(verdict.judgement, None, TONES[verdict.judgement]),
            number(verdict.cost),
            Cell(SUMS.get(verdict.basis, "")),
        )
        rows.append(
            (number(verdict.seed), number(verdict.limit), *cells, Cell(judged or "", None, TONES.get(judged, "")))
        )
    headings = ("seed", "limit", "verdict", "discounted cost", "by", "by episodes set aside")
    return Table(headings, tuple(rows), tools=True, name="verdicts")


def _comparison(found: RunNumbers) -> tuple[Part, ...]:
    horizon = found.run.configuration.horizon
    logged = found.logged.means if found.logged is not None else ()
    headings = ("who", "by", "episodes", "return", "at least", "cost", "at most", "over the limit")
    table = Table(
        headings,
        tuple(_expectation_row(e) for e in (*logged, *found.expectations)),
        caption=f"Discounted (at {found.run.configuration.discount:g}) over {horizon} steps, the log's longest episode. The "
        f"critics' sums have no end; shown is what falls into {horizon} steps at a steady pace. The verdict of training "
        "compares the whole sum with the limit. Simulated episodes that are longer count up to there.",
        name="expectations",
    )
    plot, left_out = _comparison_plot(found)
    caption = "Points: logged episodes. Diamonds: their means. Stars: the policy, with the bounds of its estimate."
    caption += beyond_without_end(found.run)
    caption += plots.OUTSIDE if left_out else ""
    return Plots((Plot(plot, "Return against cost, on one horizon", caption),)), table


def beyond_without_end(run: Run) -> str:
    """What the picture, over the log's horizon, does not show: a critic's sum that breaks the limit later on."""
    part = over_horizon(1.0, run.configuration.discount, run.configuration.horizon)
    later = []
    for member in run.members:
        cost = last_row(run.metrics, member, "policy").get("qc_start")
        if cost is not None and part * cost <= member.limit < cost:
            later.append(f"{named(run, member)} costs {short(cost)}")
    if not later:
        return ""
    return f" Inside the limit over these steps, but by the critics outside it over an infinite horizon: {'; '.join(later)}."


def _expectation_row(e: Expectation) -> tuple[Cell, ...]:
    episodes = Cell("") if e.episodes is None else number(e.episodes)
    unbounded = e.most_cost is not None and e.least_return is None
    return (
        *row(e.name, e.evidence), episodes, number(e.returned), Cell("no bound") if unbounded else number(e.least_return),
        number(e.cost), number(e.most_cost), share(e.over_limit),
    )  # fmt: skip


def _comparison_plot(found: RunNumbers) -> tuple[object, bool]:
    """The figure, and whether something lies too far outside to be in it."""
    horizon = found.run.configuration.horizon
    plot = plots.blank(f"discounted cost over {horizon} steps", f"discounted return over {horizon} steps")
    everything = (*(found.logged.means if found.logged is not None else ()), *found.expectations)
    height = float(np.mean([e.returned for e in everything])) if everything else 0.0
    count, marks = 0, []
    if found.logged is not None:
        logged, count = found.logged, len(found.logged.names)
        for code, (name, mean) in enumerate(zip(logged.names, logged.means, strict=True)):
            mine, hue = logged.codes == code, plots.colour(code)
            plots.dots(plot, name, logged.costs[mine], logged.returns[mine], hue=hue, size=4, alpha=0.35)
            labels = {"name": np.array([mean.name]), "by": np.array(["mean in the log"])}
            marks.append(
                plots.dots(
                    plot, None, [mean.cost], [mean.returned], hue=hue, size=13, marker="diamond", alpha=1, **labels
                )
            )
    for index, e in enumerate(found.expectations):
        hue = plots.colour(count + index)
        bounds = {"x_bounds": (e.least_cost, e.most_cost), "y_bounds": (e.least_return, e.most_return)}
        known: dict[str, Any] = {
            name: [np.array([value]) for value in pair] for name, pair in bounds.items() if None not in pair
        }
        plots.whiskers(plot, [e.cost], [e.returned], **known, hue=hue)
        labels = {"name": np.array([e.name]), "by": np.array([e.evidence])}
        label = f"{e.name}: {e.evidence}"
        marks.append(
            plots.dots(plot, label, [e.cost], [e.returned], hue=hue, size=17, marker="star", alpha=1, **labels)
        )
    plots.hover(plot, marks, {"who": "@name", "by": "@by", "cost": "@x", "return": "@y"})
    for limit in sorted({member.limit for member in found.run.members}):
        plots.limit_line(plot, limit, beside=height)
    plots.add_legend(plot, "limit", plots.LIMIT_COLOUR, "dashed")
    costs = [x for e in everything for x in (e.cost, e.least_cost, e.most_cost)] + [m.limit for m in found.run.members]
    returns = [x for e in everything for x in (e.returned, e.least_return, e.most_return)]
    if found.logged is not None:
        costs, returns = costs + found.logged.costs.tolist(), returns + found.logged.returns.tolist()
    left_out = [plots.without_outliers(plot.x_range, costs), plots.without_outliers(plot.y_range, returns)]
    return plot, any(left_out)


def _making(run: Run) -> tuple[Part, ...]:
    configuration = run.configuration
    command = command_of(configuration)
    in_memory = (
        "" if configuration.log.origin else " (the log was given in memory: write it to a file and name it as LOG)"
    )
    again: tuple[Part, ...] = (
        (Words(f"The command that makes it again{in_memory}:"), Command(command)) if command else
        (Words("It was trained for several limits in one program: see ringfence.train(..., limits=...) in Python."),)
    )  # fmt: skip
    log = configuration.log
    facts = {
        "log": log.name, "rows": f"{log.rows:,}", "fingerprint of the log": log.fingerprint, "method": configuration.method,
        "seeds": ", ".join(str(seed) for seed in sorted({m.seed for m in run.members})),
        "task": str(configuration.task or "none"), **{name: str(value) for name, value in configuration.versions.items()},
        **{f"computed by: {name}": words for name, words in _computed_by(configuration).items()},
    }  # fmt: skip
    settings = tuple(row(name, str(value)) for name, value in configuration.settings.items() if name != "limit")
    schedule = tuple(row(name, str(value)) for name, value in vars(configuration.schedule).items())
    return (
        *again,
        Facts(tuple(facts.items())),
        Folded("All settings", (Table(("setting", "value"), (*settings, *schedule), name="settings"),)),
    )


def _computed_by(configuration: Configuration) -> dict[str, str]:
    """What computed the run: in order, where it was resumed under another computation."""
    names = dict.fromkeys(name for entry in configuration.computed_by for name in entry)
    of_each = {name: [str(entry.get(name, "not recorded")) for entry in configuration.computed_by] for name in names}
    return {name: ", then ".join(value for value, _ in groupby(values)) for name, values in of_each.items()}
