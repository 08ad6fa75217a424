"""The result of an evaluation: numbers, a table, a picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from rich.console import Console
from rich.table import Table

from ringfence.evaluation.episodes import Episode

MEASURES = {
    "return": "returns",
    "discounted return": "discounted_returns",
    "episode cost": "costs",
    "discounted cost": "discounted_costs",
    "length": "lengths",
}


def bootstrap_interval(
    values: Float[np.ndarray, " n"], level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron, 1979): the episodes are drawn again, with replacement."""
    rows = np.random.default_rng(seed).integers(0, len(values), (resamples, len(values)))
    low, high = np.quantile(np.asarray(values, float)[rows].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes of one policy in one task; an array entry per episode."""

    task: str
    returns: Float[np.ndarray, " episodes"]
    discounted_returns: Float[np.ndarray, " episodes"]
    costs: Float[np.ndarray, " episodes"]
    discounted_costs: Float[np.ndarray, " episodes"]
    lengths: Int[np.ndarray, " episodes"]
    limit: float | None
    discount: float
    seed: int = 0
    deterministic: bool = True
    episodes: list[Episode] | None = None

    def summary(self) -> dict[str, Any]:
        """Mean, standard deviation and 95 % interval of the mean of each measure; share of episodes over the limit."""
        return {
            name: {
                "mean": float(np.mean(values)),
                "std": float(np.std(values)),
                "interval": list(bootstrap_interval(values)),
            }
            for name, values in self._measures().items()
        } | {"share over limit": self.share_over_limit}

    @property
    def share_over_limit(self) -> float | None:
        """The share of episodes whose discounted cost lies over the limit; None without a limit."""
        return None if self.limit is None else float(np.mean(self.discounted_costs > self.limit))

    def _measures(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, field) for name, field in MEASURES.items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything but the recorded episodes, ready for JSON."""
        return {
            "task": self.task,
            "limit": self.limit,
            "discount": self.discount,
            "seed": self.seed,
            "deterministic": self.deterministic,
            "episodes": len(self.returns),
            "summary": self.summary(),
            "per episode": {name: np.round(values, 4).tolist() for name, values in self._measures().items()},
        }

    def print(self, console: Console | None = None) -> None:
        how = "deterministic" if self.deterministic else "sampled"
        table = Table(title=f"{self.task}, {len(self.returns)} episodes, {how} policy", title_justify="left")
        table.add_column("")
        for column in ("mean", "std", "95 % of mean", "least", "most"):
            table.add_column(column, justify="right")
        for name, values in self._measures().items():
            low, high = bootstrap_interval(values)
            cells = (np.mean(values), np.std(values), None, np.min(values), np.max(values))
            table.add_row(name, *(f"{low:.1f} to {high:.1f}" if c is None else f"{c:.1f}" for c in cells))
        console = console or Console()
        console.print(table)
        if self.limit is not None:
            share = self.share_over_limit or 0.0
            console.print(
                f"over the limit of {self.limit:g} (discounted at {self.discount:g}): {share:.0%} of episodes"
            )

    def plot(self, path: str | Path) -> Path:
        """Return against discounted cost, a dot per episode, the limit drawn."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3.6), dpi=120, layout="constrained")
        axes = figure.subplots()
        axes.scatter(self.discounted_costs, self.returns, s=18, alpha=0.7, linewidths=0)
        if self.limit is not None:
            axes.axvline(self.limit, color="black", linestyle="--", linewidth=1)
            axes.annotate(
                f"limit {self.limit:g}", (self.limit, 1.0), (4, -4), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", fontsize=8,
            )  # fmt: skip
        axes.set(xlabel=f"discounted cost (at {self.discount:g})", ylabel="return", title=self.task)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(Path(path))
        return Path(path)
