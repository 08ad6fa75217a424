"""Judgements and choices in words and tables."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringfence.evaluation.ope.calibration import SourceCheck
from ringfence.evaluation.ope.choose import Choice
from ringfence.evaluation.ope.judgement import Judgement, RowsWere, percent
from ringfence.evaluation.ope.tail import WORST
from ringfence.training.verdict import DISAGREE, Verdict


def print_judgements(judgements: Sequence[Judgement], console: Console) -> None:
    """A line per policy and per source of the log, then each verdict."""
    first = judgements[0]
    console.print(table_of(judgements))
    say(
        f"Discounted (at {first.discount:g}) over {first.horizon} steps, from {first.rows:,} rows. {rows_words(judgements)} "
        f"Bounds are one-sided, each at {percent(first.confidence)}. `logged`: what the behaviours got.",
        console,
    )
    for judgement in judgements:
        prefix = f"{judgement.name}: " if len(judgements) > 1 else ""
        say(f"{prefix}{judgement.sentence}", console)
        for line in details(judgement):
            say(f"  {line}", console)


def say(sentence: str, console: Console) -> None:
    """A sentence as it is: names of policies and sources may hold brackets, which are Rich's markup."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


ROWS_WERE: dict[RowsWere, str] = {
    "not learned from": "{} learned from none of them (compared number for number)",
    "learned from": "{} LEARNED FROM them, or from some of them",
    "unknown": "whether {} learned from them is not known",
}


def rows_words(judgements: Sequence[Judgement]) -> str:
    """Whether the policies learned from the rows that judge them, as far as it is known."""
    found = {judgement.rows_were for judgement in judgements}
    if len(found) == 1:
        words = ROWS_WERE[found.pop()].format("the policy" if len(judgements) == 1 else "the policies")
    else:
        words = "; ".join(ROWS_WERE[judgement.rows_were].format(judgement.name) for judgement in judgements)
    return f"{words[0].upper()}{words[1:]}."


COLUMNS = ("return", "at least", "cost", "at least", "at most", "over limit", "worst tenth", "foreign", "episodes")
TITLE = "judged from the log alone"
UNSURE = "?: the log cannot judge this policy; the number is no estimate to rely on."


def table_of(judgements: Sequence[Judgement], title: str = TITLE) -> Table:
    """Narrow enough for a terminal of 80 columns. What is said of a policy that cannot be judged has a question mark."""
    unsure = any(not judgement.judgeable for judgement in judgements)
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False,
        caption=UNSURE if unsure else None, caption_justify="left",
    )  # fmt: skip
    table.add_column("", overflow="fold")
    for column in COLUMNS:
        table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
    for judgement in judgements:
        table.add_row(escape(judgement.name), *cells_of(judgement))
    for source in judgements[0].sources:
        table.add_row(
            f"{escape(source.name)} (logged)", f"{source.returned:.4g}", "", f"{source.cost:.4g}", "", "", "", "", "",
            str(source.episodes),
        )  # fmt: skip
    return table


def cells_of(judgement: Judgement) -> list[str]:
    """What `COLUMNS` hold."""
    returned, cost, support = judgement.returned, judgement.cost, judgement.support
    mark = "" if judgement.judgeable else "?"
    over = "" if judgement.share_over_limit is None else f"{judgement.share_over_limit:.0%}{mark}"
    return [
        f"{returned.value:.4g}{mark}",
        f"{returned.lower:.4g}" if judgement.return_is_bounded else "no\nbound",
        *(f"{x:.4g}{mark}" for x in (cost.value, cost.lower, cost.upper)),
        over,
        f"{judgement.worst_tenth:.4g}{mark}",
        f"{support.foreign_on_path:.0%}",
        f"{support.effective_episodes:.0f}",
    ]


def details(judgement: Judgement) -> list[str]:
    """What the verdict rests on."""
    checks = ", ".join(
        f"{source.name} cost {source.estimated_cost:.4g}{in_model(source)} for {source.cost:.4g}"
        for source in judgement.sources
    )
    lines = [
        f"checked on the log's own behaviours: {checks}",
        *unchecked_line(judgement),
        *costless_line(judgement),
        f"uncertainty of the cost by backups: {judgement.sampling_spread:.2g} from the sample of episodes, "
        f"{judgement.calibration_spread:.2g} from that check (standard deviations)",
        *model_line(judgement),
        judgement.return_note,
        tail_line(judgement),
        f"second opinion: {judgement.second_opinion}",
    ]
    if judgement.advice:
        lines.append(f"what would help: {judgement.advice}")
    return lines


def unchecked_line(judgement: Judgement) -> list[str]:
    if not judgement.unchecked:
        return []
    names = ", ".join(judgement.unchecked)
    return [f"not checked, because they have no whole reference episode: {names}. The error there is not known"]


def costless_line(judgement: Judgement) -> list[str]:
    """Where no judging episode cost anything: how many could have without being seen (exact binomial bound)."""
    if judgement.costly or not judgement.episodes:
        return []
    share = 1 - (1 - judgement.confidence) ** (1 / judgement.episodes)
    return [
        f"no step of the {judgement.episodes} judging episodes cost anything. That shows only that at most {share:.1%} of "
        f"such episodes do (at {percent(judgement.confidence)}), and nothing of how much they cost then"
    ]


def in_model(source: SourceCheck) -> str:
    return "" if source.modelled_cost is None else f" (in the model {source.modelled_cost:.4g})"


SHORTER = 0.9  # an episode that lasts less than this share of the log's ends early


def model_line(judgement: Judgement) -> list[str]:
    if judgement.modelled is None:
        return noisy_line(judgement)
    return [
        *length_line(judgement),
        f"cost by backups alone {judgement.backups.value:.4g}, in a model of the plant {judgement.modelled.value:.4g}; "
        f"{judgement.support.foreign_modelled:.0%} of the steps in the model are unlike the log, and "
        f"{judgement.support.leaving:.0%} of the episodes come to states on which its networks contradict each other",
    ]


def noisy_line(judgement: Judgement) -> list[str]:
    if not judgement.noisy:
        return []
    return [
        "judged without a model of the plant: roll-outs leave noise out, and a good part of the changes of "
        f"{', '.join(judgement.noisy)} does not follow from state and action"
    ]


def length_line(judgement: Judgement) -> list[str]:
    """How long the policy's episodes last, where that is shorter than the log's: what ends early costs little."""
    steps, logged = judgement.modelled_steps, judgement.logged_steps
    if steps is None or steps >= SHORTER * logged:
        return []
    return [
        f"IT MAY FAIL EARLY: in the model its episodes last {steps:.0f} of {judgement.horizon} steps, the log's "
        f"{logged:.0f}. What ends early costs little, so a cost inside the limit says nothing of that"
    ]


def tail_line(judgement: Judgement) -> str:
    line = f"the worst {WORST:.0%} of episodes cost {judgement.worst_tenth:.4g}, at most {judgement.worst_tenth_at_most:.4g}"
    if judgement.share_over_limit is not None:
        line += (
            f"; {judgement.share_over_limit:.0%} of episodes are over the limit, at most "
            f"{judgement.share_over_limit_at_most:.0%}"
        )
    wider = "" if judgement.modelled is None else " or in the model, whichever is worse"
    return f"{line}, if costs scatter as they do in the log{wider}"


def print_disagreements(verdicts: Sequence[Verdict], judgements: Sequence[Judgement], console: Console) -> None:
    """Where the verdict of training and the episodes set aside say the opposite of each other."""
    for verdict, judgement in zip(verdicts, judgements, strict=False):
        if {verdict.judgement, judgement.verdict} == {"inside", "outside"}:
            prefix = f"{judgement.name}: " if len(judgements) > 1 else ""
            say(f"{prefix}{DISAGREE}.", console)


def print_choice(choice: Choice, console: Console) -> None:
    console.print(table_of(choice.candidates))
    first = choice.candidates[0]
    say(f"Discounted (at {first.discount:g}) over {first.horizon} steps.", console)
    for candidate in choice.candidates:
        say(f"{candidate.name}: {candidate.sentence}", console)
    if choice.second_looks:
        again = choice.second_looks[0]
        console.print(table_of(choice.second_looks, f"judged again, by other episodes, at {percent(again.confidence)}"))
        for look in choice.second_looks:
            say(f"{look.name}: {look.sentence}", console)
    say(f"chosen: {choice.chosen or 'none'}. {choice.reason}", console)
