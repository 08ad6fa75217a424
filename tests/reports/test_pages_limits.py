"""The page of a policy for a range of limits: what is expected at each limit, and the command that makes it again."""

import shlex

import numpy as np
import pytest

import ringfence
from ringfence.reports.html.again import command_of
from ringfence.reports.html.limit_parts import POINTS, limit_curves, limit_words
from ringfence.reports.html.render import write_page
from ringfence.reports.html.run_page import run_page
from tests import browser as chromium
from tests.logs import narrow_log
from tests.reports.pages import content, objects, read

LOG = narrow_log(rows=1000)
pytestmark = pytest.mark.usefixtures("quick_compilation")
SMALL = {"hidden": (8,), "batch_size": 16, "cvae_steps": 10, "ood_samples": 2}


@pytest.fixture(scope="module")
def run():
    return ringfence.train(LOG, ringfence.CPQ(limits=(6.0, 12.0), **SMALL), steps=20, log_every=5, progress=False)


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    return write_page(run_page(run, LOG), tmp_path_factory.mktemp("page") / "page.html")


def test_a_curve_has_the_critics_mean_at_each_limit(run):
    (curve,) = limit_curves(run, LOG)
    assert (curve.limits[0], curve.limits[-1], len(curve.limits)) == (6.0, 12.0, POINTS)
    starts = LOG.observations[::50]
    for i in (0, 10, POINTS - 1):
        limit = curve.limits[i]
        actions = run.policy(starts, limit=limit)
        cost = run.artifact.evaluate("cost", starts, actions, limit=limit).mean()
        returned = np.minimum(
            *(run.artifact.evaluate(f"reward_{k}", starts, actions, limit=limit) for k in (1, 2))
        ).mean()
        assert (curve.costs[i], curve.returns[i]) == (pytest.approx(cost), pytest.approx(returned))


def test_the_page_says_what_is_expected_where_it_was_watched_or_asked_for(run, page):
    (curve,) = limit_curves(run, LOG)
    text = read(page).text
    assert "for every limit from 6 to 12 (experimental; watched at 9)" in text
    assert limit_words(curve.limits, curve.costs, curve.returns, 9.0) in text
    elsewhere = write_page(run_page(run, LOG, limit=7.0), page.with_name("elsewhere.html"))
    assert limit_words(curve.limits, curve.costs, curve.returns, 7.0) in read(elsewhere).text
    np.testing.assert_allclose(content(page)["curve"]["costs"], curve.costs)


def test_the_page_says_that_a_range_of_limits_is_shown_without_end(page):
    axes = [label["text"] for label in objects(content(page), "PlainText")]
    assert {"discounted cost, over an infinite horizon", "discounted return, over an infinite horizon"} <= set(axes)
    share = f"{1 - 0.99**50:.3g}"
    assert (
        f"They have no end; over the log's 50 steps they are {share} times as much at a steady pace" in read(page).text
    )


def test_words_compare_the_expected_cost_with_the_limit():
    """Both over an infinite horizon, as the verdict has it: over 50 steps 8.25 would be 3.26, inside any limit."""
    said = [limit_words(np.array([6.0, 12.0]), np.array([8.0, 9.0]), np.array([1.0, 2.0]), x) for x in (7.5, 9.0)]
    assert (
        "a limit of 7.5, the policy is expected to cost 8.25 (OUTSIDE) and to earn 1.25, discounted over an infinite horizon"
        in said[0]
    )
    assert "a limit of 9, the policy is expected to cost 8.5 (inside) and to earn 1.5" in said[1]


def test_the_command_asks_for_the_same_range(run):
    words = shlex.split(command_of(run.configuration))
    assert words[words.index("--limit-range") + 1 :][:2] == ["6.0", "12.0"]
    assert "--limit" not in words
    assert not any(word.startswith("limits=") for word in words)


@pytest.mark.skipif(chromium.installed() is None, reason=chromium.NOT_RUN)
def test_the_slider_moves_the_limit_in_both_figures_and_says_what_to_expect(run, page):
    (curve,) = limit_curves(run, LOG)
    driver = chromium.start()
    try:
        chromium.look(driver)
        chromium.visit(driver, page)
        spans = "Bokeh.documents.flatMap((d) => [...d._all_models.values()]).filter((m) => m.name === 'limit')"
        words = "return document.getElementById('limit-words').textContent"
        for asked, got in ((7.3, 7.3), (6, 6.0), (99, 12.0), (12, 12.0)):
            driver.execute_script(
                f"const f = document.getElementById('limit-number'); f.value = {asked}; f.dispatchEvent(new Event('input'));"
            )
            assert driver.execute_script(f"return {spans}.map((span) => span.location)") == [pytest.approx(got)] * 2
            assert driver.execute_script(words) == limit_words(curve.limits, curve.costs, curve.returns, got)
        driver.execute_script(f"{spans}[1].location = 8.2")  # as if it were dragged
        assert "Given a limit of 8.2," in driver.execute_script(words)
        assert chromium.complaints(driver) == []
    finally:
        driver.quit()
