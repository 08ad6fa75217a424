"""Whether a policy is inside its limit, by what evidence, and whether to believe it.

A cost critic's value is a discounted sum over an infinite horizon; logged episodes stop at the log's horizon, simulated
ones at the task's. Each sentence says which it means. A critic is held to the limit over an infinite horizon, the
stricter of the two readings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ringfence.limits import over_horizon
from ringfence.training import defaults
from ringfence.training.configuration import Configuration, Member
from ringfence.training.handed_out import HandedOutFacts

Row = dict[str, Any]
Judgement = Literal["inside", "outside", "unsure", "no estimate"]
ALMOST_ALL = 0.99  # of a sum over an infinite horizon: where the log's horizon covers more, one number stands for both
DISAGREE = (
    "the critic above says otherwise: it counts over an infinite horizon, and it trained the policy. This judgement is "
    "over the log's horizon, by episodes that training did not see. Until you know why they differ, plan for the "
    "worse of the two"
)


@dataclass(frozen=True)
class Verdict:
    """`inside` and `outside` are said of a simulation, or of a cost critic; `unsure` of a critic that says inside after
    fewer steps than critics need (`defaults.critic_steps`: CPQ makes more by default), or with warnings; `no estimate` of
    a method that has no cost critic."""

    seed: int
    limit: float
    judgement: Judgement
    basis: Literal["simulation", "cost critic"] | None
    cost: float | None  # what the basis says: a discounted cost
    steps: int  # of the policy's training, done
    steps_planned: int
    words: str

    @property
    def inside(self) -> bool:
        return self.judgement == "inside"


def judge(
    configuration: Configuration,
    member: Member,
    metrics: Sequence[Row],
    evaluations: Sequence[Row],
    warnings: Sequence[Row],
    *,
    steps: int | None = None,
    damaged: bool = False,
    judged: bool = False,
    handed_out: HandedOutFacts | None = None,
) -> Verdict:
    """The verdict on one member, from its last line of metrics and its last evaluation. `steps` says how many the policy
    had (None: as many as the last line says), `damaged` whether lines of the run's files could not be read, `judged` whether
    episodes that were set aside judge the policy besides, `handed_out` which of several policies was handed out, as the
    policy's file has it."""
    trained, tested = last_row(metrics, member, "policy"), last_row(evaluations, member)
    limit, planned = member.limit, configuration.schedule.steps
    last_line = int(trained.get("step", 0))
    done = last_line if steps is None else steps
    warned = [row for row in warnings if (row["seed"], row["limit"]) == (member.seed, limit)]
    needed = defaults.critic_steps(float(configuration.settings.get("tau", 1.0)), configuration.discount)
    doubts = doubts_of(done, planned, needed if "qc_start" in trained else None, len(warned))
    if damaged or last_line < last_logged(done, configuration):
        doubts.append("Lines of this run's files are damaged or lost: what they said, warnings among it, is not known.")
    if handed_out is not None and handed_out.expected_cost > limit:
        doubts.append("In the model of the plant no policy was inside the limit.")
    sentences = []
    judgement: Judgement = "no estimate"
    basis: Literal["simulation", "cost critic"] | None = None
    cost: float | None = None
    if "qc_start" in trained:
        basis, cost = "cost critic", float(trained["qc_start"])
        inside = cost <= limit
        judgement = "unsure" if doubts and inside else "inside" if inside else "outside"
        sentences.append(
            f"The cost critic expects a discounted cost of {cost:.3g} from the states where logged episodes start, "
            f"{'inside' if inside else 'OUTSIDE'} the limit of {limit:g}{_also_over_horizon(cost, configuration)}. "
            "This is an estimate from the log, not a guarantee."
        )
        sentences += [] if handed_out is None else [_which_policy(handed_out)]
        sentences += doubts
    else:
        reason = (
            f"{configuration.method} has no cost critic" if trained else "there is no line of metrics of this policy"
        )
        elsewhere = (
            "; the episodes that were set aside judge its policy"
            if judged
            else f", so the log alone does not say whether its policy keeps the limit of {limit:g}"
        )
        sentences.append(f"No estimate: {reason}{elsewhere}.")
        sentences += doubts
    if tested:
        basis, cost = "simulation", float(tested["discounted_cost"])
        earlier = int(tested["step"]) < done
        judgement = "outside" if cost > limit else "unsure" if earlier else "inside"
        when = f" of the policy as it was at step {tested['step']:,}" if earlier else ""
        sentences.insert(
            0,
            f"The limit {'holds' if cost <= limit else 'is BROKEN'} in simulation{when}: discounted cost {cost:.3g} ± "
            f"{tested['discounted_cost_std']:.2g} over episodes of {tested['length']:.0f} steps on average, against "
            f"{limit:g}; {tested['share_over_limit']:.0%} of episodes are over it.",
        )
    return Verdict(member.seed, limit, judgement, basis, cost, done, planned, " ".join(sentences))


def _which_policy(handed_out: HandedOutFacts) -> str:
    """Critics are of the averaged actor; what is handed out may be another policy, and a model says what that one costs."""
    policy = "clone of the log's safe episodes" if handed_out.is_clone else "averaged actor"
    paced = " Where each step's cost can be measured, a pacer can use more of the limit and hold each episode to it."
    turns = " If only the mean over episodes must be inside, the file has a costlier policy to take turns with."
    return (
        "The critic is of the averaged actor. "
        f"Handed out is the {policy} with a gain of {handed_out.gain:.3f}, of which a fitted model of the plant "
        f"expects a cost of {handed_out.expected_cost:.3g} (discounted, or going on at its cost per step, whichever is "
        f"more).{paced if handed_out.can_be_paced else ''}{turns if handed_out.can_take_turns else ''}"
    )


def _also_over_horizon(cost: float, configuration: Configuration) -> str:
    """A critic's sum has no end; where the log's episodes are short, what it means over their horizon."""
    if over_horizon(1.0, configuration.discount, configuration.horizon) > ALMOST_ALL:
        return ""
    finite = over_horizon(cost, configuration.discount, configuration.horizon)
    return (
        f" (over an infinite horizon; at a steady pace {finite:.3g} over {configuration.horizon} steps, the log's longest "
        "episode)"
    )


def doubts_of(done: int, planned: int, needed: int | None, warnings: int) -> list[str]:
    """Why not to rely on what a critic says."""
    found = []
    if done < planned:
        found.append(f"The run was stopped after {done:,} of {planned:,} steps.")
    if needed is not None and done < needed:
        found.append(f"After only {done:,} steps do not trust the critics: they need some {needed:,}.")
    if warnings:
        found.append(f"Read the {warnings} warning(s) of this run before you rely on it.")
    return found


def last_logged(done: int, configuration: Configuration) -> int:
    """The step of the last line of metrics that a policy of so many steps must have."""
    schedule = configuration.schedule
    return done if done == schedule.steps else done - done % schedule.log_every


def last_row(rows: Sequence[Row], member: Member, stage: str | None = None) -> Row:
    """The member's latest row (of a stage), or nothing."""
    mine = [row for row in rows if (row["seed"], row["limit"]) == (member.seed, member.limit)]
    mine = [row for row in mine if stage is None or row["stage"] == stage]
    return mine[-1] if mine else {}
