"""`--limit-range` and what the other verbs ask of such a policy."""

import argparse
import json

import pytest

import ringfence
from ringfence.cli import main
from ringfence.cli.options import limits_of
from ringfence.deploy import Policy
from ringfence.training import Run
from tests.endtoend.test_cli import FEW, SMALL, refused
from tests.logs import narrow_log

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("range")
    ringfence.save(narrow_log(rows=1500, with_source=True), folder / "log.parquet")
    words = ["train", folder / "log.parquet", "--limit-range", "6", "12", "--out", folder / "run", *FEW, *SMALL]
    assert main([str(word) for word in words]) == 0
    return folder / "run"


def test_train_leaves_one_policy_for_the_range_watched_at_its_middle(run):
    assert Policy.load(run / "policy.safetensors").artifact.limit_range == (6.0, 12.0)
    (member,) = Run.load(run).members
    assert member.limit == 9.0
    assert json.loads((run / "judgement.json").read_text())[0]["limit"] == 9.0


def test_a_range_per_episode_is_converted_at_both_ends():
    asked = argparse.Namespace(limit_range=[10.0, 20.0], limit_kind="episode", horizon=50.0)
    share = (1 - 0.99**50) / (1 - 0.99) / 50  # of an episode of 50 steps
    found = [limit.discounted for limit in limits_of(asked, None, 0.99)]
    assert found == pytest.approx([10 * share, 20 * share])


def test_train_converts_a_range_per_step_at_the_log_s_horizon(monkeypatch, tmp_path):
    asked = {}

    def interrupted(log, method, **options):
        asked.update(options, method=method, log=log)
        return argparse.Namespace(path=tmp_path / "run", interrupted=True)

    monkeypatch.setattr("ringfence.api.train", interrupted)
    ringfence.save(narrow_log(rows=200), tmp_path / "log.parquet")
    assert main(["train", str(tmp_path / "log.parquet"), "--limit-range", "0.1", "0.3", "--limit-kind", "step"]) == 130
    steps = sum(0.99**t for t in range(asked["log"].horizon))
    assert asked["method"].limits == pytest.approx((0.1 * steps, 0.3 * steps))
    assert asked["limits"] == pytest.approx([0.2 * steps])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit-range", "12", "6"], "smaller first"),
        (["--limit-range", "6", "6"], "two different"),
        (["--limit-range", "-1", "6"], "at least 0"),
        (["--limit-range", "nan", "6"], "finite"),
        (["--limit-range", "6"], "expected 2 arguments"),
        (["--limit-range", "6", "12", "--limit", "7"], "give one of them"),
        (["--limit-range", "6", "12", "--method", "bc"], "bc takes one limit"),
        (["--limit-range", "6", "12", "--preset", "paper"], "cpq-paper takes one limit"),
        (["--limit", "7", "--set", "limits=[6,12]"], "--limit-range, not by --set"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(run, capsys, tmp_path, words, said):
    small = ("--set", "hidden=[8]", "batch_size=16", *FEW, "--out", tmp_path / "run")
    assert said in refused(capsys, "train", run.parent / "log.parquet", *small, *words)


def test_verbs_about_the_policy_ask_for_its_limit_and_refuse_one_outside_the_range(run, capsys, tmp_path):
    policy = run / "policy.safetensors"
    verbs = (
        ["judge", run],
        ["evaluate", policy, "--task", "hopper-torque"],
        ["export", policy, "--to", "c", "--out", tmp_path / "p.c"],
    )
    for words in verbs:
        assert "every limit from 6 to 12: say which with limit=... (--limit)" in refused(capsys, *words)
        assert "between 6 and 12" in refused(capsys, *words, "--limit", "13")
    assert "say for which to choose with --limit" in refused(capsys, "choose", run)
    assert main(["judge", str(run), "--limit", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["limit"] == 7.0
    assert main(["export", *map(str, verbs[2][1:]), "--limit", "8"]) == 0
    assert "#define RINGFENCE_LIMIT 8" in (tmp_path / "p.h").read_text()
