"""The numbers of docs/reproduction.md are those of `results/`. A failure says what the page should have."""

import csv
import json
import re
from functools import cache
from pathlib import Path

import numpy as np

from ringfence.reports.results import gather

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
COLUMNS = ("log", "method", "return", "discounted cost", "cost per step", "episodes over limit")


@cache
def page():
    return (ROOT / "docs" / "reproduction.md").read_text()


def section(title):
    return page().split(f"## What was found: {title}\n")[1].split("\n## ")[0]


def test_the_table_of_figure_1_is_that_of_its_results():
    with open(RESULTS / "figure1" / "table.csv", encoding="utf-8") as file:
        rows = [[row[name] for name in COLUMNS] for row in csv.DictReader(file)]
    wanted = [f"| {' | '.join(cells)} |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    found = section("Figure 1").split("\n\n")
    (table,) = [part.splitlines() for part in found if part.startswith("| log | method |")]
    assert table == wanted, "the table should be\n" + "\n".join(wanted)


# Figure 2


@cache
def cells(figure="figure2"):
    return gather(RESULTS / figure)


def last(log, method, limit, measure="return", figure="figure2"):
    """The last iterate of each seed."""
    (group,) = [group for group in cells(figure).of(f"{log}-torque", method) if group.limit == limit]
    return group.last(measure)


def mean(*which):
    return last(*which).mean()


def falls(log, method, limit):
    """In how many episodes each seed falls."""
    (group,) = [group for group in cells().of(f"{log}-torque", method) if group.limit == limit]
    return [int(np.sum(np.array(result["test"]["length"]) < 1000)) for result in group.results]


def printed_of(pairs):
    return [(log, "cpq-paper", limit) for log, limit in pairs]


def of_figure_2():
    ours = [group for group in cells().groups if group.label == "cpq"]
    every = sum(len(group.results) for group in ours)
    inside = sum(int(np.sum(group.last("discounted_cost") <= group.limit)) for group in ours)
    paces = np.concatenate([group.last("step_cost") / (0.01 * group.limit) for group in ours])
    assert inside == every
    yield f"inside the limit in all {inside} cells of our default; per step {np.sum(paces <= 1)} keep the pace l (1 - γ)"
    yield f"over it by at most {np.ceil(100 * (paces.max() - 1)):.0f} %"

    steps = [mean("halfcheetah", "cpq", limit, "step_cost") for limit in (30, 70)]
    returns = [mean("halfcheetah", "cpq", limit) for limit in (30, 70)]
    yield f"its cost per step rises from {steps[0]:.2f} to {steps[1]:.2f}"
    yield f"and its return from {returns[0]:.0f} to {returns[1]:.0f}"
    unsafe = cells().behaviour("halfcheetah-torque", "unsafe", "noise-free")
    yield f"the unsafe behaviour earns {unsafe['return']:.0f} without noise"
    yield f"takes the faster gait from 30 on ({mean('hopper', 'cpq', 30):.0f})"
    assert falls("hopper", "cpq", 27) == [0, 0, 0, 0, 2]
    yield f"At 27 it earns {mean('hopper', 'cpq', 27):.0f}; four of five seeds never fall, and the fifth falls in 2 of 20"
    walker = [mean("walker2d", "cpq", limit) for limit in (26, 30, 36, 42)]
    yield f"{', '.join(f'{each:.0f}' for each in walker)} at 26, 30, 36 and 42"
    assert not any(any(falls("walker2d", "cpq", limit)) for limit in (26, 30, 36, 42))
    yield "and never falls"
    assert not any(any(falls("hopper", "cpq", limit)) for limit in (30, 34, 38))
    yield "No robot falls in any episode of 39 of the 40 cells of Hopper and Walker2d"

    printed = [("halfcheetah", limit) for limit in (30, 40, 50, 60, 70)]
    costs, earned = (
        [mean(*which, measure) for which in printed_of(printed)] for measure in ("discounted_cost", "return")
    )
    yield f"it costs {min(costs):.1f} to {max(costs):.1f}, over the limit in every episode"
    yield f"and earns {max(earned):.0f} to {min(earned):.0f}"
    lengths = [mean(*which, "length") for which in printed_of([("walker2d", limit) for limit in (26, 30, 36, 42)])]
    yield f"Walker2d after {min(lengths):.0f} to {max(lengths):.0f} on average"

    broken = mean("halfcheetah", "bc-safe", 70), mean("walker2d", "bc-safe", 42)
    yield f"{broken[0]:.0f} on HalfCheetah at 70 and {broken[1]:.0f} on Walker2d at 42"
    assert falls("walker2d", "bc-safe", 42).count(20) == 2
    yield "where two of five seeds fall in every episode"
    yield f"our default earns {mean('halfcheetah', 'cpq', 70):.0f} and {mean('walker2d', 'cpq', 42):.0f} there"
    counts = falls("hopper", "bc-safe", 38)
    yield f"BC-Safe falls in every seed, in {min(counts)} to {max(counts)} of 20 episodes"
    yield f"and earns {mean('hopper', 'bc-safe', 38):.0f}; our default"
    assert not any(falls("hopper", "cpq", 38))
    yield f"our default earns {mean('hopper', 'cpq', 38):.0f} and does not fall"


def paced(limit, figure="figure2"):
    """HalfCheetah's policies with a pacer: what each episode of each seed has."""
    (group,) = [group for group in cells(figure).of("halfcheetah-torque", "cpq") if group.limit == limit]
    return [{name: np.array(values) for name, values in result["paced"].items()} for result in group.results]


def of_the_pacer():
    limits = (30, 40, 50, 60)
    earned = [np.mean([np.mean(seed["return"]) for seed in paced(limit)]) for limit in limits]
    ratios = [each / clone_mean("halfcheetah", limit, "return") for each, limit in zip(earned, limits, strict=True)]
    over, every, outside = 0, 0, 0
    for limit in limits:
        for seed in paced(limit):
            share = seed["episode_cost"] / seed["length"] / (0.01 * limit)
            over, every = over + int(np.sum(share > 1)), every + len(share)
            outside += int(np.sum(seed["discounted_cost"] > limit))
    assert outside == over == 0
    yield f"{', '.join(f'{each:.0f}' for each in earned[:3])} and {earned[3]:.0f} at 30, 40, 50 and 60"
    yield f"{', '.join(f'{each:.2f}' for each in ratios[:3])} and {ratios[3]:.2f} times BC-Safe"
    yield f"all {every} episodes are inside the limit, and none is over the pace"


def test_the_numbers_of_the_pacer_are_those_of_figure_2():
    found = re.sub(r"\s+", " ", section("Figure 2").replace("**", ""))
    missing = [sentence for sentence in of_the_pacer() if sentence not in found]
    assert not missing, "the page should say: " + "; ".join(missing)


def test_the_numbers_of_figure_2_are_those_of_its_results():
    found = re.sub(r"\s+", " ", section("Figure 2").replace("**", ""))
    missing = [sentence for sentence in of_figure_2() if sentence not in found]
    assert not missing, "the page should say: " + "; ".join(missing)


LONGER = "figure2-50000"  # our default: 50,000 steps


def of_default(log, limit, measure="return"):
    """The last iterate of each seed of our default."""
    return last(log, "cpq", limit, measure, LONGER)


def of_longer_training():
    groups = cells(LONGER).groups
    assert all(group.steps == 50_000 for group in groups)
    seeds = {result["cell"]["seed"] for group in groups for result in group.results}
    yield f"seeds {min(seeds)} to {max(seeds)}"
    every = sum(len(group.results) for group in groups)
    inside = sum(int(np.sum(group.last("discounted_cost") <= group.limit)) for group in groups)
    paces = np.concatenate([group.last("step_cost") / (0.01 * group.limit) for group in groups])
    yield (
        f"inside the limit in {inside} of {every} cells, and the cost per step inside the pace in {np.sum(paces <= 1)}, "
        f"over it by at most {np.ceil(100 * (paces.max() - 1)):.0f} %"
    )
    for log, name in (("halfcheetah", "HalfCheetah"), ("hopper", "Hopper"), ("walker2d", "Walker2d")):
        limits = LIMITS[log]
        earned = ", ".join(f"{of_default(log, limit).mean():.0f}" for limit in limits)
        costs = ", ".join(f"{of_default(log, limit, 'step_cost').mean():.3f}" for limit in limits)
        yield f"| {name} | {', '.join(map(str, limits))} | {earned} | {costs} |"


def of_longer_training_paced(figure=LONGER):
    limits, ratios, over, every = (30, 40, 50, 60), [], 0, 0
    for limit in limits:
        mine = paced(limit, figure)
        for seed in mine:
            share = seed["episode_cost"] / seed["length"] / (0.01 * limit)
            over += int(np.sum((share > 1) | (seed["discounted_cost"] > limit)))
            every += len(share)
        earned = np.mean([np.mean(seed["return"]) for seed in mine])
        ratios.append(f"{earned / clone_mean('halfcheetah', limit, 'return'):.2f}")
    yield f"{', '.join(ratios[:3])} and {ratios[3]} times BC-Safe at 30, 40, 50 and 60"
    yield f"{every - over} of {every} episodes are inside the limit and the pace"


def test_the_numbers_after_50000_steps_are_those_of_their_results():
    found = re.sub(r"[ \n]+", " ", section("Figure 2 after 50,000 steps").replace("**", ""))
    missing = [sentence for sentence in (*of_longer_training(), *of_longer_training_paced()) if sentence not in found]
    assert not missing, "the page should say: " + "; ".join(missing)


# Our present default, alone and in turns with a costlier policy

TURNS = "figure2-turns"
STUDIED = {"halfcheetah": (30, 40, 50, 60), "hopper": (27, 30, 34), "walker2d": (26, 30, 36)}


def of_turns(log, limit, kind):
    """What each seed has alone (`test`), or `in_turns`, where it has a second policy."""
    (group,) = [group for group in cells(TURNS).of(f"{log}-torque", "cpq") if group.limit == limit]
    return [{name: np.array(x) for name, x in found[kind].items()} for found in group.results if found[kind]]


def pace_of(test):
    return test["episode_cost"].sum() / test["length"].sum()


def column(log, numbers, form):
    """For each limit the mean over seeds, alone and, where there is a second policy, in turns."""
    found = []
    for limit in STUDIED[log]:
        both = [of_turns(log, limit, kind) for kind in ("test", "in_turns")]
        found.append(" / ".join(f"{np.mean([numbers(seed) for seed in seeds]):{form}}" for seeds in both if seeds))
    return ", ".join(found)


def counted(kind):
    """Cells, those inside the limit, those inside the pace."""
    every = [
        (limit, seed) for log, limits in STUDIED.items() for limit in limits for seed in of_turns(log, limit, kind)
    ]
    inside = sum(seed["discounted_cost"].mean() <= limit for limit, seed in every)
    return len(every), inside, sum(pace_of(seed) <= 0.01 * limit for limit, seed in every)


def of_the_report():
    for log, name in (("halfcheetah", "HalfCheetah"), ("hopper", "Hopper"), ("walker2d", "Walker2d")):
        columns = [
            column(log, lambda seed: seed["return"].mean(), ".0f"),
            column(log, lambda seed: seed["discounted_cost"].mean(), ".1f"),
            column(log, pace_of, ".3f"),
        ]
        yield f"| {name} | {', '.join(map(str, STUDIED[log]))} | {' | '.join(columns)} |"
    cells_alone, inside, paced_alone = counted("test")
    yield f"inside the limit in {inside} of {cells_alone} cells, and the cost per step inside the pace in {paced_alone}"
    cells_in_turns, kept, paced_in_turns = counted("in_turns")
    inside_turns = f"{kept} are inside the limit and {paced_in_turns} inside the pace"
    yield f"of {cells_in_turns} cells that have a second policy {inside_turns}"
    yield from of_longer_training_paced(TURNS)


def test_the_numbers_of_turns_are_those_of_their_results():
    found = re.sub(r"[ \n]+", " ", section("two policies that take turns").replace("**", ""))
    missing = [sentence for sentence in of_the_report() if sentence not in found]
    assert not missing, "the page should say: " + "; ".join(missing)


def ratios(log, kind):
    """Of each limit the return over that of the clone, and the discounted one."""
    found = []
    for limit in STUDIED[log]:
        if seeds := of_turns(log, limit, kind):
            over = [
                np.mean([seed[measure].mean() for seed in seeds]) / clone_mean(log, limit, measure)
                for measure in ("return", "discounted_return")
            ]
            found.append(f"{limit}: {over[0]:.2f} ({over[1]:.2f})")
    return ", ".join(found)


def of_readme():
    for robot, log in (("HalfCheetah", "halfcheetah"), ("Hopper", "hopper"), ("Walker2d", "walker2d")):
        yield f"| {robot} | {ratios(log, 'test')} | {ratios(log, 'in_turns')} |"
    episodes = [
        (limit, *each)
        for limit in STUDIED["halfcheetah"]
        for seed in of_turns("halfcheetah", limit, "in_turns")
        for each in zip(seed["discounted_cost"], seed["episode_cost"] / seed["length"], strict=True)
    ]
    over = sum(cost > limit or step > 0.01 * limit for limit, cost, step in episodes)
    yield f"{over} of {len(episodes)} episodes of HalfCheetah are over one of them"
    yield from of_longer_training_paced(TURNS)


def test_the_numbers_of_readme_are_those_of_its_results():
    found = re.sub(r"[ \n]+", " ", (ROOT / "README.md").read_text().replace("**", ""))
    missing = [sentence for sentence in of_readme() if sentence not in found]
    assert not missing, "README should say: " + "; ".join(missing)


def test_the_aggregate_of_figure_2_is_that_of_its_results():
    with open(RESULTS / "figure2" / "aggregate.csv", encoding="utf-8") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    ours, safe = (rows[name]["IQM normalised return"] for name in ("cpq", "bc-safe"))
    sentence = f"is {ours} for our default and {safe} for BC-Safe; a seed of ours earns more with a probability of "
    assert sentence + rows["cpq"]["P(return > bc-safe)"] in section("Figure 2")


# Clones that had the steps of their own default, 50,000

LIMITS = {"halfcheetah": (30, 40, 50, 60, 70), "hopper": (27, 30, 34, 38), "walker2d": (26, 30, 36, 42)}
BOTH_BEHAVIOURS = (
    70,
    38,
    42,
)  # at lower limits BC-Safe learns from the same episodes, so one policy stands for all of them


@cache
def clones():
    found = {}
    for file in sorted((RESULTS / "cpq-study" / "clone50000" / "cells").glob("*.json")):
        cell = json.loads(file.read_text())
        found.setdefault((cell["cell"]["log"]["source"], cell["cell"]["limit"]), []).append(cell)
    return found


def clone_mean(log, limit, measure):
    cells = clones()[f"{log}-torque", limit if limit in BOTH_BEHAVIOURS else 30.0]
    assert [(cell["cell"]["seed"], cell["cell"]["schedule"]["steps"]) for cell in cells] == [
        (s, 50_000) for s in range(20, 25)
    ]
    return np.mean([np.mean(cell["test"][measure]) for cell in cells])


def test_the_clones_of_longer_training_are_those_of_the_page():
    means = [f"{clone_mean(log, limit, 'return'):.0f}" for log, limit in zip(LIMITS, BOTH_BEHAVIOURS, strict=True)]
    halfcheetah, hopper, walker2d = means
    sentence = f"BC-Safe earns {halfcheetah} on HalfCheetah at 70, {walker2d} on Walker2d at 42"
    assert sentence in section("Figure 2")
    assert f"{hopper} on Hopper at 38" in section("Figure 2")
