"""Pages in a real Chromium: figures are drawn, the limit is dragged, tables are sorted, nothing of a log runs."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringfence.deploy import Policy
from ringfence.limits import Limit
from ringfence.reports.html.guard_numbers import guard_numbers
from ringfence.reports.html.guard_page import guard_page
from ringfence.reports.html.log_page import limit_words, log_page
from ringfence.reports.html.pages import write_sweep_page
from ringfence.reports.html.parts import Cell, Page, Section, Table
from ringfence.reports.html.render import write_page
from ringfence.reports.html.run_page import run_page
from ringfence.training import Configuration, Member, Run, Schedule
from ringfence.training.configuration import LogRecord
from tests import browser as chromium
from tests.browser import complaints, look, visit
from tests.logs import narrow_log
from tests.reports.pages import HOSTILE_NAMES, content
from tests.reports.test_experiment import folder as sweep_folder
from tests.reports.test_experiment import result
from tests.reports.test_pages_guard import day

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def browser():
    if chromium.installed() is None:
        pytest.skip(chromium.NOT_RUN)
    driver = chromium.start()
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def log_file(folder):
    """The page of a log whose names would do harm if they were more than text."""
    log = narrow_log(rows=600, with_source=True)
    log = replace(log, observation_names=HOSTILE_NAMES, source_names=HOSTILE_NAMES[:2], name=HOSTILE_NAMES[0])
    return write_page(log_page(log, 0.99, Limit(9.0, 0.99, 50.0)), folder / "log.html")


def drawn(browser):
    """How many figures are on the page, and how many of their canvases have ink on them."""
    return browser.execute_script("""
        const canvases = (root) => [...root.querySelectorAll("*")].flatMap((e) => e.tagName === "CANVAS" ? [e]
            : e.shadowRoot ? canvases(e.shadowRoot) : []);
        const figures = [...document.querySelectorAll(".plot")];
        const inked = (f) => canvases(f).some((c) => c.width && c.getContext("2d")
            .getImageData(0, 0, c.width, c.height).data.some((v, i) => i % 4 === 3 && v > 0));
        return [figures.length, figures.filter(inked).length];
    """)


def axis_colours(browser):
    return set(
        browser.execute_script("""
        return Bokeh.documents.flatMap((d) => [...d._all_models.values()])
            .filter((m) => "axis_label_text_color" in m.attributes).map((m) => m.axis_label_text_color);
    """)
    )


def limit_in_pixels(browser):
    """Where on the screen the limit's line is, and how many pixels a unit of cost is."""
    return browser.execute_script("""
        const view = Bokeh.index.roots[0], frame = view.frame, scale = frame.x_scale;
        const box = view.el.getBoundingClientRect(), span = view.model.center.find((m) => m.name === "limit");
        const x = (value) => box.left + frame.bbox.left + scale.compute(value) - scale.compute(view.model.x_range.start);
        return [x(span.location), box.top + frame.bbox.top + frame.bbox.height / 2, x(span.location + 1) - x(span.location)];
    """)


def test_a_log_is_drawn_without_a_complaint_and_nothing_of_it_runs(browser, log_file):
    look(browser)
    visit(browser, log_file)
    assert complaints(browser) == []
    figures, inked = drawn(browser)
    assert figures == inked == 9  # episodes, seven columns, the map
    assert browser.title == HOSTILE_NAMES[0]
    assert browser.execute_script("return document.querySelectorAll('script').length") == 4  # and the unpacked library
    text = browser.execute_script("return document.body.innerText")
    assert all(name in text for name in HOSTILE_NAMES)
    assert browser.execute_script("return performance.getEntriesByType('resource').map((r) => r.name)") == []


def test_dragging_the_limit_counts_the_episodes_inside(browser, log_file):
    from selenium.webdriver import ActionChains

    look(browser)
    visit(browser, log_file)
    browser.execute_script("document.getElementById('figure-0').scrollIntoView({block: 'center'})")
    x, y, unit = limit_in_pixels(browser)
    drag = ActionChains(browser, duration=50)
    drag.w3c_actions.pointer_action.move_to_location(round(x), round(y)).pointer_down()
    drag.w3c_actions.pointer_action.move_to_location(round(x - unit), round(y)).move_to_location(
        round(x - 3 * unit), round(y)
    )
    drag.w3c_actions.pointer_action.pointer_up()
    drag.perform()
    moved = browser.execute_script("return Bokeh.index.roots[0].model.center.find((m) => m.name === 'limit').location")
    assert moved == pytest.approx(6.0, abs=0.2)
    episodes = content(log_file)["episodes"]
    said = browser.execute_script("return document.getElementById('limit-words').textContent")
    expected = limit_words(np.array(episodes["costs"]), np.array(episodes["returns"]), Limit(moved, 0.99, 50.0))
    assert said == expected
    shown = browser.execute_script(
        "return [document.getElementById('limit-slider').value, document.getElementById('limit-number').value]"
    )
    assert [float(value) for value in shown] == [pytest.approx(moved, rel=1e-4)] * 2
    assert complaints(browser) == []


def test_the_slider_moves_the_limit_in_the_figure(browser, log_file):
    visit(browser, log_file)
    browser.execute_script(
        "const s = document.getElementById('limit-slider'); s.value = 1; s.dispatchEvent(new Event('input'));"
    )
    assert (
        browser.execute_script("return Bokeh.index.roots[0].model.center.find((m) => m.name === 'limit').location") == 1
    )
    assert "0 of 12 episodes (0 %)" in browser.execute_script(
        "return document.getElementById('limit-words').textContent"
    )


def test_on_a_phone_nothing_is_wider_than_the_screen_and_in_the_dark_figures_are_light(browser, log_file):
    look(browser, width=390, dark=True)
    visit(browser, log_file)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 29)"
    assert axis_colours(browser) == {"#c9d1dc"}
    assert drawn(browser) == [9, 9]
    look(browser)
    visit(browser, log_file)
    assert axis_colours(browser) == {"#333c4a"}


# The other pages


def hostile_run(log):
    """A run with a policy that always sends the middle, made without training."""
    tensors = {"actor.0.weight": np.zeros((3, 4)), "actor.0.bias": np.zeros(4)}
    policy = Policy.from_tensors("tanh-gaussian", tensors, [0] * 3, [1] * 3, log.action_low, log.action_high)
    where = {"stage": "policy", "overall_step": 1, "seed": 0, "limit": 9.0}
    metrics = [
        {**where, "step": n, "qc_start": 8.0 + n, "qr_start": 50.0, "indicator": 0.5, "alpha": 1.0} for n in (1, 2)
    ]
    configuration = Configuration(
        "cpq", {"discount": 0.99, "tau": 0.02}, (Member(0, 9.0),), Schedule(2),
        LogRecord(HOSTILE_NAMES[0], len(log), log.fingerprint, log.horizon, {"source": HOSTILE_NAMES[1]}),
    )  # fmt: skip
    warnings = [{**where, "step": 2, "text": f"stalled: {HOSTILE_NAMES[1]}"}]
    return Run(configuration, metrics, [], warnings, artifacts=[policy.artifact])


def test_a_run_is_drawn_and_its_figures_switch_to_another_action(browser, folder):
    log = replace(
        narrow_log(rows=600), observation_names=HOSTILE_NAMES, action_names=("valve", HOSTILE_NAMES[0]), units={}
    )
    page = write_page(run_page(hostile_run(log), log), folder / "run.html")
    look(browser)
    visit(browser, page)
    figures, inked = drawn(browser)
    assert figures == inked == 8  # beside the log; three observations; two of learning; indicator and alpha
    assert browser.title != "owned"
    shown = (
        "return Bokeh.documents.flatMap((d) => [...d._all_models.values()]).find((m) => m.name === 'profile-0').data"
    )
    before = browser.execute_script(f"{shown}.logged")
    choose = "const s = document.getElementById('choice'); s.value = '1'; s.dispatchEvent(new Event('change'));"
    browser.execute_script(choose)
    wanted = content(page)["variants"][1]["sources"]["profile-0"]["logged"]
    assert browser.execute_script(f"return [...({shown.removeprefix('return ')}.logged)]") == pytest.approx(wanted)
    assert list(before) != pytest.approx(wanted)
    assert complaints(browser) == []


def test_a_run_fits_a_phone_and_follows_the_dark(browser, folder):
    log = replace(narrow_log(rows=600), observation_names=HOSTILE_NAMES)
    look(browser, width=390, dark=True)
    visit(browser, write_page(run_page(hostile_run(log), log), folder / "phone.html"))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert axis_colours(browser) == {"#c9d1dc"}
    assert drawn(browser) == [8, 8]
    look(browser)


def test_what_is_folded_is_on_paper_too(browser, folder):
    """The settings of a run are behind a click; a printed page has no clicks."""
    page = write_page(run_page(hostile_run(narrow_log(rows=600)), None), folder / "printed.html")
    look(browser)
    visit(browser, page)
    count = "return [...document.querySelectorAll('details')].filter((d) => d.open).length"
    assert browser.execute_script(count) == 0
    browser.execute_script("window.opened = -1; window.addEventListener('beforeprint', () => { window.opened = "
                           "[...document.querySelectorAll('details')].filter((d) => d.open).length; })")  # fmt: skip
    browser.execute_cdp_cmd("Page.printToPDF", {})
    assert browser.execute_script("return window.opened") == 2
    assert browser.execute_script(count) == 0


def page_of_a_table(folder, heading="observation", columns=27):
    """As many columns as the rows with the largest change have on a robot."""
    numbers = tuple(Cell("-0.0123", -0.0123) for _ in range(columns))
    table = Table((heading,) * columns, (numbers,) * 3)
    return write_page(Page("log", "wide", "", (Section("", (table,)),)), folder / "wide.html")


def test_a_wide_table_is_not_cut_off_on_paper(browser, folder):
    look(browser, width=718)  # what A4 has between its margins
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    visit(browser, page_of_a_table(folder))
    assert browser.execute_script("return document.querySelector('table').getBoundingClientRect().right") <= 718
    look(browser)


def test_on_a_phone_a_long_heading_out_of_sight_leaves_no_gap(browser, folder):
    """All headings are of one line, however long: the table is moved sideways."""
    look(browser, width=390)
    heights = []
    for heading in ("cost", "cost of the episodes, discounted at 0.99"):
        visit(browser, page_of_a_table(folder, heading, columns=5))
        heights.append(browser.execute_script("return document.querySelector('thead').getBoundingClientRect().height"))
    assert heights[0] == heights[1]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    look(browser)


def rows_shown(browser, column):
    return browser.execute_script(
        "return [...document.getElementById('policies').tBodies[0].rows].filter((r) => !r.hidden)"
        f".map((r) => r.cells[{column}].textContent)"
    )


def test_the_table_of_a_sweep_is_sorted_and_filtered(browser, folder):
    (folder / "sweep").mkdir()
    costs = {"cpq": 9.5, "bc-safe": 28.0, HOSTILE_NAMES[1]: 101.0}
    cells = [{**result(name, 0, costs=[cost, cost]), "id": name} for name, cost in costs.items()]
    page = write_sweep_page(sweep_folder(folder / "sweep" / "grid", cells))
    visit(browser, page)
    headings = browser.execute_script("return [...document.querySelectorAll('#policies th')].map((h) => h.innerText)")
    index = next(i for i, heading in enumerate(headings) if heading.startswith("discounted cost"))
    click = f"document.querySelectorAll('#policies th button')[{index}].click()"
    browser.execute_script(click)
    assert rows_shown(browser, index) == ["9.5", "28", "101"]  # as numbers: as text 101 would come first
    browser.execute_script(click)
    assert rows_shown(browser, index) == ["101", "28", "9.5"]
    words = (
        "const f = document.querySelector('input.filter'); f.value = 'BC safe'; f.dispatchEvent(new Event('input'));"
    )
    browser.execute_script(words)
    assert rows_shown(browser, index) == ["28"]
    assert browser.execute_script("return document.querySelector('output.shown').textContent") == "1 of 3 rows"
    assert drawn(browser) == [1, 1]
    assert complaints(browser) == []
    assert browser.title != "owned"
    look(browser, width=390)
    visit(browser, page)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    look(browser)


def test_a_day_at_the_plant_is_drawn_without_a_complaint(browser, folder):
    page = write_page(guard_page(guard_numbers(day(folder / "guard.jsonl"))), folder / "guard.html")
    look(browser, width=390)
    visit(browser, page)
    assert drawn(browser) == [4, 4]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert complaints(browser) == []


# Without a browser


def test_without_a_browser_the_end_of_the_tests_says_so(tmp_path):
    if os.environ.get("PYTEST_XDIST_WORKER"):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    else:
        environment = dict(os.environ)
    environment |= {"PATH": str(tmp_path), "CHROMIUM": "", "CHROMEDRIVER": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__, "-k", "slider"]
    ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert "PAGES WERE NOT TESTED IN A BROWSER" in ran.stdout
    assert "1 tests did not run: no Chromium" in ran.stdout


@pytest.mark.parametrize(("user", "works"), [("0", True), ("0", False), ("1000", True)])
def test_make_installs_chromium_where_it_may_and_never_fails(tmp_path, user, works):
    for name, body in {
        "id": f"echo {user}",
        "apt-get": f'echo "$@" >> {tmp_path}/asked; exit {0 if works else 1}',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("sh", "make", "timeout"):
        found = next(Path(folder, name) for folder in ("/bin", "/usr/bin") if Path(folder, name).exists())
        (tmp_path / name).symlink_to(found)
    ran = subprocess.run(["make", "browser"], env={"PATH": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert ("install -qq --yes --no-install-recommends chromium chromium-driver" in asked) == (user == "0" and works)
    assert ("pages will not be tested" in ran.stdout) == (user != "0" or not works)
