"""Jobs as Ray tasks: on the cluster that an address names, or on a Ray started on this machine."""

import math
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from ringfence.errors import InvalidSetting, MissingExtra
from ringfence.experiments.engines import GRACE
from ringfence.experiments.worker import Job, Outcome, Work, execute, thread_environment

CELLS = "ringfence_cells"  # what a Ray that is started here has one of for each worker


class RayEngine:
    """Ray places the tasks: each asks for `cpus` processors and `gpus` accelerators, and waits until a node has them.
    Ray's own retries are off, because the driver counts the attempts of a cell."""

    shares_files = False  # workers may be on other machines: logs go through the store

    def __init__(
        self,
        work: Work,
        address: str | None = None,
        *,
        cpus: float = 1.0,
        gpus: float = 0.0,
        workers: int | None = None,
    ):
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("the engine 'ray' needs Ray: pip install 'ringfence[ray]'") from error
        self.ray: Any = ray
        self.refs: list[Any] = []
        self.started_here = not ray.is_initialized()
        alone = self.started_here and address is None
        if self.started_here:
            start(ray, address, places(workers, cpus) if alone else {})
        needs = {"CPU": cpus, "GPU": gpus, **({CELLS: 1.0} if alone and workers else {})}
        resources = self.ray.cluster_resources()
        if lacking := what_is_lacking(resources, needs):
            if alone:
                self.close()
                raise InvalidSetting(f"{lacking}, and the Ray of this machine does not grow; ask for less")
            warnings.warn(f"{lacking}: nothing runs until the cluster grows", stacklevel=2)
        self.slots = count_slots(resources, needs)
        options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0, "name": "ringfence cell"}
        options["resources"] = {name: need for name, need in needs.items() if name == CELLS}
        options["runtime_env"] = {"env_vars": {**thread_environment(max(1, int(cpus))), **platform(gpus)}}
        self.task = ray.remote(**options)(run_job)
        self.work = ray.put(work)

    def submit(self, job: Job) -> "Future[Outcome]":
        ref = self.task.remote(job.to_dict(), self.work)
        self.refs.append(ref)
        future: Future[Outcome] = ref.future()
        return future

    def stop(self) -> None:
        """Cancelling raises an interrupt in the tasks, which save and end."""
        for ref in reversed(self.refs):  # the waiting ones first, or they would start
            self.ray.cancel(ref)
        self.ray.wait(self.refs, num_returns=len(self.refs), timeout=GRACE)
        self.close()

    def close(self) -> None:
        self.refs.clear()
        if self.started_here:
            self.ray.shutdown()


def run_job(job: dict[str, Any], work: Work) -> Outcome:
    return execute(Job.from_dict(job), work)


def platform(gpus: float) -> dict[str, str]:
    """Cells placed by processors leave accelerators alone; those that share one must not each take all its memory."""
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if gpus else {"JAX_PLATFORMS": "cpu"}


def start(ray: Any, address: str | None, size: dict[str, Any]) -> None:
    """Join the cluster at an address, or start a Ray of this size on this machine."""
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="error", **size)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        what = f"no Ray cluster answers at {address!r}" if address else "Ray could not be started on this machine"
        raise InvalidSetting(f"{what} ({' '.join(str(error).split())})") from error


def places(workers: int | None, cpus: float) -> dict[str, Any]:
    """The size of a Ray on this machine: room for so many cells and no more. Ray counts whole processors, so that shares of
    them would leave room for others; hence a resource that counts cells."""
    if workers is None:
        return {"include_dashboard": False}
    return {"include_dashboard": False, "num_cpus": math.ceil(workers * cpus), "resources": {CELLS: workers}}


def what_is_lacking(resources: Mapping[str, float], needs: Mapping[str, float]) -> str:
    """Why no cell has room, if none has; otherwise nothing."""
    for name, option in (("CPU", "--cpus"), ("GPU", "--gpus")):
        if needs[name] > (there := resources.get(name, 0.0)):
            return f"a cell asks for {needs[name]:g} {name}s ({option}) and Ray has {there:g}"
    return ""


def count_slots(resources: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many cells the cluster, as it is now, runs side by side."""
    return max(1, int(min(resources.get(name, 0.0) / need for name, need in needs.items() if need)))
