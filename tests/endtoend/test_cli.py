"""The command line as a user meets it."""

import json
import shutil
import subprocess
import sys

import pytest

import ringfence
from ringfence.cli import main
from tests.logs import narrow_log, still_with_costs

SMALL = ["--set", "hidden=[8,8]", "batch_size=16", "cvae_steps=20", "ood_samples=3"]
CLONE = ["--method", "bc", "--set", "hidden=[8]", "batch_size=16"]  # where any method will do
FEW = ["--steps", "40", "--log-every", "10", "--checkpoint-every", "10", "--evaluate-every", "20"]
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "log.parquet"
    ringfence.save(narrow_log(rows=600, with_source=True), path)
    return path


def refused(capsys, *words):
    """The error of a refused call: exit status 2, nothing on stdout, at most two lines on stderr."""
    try:
        status = main([str(word) for word in words])
    except SystemExit as exit:
        status = exit.code
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) <= 2
    return err


def test_help_is_quick_and_does_not_import_jax():
    code = "import sys; from ringfence.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'jax', 'numpy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("verb", ["inspect", "train", "evaluate", "methods", "collect", "theory", "demo"])
def test_every_verb_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as exit:
        main([verb, "--help"])
    assert exit.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 5


# inspect


def test_inspect_shows_a_table_and_draws_the_episodes(log, capsys, tmp_path):
    assert main(["inspect", str(log), "--limit", "7", "--plot", str(tmp_path / "log.png")]) == 0
    out = capsys.readouterr().out
    assert "gentle" in out
    assert "per step" in out
    assert (tmp_path / "log.png").stat().st_size > 5000


def test_inspect_gives_json_that_a_program_can_read(log, capsys):
    assert main(["inspect", str(log), "--limit", "7", "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_a_limit_per_episode_or_per_step_is_converted_at_the_door(log, capsys):
    for kind, value in [("episode", "20"), ("step", "0.4")]:
        assert main(["inspect", str(log), "--limit", value, "--limit-kind", kind]) == 0
        assert "20 per episode of 50 steps" in capsys.readouterr().out.replace("\n", " ")


def test_a_warning_tells_when_the_limit_is_below_anything_logged(log, capsys):
    assert main(["inspect", str(log), "--limit", "0.5"]) == 0
    assert "warning" in capsys.readouterr().out


# train, resume, evaluate


def test_train_repeats_the_notes_of_inspect_and_its_run_reads_the_log_again_in_the_same_way(tmp_path, capsys):
    rows = [f"{i // 10};{i % 7},5;{(i % 5) / 10};1;0,25".replace(".", ",") for i in range(60)]
    (tmp_path / "plant.csv").write_text("\n".join(["batch;T;u;profit;hot", *rows]) + "\n")
    reading = ["--csv-decimal", ",", "--action-low", "0", "--action-high", "2"]
    reading += ["--columns", "obs=T", "actions=u", "reward=profit", "cost=hot", "episode=batch"]
    run = tmp_path / "run"
    words = ["train", str(tmp_path / "plant.csv"), "--limit", "7", "--out", str(run), *FEW, *reading, *CLONE]
    assert main(words) == 0
    err = capsys.readouterr().err
    assert "note: columns are divided by ';'" in err
    assert "note: no column says where episodes terminated" in err
    log = ringfence.api.log_of_run(run)
    assert (log.action_names, log.action_high.tolist()) == (("u",), [2.0])


@pytest.fixture(scope="module")
def trained(log, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", str(log), "--limit", "7", "--out", str(out), *FEW, *SMALL]) == 0
    return out


def test_train_leaves_a_policy_a_picture_and_a_sentence_about_the_limit(log, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", str(log), "--limit", "7", "--seeds", "0", "1", "--out", str(out), *FEW, *SMALL]) == 0
    printed, progress = capsys.readouterr()
    assert "limit of 7" in printed.replace("\n", " ")
    assert "policy: " in printed
    assert "limit: 7 discounted" in progress
    assert (out / "result.png").exists()
    assert {p.name for p in out.glob("policy*")} == {"policy-seed0.safetensors", "policy-seed1.safetensors"}


def test_resuming_a_finished_run_changes_nothing(trained, capsys):
    def content():
        return ringfence.Policy.load(trained / "policy.safetensors").checksum, (trained / "metrics.jsonl").read_text()

    before = content()
    assert main(["train", "--resume", str(trained)]) == 0
    assert content() == before


@pytest.mark.parametrize(
    "words",
    [
        ["--limit", "8"],
        ["--limit-kind", "discounted"],
        ["--seeds", "0"],
        ["--set", "tau=0.1"],
        ["--method", "cpq"],
        ["--preset", "default"],
        ["--out", "elsewhere"],
        ["--discount", "0.99"],
        ["--log-every", "1000"],
        ["--episodes", "10"],
        ["--tensorboard"],
        ["--task", "hopper-torque"],
        ["--columns", "rewards=profit"],  # of a log that is not named
    ],
)
def test_what_resuming_cannot_honour_is_refused_even_where_it_is_the_default(trained, capsys, words):
    assert words[0] in refused(capsys, "train", "--resume", trained, *words)


def test_resuming_goes_on_for_longer_and_takes_the_log_from_where_it_is_now(trained, log, tmp_path):
    grown = shutil.copytree(trained, tmp_path / "grown")
    moved = shutil.copy(log, tmp_path / "moved.parquet")
    assert main(["train", str(moved), "--resume", str(grown), "--steps", "60"]) == 0
    assert ringfence.Run.load(grown).policy.metadata["steps_done"] == 60


def test_a_limit_is_converted_with_the_discount_that_is_trained_with(log, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["train", str(log), "--limit", "0.3", "--limit-kind", "step", "--horizon", "1000", "--out", str(out)]
    assert main([*words, "--method", "bc", "--steps", "2", "--set", "discount=0.95", "hidden=[8]"]) == 0
    run = ringfence.Run.load(out)
    assert run.members[0].limit == pytest.approx(0.3 / (1 - 0.95))
    assert run.configuration.discount == 0.95
    assert "limit: 6 discounted (at 0.95)" in capsys.readouterr().err


def test_a_verdict_that_is_not_inside_gives_its_own_exit_status_if_asked(trained, capsys):
    assert not ringfence.Run.load(trained).verdict.inside  # 40 steps are too few for any trust
    assert main(["train", "--resume", str(trained)]) == 0
    assert main(["train", "--resume", str(trained), "--require-inside"]) == 3
    assert "unsure" in capsys.readouterr().out


def test_training_says_how_many_steps_come_before_those_of_the_policy(log, tmp_path, capsys):
    assert main(["train", str(log), "--limit", "7", "--out", str(tmp_path / "run"), *FEW, *SMALL]) == 0
    assert "stages: detector (20 steps), then policy (40 steps)" in capsys.readouterr().err


def test_the_paper_preset_and_single_settings_reach_the_run(log, tmp_path):
    out = tmp_path / "run"
    words = ["train", str(log), "--limit", "7", "--preset", "paper", "--out", str(out), *FEW, *SMALL, "alpha=2"]
    assert main(words) == 0
    config = json.loads((out / "config.json").read_text())
    settings = config["hyperparameters"]
    assert (config["method"], settings["alpha"], settings["hidden"]) == ("cpq-paper", 2, [8, 8])


def test_a_departure_is_no_setting_of_the_paper_preset(log, capsys):
    assert "no setting 'anchor'" in refused(
        capsys, "train", str(log), "--limit", "7", "--preset", "paper", "--set", "anchor=2"
    )


def test_columns_of_other_names_can_be_mapped_and_a_run_on_them_resumed(tmp_path, capsys):
    import pyarrow.csv
    import pyarrow.parquet

    ringfence.save(narrow_log(rows=300), tmp_path / "ours.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "ours.parquet").replace_schema_metadata()
    renamed = table.rename_columns([{"reward": "profit", "cost": "harm"}.get(n, n) for n in table.column_names])
    pyarrow.csv.write_csv(renamed, tmp_path / "theirs.csv")
    words = ["train", str(tmp_path / "theirs.csv"), "--limit", "7", "--out", str(tmp_path / "run"), *FEW, *CLONE]
    assert "reward" in refused(capsys, *words)
    assert main([*words, "--columns", "rewards=profit", "costs=harm"]) == 0
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0


def test_tensorboard_files_are_written_on_request(log, tmp_path):
    out = tmp_path / "run"
    assert main(["train", str(log), "--limit", "7", "--tensorboard", "--out", str(out), *FEW, *SMALL]) == 0
    assert list((out / "tensorboard").glob("events*"))


def test_evaluate_reports_return_and_cost_in_a_task(tmp_path, capsys):
    log = tmp_path / "log.h5"
    ringfence.save(narrow_log(rows=600, obs=11, act=3), log)
    out = tmp_path / "run"
    words = ["train", str(log), "--limit", "7", "--task", "hopper-torque", "--episodes", "2", "--out", str(out)]
    assert main([*words, *FEW, *CLONE]) == 0
    assert "in simulation" in capsys.readouterr().out.replace("\n", " ")
    policy = str(out / "policy.safetensors")
    words = ["evaluate", policy, "--task", "hopper-torque", "--episodes", "3", "--seed", "1"]
    assert main([*words, "--plot", str(tmp_path / "e.png")]) == 0
    assert "discounted cost" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["episodes"] == 3
    assert result["limit"] == 7
    assert "cannot be paced: its file has no gains" in refused(capsys, *words, "--paced")
    assert "cannot take turns with another one" in refused(capsys, *words, "--in-turns")
    for told in ("--paced", "--in-turns"):
        assert f"{told} and --sampled exclude each other" in refused(capsys, *words, told, "--sampled")
    assert "not allowed with argument" in refused(capsys, *words, "--paced", "--in-turns")
    still = still_with_costs(ringfence.Policy.load(policy)).save(tmp_path / "paced.safetensors")
    steps = {}
    for told in ("", "--paced", "--in-turns"):
        assert main(["evaluate", str(still), *words[2:], "--json", *filter(None, [told])]) == 0
        found = json.loads(capsys.readouterr().out)["per episode"]
        steps[told] = [cost / length for cost, length in zip(found["episode cost"], found["length"], strict=True)]
    assert steps["--paced"] == [0.0] * 3
    assert steps["--in-turns"] == pytest.approx([0.5] * 3, rel=1e-4)
    assert steps[""] not in (steps["--paced"], steps["--in-turns"])


def test_methods_lists_methods_and_settings(capsys):
    assert main(["methods"]) == 0
    assert "cpq" in capsys.readouterr().out
    assert main(["methods", "cpq"]) == 0
    assert "ood_quantile" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "cpq",
            "50,000 steps after 5,000 of the detector, "
            "with the paper's preset 60,000 steps after 20,000 of the detector",
        ),
        ("cpq-paper", "60,000 steps after 20,000 of the detector"),
        ("bear-lag", "60,000 steps after 20,000 of the generator and 20,000 of the warm-up"),
        ("bc", "50,000 steps"),
        ("cbpl", "50,000 steps"),  # as many as the paper's
    ],
)
def test_methods_says_how_many_steps_a_run_makes_that_is_not_told(name, said, capsys):
    assert main(["methods", name]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"without --steps a run makes {said}"


# Bad requests


def test_a_missing_log_is_named(capsys):
    assert "nowhere.h5" in refused(capsys, "inspect", "nowhere.h5")


def test_a_file_that_is_no_log_is_refused(capsys, tmp_path):
    (tmp_path / "poem.parquet").write_text("roses are red")
    assert "poem.parquet" in refused(capsys, "train", tmp_path / "poem.parquet", "--limit", "3")


def test_training_without_a_limit_says_so(log, capsys):
    assert "--limit" in refused(capsys, "train", log)


def test_an_unknown_method_preset_setting_or_task_is_named_with_what_there_is(log, capsys, tmp_path, trained):
    base = ["train", log, "--limit", "7", "--out", tmp_path / "run"]
    assert "cpq" in refused(capsys, *base, "--method", "magic")
    assert "paper" in refused(capsys, *base, "--preset", "magic")
    assert "anchor" in refused(capsys, *base, "--set", "ancor=3")
    assert "NAME=VALUE" in refused(capsys, *base, "--set", "anchor")
    assert "hopper-torque" in refused(capsys, "evaluate", trained / "policy.safetensors", "--task", "hoper")
    assert not (tmp_path / "run").exists()


def test_a_task_that_does_not_exist_is_refused_before_anything_is_written(log, capsys, tmp_path):
    error = refused(capsys, "train", log, "--limit", "7", "--task", "hoper-torque", "--out", tmp_path / "run")
    assert "hopper-torque" in error
    assert not (tmp_path / "run").exists()


def test_an_existing_directory_is_not_overwritten(log, trained, capsys):
    assert "--resume" in refused(capsys, "train", log, "--limit", "7", "--out", trained, *FEW, *SMALL)


def test_a_foreign_policy_file_is_refused(capsys, log):
    assert "not a ringfence policy" in refused(capsys, "evaluate", log, "--task", "hopper-torque")


def test_an_unknown_option_is_refused_on_one_line(capsys, log):
    assert "--lmit" in refused(capsys, "inspect", log, "--lmit", "3")


# Making logs


@pytest.mark.slow
def test_a_behaviour_policy_is_trained_and_writes_a_log(tmp_path, capsys):
    out = tmp_path / "ppo"
    assert (
        main(["behaviour", "train", "--task", "hopper-torque", "--method", "ppo", "--steps", "1", "--out", str(out)])
        == 0
    )
    policy = str(out / "policy.safetensors")
    words = ["collect", "--task", "hopper-torque", "--size", "300", "--out", str(tmp_path / "log.h5"), "--workers", "1"]
    assert main([*words, "--policies", policy, policy, "--shares", "1", "2"]) == 0
    assert len(ringfence.load(tmp_path / "log.h5")) == 300
    capsys.readouterr()
    assert "exists" in refused(capsys, *words)
