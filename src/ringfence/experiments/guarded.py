"""Does a guard matter? The reactor with disturbances that its log does not have, with the guard and without.

    python -m ringfence.experiments.guarded --out results/guard

The policies are CPQ's, one per seed, from a log of the two PI controllers. The fallback is a cautious PI controller that
reads the concentration analyser instead of the thermometer: what rests at concentration C has the temperature T with
k(T) = 1/C - 1 (per minute). The guard is given the cost that the plant's own, perhaps drifting, thermometer shows.
"""

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ringfence
from ringfence import tasks
from ringfence.behaviour.collect import collect_dataset
from ringfence.behaviour.controllers import GAIN, INTEGRAL_TIME
from ringfence.deploy import Guard, Policy
from ringfence.files import write_json
from ringfence.tasks.plant import ACTIVATION, DEGREES, FEED, HOT, INTERVAL, RATE, RESIDENCE

SCENARIOS: Mapping[str, Mapping[str, float]] = {
    "nominal": {},
    "feed 10 K hotter": {"hotter_feed": 10.0},
    "feed 15 K hotter": {"hotter_feed": 15.0},
    "thermometer drifts by 1 K a minute": {"sensor_drift": 0.05},
    "thermometer drifts by 2 K a minute": {"sensor_drift": 0.1},
}
SETPOINT = 345.0  # K, of the fallback
FIRST_SEED = 10_000  # of the episodes: none that the log was made with


class Outcome(NamedTuple):
    """One episode."""

    earned: float
    cost: float  # the true one
    hottest: float  # K, the true temperature
    untrusted: int  # steps in which the fallback acted
    handed_over: int | None  # the first of them
    broken: Mapping[str, int]  # steps in which each rule was broken
    temperatures: tuple[float, ...]  # K, the true ones


def cautious_controller(observation: np.ndarray) -> float:
    """PI control of the temperature as computed from the concentration; holds still without a concentration."""
    rate = RESIDENCE * (FEED / min(max(float(observation[0]), 1e-3), 0.999 * FEED) - 1.0)
    temperature = ACTIVATION / math.log(RATE / rate)
    return GAIN * (INTERVAL / INTEGRAL_TIME * (SETPOINT - temperature) - float(observation[2]))


def episode(policy: Policy, guard: Guard | None, disturbance: Mapping[str, float], seed: int) -> Outcome:
    env: Any = tasks.make("reactor", None, **disturbance)
    observation, _ = env.reset(seed=seed)
    earned = cost = 0.0
    temperatures = []
    shown: float | None = None
    trusted: list[bool] = []
    broken: Counter[str] = Counter()
    if guard is not None:
        guard.reset()
    ended = False
    while not ended:
        if guard is None:
            action = policy(observation)
        else:
            decision = guard.decide(observation, shown)
            action = decision.action
            trusted.append(decision.trusted)
            broken.update({reason.rule for reason in decision.reasons})
        observation, reward, terminated, truncated, info = env.step(action)
        shown = max(0.0, float(observation[1]) - HOT) / DEGREES
        earned, cost = earned + float(reward), cost + info["cost"]
        temperatures.append(float(env.unwrapped.temperature))
        ended = terminated or truncated
    first = trusted.index(False) if False in trusted else None
    untrusted = trusted.count(False)
    return Outcome(earned, cost, max(temperatures), untrusted, first, dict(broken), tuple(temperatures))


def study(policies: Sequence[Policy], episodes: int) -> list[dict[str, Any]]:
    """A row for each disturbance, with and without the guard: means over episodes, and the spread of the seeds' means."""
    rows = []
    for name, disturbance in SCENARIOS.items():
        for guarded in (False, True):
            of_seeds = []
            for policy in policies:
                guard = Guard(policy, cautious_controller) if guarded else None
                seeds = range(FIRST_SEED, FIRST_SEED + episodes)
                of_seeds.append([episode(policy, guard, disturbance, seed) for seed in seeds])
            rows.append({"disturbance": name, "guarded": guarded, **summary(of_seeds)})
            print(line(rows[-1]), flush=True)
    return rows


def summary(of_seeds: Sequence[Sequence[Outcome]]) -> dict[str, Any]:
    every = [outcome for outcomes in of_seeds for outcome in outcomes]
    horizon = tasks.TASKS["reactor"].horizon or 1
    hand_overs = [outcome.handed_over for outcome in every if outcome.handed_over is not None]
    broken: Counter[str] = Counter()
    for outcome in every:
        broken.update(outcome.broken)

    def spread(name: str) -> dict[str, Any]:
        means = [float(np.mean([getattr(outcome, name) for outcome in outcomes])) for outcomes in of_seeds]
        return {"mean": float(np.mean(means)), "seeds": means}

    return {
        "return": spread("earned"),
        "cost": spread("cost"),
        "hottest": max(outcome.hottest for outcome in every),
        "fallback_share": {
            "mean": spread("untrusted")["mean"] / horizon,
            "seeds": [steps / horizon for steps in spread("untrusted")["seeds"]],
        },
        "episodes": len(every),
        "handed_over": len(hand_overs),
        "steps_to_hand_over": None if not hand_overs else [int(q) for q in np.percentile(hand_overs, (0, 50, 100))],
        "broken": dict(broken),
    }


HEADINGS = (
    "disturbance", "guard", "return", "cost", "hottest, K", "steps of the fallback", "episodes handed over",
    "steps until then: least, median, most",
)  # fmt: skip


def line(row: Mapping[str, Any]) -> str:
    def range_of(name: str, form: str) -> str:
        found = row[name]
        return f"{found['mean']:{form}} ({min(found['seeds']):{form}} to {max(found['seeds']):{form}})"

    waited = row["steps_to_hand_over"]
    cells = (
        row["disturbance"],
        "yes" if row["guarded"] else "no",
        range_of("return", ".1f"),
        range_of("cost", ".1f"),
        f"{row['hottest']:.0f}",
        range_of("fallback_share", ".2%") if row["guarded"] else "",
        f"{row['handed_over']} of {row['episodes']}" if row["guarded"] else "",
        "" if waited is None else ", ".join(map(str, waited)),
    )
    return f"| {' | '.join(cells)} |"


def draw(policy: Policy, path: Path, disturbance: Mapping[str, float]) -> None:
    """The reactor's true temperature in one disturbed episode, with the guard and without."""
    import matplotlib  # takes a second, which only the picture needs

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    for name, guard in (("policy alone", None), ("guarded", Guard(policy, cautious_controller))):
        found = episode(policy, guard, disturbance, FIRST_SEED)
        minutes = INTERVAL * np.arange(1, len(found.temperatures) + 1)
        (drawn,) = axes.plot(minutes, found.temperatures, label=name)
        if found.handed_over is not None:
            axes.axvline(INTERVAL * found.handed_over, color=drawn.get_color(), linestyle=":", label="handed over")
    axes.axhline(HOT, color="grey", linewidth=0.8)
    axes.annotate(
        "what is above costs", (0.0, HOT), textcoords="offset points", xytext=(2, 3), fontsize=8, color="grey"
    )
    axes.set(xlabel="minutes", ylabel="true temperature [K]")
    axes.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def trained(out: Path, rows: int, steps: int, seeds: Sequence[int], width: int) -> list[Policy]:
    """CPQ on a fresh log of the reactor; what is in `out` already is used again."""
    paths = [out / f"seed-{seed}.safetensors" for seed in seeds]
    if not all(path.exists() for path in paths):
        log = collect_dataset("reactor", rows, seed=0, workers=1)
        method = ringfence.CPQ(
            limit=tasks.TASKS["reactor"].limit,
            hidden=(width, width),
            batch_size=64,
            ood_samples=4,
            cvae_steps=max(1, steps // 2),
        )
        run = ringfence.train(log, method, steps=steps, seeds=seeds)
        for path, policy in zip(paths, run.policies, strict=True):
            policy.save(path, overwrite=True)
    return [Policy.load(path) for path in paths]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--policies", type=Path, help="directory in which trained policies are kept (default: OUT)")
    parser.add_argument("--rows", type=int, default=24_000, help="of the log (default 24,000)")
    parser.add_argument("--steps", type=int, default=8000, help="of training (default 8,000)")
    parser.add_argument("--width", type=int, default=64, help="of the networks (default 64)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=30, help="per seed and disturbance (default 30)")
    options = parser.parse_args(arguments)
    policies = trained(options.policies or options.out, options.rows, options.steps, options.seeds, options.width)
    rows = study(policies, options.episodes)
    draw(policies[0], options.out / "drifting-thermometer.png", {"sensor_drift": 0.1})
    asked = {name: value for name, value in vars(options).items() if name not in ("out", "policies")}
    checksums = [policy.checksum for policy in policies]
    write_json(options.out / "results.json", {"asked": asked, "policies": checksums, "rows": rows})
    table = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS), *map(line, rows)]
    (options.out / "results.md").write_text("\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
