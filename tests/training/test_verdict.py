"""The verdict on a policy: what is said of which numbers."""

import numpy as np
import pytest

from ringfence import api
from ringfence.algorithms import BC, CBPL, CPQ, BCQLag, BCSafe, BEARLag
from ringfence.algorithms.cpq_handout import Choice, choice_in_words
from ringfence.training.configuration import Configuration, LogRecord, Member, Schedule
from ringfence.training.defaults import STEPS, critic_steps, steps_of
from ringfence.training.handed_out import HandedOutFacts
from ringfence.training.verdict import judge
from tests.logs import narrow_log

MEMBER = Member(0, 10.0)


def configuration(steps=20_000, horizon=1000, **settings):
    return Configuration(
        method="cpq",
        settings={"discount": 0.99, "tau": 0.02, **settings},
        members=(MEMBER,),
        schedule=Schedule(steps),
        log=LogRecord("log", 1000, "f", horizon),
    )


def trained(qc, step=20_000, **more):
    return [{"stage": "policy", "step": step, "seed": 0, "limit": 10.0, "qc_start": qc, **more}]


def simulated(cost, step=20_000):
    row = {"discounted_cost": cost, "discounted_cost_std": 1.0, "length": 480.0, "share_over_limit": 0.25}
    return [{"stage": "policy", "step": step, "seed": 0, "limit": 10.0, **row}]


WARNING = [{"seed": 0, "limit": 10.0, "text": "Qr inflates"}]
OTHERS_WARNING = [{"seed": 1, "limit": 10.0, "text": "Qr inflates"}]


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ((trained(9.0), [], []), "inside"),
        ((trained(11.0), [], []), "outside"),
        ((trained(9.0), [], OTHERS_WARNING), "inside"),
        ((trained(9.0), [], WARNING), "unsure"),
        ((trained(9.0, step=14_999), [], []), "unsure"),  # critics need 3 / (0.02 * 0.01) = 15,000 steps
        ((trained(11.0), [], WARNING), "outside"),  # a doubt does not make it any safer
        ((trained(9.0), simulated(11.0), []), "outside"),  # what happened counts more than what was expected
        ((trained(11.0), simulated(9.0), []), "inside"),
        (([], [], []), "no estimate"),
        (([], simulated(9.0), []), "inside"),
    ],
)
def test_the_judgement_follows_from_the_last_numbers(rows, wanted):
    assert judge(configuration(), MEMBER, *rows).judgement == wanted


def handed_out(clone=False, cost=9.5, can_be_paced=False, can_take_turns=False):
    """What the reader finds in what CPQ writes into a policy's file."""
    choice = Choice(*map(np.array, (clone, 1.0371, 5.0, cost)))
    facts = HandedOutFacts.read({"handed_out": choice_in_words(choice, can_be_paced, can_take_turns)})
    assert facts is not None
    return facts


@pytest.mark.parametrize("facts", [(True, 1.03, 4.0, True, False), (False, 0.985, 9.5, False, True)])
def test_the_facts_of_a_choice_are_those_that_were_written(facts):
    clone, gain, cost, can_be_paced, can_take_turns = facts
    choice = Choice(*map(np.array, (clone, gain, 5.0, cost)))
    assert HandedOutFacts.read({"handed_out": choice_in_words(choice, can_be_paced, can_take_turns)}) == facts
    assert HandedOutFacts.read({}) is None


def test_a_policy_that_was_chosen_is_named_with_what_the_model_expects_of_it():
    words = judge(configuration(), MEMBER, trained(9.0), [], [], handed_out=handed_out()).words
    assert "Handed out is the averaged actor with a gain of 1.037" in words
    assert "expects a cost of 9.5" in words
    clone = judge(configuration(), MEMBER, trained(9.0), [], [], handed_out=handed_out(clone=True)).words
    assert "Handed out is the clone of the log's safe episodes" in clone
    assert "Handed out" not in judge(configuration(), MEMBER, trained(9.0), [], []).words
    for can, said in ((True, True), (False, False)):
        words = judge(configuration(), MEMBER, trained(9.0), [], [], handed_out=handed_out(can_be_paced=can)).words
        assert ("a pacer can use more of the limit" in words) == said
        words = judge(configuration(), MEMBER, trained(9.0), [], [], handed_out=handed_out(can_take_turns=can)).words
        assert ("a costlier policy to take turns with" in words) == said


@pytest.mark.parametrize(
    ("critic", "model", "wanted"), [(9.0, 10.0, "inside"), (9.0, 10.1, "unsure"), (11.0, 9.0, "outside")]
)
def test_a_policy_that_costs_more_than_the_limit_in_the_model_is_not_called_inside(critic, model, wanted):
    found = judge(configuration(), MEMBER, trained(critic), [], [], handed_out=handed_out(cost=model))
    assert found.judgement == wanted
    assert ("no policy was inside" in found.words) == (model > 10.0)


def test_a_policy_that_is_older_than_its_last_lines_is_not_called_inside():
    """Interrupted at 17,500 steps: the simulation was of an earlier policy, and what it said is told with its step."""
    earlier = judge(configuration(), MEMBER, trained(9.0, step=17_000), simulated(9.0, step=15_000), [], steps=17_500)
    assert (earlier.judgement, earlier.steps) == ("unsure", 17_500)
    assert "of the policy as it was at step 15,000" in earlier.words
    assert "lost" not in earlier.words  # the next line of metrics would have come at 18,000
    assert judge(configuration(), MEMBER, [], simulated(11.0, step=15_000), [], steps=17_500).judgement == "outside"


@pytest.mark.parametrize("lost", [{"steps": 20_000}, {"damaged": True}])
def test_lost_lines_are_a_doubt(lost):
    step = 19_000 if "steps" in lost else 20_000
    verdict = judge(configuration(), MEMBER, trained(9.0, step=step), [], [], **lost)
    assert verdict.judgement == "unsure"
    assert "damaged or lost" in verdict.words
    assert verdict.steps == 20_000


def test_critics_need_three_over_tau_times_one_minus_discount_steps():
    assert critic_steps(tau=0.02, discount=0.99) == 15_000
    assert critic_steps(tau=0.005, discount=0.99) == 60_000


class Learner:
    name = "another's"
    tau = 0.005  # whatever it means by it


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        (CPQ(), 50_000),  # more than the 15,000 of its critics
        (CPQ(discount=0.997), 50_000),  # 3 / (0.02 x 0.003)
        (CPQ(tau=0.004), 75_000),  # its critics need 3 / (0.004 x 0.01)
        (CPQ.paper(discount=0.9, tau=0.02), 15_000),  # its critics need 1,500, its actor more
        (CPQ.paper(), 60_000),
        (BCQLag(), 60_000),
        (BC(), STEPS),
        (CBPL(), STEPS),
        (CBPL(rounds=4), 40_000),  # rounds of 5,000 + 5,000
        (BEARLag(), 60_000),
        (BCSafe(), STEPS),
        (Learner(), STEPS),  # of someone else, who says nothing of it
    ],
)
def test_a_run_that_is_not_told_how_many_steps_trains_as_long_as_its_method_says(method, steps):
    assert steps_of(method) == steps
    if method.name != "another's":
        assert method.stages(steps)[-1].steps == steps  # which it does not refuse


def test_a_sum_without_end_is_said_to_be_one_where_episodes_are_short():
    words = judge(configuration(horizon=119), MEMBER, trained(8.0), [], []).words
    over = 8.0 * (1 - 0.99**119)
    assert f"(over an infinite horizon; at a steady pace {over:.3g} over 119 steps" in words
    assert "over an infinite horizon" not in judge(configuration(horizon=1000), MEMBER, trained(8.0), [], []).words
    below_zero = judge(configuration(horizon=119), MEMBER, trained(-8.0), [], []).words  # critics may err below 0
    assert f"(over an infinite horizon; at a steady pace {-over:.3g} over 119 steps" in below_zero
    assert "over an infinite horizon" not in judge(configuration(horizon=1000), MEMBER, trained(-8.0), [], []).words


def test_a_method_without_a_cost_critic_says_so():
    row = {name: value for name, value in trained(0.0)[0].items() if name != "qc_start"}
    words = judge(configuration(), MEMBER, [row], [], []).words
    assert "No estimate: cpq has no cost critic, so the log alone does not say whether its policy keeps" in words
    words = judge(configuration(), MEMBER, [row], [], [], judged=True).words
    assert "No estimate: cpq has no cost critic; the episodes that were set aside judge its policy." in words


def test_a_simulation_says_over_how_many_steps():
    assert "over episodes of 480 steps" in judge(configuration(), MEMBER, trained(9.0), simulated(9.0), []).words


def test_training_without_a_number_of_steps_plans_that_many(monkeypatch):
    """Up to the run itself, which is not made."""
    planned = []
    monkeypatch.setattr("ringfence.launch.carry_out", lambda parts, plan, *rest, **options: planned.append(plan.steps))
    for steps in (None, 7):
        api.train(narrow_log(rows=100), CPQ(limit=30.0), steps=steps)
    assert planned == [50_000, 7]
