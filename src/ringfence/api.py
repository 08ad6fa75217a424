"""The few functions that most users need: load a log, train on it, go on with a run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.data import Dataset, load_file
from ringfence.errors import CheckpointError, InvalidSetting, UnreadableFile
from ringfence.training import defaults
from ringfence.values import is_fraction

if TYPE_CHECKING:
    from ringfence.training import Run


def load(source: str | os.PathLike[str], **options: Any) -> Dataset:
    """A log as a validated `Dataset`: a file (.h5, .hdf5, .npz, .parquet, .csv), a Minari dataset, or the name of a
    built-in task's dataset, which is made and cached on first use. Options are those of `ringfence.data.load_file`.

    >>> import ringfence, tempfile
    >>> rows = ["obs_0,action_0,reward,cost,episode", "0,0.5,1,0.5,7", "1,-0.5,1,0.5,7", "2,0.1,1,0.1,7"]
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     print(*rows, sep=chr(10), file=file, flush=True)
    ...     log = ringfence.load(file.name)
    >>> log.costs, log.next_observations[:, 0]  # the last row's successor was not recorded, so the row is dropped
    (array([0.5, 0.5], dtype=float32), array([1., 2.], dtype=float32))
    """
    from ringfence.behaviour.datasets import builtin_dataset
    from ringfence.progress import counting
    from ringfence.tasks import TASKS

    if source in TASKS and not Path(source).exists():
        with counting(f"making the {source} log", "rows") as progress:
            path = builtin_dataset(str(source), progress=progress)
        return load_file(path, **options)
    return load_file(os.fspath(source), **options)


def train(
    dataset: Dataset | str | os.PathLike[str],
    method: Any,
    *,
    steps: int | None = None,
    seeds: Sequence[int] = defaults.SEEDS,
    limits: Sequence[float] | None = None,
    task: str | None = None,
    cost: str | None = None,
    horizon: int | None = None,
    episodes: int = defaults.EPISODES,
    out: str | os.PathLike[str] | None = None,
    log_every: int = defaults.LOG_EVERY,
    evaluate_every: int = defaults.EVALUATE_EVERY,
    checkpoint_every: int = defaults.CHECKPOINT_EVERY,
    keep_every: int | None = None,
    progress: bool = True,
    tensorboard: bool = False,
    holdout: float = 0.0,
    origin: Mapping[str, Any] | None = None,
) -> "Run":
    """Learn a policy for every seed and limit, all in one program, and return the `ringfence.Run`.

    `steps` are updates of the policy (default: what the method says, `defaults.steps_of`).
    `method` carries one limit (`CPQ(limit=30.0)`); `limits` gives several instead. One policy for a whole range of limits,
    `CPQ(limits=(20, 60))`, is evaluated and judged at the middle of its range, or at `limits`. With a `task` the policies
    are evaluated in it as they learn; `cost` ("module:function") is for a task that does not report its cost, and `horizon`
    cuts its episodes off (default: where the task does, else where the log's were cut off). With `out` everything is kept
    in that directory and the run can be resumed; for a log that was loaded with options, `origin` says how to load it
    again: {"source": ..., "options": {...}}. `keep_every` keeps the policies of every so many steps beside those of
    the end (`run.kept`), for `choose` to choose among. `holdout` sets a share of the episodes aside: the run does not
    learn from them, and at its end they judge the policies (`run.judgements`, `judgement.json`).

    >>> import numpy as np, ringfence
    >>> rng = np.random.default_rng(0)
    >>> log = ringfence.Dataset.from_arrays(
    ...     observations=rng.normal(size=(200, 2)), actions=rng.uniform(-1, 1, size=(200, 1)),
    ...     rewards=rng.uniform(size=200), costs=rng.uniform(size=200), episode=np.arange(200) // 20)
    >>> method = ringfence.CPQ(limit=30.0, hidden=(8,), cvae_steps=5, batch_size=16)
    >>> run = ringfence.train(log, method, steps=5, progress=False)
    >>> run.policy(np.zeros(2)).shape
    (1,)
    """
    from ringfence import launch
    from ringfence.evaluation.ope.runs import set_aside
    from ringfence.training import Member, Plan, RunDirectory

    chosen: list[Any] = [launch.watched_limit(method)] if limits is None else list(limits)
    if any(limit is None for limit in chosen):
        example = f"{type(method).__name__}(limit=30.0)"
        raise InvalidSetting(f"no limit given; write for example {example}, or pass limits=[20.0, 30.0]")
    launch.check_in_range(method, chosen)
    if not is_fraction(holdout):
        raise InvalidSetting(f"holdout is a share of the episodes, at least 0 and below 1, not {holdout}")
    launch.check_request(out, task, cost, episodes, horizon)
    if keep_every is not None and out is None:
        raise InvalidSetting("keep_every keeps policies in the run's directory; give it with out=...")
    if tensorboard and out is None:
        raise InvalidSetting("tensorboard writes files into the run's directory; give it with out=...")
    log = dataset if isinstance(dataset, Dataset) else load(dataset)
    plan = Plan(
        method,
        tuple(Member(launch.whole_seed(seed), float(limit)) for limit in chosen for seed in seeds),
        defaults.steps_of(method) if steps is None else steps,
        log_every=log_every,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        keep_every=keep_every,
    )
    parts = set_aside(log, holdout)
    plan.learns_from(parts[0])  # refuses a log without a part it can use before anything is written
    if origin is None and not isinstance(dataset, Dataset):
        origin = {"source": os.fspath(dataset)}
    extras: dict[str, Any] = {"task": task, "cost": cost, "episodes": episodes, "tensorboard": tensorboard}
    extras |= {"holdout": holdout, "learned_from": parts[0].fingerprint} if holdout else {}
    steps_simulated = launch.simulated_steps(task, horizon, log)
    extras |= {"horizon": steps_simulated} if steps_simulated is not None else {}
    configuration = plan.configuration(log, origin, extras)
    evaluator = launch.evaluator_of(configuration, log)
    if out is None:
        return launch.carry_out(parts, plan, configuration, None, evaluator, resume=False, progress=progress)
    directory = RunDirectory(os.fspath(out))
    with directory.locked():
        directory.create(configuration)
        try:
            return launch.carry_out(parts, plan, configuration, directory, evaluator, resume=False, progress=progress)
        except InvalidSetting:
            directory.free_if_not_begun()
            raise


def resume(
    path: str | os.PathLike[str],
    dataset: Dataset | str | os.PathLike[str] | None = None,
    *,
    steps: int | None = None,
    task: str | None = None,
    cost: str | None = None,
    other_computation: bool = False,
    progress: bool = True,
) -> "Run":
    """Go on with a run that was stopped, to the numbers it would have had anyway. The log is read again from where the
    run found it, or given here, and must be the same.

    `steps` goes on for longer than was planned, to the numbers of a run that was planned so from the start. A machine that
    computes in another way (other kernels, another JAX) does not come to the same numbers: that is refused unless
    `other_computation` allows it. A task of the user's own ("module:name") must be named again: no file decides what code
    is imported.
    """
    from ringfence import launch
    from ringfence.evaluation.ope.runs import set_aside_by
    from ringfence.training import RunDirectory
    from ringfence.training.resuming import check_computation, check_log, check_own_code, longer, plan_of

    directory = RunDirectory(os.fspath(path))
    directory.configuration()  # a directory that is no run is not touched
    with directory.locked():
        configuration = directory.configuration()
        plan = plan_of(configuration)
        check_own_code(configuration, task=task, cost=cost)
        if steps is not None:
            plan, configuration = longer(plan, configuration, steps)
        log = dataset if isinstance(dataset, Dataset) else load(dataset) if dataset is not None else log_of_run(path)
        check_log(log, configuration, directory.path)
        parts = set_aside_by(configuration, log)
        evaluator = launch.evaluator_of(configuration, log)
        configuration = check_computation(configuration, directory.path, other_computation)
        if configuration != directory.configuration():
            directory.write(configuration)
        return launch.carry_out(parts, plan, configuration, directory, evaluator, resume=True, progress=progress)


def log_of_run(path: str | os.PathLike[str]) -> Dataset:
    """The log that a run was trained on, read again from where the run found it."""
    from ringfence.training import RunDirectory

    origin = RunDirectory(os.fspath(path)).configuration().log.origin
    if not origin:
        raise CheckpointError(f"{path} was trained on a log in memory; give it again: resume(path, dataset)")
    try:
        return load(origin["source"], **origin.get("options", {}))
    except UnreadableFile as error:
        if Path(origin["source"]).exists():
            raise
        raise UnreadableFile(f"{error}; if the log has moved, name it: ringfence train LOG --resume {path}") from None
