"""A guard on the reactor, with a disturbance that the log does not have."""

import json

import pytest

from ringfence.behaviour.collect import collect_dataset
from ringfence.behaviour.controllers import pi_controller
from ringfence.deploy import Guard, Policy, with_reference
from ringfence.experiments import guarded


@pytest.fixture(scope="module")
def policy():
    """The safe PI controller itself, with what a guard must know of the log."""
    log = collect_dataset("reactor", 2400, seed=1, workers=1)
    return Policy(with_reference(pi_controller(346.0).artifact, log))


def test_a_guard_notices_a_drifting_thermometer_that_no_range_shows(policy):
    guard = Guard(policy, guarded.cautious_controller)
    drifting = {"sensor_drift": 0.1}
    alone, watched = (guarded.episode(policy, g, drifting, seed=5) for g in (None, guard))
    assert watched.handed_over is not None
    assert set(watched.broken) == {"together"}
    assert watched.cost < 0.6 * alone.cost
    assert watched.hottest < alone.hottest
    assert guarded.episode(policy, guard, {}, seed=5).untrusted == 0


def test_the_fallback_reads_the_temperature_from_the_concentration():
    """0.5 mol/L rests where k = 1 / min, at 350 K: 5 K above its setpoint. The thermometer says nothing."""
    move = guarded.cautious_controller([0.5, float("nan"), 0.0, 300.0, 350.0])
    assert move == pytest.approx(6.0 * 0.05 * (345.0 - 350.0), rel=0.01)


def test_the_study_writes_a_row_with_and_without_the_guard(policy, tmp_path, monkeypatch, capsys):
    policy.save(tmp_path / "seed-0.safetensors")
    monkeypatch.setattr(guarded, "SCENARIOS", {"nominal": {}})
    guarded.main(["--out", str(tmp_path), "--seeds", "0", "--episodes", "1"])
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["guarded"] for row in rows] == [False, True]
    assert rows[0]["return"] == rows[1]["return"]  # nothing happened
    assert len((tmp_path / "results.md").read_text().splitlines()) == 4
    assert (tmp_path / "drifting-thermometer.png").stat().st_size > 1000
