"""What `ringfence judge` and `ringfence choose` take for granted: at which limit, by which rows, over how many steps."""

import json

from ringfence.cli import main


def judged(words, capsys, status=0):
    """The judgements of `ringfence judge WORDS`, which must end with this status."""
    assert main(["judge", *map(str, words), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_each_policy_of_a_run_is_judged_at_its_own_limit(for_two_limits, capsys):
    loose, strict = judged([for_two_limits, "--require-inside"], capsys, status=3)
    assert (loose["limit"], strict["limit"]) == (60.0, 0.5)
    assert (loose["verdict"], strict["verdict"]) == ("inside", "outside")
    assert "the limit is 0.5" in strict["reason"]


def test_a_policy_that_is_compared_with_is_judged_at_its_own_limit_unless_one_is_given(runs, for_two_limits, capsys):
    mine, *others = judged([runs / "bc", "--against", for_two_limits], capsys)
    assert [mine["limit"], *(other["limit"] for other in others)] == [20.0, 60.0, 0.5]
    assert {j["limit"] for j in judged([runs / "bc", "--against", for_two_limits, "--limit", "33"], capsys)} == {33.0}


def test_choose_asks_for_a_limit_only_if_the_policies_to_choose_from_have_several(for_two_limits, capsys):
    assert main(["choose", str(for_two_limits)]) == 2
    assert "trained for several limits ([0.5, 60.0]); say which with --limit" in capsys.readouterr().err
    one = for_two_limits / "policy-limit60.safetensors"
    assert main(["choose", str(one), "--json"]) in (0, 3)
    (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
    assert candidate["limit"] == 60.0
