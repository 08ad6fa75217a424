"""What our figures share."""

from typing import Any


def literal(text: str) -> str:
    """Text of a user's for a figure. Matplotlib would take what stands between two dollars for TeX, and leave out of a
    legend what begins with an underscore."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def mark_limit(axes: Any, limit: float, text: str) -> None:
    """A dashed vertical line with its name at the top."""
    axes.axvline(limit, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        text, (limit, 1.0), (4, -4), xycoords=("data", "axes fraction"),
        textcoords="offset points", va="top", fontsize=8,
    )  # fmt: skip


def without_box(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
