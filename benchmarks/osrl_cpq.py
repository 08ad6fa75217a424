"""The CPQ step of osrl-lib, driven as its own trainer drives it, on the same log.

It runs in the environment of `make bench-peers`. The library imports its logger and its environments from packages
that pin old versions of everything; a logger that keeps nothing stands in for them, which the step does not notice.
"""

import sys
import types
from typing import Any

from benchmarks.machine import best_seconds


class SilentLogger:
    def store(self, **_: Any) -> None:
        pass


def without_its_logger() -> None:
    """Let `from fsrl.utils import DummyLogger, WandbLogger` succeed without the package."""
    utils = types.ModuleType("fsrl.utils")
    utils.DummyLogger = utils.WandbLogger = SilentLogger  # type: ignore[attr-defined]
    package = types.ModuleType("fsrl")
    package.utils = utils  # type: ignore[attr-defined]
    sys.modules |= {"fsrl": package, "fsrl.utils": utils}


def speed(
    arrays: str, trained: int, width: int = 256, batch: int = 256, samples: int = 10, seconds: float = 3.0
) -> dict[str, Any]:
    """Steps per second of its `train_one_step`, which trains its VAE along with the rest, after `trained` of them."""
    without_its_logger()
    from importlib.metadata import version

    import torch
    from osrl.algorithms.cpq import CPQ, CPQTrainer

    from benchmarks.torch_cpq import logged_rows

    rows = logged_rows(arrays)
    model = CPQ(
        rows[0].shape[1],
        rows[1].shape[1],
        1.0,
        a_hidden_sizes=[width, width],
        c_hidden_sizes=[width, width],
        vae_hidden_sizes=width,
        sample_action_num=samples,
        num_q=2,
        num_qc=1,
    )
    trainer = CPQTrainer(model, None, logger=SilentLogger())

    def several(steps: int = 5) -> None:
        for _ in range(steps):
            chosen = torch.randint(0, len(rows[0]), (batch,))
            s, a, r, c, following, continues = (column[chosen] for column in rows)
            trainer.train_one_step(s, following, a, r, c, 1 - continues)

    several(trained)
    taken = best_seconds(several, seconds)
    return {
        "steps_per_second": 5 / taken.wall,
        "steps_per_cpu_second": 5 / taken.cpu,
        "osrl-lib": version("osrl-lib"),
        "torch": torch.__version__,
    }
