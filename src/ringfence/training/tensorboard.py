"""The same numbers for TensorBoard, as an extra."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ringfence.errors import MissingExtra

PLACE = ("stage", "step", "overall_step", "seed", "limit", "text")


@contextmanager
def observer(run: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that takes the rows of a run and writes them for TensorBoard; one that does nothing without a run."""
    if run is None:
        yield lambda row: None
        return
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise MissingExtra("TensorBoard files need tensorboardX: pip install 'ringfence[tensorboard]'") from None
    writer = SummaryWriter(str(run / "tensorboard"))

    def write(row: dict[str, Any]) -> None:
        member = f"seed {row['seed']}, limit {row['limit']:g}"
        for name, value in row.items():
            if name not in PLACE and isinstance(value, int | float):
                writer.add_scalar(f"{row['stage']}/{name}/{member}", value, row["step"])

    try:
        yield write
    finally:
        writer.close()
