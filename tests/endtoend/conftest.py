"""Training here writes no page for the browser, which takes a second: `tests/reports/test_pages_run.py` tests it."""

import pytest


@pytest.fixture(autouse=True)
def _without_page(monkeypatch):
    monkeypatch.setattr("ringfence.reports.html.pages.write_run_page", lambda run, log: run.path / "report.html")
