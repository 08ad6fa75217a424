"""Jobs as Ray tasks: on the cluster that an address names, or on a Ray started on this machine."""

from concurrent.futures import Future
from typing import Any

from ringfence.errors import InvalidSetting, MissingExtra
from ringfence.experiments.engines import GRACE
from ringfence.experiments.worker import Job, Outcome, Work, execute, thread_environment


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
        if cpus < 0 or gpus < 0 or cpus + gpus == 0:
            raise InvalidSetting(f"a cell needs a positive share of a processor or a GPU, not {cpus} and {gpus}")
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("the engine 'ray' needs Ray: pip install 'ringfence[ray]'") from error
        self.ray: Any = ray
        self.started_here = not ray.is_initialized()
        if self.started_here:
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
            if address is None:
                options |= {"num_cpus": workers, "include_dashboard": False}
            try:
                ray.init(address=address or "local", **options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise InvalidSetting(f"no Ray cluster answers at {address!r} ({error})") from error
        self.slots = count_slots(self.ray.cluster_resources(), cpus, gpus)
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0, "name": "ringfence cell"}
        options["runtime_env"] = {"env_vars": {**thread_environment(max(1, int(cpus))), **platform(gpus)}}
        self.task = ray.remote(**options)(run_job)
        self.work = ray.put(work)
        self.refs: list[Any] = []

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


def count_slots(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """How many cells the cluster, as it is now, runs side by side."""
    room = [resources.get(name, 0.0) / need for name, need in (("CPU", cpus), ("GPU", gpus)) if need]
    return max(1, int(min(room)))
