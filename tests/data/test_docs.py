"""The examples of docs/data.md do what the page says they do."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_every_example_runs_and_prints_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "pump.csv").write_text(next(text for kind, text in blocks if kind == "csv"))
    names, printed = {}, ""
    shown = 0
    for kind, text in blocks:
        if kind == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(text, names)
            printed = output.getvalue()
        elif kind == "text":
            assert printed == text
            shown += 1
    assert shown == 4
    assert (tmp_path / "boiler.png").exists()
