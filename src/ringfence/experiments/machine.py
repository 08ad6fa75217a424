"""Where cells run, as the command line says it."""

import math
from dataclasses import dataclass
from typing import Literal

from ringfence.errors import InvalidSetting
from ringfence.experiments.cell import train_cell
from ringfence.experiments.engines import Engine, LocalEngine, available_cores


@dataclass(frozen=True)
class Machine:
    """Where cells run: `engine` "local" (processes of this machine) or "ray" (a cluster, or a Ray started here)."""

    engine: Literal["local", "ray"] = "local"
    workers: int | None = None  # cells side by side (default: as many as the cores hold)
    threads: int | None = None  # of each cell (default: its share of the cores); with Ray: its processors
    address: str | None = None  # of a Ray cluster
    cpus: float | None = None  # of each cell, with Ray (default: 1)
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.engine == "local" and (self.address or self.gpus or self.cpus is not None):
            raise InvalidSetting(
                "--address, --cpus and --gpus are for --engine ray; here it is --workers and --threads"
            )
        if self.engine == "ray" and self.threads is not None:
            raise InvalidSetting("--threads is for --engine local; with Ray a cell has as many threads as --cpus says")
        for name, share in (("--cpus", self.processors), ("--gpus", self.gpus)):
            if not 0 <= share < math.inf:
                raise InvalidSetting(f"{name} is what each cell needs, a finite number of at least 0, not {share}")
        if not self.processors and not self.gpus:
            raise InvalidSetting("a cell needs a share of a processor or of a GPU; --cpus 0 is for cells with --gpus")

    @property
    def processors(self) -> float:
        return 1.0 if self.cpus is None else self.cpus

    def check_run(self) -> None:
        """Raise if cells cannot run like this, though a dry run can count with it."""
        if self.address and self.workers is not None:
            raise InvalidSetting(
                f"--workers is not for a cluster ({self.address}): its own size says how many cells run side by side. "
                "Leave it out; only --dry-run takes it, as the number of cells to assume"
            )

    def open(self) -> Engine:
        if self.engine == "local":
            return LocalEngine(train_cell, self.workers, self.threads)
        self.check_run()
        from ringfence.experiments.ray_engine import RayEngine

        return RayEngine(train_cell, self.address, cpus=self.processors, gpus=self.gpus, workers=self.workers)

    @property
    def slots(self) -> int:
        """How many cells run side by side; of a cluster that is not asked yet, as many as the user says."""
        if self.workers is not None or self.address is not None:
            return self.workers or 1
        return max(1, int(available_cores() / (self.processors or 1.0)))

    @property
    def threads_of_a_cell(self) -> int:
        if self.engine == "ray":
            return max(1, int(self.processors))
        return self.threads or max(1, available_cores() // self.slots)
