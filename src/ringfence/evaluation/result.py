"""The result of an evaluation."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from ringfence.data.episodes import discounted_sum
from ringfence.evaluation.episodes import Episode
from ringfence.evaluation.statistics import bootstrap_interval

if TYPE_CHECKING:
    from rich.console import Console

MEASURES = {
    "return": "returns",
    "discounted return": "discounted_returns",
    "episode cost": "costs",
    "discounted cost": "discounted_costs",
    "length": "lengths",
}


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
            for name, values in self.measures().items()
        } | {"share over limit": self.share_over_limit}

    @property
    def share_over_limit(self) -> float | None:
        """The share of episodes whose discounted cost lies over the limit; None without a limit."""
        return None if self.limit is None else float(np.mean(self.discounted_costs > self.limit))

    def measures(self) -> dict[str, np.ndarray]:
        """Each measure by its name, an entry per episode."""
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
            "per episode": {name: np.round(values, 4).tolist() for name, values in self.measures().items()},
        }

    def scores(self) -> dict[str, float]:
        """The evaluation as one line of a run: means over episodes, the spread of return and cost, the share of episodes
        over the limit."""
        summary = self.summary()
        means = {name.replace(" ", "_"): values["mean"] for name, values in summary.items() if isinstance(values, dict)}
        spread = {f"{name.replace(' ', '_')}_std": summary[name]["std"] for name in ("return", "discounted cost")}
        return {**means, **spread, "share_over_limit": float(self.share_over_limit or 0.0)}

    def scores_of_first(self, steps: int) -> dict[str, float]:
        """What recorded episodes got in their first steps, to stand beside shorter ones; nothing if none is longer."""
        if self.episodes is None or self.lengths.max() <= steps:
            return {}
        returns, costs = (
            np.array([discounted_sum(getattr(e, name)[:steps], self.discount) for e in self.episodes])
            for name in ("rewards", "costs")
        )
        over = 0.0 if self.limit is None else float(np.mean(costs > self.limit))
        means = {"first_discounted_return": float(returns.mean()), "first_discounted_cost": float(costs.mean())}
        return {"first_steps": steps, **means, "first_share_over_limit": over}

    def print(self, console: "Console | None" = None) -> None:
        """A table of the measures."""
        from ringfence.reports.evaluation import print_evaluation

        print_evaluation(self, console)

    def plot(self, path: str | Path) -> Path:
        """Return against discounted cost, a dot per episode, the limit drawn."""
        from ringfence.reports.evaluation import plot_evaluation

        return plot_evaluation(self, path)
