"""The few functions that most users need: load a log, train on it, go on with a run."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfence.data import Dataset, load_file
from ringfence.errors import CheckpointError, InvalidSetting, UnreadableFile
from ringfence.training import defaults

if TYPE_CHECKING:
    from ringfence.evaluation import Evaluator
    from ringfence.training import Configuration, Plan, Run, RunDirectory


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
    steps: int = defaults.STEPS,
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
    progress: bool = True,
    tensorboard: bool = False,
    holdout: float = 0.0,
    origin: Mapping[str, Any] | None = None,
) -> "Run":
    """Learn a policy for every seed and limit, all in one program, and return the `ringfence.Run`.

    `method` carries one limit (`CPQ(limit=30.0)`); `limits` gives several instead. One policy for a whole range of limits,
    `CPQ(limits=(20, 60))`, is evaluated and judged at the middle of its range, or at `limits`. With a `task` the policies
    are evaluated in it as they learn; `cost` ("module:function") is for a task that does not report its cost, and `horizon`
    cuts its episodes off (default: where the task does, else where the log's were cut off). With `out` everything is kept
    in that directory and the run can be resumed; for a log that was loaded with options, `origin` says how to load it
    again: {"source": ..., "options": {...}}. `holdout` sets a share of the episodes aside: the run does not
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
    from ringfence.evaluation.ope.runs import set_aside
    from ringfence.training import Member, Plan, RunDirectory

    chosen: list[Any] = [watched_limit(method)] if limits is None else list(limits)
    if any(limit is None for limit in chosen):
        example = f"{type(method).__name__}(limit=30.0)"
        raise InvalidSetting(f"no limit given; write for example {example}, or pass limits=[20.0, 30.0]")
    check_in_range(method, chosen)
    if not 0 <= holdout < 1:
        raise InvalidSetting(f"holdout is a share of the episodes, at least 0 and below 1, not {holdout}")
    check_request(out, task, cost, episodes)
    log = dataset if isinstance(dataset, Dataset) else load(dataset)
    plan = Plan(
        method,
        tuple(Member(_plain(seed), float(limit)) for limit in chosen for seed in seeds),
        steps,
        log_every=log_every,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
    )
    parts = set_aside(log, holdout)
    plan.learns_from(parts[0])  # refuses a log without a part it can use before anything is written
    if origin is None and not isinstance(dataset, Dataset):
        origin = {"source": os.fspath(dataset)}
    extras: dict[str, Any] = {"task": task, "cost": cost, "episodes": episodes, "tensorboard": tensorboard}
    extras |= {"holdout": holdout, "learned_from": parts[0].fingerprint} if holdout else {}
    steps_simulated = simulated_steps(task, horizon, log)
    extras |= {"horizon": steps_simulated} if steps_simulated is not None else {}
    configuration = plan.configuration(log, origin, extras)
    evaluator = _evaluator(configuration, log)
    if out is None:
        return _run(parts, plan, configuration, None, evaluator, resume=False, progress=progress)
    directory = RunDirectory(os.fspath(out))
    with directory.locked():
        directory.create(configuration)
        try:
            return _run(parts, plan, configuration, directory, evaluator, resume=False, progress=progress)
        except InvalidSetting:
            directory.free_if_not_begun()
            raise


def watched_limit(method: Any) -> float | None:
    """The limit at which training watches the policy: the method's own, or the middle of its range of limits."""
    limits = getattr(method, "limits", None)
    own: float | None = method.limit if limits is None else (limits[0] + limits[1]) / 2
    return own


def check_in_range(method: Any, chosen: Sequence[Any]) -> None:
    limits = getattr(method, "limits", None)
    for limit in chosen:
        if limits is not None and not limits[0] <= limit <= limits[1]:
            raise InvalidSetting(
                f"limit {limit} lies outside the method's range of limits, {limits[0]:g} to {limits[1]:g}"
            )


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
        evaluator = _evaluator(configuration, log)
        configuration = check_computation(configuration, directory.path, other_computation)
        if configuration != directory.configuration():
            directory.write(configuration)
        return _run(parts, plan, configuration, directory, evaluator, resume=True, progress=progress)


def check_request(
    out: str | os.PathLike[str] | None,
    task: str | None = None,
    cost: str | None = None,
    episodes: int = defaults.EPISODES,
) -> None:
    """Raise now what would otherwise come up after the log has been read."""
    from ringfence.tasks import cost_function, find
    from ringfence.training.rundir import RunDirectory

    if episodes < 1:
        raise InvalidSetting(f"episodes must be at least 1, not {episodes}")
    if cost is not None:
        cost_function(cost)

    if out is not None:
        RunDirectory(os.fspath(out)).require_free()
    if task is not None:
        find(task)


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


def _evaluator(configuration: "Configuration", log: Dataset) -> "Evaluator | None":
    """What evaluates the run's policies, if it has a task; an error if the task cannot be made or is another's."""
    if configuration.task is None:
        return None
    from ringfence.evaluation import Evaluator

    episodes = configuration.extras.get("episodes", defaults.EPISODES)
    evaluator = Evaluator(
        configuration.task,
        parallel=min(episodes, 10),
        cost=configuration.extras.get("cost"),
        horizon=configuration.extras.get("horizon"),
    )
    evaluator.require_match(log)
    return evaluator


def simulated_steps(task: str | None, horizon: int | None, log: Dataset) -> int | None:
    """After how many steps simulated episodes are cut off; None: where the task ends them. A task that has no horizon of
    its own is cut off where the log's longest episode was, so that both are sums over as many steps."""
    if task is None or horizon is not None:
        return horizon
    from ringfence.tasks import find

    longest = log.episode_ends - log.episode_starts == log.horizon
    cut_off = bool(log.truncations[log.episode_ends[longest] - 1].any())
    return log.horizon if cut_off and find(task).horizon is None else None


def _plain(seed: Any) -> Any:
    """NumPy's whole numbers as Python's; what is none is refused where all members are checked."""
    return int(seed) if isinstance(seed, np.integer) else seed


def _run(
    parts: tuple[Dataset, Dataset | None],
    plan: "Plan",
    configuration: "Configuration",
    directory: "RunDirectory | None",
    evaluator: "Evaluator | None",
    *,
    resume: bool,
    progress: bool,
) -> "Run":
    from ringfence.evaluation.ope.runs import judge_at_the_end
    from ringfence.training import Member, run
    from ringfence.training.compilation import use_compilation_cache
    from ringfence.training.tensorboard import observer

    use_compilation_cache()
    learned, judging = parts
    extras = configuration.extras
    evaluate = None
    if evaluator is not None:

        def evaluate(policy: Any, member: Member) -> dict[str, float]:
            """At the member's limit, by the policy's own discount."""
            episodes = extras.get("episodes", defaults.EPISODES)
            found = evaluator(policy, episodes, seed=defaults.EVALUATION_SEED, limit=member.limit, record=True)
            return {**found.scores(), **found.scores_of_first(configuration.horizon)}

    with observer(directory.path if directory and extras.get("tensorboard") else None) as observe:
        result = run(
            learned,
            plan,
            evaluate=evaluate,
            directory=directory,
            configuration=configuration,
            resume=resume,
            metadata={"task": configuration.task},
            progress=progress,
            observe=observe,
        )
    if sentence := judge_at_the_end(result, learned, judging):
        warnings.warn(sentence, stacklevel=2)
    return result
