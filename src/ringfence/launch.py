"""What `train` and `resume` of `api.py` share: checks of a request before anything is read or written, what evaluates the
policies, and the run itself."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ringfence.data import Dataset
from ringfence.data.recognise import KnownEpisodes
from ringfence.errors import InvalidSetting
from ringfence.evaluation import Evaluator
from ringfence.evaluation.ope.runs import judge_at_the_end
from ringfence.tasks import cost_function, find
from ringfence.training import Configuration, Member, Plan, Run, RunDirectory, defaults, run
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.configuration import check_count
from ringfence.training.tensorboard import observer


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


def check_request(
    out: str | os.PathLike[str] | None,
    task: str | None = None,
    cost: str | None = None,
    episodes: int = defaults.EPISODES,
    horizon: int | None = None,
) -> None:
    """Raise now what would otherwise come up after the log has been read, or when the run is."""
    check_count("episodes", episodes)
    if horizon is not None:
        check_count("horizon", horizon)
    if cost is not None:
        if task is None:
            raise InvalidSetting(
                f"cost {cost!r} is for the steps of a simulated task, and none is given (--task): what is learned is the "
                "log's own cost"
            )
        cost_function(cost)
    if out is not None:
        RunDirectory(os.fspath(out)).require_free()
    if task is not None:
        find(task)


def simulated_steps(task: str | None, horizon: int | None, log: Dataset) -> int | None:
    """After how many steps simulated episodes are cut off; None: where the task ends them. A task that has no horizon of
    its own is cut off where the log's longest episode was, so that both are sums over as many steps."""
    if task is None or horizon is not None:
        return horizon
    longest = log.episode_ends - log.episode_starts == log.horizon
    cut_off = bool(log.truncations[log.episode_ends[longest] - 1].any())
    return log.horizon if cut_off and find(task).horizon is None else None


def evaluator_of(configuration: Configuration, log: Dataset) -> Evaluator | None:
    """What evaluates the run's policies, if it has a task; an error if the task cannot be made or is another's."""
    if configuration.task is None:
        return None
    episodes = configuration.extras.get("episodes", defaults.EPISODES)
    evaluator = Evaluator(
        configuration.task,
        parallel=min(episodes, 10),
        cost=configuration.extras.get("cost"),
        horizon=configuration.extras.get("horizon"),
    )
    evaluator.require_match(log)
    return evaluator


def whole_seed(seed: Any) -> Any:
    """A NumPy integer as a Python one. Anything else is returned as it is: `check_members` refuses what is no seed."""
    return int(seed) if isinstance(seed, np.integer) else seed


def carry_out(
    parts: tuple[Dataset, Dataset | None],
    plan: Plan,
    configuration: Configuration,
    directory: RunDirectory | None,
    evaluator: Evaluator | None,
    *,
    resume: bool,
    progress: bool,
) -> Run:
    """Train, evaluate on the way, and judge at the end by the episodes that were set aside."""
    use_compilation_cache()
    learned, judging = parts
    if directory is not None:
        directory.remember(KnownEpisodes.of(learned))
    extras = configuration.extras
    evaluate = None
    if evaluator is not None:

        def evaluate(policy: Any, member: Member) -> dict[str, float]:
            """At the member's limit, by the policy's own discount."""
            episodes = extras.get("episodes", defaults.EPISODES)
            found = evaluator(policy, episodes, seed=defaults.EVALUATION_SEED, limit=member.limit, record=True)
            for sentence in evaluator.doubts(policy, found):
                warnings.warn(sentence, stacklevel=2)
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
