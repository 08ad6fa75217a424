"""The paper's two figures as grids.

Figure 1: every method on the three torque tasks at l = 30, curves of return and cost over training.
Figure 2: cost and return against the limit, over a range of limits for each task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ringfence.errors import InvalidSetting
from ringfence.experiments.grid import Experiment, LogSource, Schedule, Variant, choose, grid
from ringfence.training import defaults

VARIANTS = {
    variant.label: variant
    for variant in (
        Variant("cpq-paper", "cpq", "paper"),  # CPQ as printed
        Variant("bc-safe", "bc-safe"),
        Variant("bcq-lag", "bcq-lag"),
        Variant("bear-lag", "bear-lag"),
        Variant("cbpl", "cbpl"),
        Variant("bc", "bc"),
        Variant("cpq", "cpq"),  # our default
    )
}
FIGURE_METHODS = {"figure1": tuple(VARIANTS), "figure2": ("cpq-paper", "bc-safe", "cpq")}
LIMIT = 30.0
# From about what the safe behaviour costs with its noise to a little over the unsafe one without. The study of CPQ's default
# reports on the same limits, so that its cells are cells of the figure.
LIMITS: Mapping[str, tuple[float, ...]] = {
    "hopper-torque": (27.0, 30.0, 34.0, 38.0),
    "halfcheetah-torque": (30.0, 40.0, 50.0, 60.0, 70.0),
    "walker2d-torque": (26.0, 30.0, 36.0, 42.0),
}
FIGURES = tuple(FIGURE_METHODS)


@dataclass(frozen=True)
class Scale:
    steps: int
    rows: int


SEEDS = (0, 1, 2)
SCALES = {"default": Scale(defaults.STEPS, 500_000), "paper": Scale(500_000, 2_000_000)}


def figure_grid(
    figure: str,
    *,
    scale: str = "default",
    steps: int | None = None,
    rows: int | None = None,
    seeds: Sequence[int] = SEEDS,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    limits: Sequence[float] | None = None,
    evaluate_every: int = defaults.EVALUATE_EVERY,
    episodes: int = defaults.EPISODES,
    test_episodes: int = defaults.TEST_EPISODES,
    width: int | None = None,
) -> Experiment:
    """The cells of a figure; what is given narrows or widens it. `width` is that of both hidden layers of every network, in
    place of each method's own."""
    choose(FIGURES, [figure], "figure")
    choose(SCALES, [scale], "scale")
    steps = SCALES[scale].steps if steps is None else steps
    rows = SCALES[scale].rows if rows is None else rows
    schedule = Schedule(
        steps=steps,
        evaluate_every=evaluate_every,
        episodes=episodes,
        checkpoint_every=evaluate_every,
        test_episodes=test_episodes,
    )
    for name, number in {**asdict(schedule), "rows": rows, "width": width}.items():
        if number is not None and number < 1:
            raise InvalidSetting(f"{name} must be at least 1, not {number}")
    full = {name.removesuffix("-torque"): name for name in LIMITS}
    chosen = choose(LIMITS, None if tasks is None else [full.get(name, name) for name in tasks], "task")
    labels = FIGURE_METHODS[figure] if methods is None else choose(VARIANTS, methods, "method")
    variants = [VARIANTS[label] for label in labels]
    if width is not None:
        variants = [replace(variant, settings={**variant.settings, "hidden": (width, width)}) for variant in variants]
    every = {task: limits or ((LIMIT,) if figure == "figure1" else LIMITS[task]) for task in chosen}
    logs = [(LogSource(task, rows), task) for task in chosen]
    return Experiment(figure, grid(logs, variants, every, seeds, schedule))
