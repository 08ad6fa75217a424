"""The verdict on a policy: what is said of which numbers."""

import pytest

from ringfence.training.configuration import Configuration, LogRecord, Member, Schedule
from ringfence.training.verdict import critic_steps, judge

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


def simulated(cost):
    row = {"discounted_cost": cost, "discounted_cost_std": 1.0, "length": 480.0, "share_over_limit": 0.25}
    return [{"stage": "policy", "step": 20_000, "seed": 0, "limit": 10.0, **row}]


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


def test_critics_need_three_over_tau_times_one_minus_discount_steps():
    assert critic_steps(configuration()) == 15_000
    assert critic_steps(configuration(tau=0.005)) == 60_000


def test_a_sum_without_end_is_said_to_be_one_where_episodes_are_short():
    words = judge(configuration(horizon=119), MEMBER, trained(8.0), [], []).words
    over = 8.0 * (1 - 0.99**119)
    assert f"(without end; at a steady pace {over:.3g} over 119 steps" in words
    assert "without end" not in judge(configuration(horizon=1000), MEMBER, trained(8.0), [], []).words


def test_a_method_without_a_cost_critic_says_so():
    words = judge(configuration(), MEMBER, [], [], []).words
    assert "No estimate: cpq has no cost critic" in words


def test_a_simulation_says_over_how_many_steps():
    assert "over episodes of 480 steps" in judge(configuration(), MEMBER, trained(9.0), simulated(9.0), []).words
