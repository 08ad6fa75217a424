"""What our figures share."""

from typing import Any


def mark_limit(axes: Any, limit: float, text: str) -> None:
    """A dashed vertical line with its name at the top."""
    axes.axvline(limit, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        text, (limit, 1.0), (4, -4), xycoords=("data", "axes fraction"),
        textcoords="offset points", va="top", fontsize=8,
    )  # fmt: skip


def without_box(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
