"""What `ringfence judge` and `ringfence choose` take for granted: at which limit, by which rows, over how many steps."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import ringfence
from ringfence import api
from ringfence.behaviour.collect import collect_dataset
from ringfence.behaviour.controllers import pi_controller
from ringfence.behaviour.shipped import shipped_policy
from ringfence.cli import main
from ringfence.data import save
from ringfence.data.dataset import ROW_COLUMNS
from ringfence.errors import InvalidSetting, WrongShape
from ringfence.evaluation.ope import choose, judge
from ringfence.training.rundir import LEARNED_FILE


def judged(words, capsys, status=0):
    """The judgements of `ringfence judge WORDS`, which must end with this status."""
    assert main(["judge", *map(str, words), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_each_policy_of_a_run_is_judged_at_its_own_limit(for_two_limits, capsys):
    loose, strict = judged([for_two_limits, "--require-inside"], capsys, status=3)
    assert (loose["limit"], strict["limit"]) == (60.0, 0.5)
    assert loose["verdict"] == "inside" != strict["verdict"]
    assert "the limit of 0.5" in strict["reason"]


def test_a_policy_that_is_compared_with_is_judged_at_its_own_limit_unless_one_is_given(runs, for_two_limits, capsys):
    mine, *others = judged([runs / "bc", "--against", for_two_limits], capsys)
    assert [mine["limit"], *(other["limit"] for other in others)] == [20.0, 60.0, 0.5]
    assert {j["limit"] for j in judged([runs / "bc", "--against", for_two_limits, "--limit", "33"], capsys)} == {33.0}


def test_a_limit_at_another_discount_is_not_taken_for_one_at_the_discount_that_is_judged(runs, tmp_path, capsys):
    impatient = tmp_path / "impatient.safetensors"
    replace(ringfence.Artifact.load(runs / "bc" / "policy.safetensors"), discount=0.9, limit=3.0).save(impatient)
    assert main(["judge", str(runs / "bc"), "--against", str(impatient)]) == 2
    said = capsys.readouterr().err
    assert "trained for a limit of 3 at a discount of 0.9, and costs are discounted by 0.99 here" in said
    assert "--limit" in said
    _, other = judged([runs / "bc", "--against", impatient, "--limit", "20"], capsys)
    assert (other["limit"], other["discount"]) == (20.0, 0.99)


def test_from_python_too_a_policy_is_judged_and_chosen_at_its_own_discount(runs, log_file):
    log = ringfence.load(log_file)
    artifact = ringfence.Artifact.load(runs / "bc" / "policy.safetensors")
    patient, impatient = (ringfence.Policy(replace(artifact, discount=discount)) for discount in (0.99, 0.9))
    assert judge(impatient, log, 20.0).discount == 0.9
    assert judge(impatient, log, 20.0, discount=0.95).discount == 0.95
    assert {candidate.discount for candidate in choose({"one": impatient}, log, 20.0).candidates} == {0.9}
    with pytest.raises(InvalidSetting, match=r"trained at several discounts \(\[0.9, 0.99\]\); say which"):
        choose({"one": patient, "other": impatient}, log, 20.0)


def test_choose_asks_for_a_limit_only_if_the_policies_to_choose_from_have_several(for_two_limits, capsys):
    assert main(["choose", str(for_two_limits)]) == 2
    assert "trained for several limits ([0.5, 60.0]); say which with --limit" in capsys.readouterr().err
    one = for_two_limits / "policy-limit60.safetensors"
    assert main(["choose", str(one), "--json"]) in (0, 3)
    (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
    assert candidate["limit"] == 60.0


def test_a_limit_per_step_is_converted_at_the_horizon_that_policies_are_judged_over(runs, capsys):
    """0.1 a step for 120 steps at a discount of 0.99: 0.1 (1 - 0.99^120) / 0.01."""
    (judgement,) = judged([runs / "bc", "--limit", "0.1", "--limit-kind", "step", "--horizon", "120"], capsys)
    assert judgement["limit"] == pytest.approx(10 * (1 - 0.99**120))
    assert judgement["horizon"] == 120


def saved(log, folder, name):
    save(replace(log, name=name), folder / f"{name}.h5")
    return folder / f"{name}.h5"


def grown_by(log, other):
    """A log and another one's episodes after its own."""
    columns = {name: np.concatenate([getattr(log, name), getattr(other, name)]) for name in (*ROW_COLUMNS, "source")}
    return replace(log, **columns)


def test_the_episodes_that_a_run_learned_from_are_left_out_of_a_log_that_has_grown(runs, log_file, tmp_path, capsys):
    log = ringfence.load(log_file)  # 100 episodes, of which the run learned from 60
    more = collect_dataset("reactor", 240, seed=99, workers=1)
    grown = saved(grown_by(log, more), tmp_path, "grown")
    assert main(["judge", str(runs / "bc"), str(grown), "--json"]) == 0
    printed = capsys.readouterr()
    (judgement,) = json.loads(printed.out)
    assert judgement["rows"] == log.hold_out(0.4, 0)[1].rewards.size + 240
    assert judgement["rows_were"] == "not learned from"
    assert f"note: {runs / 'bc'} learned from 60 of the 102 episodes of grown; only the others judge" in printed.err
    assert sum(source["episodes"] for source in judgement["sources"]) == 60  # which tell what the behaviours got
    assert main(["judge", str(runs / "bc"), str(grown)]) == 0
    assert "The policy learned from none of them (compared number for number)." in capsys.readouterr().out


def test_a_log_of_nothing_but_learned_episodes_is_refused_with_what_to_do(runs, log_file, tmp_path, capsys):
    learned = saved(ringfence.load(log_file).hold_out(0.4, 0)[0], tmp_path, "learned")
    assert main(["judge", str(runs / "bc"), str(learned)]) == 2
    assert "learned from every episode of learned: give a log with other episodes" in capsys.readouterr().err


def test_a_run_that_remembers_no_episodes_is_judged_with_a_warning_and_remembers_when_it_goes_on(
    runs, log_file, tmp_path, capsys
):
    run = shutil.copytree(runs / "bc", tmp_path / "run")
    (run / LEARNED_FILE).unlink()
    grown = saved(
        grown_by(ringfence.load(log_file), collect_dataset("reactor", 120, seed=99, workers=1)), tmp_path, "grown"
    )
    assert main(["judge", str(run), str(grown)]) == 0
    printed = capsys.readouterr()
    assert "whether it learned from some of grown is not known" in printed.err
    assert "Whether the policy learned from them is not known." in printed.out
    api.resume(run, progress=False)
    assert (run / LEARNED_FILE).read_bytes() == (runs / "bc" / LEARNED_FILE).read_bytes()
    (run / LEARNED_FILE).write_text('{"digests": []}')
    assert main(["judge", str(run), str(grown)]) == 2
    assert f"{run / LEARNED_FILE} is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bc", "all"])
def test_rows_that_a_policy_learned_from_cannot_tell_what_it_costs(runs, log_file, tmp_path, capsys, name):
    """Not even if it has left its run, and whether it learned from all of the log or from a part."""
    moved = shutil.copy(runs / name / "policy.safetensors", tmp_path)
    assert main(["judge", str(moved), str(log_file), "--limit", "500", "--require-inside"]) == 3
    printed = capsys.readouterr().out
    assert "The policy LEARNED FROM them" in printed
    assert "the log cannot tell: the policy learned from these rows" in printed
    assert "name its run's directory" in printed
    (judgement,) = judged([moved, log_file, "--limit", "500"], capsys)
    assert (judgement["rows_were"], judgement["verdict"], judgement["judgeable"]) == (
        "learned from",
        "cannot tell",
        False,
    )
    log = ringfence.load(log_file)
    assert judge(ringfence.Policy.load(moved), log, 500.0).rows_were == "learned from"  # from Python


def test_from_python_too_no_policy_is_chosen_by_rows_that_it_learned_from(runs, log_file):
    """Whether it learned from the whole log that is given, from a part of it, or from one of the halves that judge."""
    log = ringfence.load(log_file)
    safe = ringfence.Policy.load(runs / "bc-safe" / "policy.safetensors")
    learned, judging = log.hold_out(0.4, 0)
    half = learned.hold_out(0.5, 0)[1]
    of_half = ringfence.Policy(
        replace(safe.artifact, metadata={**safe.artifact.metadata, "learned_from": half.fingerprint})
    )
    for policy, rows in ((safe, log), (safe, learned), (of_half, learned)):
        choice = choose({"safe": policy, "function": shipped_policy("reactor", "safe")}, rows, 500.0)
        found = {candidate.name: candidate for candidate in choice.candidates}
        assert (found["safe"].rows_were, found["safe"].verdict) == ("learned from", "cannot tell")
        assert found["function"].rows_were == "unknown"
        assert "safe" not in {choice.chosen, *(look.name for look in choice.second_looks)}
    assert choose({"safe": safe}, judging, 500.0).candidates[0].rows_were == "unknown"
    assert choose({"safe": safe}, log, 500.0, rows_were="not learned from").chosen == "safe"


def test_of_each_policy_that_is_compared_it_is_said_whether_it_learned_from_the_rows(runs, tmp_path, capsys):
    words = [runs / "bc", "--against", runs / "bc-safe", runs / "all"]
    assert [j["rows_were"] for j in judged(words, capsys)] == ["not learned from", "not learned from", "learned from"]
    assert main(["judge", *map(str, words)]) == 0
    printed = capsys.readouterr().out
    assert f"{runs / 'bc' / 'policy.safetensors'} learned from none of them" in printed
    assert f"{runs / 'all' / 'policy.safetensors'} LEARNED FROM them" in printed


def test_of_a_function_nothing_is_known(log_file):
    log = ringfence.load(log_file)
    assert judge(pi_controller(346.0), log, 20.0).rows_were == "unknown"


def test_columns_in_another_order_are_refused_and_other_names_are_warned_of(runs, tmp_path, capsys):
    other = replace(collect_dataset("reactor", 2400, seed=98, workers=1), units={})
    a, b = other.observation_names[:2]
    swapped = replace(other, observation_names=(b, a, *other.observation_names[2:]))
    assert main(["judge", str(runs / "bc"), str(saved(swapped, tmp_path, "swapped"))]) == 2
    printed = capsys.readouterr().err
    assert (
        f"swapped has the observations of the policy in another order (policy / log: {a} / {b}, {b} / {a})" in printed
    )
    with pytest.raises(WrongShape, match="in another order"):  # from Python
        judge(ringfence.Run.load(runs / "bc").policy, swapped)
    named = replace(other, observation_names=("x", *other.observation_names[1:]))
    assert main(["judge", str(runs / "bc"), str(saved(named, tmp_path, "named"))]) == 0
    assert (
        f"the policy knows the observations by other names than named (policy / log: {a} / x)"
        in capsys.readouterr().err
    )
    unnamed = replace(other, observation_names=tuple(f"obs_{i}" for i in range(len(other.observation_names))))
    assert main(["judge", str(runs / "bc"), str(saved(unnamed, tmp_path, "unnamed"))]) == 0
    assert capsys.readouterr().err == ""
