"""The plan in docs/cluster.md has the numbers of `results/` and of the code."""

import json
import re
from pathlib import Path

from ringfence.cli import main
from ringfence.experiments.speed import START

ROOT = Path(__file__).parents[2]
PRICE, CORES = 0.05, 64  # the page's assumptions


def test_the_worked_example_is_that_of_its_results():
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "cluster.md").read_text())
    cells = (ROOT / "results" / "figure2" / "cells").glob("*-cpq-limit*.json")
    seconds = [json.loads(file.read_text())["seconds"] for file in cells]
    mean, longest = sum(seconds) / len(seconds), max(seconds)
    hours = 1000 * mean / 3600
    minutes = 60 * hours / CORES + longest / 60
    for sentence in (
        f"our default's {len(seconds)} cells of Figure 2",
        f"took {mean:.0f} s on average and {longest:.0f} s at most",
        f"1,000 such cells are {hours:.0f} core-hours: {minutes:.0f} minutes on {CORES} cores",
        f"At {PRICE} a core-hour",
        f"they cost {PRICE * hours:.2f}",
    ):
        assert sentence in page


def test_a_cells_own_start_is_the_codes():
    page = (ROOT / "docs" / "cluster.md").read_text()
    assert f"takes about {START:.0f} s" in page
    assert f"{START / 120:.0%} of a cell of two minutes".replace("%", " %") in page


def test_results_are_as_small_as_the_page_says():
    """Of both figures; the cells that are added later, too."""
    page = (ROOT / "docs" / "cluster.md").read_text()
    sizes = [
        file.stat().st_size
        for figure in ("figure1", "figure2")
        for file in (ROOT / "results" / figure / "cells").iterdir()
    ]
    assert 4_500 <= min(sizes) <= max(sizes) <= 17_000
    assert page.count("5 to 17 kB") == 2
    assert page.count("at most 17 MB") == 2  # of a thousand


def test_the_default_store_is_the_codes(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "cluster.md").read_text()
    assert "without it `sweeps/NAME`" in page
    (tmp_path / "log.csv").write_text("a log")
    (tmp_path / "g.toml").write_text('log = "log.csv"\nname = "mine"\nlimits = [30]\nmethods = ["bc"]\n')
    asked = []
    monkeypatch.setattr(
        "ringfence.cli.experiments.carry_out", lambda experiment, options: asked.append(options.out) or 0
    )
    assert main(["sweep", str(tmp_path / "g.toml")]) == 0
    assert main(["reproduce", "figure1", "--rows", "1000"]) == 0
    assert asked == ["sweeps/mine", "reproduction"]
