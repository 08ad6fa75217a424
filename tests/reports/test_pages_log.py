"""The page of a log, read as text: it says what the log holds, and nothing of the log can run."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import ringfence
from ringfence.cli import main
from ringfence.data import episode_table, summarise
from ringfence.limits import Limit
from ringfence.reports.html.log_numbers import log_numbers, mixing
from ringfence.reports.html.log_page import limit_words, log_page
from ringfence.reports.html.render import html_of, write_page
from tests.logs import narrow_log
from tests.reports.pages import HOSTILE_NAMES, columns, content, objects, read

LOG = replace(
    narrow_log(rows=600, with_source=True),
    observation_names=("speed [m/s]", "load", "heat"),
    units={"speed [m/s]": "m/s"},
)
LIMIT = Limit(9.0, 0.99, 50.0)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(log_page(LOG, 0.99, LIMIT), tmp_path_factory.mktemp("page") / "log.html")


def test_the_page_says_in_words_what_the_log_is(page):
    text = read(page).text
    assert "600 steps in 12 episodes of at most 50 steps, written by gentle and strong" in text
    assert "3 values (speed [m/s], load and heat) and chose 2 actions (action_0 and action_1)" in text


def test_every_episode_is_a_point_and_the_limit_can_be_dragged(page):
    table, found = episode_table(LOG, 0.99), content(page)
    points = [columns(source) for source in objects(found["figures"][0], "ColumnDataSource")]
    shown = np.sort(np.concatenate([point["x"] for point in points if len(point.get("x", ())) == 6]))
    np.testing.assert_allclose(shown, np.sort(table.discounted_costs), rtol=1e-6)
    np.testing.assert_allclose(np.sort(found["episodes"]["costs"]), np.sort(table.discounted_costs), rtol=1e-6)
    (line,) = objects(found["figures"][0], "Span")
    assert (line["location"], line["editable"], line["name"]) == (9.0, True, "limit")


def test_the_words_beside_the_limit_count_episodes_and_what_they_earn():
    costs, returns = np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 20.0, 30.0, 50.0])
    said = limit_words(costs, returns, Limit(2.0, 0.5, 2.0))  # 1.5 discounted steps in two
    assert said.startswith("2 of 4 episodes (50 %) are inside a limit of 2: they earn 15 on average, the others 40.")
    assert "1.333 per step, 2.667 per episode of 2 steps" in said


def test_columns_have_names_units_and_ranges(page):
    heading, first, *_, cost = read(page).tables["columns"]
    assert heading[:4] == ["column", "unit", "what it is", "least"]
    speed = LOG.observations[:, 0]
    assert first == [
        "speed [m/s]",
        "m/s",
        "observation",
        *(f"{q:.4g}" for q in np.quantile(speed, (0, 0.05, 0.5, 0.95, 1))),
    ]
    assert cost[0] == "cost"


def test_every_warning_comes_with_what_to_do(page):
    summary, text = summarise(LOG, 0.99, LIMIT), read(page).text
    assert len(summary.warnings) == len(summary.advice) >= 1  # few episodes
    assert text.count("What to do:") == len(summary.warnings)
    for said in (*summary.warnings, *summary.advice):
        assert said in text


def test_the_map_says_in_words_which_columns_its_directions_are(page):
    """Two columns of which one falls as the other rises (the first and the third); the second is noise."""
    rng = np.random.default_rng(0)
    common, alone = rng.normal(size=(2, 600))
    observations = np.stack([common, alone, -common], 1).astype(np.float32)
    log = replace(LOG, observations=observations, next_observations=observations)
    right, up = log_numbers(log, 0.99, None).map.axes
    assert right in ("mostly more speed [m/s] and less heat", "mostly less speed [m/s] and more heat",
                     "mostly more heat and less speed [m/s]", "mostly less heat and more speed [m/s]")  # fmt: skip
    assert up in ("mostly more load", "mostly less load")
    caption = html_of(log_page(log))
    assert f"To the right: {right}. Upwards: {up}." in caption


def test_what_the_file_states_is_told_from_what_the_page_was_asked_for(tmp_path):
    log = replace(LOG, metadata={"discount": 0.5})
    text = read(write_page(log_page(log, 0.99), tmp_path / "page.html")).text
    assert "discount of this page 0.99 in the file: discount 0.5" in text


@pytest.mark.parametrize(("apart", "expected"), [(0.0, 1.0), (100.0, 0.0)])
def test_sources_in_the_same_states_are_mixed_and_sources_apart_are_not(apart, expected):
    rng = np.random.default_rng(0)
    codes = np.arange(1000) % 2
    states = rng.normal(size=(1000, 3)) + apart * codes[:, None]
    assert mixing(states, codes) == pytest.approx(expected, abs=0.1)


def test_names_out_of_a_log_are_text_and_only_the_pages_own_scripts_may_run(tmp_path):
    log = replace(LOG, observation_names=HOSTILE_NAMES, source_names=HOSTILE_NAMES[:2], name=HOSTILE_NAMES[0], units={})
    page = write_page(log_page(log, 0.99, LIMIT), tmp_path / "log.html")
    html, found = page.read_text(), read(page)
    assert found.tags.count("script") == 3  # library and content, which are data, and the page's own
    assert "img" not in found.tags
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert all(name in found.text for name in HOSTILE_NAMES)
    assert {"{safe}" in str(tool.get("tooltips")) for tool in objects(content(page), "HoverTool")} == {False}
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


def test_a_page_is_one_file_of_a_few_hundred_kilobytes_that_loads_nothing(page):
    html, found = page.read_text(), read(page)
    assert page.stat().st_size < 900_000
    assert not [value for _, name, value in found.attributes if name in ("src", "href")]
    assert "@import" not in html
    assert ("meta", "name", "viewport") in found.attributes
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_the_same_log_gives_the_same_text_without_a_limit_too():
    page = log_page(LOG)
    (tool,) = [part for part in page.sections[0].parts if part.kind == "limit"]
    assert tool.value == pytest.approx(np.median(episode_table(LOG, 0.99).discounted_costs), rel=1e-6)
    assert "inside a limit of" in html_of(page)


def test_the_verb_writes_a_page_and_does_not_overwrite_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(
        "obs_0,action_0,reward,cost,episode\n" + "0,0.5,1,0.5,7\n1,-0.5,1,0.5,7\n2,0.1,1,0.1,7\n"
    )
    assert main(["report", "log.csv", "--limit", "3"]) == 0
    assert capsys.readouterr().out == "page: report.html\n"
    assert "2 steps in 1 episode" in read(tmp_path / "report.html").text
    assert main(["report", "log.csv"]) == 2
    assert "report.html exists" in capsys.readouterr().err
    assert main(["report", "log.csv", "--overwrite"]) == 0


def test_the_page_of_a_log_needs_no_jax(tmp_path):
    ringfence.save(LOG, tmp_path / "log.h5")
    code = "import sys; from ringfence.cli import main; main(['report', 'log.h5'])\n"
    code += "assert 'jax' not in sys.modules, 'jax was imported'"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert (tmp_path / "report.html").exists()


def test_a_directory_that_is_nothing_of_ours_is_refused_in_a_line(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "directory without config.json" in capsys.readouterr().err
