"""The verdict and the choice, on the reactor: a plant with two known controllers."""

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from tests.logs import narrow_log

from ringfence.behaviour.collect import collect_dataset
from ringfence.behaviour.controllers import pi_controller
from ringfence.behaviour.shipped import shipped_policy
from ringfence.errors import InvalidSetting
from ringfence.evaluation import evaluate
from ringfence.evaluation.ope.calibration import (
    MOST_DISTANCE,
    Calibration,
    SourceCheck,
    behaved,
    extrapolated,
    whole_episodes,
)
from ringfence.evaluation.ope.choose import Choice, _merit, choose
from ringfence.evaluation.ope.clone import clone_of, network_clones, sources_of
from ringfence.evaluation.ope.features import RandomFeatures, Scaling
from ringfence.evaluation.ope.judge import Judge
from ringfence.evaluation.ope.judgement import Estimate, decide
from ringfence.evaluation.ope.rollouts import RollOuts
from ringfence.evaluation.ope.support import distance_of
from ringfence.reports.judgement import details, print_choice, print_judgements


@pytest.fixture(scope="module")
def log():
    return collect_dataset("reactor", 9600, seed=11, workers=1)


@pytest.fixture(scope="module")
def judge(log):
    judging, reference = log.hold_out(0.3, 0)
    return Judge(judging, reference, features=RandomFeatures.of(judging, 160))


def test_the_cautious_controller_is_inside_and_the_other_outside(judge):
    safe, unsafe = (judge(shipped_policy("reactor", name), 20.0, name=name) for name in ("safe", "unsafe"))
    assert (safe.verdict, unsafe.verdict) == ("inside", "outside")
    wanted = "inside the limit (at this confidence): the expected discounted cost over 120 steps is at most"
    assert safe.sentence.startswith(wanted)
    assert unsafe.returned.lower > safe.returned.value
    assert (safe.share_over_limit, unsafe.share_over_limit) == pytest.approx((0, 1), abs=0.02)
    assert safe.support.foreign_on_path < 0.1


def test_what_is_printed_says_over_how_many_steps(judge):
    """The reactor's episodes have 120 steps."""
    judged = judge(shipped_policy("reactor", "safe"), 20.0, name="safe")
    for show in (
        lambda console: print_judgements([judged], console),
        lambda console: print_choice(Choice((judged,), "safe", judged, "it is inside"), console),
    ):
        console = Console(file=StringIO(), width=200)
        show(console)
        assert "Discounted (at 0.99) over 120 steps" in console.file.getvalue()


def test_the_table_fits_a_terminal_of_80_columns(judge):
    judged = judge(shipped_policy("reactor", "safe"), 20.0, name="seed 0, limit 20")
    console = Console(file=StringIO(), width=80)
    print_judgements([judged], console)
    printed = console.file.getvalue()
    for words in ("seed 0, limit 20", "unsafe (logged)", "foreign", "episodes", f"{judged.cost.upper:.4g}"):
        assert words in printed
    assert "…" not in printed


def test_a_controller_between_the_two_is_estimated_within_its_bounds(judge):
    """No source of the log does what it does; the truth comes from the simulator."""
    between = pi_controller(350.0)
    judged = judge(between, 40.0)
    truth = evaluate(between, "reactor", episodes=60, seed=900)
    assert judged.cost.lower < truth.discounted_costs.mean() < judged.cost.upper
    assert judged.cost.value == pytest.approx(truth.discounted_costs.mean(), rel=0.15)
    assert judged.returned.value == pytest.approx(truth.discounted_returns.mean(), rel=0.05)
    assert judged.worst_tenth == pytest.approx(np.sort(truth.discounted_costs)[-6:].mean(), rel=0.15)
    assert judged.worst_tenth < judged.worst_tenth_at_most
    assert judged.share_over_limit <= judged.share_over_limit_at_most


def test_of_actions_unlike_any_logged_one_the_log_cannot_tell(judge):
    def wild(observations):
        return np.where(observations[:, :1] * 1000 % 1 < 0.5, -3.0, 3.0)  # full cooling or full heating, at random

    judged = judge(wild, 20.0)
    assert judged.verdict == "cannot tell"
    assert not judged.judgeable
    assert "unlike any in the log" in judged.reason
    assert "stronger anchor" in judged.advice
    assert judged.support.foreign_on_path > judge(shipped_policy("reactor", "safe"), 20.0).support.foreign_on_path
    assert not judged.second_opinion.usable


def test_the_return_has_a_bound_only_near_a_source_of_the_log(judge):
    safe, between = judge(shipped_policy("reactor", "safe")), judge(pi_controller(350.0))
    assert safe.return_is_bounded
    assert "the return is at least" in safe.return_note
    assert not between.return_is_bounded
    assert "is an estimate without a bound" in between.return_note
    assert between.return_note in details(between)
    fake = replace(between, verdict="inside", returned=Estimate(1e9, 1e9, 1e9))
    assert _merit(replace(safe, verdict="inside")) > _merit(fake)  # a promise without a bound wins no choice


def test_roll_outs_that_leave_the_log_take_the_bound_of_the_return_away(judge):
    safe = judge(shipped_policy("reactor", "safe"))
    for share, bounded in ((0.49, True), (0.51, False)):
        support = replace(safe.support, leaving=share)
        assert judge._return_is_bounded(support) == bounded
    fragile = replace(safe, support=support, return_is_bounded=False)
    assert "51% of its episodes in a model of the plant come to states" in fragile.return_note


def test_a_judgement_says_how_many_imagined_episodes_leave_the_log(judge):
    safe = judge(shipped_policy("reactor", "safe"))
    support = replace(safe.support, foreign_modelled=0.1, leaving=0.25)
    told = " ".join(details(replace(safe, modelled=Estimate(1.0, 0.5, 2.0), support=support)))
    assert "10% of the steps in the model are unlike the log, and 25% of the episodes come to states" in told


@pytest.mark.parametrize(("steps", "said"), [(107.0, True), (109.0, False), (None, False)])
def test_a_judgement_says_if_imagined_episodes_end_earlier_than_logged_ones(judge, steps, said):
    safe = judge(shipped_policy("reactor", "safe"))
    assert safe.logged_steps == 120
    support = replace(safe.support, foreign_modelled=0.1, leaving=0.25)
    told = details(replace(safe, modelled=Estimate(1.0, 0.5, 2.0), support=support, modelled_steps=steps))
    assert any("its episodes last 107 of 120 steps, the log's 120" in line for line in told) == said


def test_with_a_model_of_the_plant_roll_outs_decide_and_backups_stand_beside_them(judge):
    log = judge.log
    values = judge.fitted.evaluate(*behaved(log, np.ones(len(log), bool), lambda s, _: s[:, :1], None))
    costs = np.array([4.0, 5.0, 9.0])  # of three plants, in one step of two roll-outs
    one, blank = np.ones((1, 3, 2), np.float32), np.zeros((1, 3, 2, 1), np.float32)
    rolled = RollOuts(blank, blank, 0 * one, costs[None, :, None] * one, one, one, one, one, 0.99)
    cost, (backups, modelled) = judge._estimates("cost", values, rolled, 0.0, 0.95)
    by_networks = np.sqrt((16 + 4 + 36) / 2)  # networks lie (n - 1) = 2 times as far from 6 as plants: -4, -2 and 6
    measured = judge.calibration.modelled_spread("cost", 6.0)
    width = np.hypot(2.9200 * by_networks, 1.6449 * measured)  # three plants: Student's t with two degrees of freedom
    assert (cost.value, cost.upper) == pytest.approx((6, 6 + width), rel=1e-4)
    assert modelled == cost
    assert backups.value == pytest.approx(max(values.cost, 0.0))
    far, (far_backups, _) = judge._estimates("cost", values, rolled, 2 * MOST_DISTANCE, 0.95)
    assert far.upper == pytest.approx(6 + np.hypot(2.9200 * by_networks, 1.6449 * 2 * measured), rel=1e-4)
    assert far_backups.value == backups.value
    wider = (far_backups.upper - backups.value) ** 2 - (backups.upper - backups.value) ** 2
    error = judge.calibration.spread("cost", values.cost, values.amplification)
    assert wider == pytest.approx((2**2 - 1) * (1.6449 * error) ** 2, rel=1e-3)  # errors count twice there


def test_what_a_policy_costs_after_it_has_left_the_log_is_between_nothing_and_what_is_imagined(judge):
    one, blank = np.ones((2, 3, 2), np.float32), np.zeros((2, 3, 2, 1), np.float32)
    left = one.copy()
    left[1] = 0  # in the second of two steps, each of which costs 4
    in_doubt = RollOuts(
        blank, blank, one, 4 * one, left, one, one, one, 0.5
    )  # it may have ended before its second step
    rolled = RollOuts(blank, blank, one, 4 * one, one, one, one, left, 0.5)
    assert judge._modelled("cost", in_doubt, 0.0, 0.95) == judge._modelled("cost", rolled, 0.0, 0.95)
    cost, returned = (judge._modelled(signal, rolled, 0.0, 0.95) for signal in ("cost", "return"))
    least, most = 4.0, 4 + 0.5 * 4
    assert cost.value == pytest.approx((least + most) / 2)
    assert cost.lower == pytest.approx(
        max(least - 1.6449 * judge.calibration.modelled_spread("cost", least), 0), rel=1e-4
    )
    assert cost.upper == pytest.approx(most + 1.6449 * judge.calibration.modelled_spread("cost", most), rel=1e-4)
    assert returned.value == (1 + (1 + 0.5)) / 2
    ended = RollOuts(blank, blank, one, 4 * one, left, left, one, one, 0.5)  # by a level, and surely
    assert judge._modelled("cost", ended, 0.0, 0.95).value == least
    assert judge._modelled("cost", ended, 0.0, 0.95).upper == cost.upper  # which does not trust a level
    losing = RollOuts(
        blank, blank, -one, one, left, one, one, one, 0.5
    )  # going on is the lower end where steps earn less than 0
    assert judge._modelled("return", losing, 0.0, 0.95).value == (-1 - (1 + 0.5)) / 2
    spread = judge.calibration.modelled_spread("return", -1.5)
    assert judge._modelled("return", losing, 0.0, 0.95).lower == pytest.approx(-1.5 - 1.6449 * spread, rel=1e-4)


def test_what_disturbed_roll_outs_cost_counts_as_well(judge):
    one, blank = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32)
    always = (one, one, one, one, 0.99)
    rolled = RollOuts(blank, blank, 10 * one, 4 * one, *always)
    both = replace(rolled, disturbed=RollOuts(blank, blank, 16 * one, 6 * one, *always))
    cost, returned = (judge._modelled(signal, both, 0.0, 0.95) for signal in ("cost", "return"))
    assert (cost.value, returned.value) == pytest.approx((5, 13))
    assert cost.upper == pytest.approx(6 + 1.6449 * judge.calibration.modelled_spread("cost", 6.0), rel=1e-4)
    assert cost.lower == judge._modelled("cost", rolled, 0.0, 0.95).lower
    assert returned.lower == judge._modelled("return", rolled, 0.0, 0.95).lower
    assert returned.upper > judge._modelled("return", rolled, 0.0, 0.95).upper


def test_the_distance_from_a_source_is_in_units_of_its_noise(judge):
    log, clones = judge.log, judge.calibration.clones
    rows, written = np.arange(0, len(log), 7), dict(sources_of(log))
    clone = clones[1]
    own = written[clone.name][:, None]
    for apart in (0.0, 0.5, 2.0):
        acts = np.where(own, clone.mean(log.next_observations) + apart * clone.spread, 1e6).astype(np.float32)[rows]
        given = log, rows, log.next_observations[rows], acts
        assert distance_of(*given, clones) == pytest.approx(apart, abs=1e-3)
    assert distance_of(*given, ()) == np.inf


def test_backups_that_diverge_know_no_path_so_that_all_logged_states_count_alike(judge):
    log = judge.log
    full = np.full_like(log.actions, 3.0)  # full heating
    first = full[: len(log.episode_starts)]
    values = judge.fitted.evaluate(full, first)
    diverged, not_diverged = (
        judge.coverage.of(lambda o: o, full, first, replace(values, in_range=in_range)) for in_range in (False, True)
    )
    assert diverged.foreign_on_path == pytest.approx(diverged.foreign)
    assert not_diverged.foreign_on_path != diverged.foreign_on_path


def test_a_higher_confidence_gives_wider_bounds(judge):
    policy = shipped_policy("reactor", "safe")
    usual, strict = judge(policy, 20.0, confidence=0.9), judge(policy, 20.0, confidence=0.99)
    assert strict.cost.upper > usual.cost.upper
    assert strict.returned.lower < usual.returned.lower
    with pytest.raises(InvalidSetting, match="confidence must lie between"):
        judge(policy, 20.0, confidence=1.0)
    for limit in (float("nan"), float("inf"), -1.0):
        with pytest.raises(InvalidSetting, match="limit must be a finite cost"):
            judge(policy, limit)


def test_the_choice_is_the_most_return_inside_and_is_confirmed_by_other_episodes(log):
    policies = {f"{t}": pi_controller(t) for t in (342.0, 346.0, 354.0)}
    choice = choose(policies, log, 20.0)
    assert choice.chosen == "346.0"
    assert choice.confirmed.inside
    assert choice.confirmed.name == "346.0"
    assert choice.confirmed.rows < len(log) / 2
    refused = choose({"hot": pi_controller(354.0)}, log, 20.0)
    assert refused.chosen is None
    assert "none of 1 policies is inside the limit of 20" in refused.reason


@pytest.mark.parametrize(
    ("bounds", "verdict"), [((1, 0, 2), "inside"), ((9, 8, 10), "outside"), ((5, 3, 7), "cannot tell")]
)
def test_the_sentence_follows_the_bounds(bounds, verdict):
    said, reason, _ = decide(Estimate(*bounds), 5.0, 0.95, [], 119)
    assert said == verdict
    assert "the expected discounted cost over 119 steps is" in reason
    assert decide(Estimate(*bounds), 5.0, 0.95, [("no support", "more rows")], 119) == (
        "cannot tell",
        "no support",
        "more rows",
    )
    assert decide(Estimate(*bounds), None, 0.95, [], 119)[0] is None


def test_the_measured_error_is_relative_to_the_values_and_at_least_what_the_reference_could_show():
    checks = (
        SourceCheck("a", 100, 10.0, 20.0, 0.0, 0.0, 11.0, 26.0),  # 10 % and 30 % off, known exactly
        SourceCheck("b", 4, 100.0, 40.0, 0.0, 12.0, 100.0, 46.0),  # 6 off, but the mean of 4 episodes is known to 6
    )
    calibration = Calibration(checks, (), np.zeros(1))
    # b is off by no more than could be seen, and counts as off by as much: 6 of 40
    assert calibration.error("cost") == pytest.approx(np.sqrt((0.3**2 + 0.15**2) / 2))
    # 10 is less than half of 100: its error of 1 counts as 1 / 50, which is below the least error.
    assert calibration.error("return") == pytest.approx(0.03)
    assert calibration.spread("cost", -30.0) == pytest.approx(calibration.error("cost") * 30)
    assert calibration.spread("cost", 30.0, amplification=2.5) == pytest.approx(2.5 * calibration.error("cost") * 30)
    assert calibration.spread("cost", 30.0, distance=1.5) == pytest.approx(3 * calibration.error("cost") * 30)
    assert calibration.spread("cost", 30.0, distance=0.4) == calibration.spread("cost", 30.0)
    noisy = SourceCheck("b", 4, 100.0, 40.0, 0.0, 12.0, 100.0, 46.0)
    steady = SourceCheck("a", 100, 10.0, 20.0, 0.0, 2.0, 11.0, 26.0)  # 2 of 20: a tenth; the other scatters by 0.3
    assert Calibration((steady, noisy), (), np.zeros(1)).least_scatter(30.0) == pytest.approx(3.0)
    assert calibration.spread("cost", 30.0, amplification=0.9) == calibration.spread("cost", 30.0)
    rolled = SourceCheck("a", 100, 10.0, 20.0, 0.0, 0.0, 11.0, 26.0, modelled_return=12.0, modelled_cost=30.0)
    assert Calibration((rolled,), (), np.zeros(1)).modelled_spread("cost", 40.0) == pytest.approx(0.5 * 40)
    assert Calibration((rolled,), (), np.zeros(1)).modelled_spread("return", 40.0) == pytest.approx(0.2 * 40)


def test_the_models_error_grows_with_the_distance_from_every_source():
    near, twice = MOST_DISTANCE, 2 * MOST_DISTANCE
    assert [extrapolated(distance) for distance in (0.0, near, twice)] == pytest.approx([1, 1, 2])
    rolled = SourceCheck("a", 100, 10.0, 20.0, 0.0, 0.0, 11.0, 26.0, modelled_return=12.0, modelled_cost=30.0)
    calibration = Calibration((rolled,), (), np.zeros(1))
    assert calibration.modelled_spread("cost", 40.0, twice) == pytest.approx(2 * 0.5 * 40)


def test_a_source_is_checked_by_its_own_logged_actions_and_elsewhere_by_those_of_its_clone():
    log = narrow_log(rows=200, episode_length=50, with_source=True)
    codes = np.asarray(log.source)[log.episode_starts]
    assert len(set(codes)) == 2
    rows = np.asarray(log.source) == codes[0]
    following, first = behaved(log, rows, lambda o, rng: np.full((len(o), 2), 0.5), np.random.default_rng(0))
    for episode, source in zip(log.episode_slices, codes, strict=True):
        own = source == codes[0]
        start, inner = episode.start, slice(episode.start, episode.stop - 1)
        expected = log.actions[start + 1 : episode.stop] if own else np.full((49, 2), 0.5)
        np.testing.assert_array_equal(following[inner], expected.astype(np.float32))
        assert (following[episode.stop - 1] == 0.5).all()  # nothing is logged after the last step
    np.testing.assert_array_equal(first[codes == codes[0]], log.actions[log.episode_starts[codes == codes[0]]])
    assert (first[codes != codes[0]] == 0.5).all()


def test_reference_episodes_that_were_cut_off_early_do_not_count():
    log = narrow_log(rows=130, episode_length=50)  # two whole episodes and a rest of 30 rows
    got = whole_episodes(log, np.ones(130, bool), 0.99, 50)
    assert len(got) == 2
    assert got[0] == pytest.approx([log.return_to_go(0.99)[0], log.cost_to_go(0.99)[0]])
    assert len(whole_episodes(log, None, 0.99, 50)) == 0
    # Over a shorter horizon only the first steps of each count, and the rest is long enough.
    first = whole_episodes(log, np.ones(130, bool), 0.99, 30)
    assert first[:, 1] == pytest.approx([log.costs[at : at + 30] @ 0.99 ** np.arange(30) for at in (0, 50, 100)])


def test_a_clone_acts_and_scatters_as_its_source():
    log = narrow_log(rows=6000, with_source=True)
    for name, rows in sources_of(log):
        clone = clone_of(log, name, rows)
        mean = clone.mean(log.observations[rows])
        assert np.sqrt(np.mean((mean - log.actions[rows]) ** 2)) == pytest.approx(0.05, rel=0.15)  # the noise
        assert clone.spread == pytest.approx([0.05, 0.05], rel=0.15)
        drawn = clone.sample(log.observations[rows], np.random.default_rng(0))
        assert (drawn - mean).std() == pytest.approx(0.05, rel=0.15)
        nearer = clone.log_density(log.observations[rows], mean) >= clone.log_density(log.observations[rows], drawn)
        assert nearer.all()


def test_a_clone_by_a_network_acts_and_scatters_as_its_source():
    log = narrow_log(rows=6000, with_source=True)
    for clone, (name, rows) in zip(network_clones(log, steps=300), sources_of(log), strict=True):
        assert clone.name == name
        mean = clone.mean(log.observations[rows])
        assert np.sqrt(np.mean((mean - log.actions[rows]) ** 2)) == pytest.approx(0.05, rel=0.25)  # the noise
        assert clone.spread == pytest.approx([0.05, 0.05], rel=0.25)
        parts = [clone.mean(log.observations[rows][i : i + 7]) for i in range(0, 70, 7)]
        assert np.concatenate(parts) == pytest.approx(mean[:70], abs=1e-5)  # rows do not depend on each other


def test_outliers_count_by_their_logarithm_and_a_constant_column_does_no_harm():
    columns = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    columns[:, 1] = 7.0
    scaling = Scaling.of(columns)
    near, far = scaling(np.array([[1.0, 7.0], [1e6, 8.0]], np.float32))
    assert near[1] == 0
    assert 0.5 < near[0] < 1
    assert 3 < far[0] < 20
    assert np.isfinite(far).all()


def test_a_policy_that_remembers_its_episode_is_refused(judge):
    class Remembering:
        def reset(self):
            pass

        def __call__(self, observations):
            return np.zeros((len(observations), 1))

    with pytest.raises(InvalidSetting, match="remembers its episode"):
        judge(Remembering(), 20.0)


def test_costs_whose_squares_leave_float32_are_refused_with_what_to_do(log):
    with pytest.raises(InvalidSetting, match=r"costs of up to .*e\+\d+ are too large to judge by .* larger unit"):
        Judge(replace(log, costs=log.costs * np.float32(1e20)))
