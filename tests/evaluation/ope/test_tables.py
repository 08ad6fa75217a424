"""The tables of judgements and choices, as they are printed."""

from dataclasses import replace
from importlib import import_module
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from tests.logs import narrow_log

from ringfence.evaluation.ope import Judge, choose
from ringfence.evaluation.ope.choose import Choice
from ringfence.evaluation.ope.clone import clone_of
from ringfence.evaluation.ope.judgement import Estimate
from ringfence.reports.judgement import UNSURE, print_choice, print_judgements

LOG = narrow_log(rows=1000, episode_length=50)
usual = clone_of(LOG, "the log", np.ones(1000, bool)).mean


@pytest.fixture(scope="module")
def judged():
    return Judge(LOG, narrow_log(rows=1000, episode_length=50, seed=1))(usual, 20.0, name="usual")


def printed(show, what, width=80):
    console = Console(file=StringIO(), width=width)
    show(what, console)
    return console.file.getvalue()


def test_the_table_has_both_bounds_of_the_cost(judged):
    text = printed(print_judgements, [replace(judged, cost=Estimate(1234.0, 1111.0, 1357.0))])
    assert all(number in text for number in ("1234", "1111", "1357"))
    assert "…" not in text


def test_what_is_said_of_a_policy_that_cannot_be_judged_has_a_question_mark(judged):
    sure = replace(judged, cost=Estimate(1234.0, 1111.0, 1357.0), returned=Estimate(2345.0, 2222.0, 2468.0))
    assert sure.judgeable
    unsure = replace(sure, judgeable=False, return_is_bounded=False, verdict="cannot tell", name="seed 0, limit 20")
    text = printed(print_judgements, [unsure])
    assert all(f"{number}?" in text for number in ("2345", "1234", "1111", "1357"))
    assert UNSURE in text
    assert "…" not in text
    assert not {"?", UNSURE} & set(printed(print_judgements, [sure]).split())
    assert unsure.to_dict()["cost"] == {"value": 1234.0, "lower": 1111.0, "upper": 1357.0}


def test_names_with_brackets_are_printed_as_they_are(judged):
    source = replace(judged.sources[0], name="PID [auto]")
    renamed = replace(judged, name="tuned [/a]", sources=(source,))
    text = printed(print_judgements, [renamed, renamed])
    assert "PID [auto] cost" in text
    assert "tuned [/a]: " in text
    choice = printed(print_choice, Choice((renamed,), renamed.name, renamed, "it is inside"), width=200)
    assert "chosen: tuned [/a]. it is inside" in choice
    assert "PID [auto] (logged)" in choice


class OutsideAgain(Judge):
    """All that the second judge, which has the next seed, looks at is outside."""

    def __init__(self, *args, seed, **options):
        super().__init__(*args, seed=seed, **options)
        self.again = seed > 0

    def __call__(self, *args, **options):
        found = super().__call__(*args, **options)
        verdict, reason = ("outside", "too much the second time") if self.again else ("inside", "little")
        return replace(found, verdict=verdict, reason=reason)


def test_a_choice_that_the_second_look_refuses_shows_what_it_saw(monkeypatch):
    monkeypatch.setattr(import_module("ringfence.evaluation.ope.choose"), "Judge", OutsideAgain)
    choice = choose({"first": usual, "other": usual}, LOG, 20.0)
    assert choice.chosen is None
    assert {look.name for look in choice.second_looks} == {"first", "other"}
    assert "see why in the second table" in choice.reason
    text = printed(print_choice, choice)
    assert "judged again, by other episodes, at 97.5%" in text
    assert text.count("outside the limit: too much the second time") == 2
    assert [look["verdict"] for look in choice.to_dict()["second_looks"]] == ["outside", "outside"]
