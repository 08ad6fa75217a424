"""From training to the verdict: episodes set aside at the door, judged at the end, chosen from."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

import ringfence
from ringfence import api
from ringfence.cli import main
from ringfence.cli.training import is_inside
from ringfence.errors import InvalidSetting
from ringfence.evaluation.ope.runs import JUDGEMENT_FILE, parts_of, set_aside


def test_what_judges_a_run_had_no_part_in_training_it(log_file, runs):
    log = ringfence.load(log_file)
    run = ringfence.Run.load(runs / "bc")
    learned, judging = parts_of(run, log)
    assert len(learned) + len(judging) == len(log)
    assert judging.fingerprint == log.hold_out(0.4, 0)[1].fingerprint
    assert run.artifact.metadata["log_fingerprint"] == log.fingerprint
    assert run.artifact.metadata["learned_from"] == learned.fingerprint
    assert set_aside(log, 0.0) == (log, None)


def test_the_judgement_is_kept_in_the_run(runs):
    (kept,) = json.loads((runs / "bc-safe" / JUDGEMENT_FILE).read_text())
    assert kept["verdict"] == "inside"
    assert kept["limit"] == 20.0
    assert kept["cost"]["lower"] <= kept["cost"]["value"] <= kept["cost"]["upper"] <= 20.0
    assert [source["name"] for source in kept["sources"]] == ["unsafe", "safe"]
    assert not (runs / "all" / JUDGEMENT_FILE).exists()


def test_a_run_that_is_resumed_judges_by_the_same_episodes(log_file, runs):
    before = (runs / "bc" / JUDGEMENT_FILE).read_text()
    api.resume(runs / "bc", progress=False)
    assert (runs / "bc" / JUDGEMENT_FILE).read_text() == before


def test_judge_prints_the_verdict_and_its_exit_status_says_it_on_request(runs, log_file, capsys):
    assert main(["judge", str(runs / "bc-safe"), "--require-inside", "--against", str(runs / "bc")]) == 0
    printed = capsys.readouterr().out
    assert "inside the limit (at this confidence)" in printed
    assert "checked on the log's own behaviours: unsafe cost" in printed
    policy = str(runs / "bc-safe" / "policy.safetensors")
    assert main(["judge", policy, str(log_file), "--limit", "0.001", "--require-inside", "--json"]) == 3
    (judged,) = json.loads(capsys.readouterr().out)
    assert judged["verdict"] in ("outside", "cannot tell")


def test_a_run_that_set_nothing_aside_is_not_judged_by_its_own_rows(runs, log_file, capsys):
    assert main(["judge", str(runs / "all")]) == 2
    assert "train with --holdout" in capsys.readouterr().err


def test_a_policy_of_another_run_is_not_taken_for_the_runs_own(runs, tmp_path, capsys):
    run = shutil.copytree(runs / "bc", tmp_path / "run")
    shutil.copy(runs / "all" / "policy.safetensors", run)  # it learned from the episodes that judge this run
    for words in (["judge", run], ["choose", run, runs / "bc-safe"], ["report", run]):
        assert main([str(word) for word in words]) == 2
        assert "was not made by this run (seed 0, limit 20)" in capsys.readouterr().err
    assert main(["judge", str(run / "policy.safetensors")]) == 2
    assert "belongs to no run" in capsys.readouterr().err
    api.resume(run, progress=False)
    assert (run / "policy.safetensors").read_bytes() == (runs / "bc" / "policy.safetensors").read_bytes()


def test_a_run_without_a_policy_is_refused_by_name(runs, tmp_path, capsys):
    run = shutil.copytree(runs / "bc", tmp_path / "run")
    (run / "policy.safetensors").unlink()  # as it is before the policy stage has begun
    for words in (["judge", run], ["judge", runs / "bc", "--against", run], ["choose", runs / "bc-safe", run]):
        assert main([str(word) for word in words]) == 2
        assert f"{run} has no policy yet" in capsys.readouterr().err


def test_a_policy_that_was_stopped_early_is_judged_and_chosen_with_a_warning(runs, tmp_path, capsys):
    run = shutil.copytree(runs / "bc", tmp_path / "run")
    stopped = replace(ringfence.Run.load(run).artifact, steps_done=1500, steps_planned=4000)
    stopped.save(run / "policy.safetensors", overwrite=True)
    for words in (["judge", run], ["judge", runs / "bc-safe", "--against", run], ["choose", runs / "bc-safe", run]):
        assert main([str(word) for word in words]) == 0
        (warned,) = capsys.readouterr().err.splitlines()
        assert warned == f"warning: {run / 'policy.safetensors'} had 1,500 of 4,000 planned steps of training"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--discount", "0.5"], "--discount 0.5: the policy was trained at 0.99"),
        (["--discount", "nan"], "--discount nan"),
        (["--horizon", "3"], "--horizon: only for a limit per step or episode"),
        (["--limit-kind", "step"], "give the --limit too"),
        (
            ["--limit-kind", "step", "--limit", "0.1", "--horizon", "60"],
            "--horizon 60: policies are judged over the 120",
        ),
        (["--columns", "rewards=x"], "--columns: only for a LOG that is named"),
    ],
)
def test_judge_refuses_an_option_that_it_cannot_honour(runs, capsys, words, named):
    assert main(["judge", str(runs / "bc"), *words]) == 2
    assert named in capsys.readouterr().err


def test_choose_names_the_policy_and_refuses_runs_that_cannot_be_compared(runs, capsys):
    assert main(["choose", str(runs / "bc-safe"), str(runs / "bc"), "--json"]) == 0
    choice = json.loads(capsys.readouterr().out)
    assert choice["chosen"] == str(runs / "bc-safe" / "policy.safetensors")
    assert len(choice["candidates"]) == 2
    assert main(["choose", str(runs / "bc-safe"), str(runs / "all")]) == 2
    assert "differ in what they set aside" in capsys.readouterr().err


def test_choose_takes_the_policies_kept_on_the_way_if_it_is_asked_to(runs, capsys):
    assert main(["choose", str(runs / "bc-safe"), str(runs / "bc"), "--kept", "--json"]) == 0
    shown = capsys.readouterr()
    names = {candidate["name"] for candidate in json.loads(shown.out)["candidates"]}
    files = ["policy.safetensors", *(f"kept/step-{step:09d}/policy.safetensors" for step in (700, 1400))]
    assert names == {str(runs / run / file) for run in ("bc-safe", "bc") for file in files}
    assert shown.err == ""  # they were meant to be stopped early


def test_a_policy_kept_on_the_way_is_judged_by_what_its_run_set_aside(runs, capsys):
    kept = runs / "bc-safe" / "kept" / "step-000000700" / "policy.safetensors"
    assert main(["judge", str(kept), "--json"]) == 0
    [judgement] = json.loads(capsys.readouterr().out)
    assert judgement["rows_were"] == "not learned from"


def test_a_share_that_is_none_is_refused(log_file):
    with pytest.raises(InvalidSetting, match="holdout is a share"):
        api.train(log_file, ringfence.BC(limit=20.0), steps=1, holdout=1.0)


def test_train_on_the_command_line_sets_a_fifth_aside_and_prints_the_verdict(log_file, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["train", str(log_file), "--limit", "90", "--method", "bc", "--steps", "300", "--out", str(out)]
    status = main([*arguments, "--set", "hidden=[16]", "--require-inside"])
    printed = capsys.readouterr().out
    assert "judged from the log alone" in printed
    assert "No estimate: bc has no cost critic; the episodes that were set aside judge its policy." in printed
    assert "; the episodes that were set aside judge its policy." in (out / "verdict.txt").read_text()
    (judgement,) = json.loads((out / JUDGEMENT_FILE).read_text())
    assert status == (0 if judgement["verdict"] == "inside" else 3)  # training alone has no estimate
    assert ringfence.Run.load(out).configuration.extras["holdout"] == 0.2
    assert (out / JUDGEMENT_FILE).exists()


@pytest.mark.parametrize(
    ("verdict", "judgement", "inside"),
    [
        (("inside", "cost critic"), "outside", False),
        (("inside", "cost critic"), "cannot tell", False),
        (("outside", "cost critic"), "inside", True),
        (("no estimate", None), "inside", True),
        (("outside", "simulation"), "inside", False),
        (("inside", "simulation"), "cannot tell", False),
        (("inside", "cost critic"), None, True),
        (("no estimate", None), None, False),
    ],
)
def test_train_requires_what_the_episodes_set_aside_say_or_the_verdict_where_none_judged(verdict, judgement, inside):
    said, basis = verdict
    run = SimpleNamespace(
        verdicts=[SimpleNamespace(judgement=said, basis=basis, inside=said == "inside")],
        judgements=[SimpleNamespace(inside=judgement == "inside")] if judgement else [],
    )
    assert is_inside(run) == inside
