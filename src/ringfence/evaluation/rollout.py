"""How good and how safe a policy is in its task: return and cost over whole episodes."""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ringfence import tasks
from ringfence.data.dataset import Dataset
from ringfence.data.episodes import discounted_sum
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting, MissingExtra, RingfenceError, WrongShape
from ringfence.evaluation.episodes import COST_AWARE, Controller, Episode, run_episodes
from ringfence.evaluation.match import doubts
from ringfence.evaluation.result import Evaluation
from ringfence.tasks.costs import Cost
from ringfence.training import defaults
from ringfence.values import is_number

TaskLike = str | tasks.Task | Callable[..., Any]


class Evaluator:
    """Evaluates policies in one task and keeps its environments between calls.

    `task` is a name, a `Task`, or a class or function that makes an environment. Its cost is `info["cost"]`, or the
    `cost` given here (see `tasks.make`); `horizon` cuts its episodes off.
    """

    def __init__(self, task: TaskLike, *, parallel: int = 10, cost: Cost | str = None, horizon: int | None = None):
        if parallel < 1:
            raise InvalidSetting(f"parallel must be at least 1, not {parallel}")
        found = tasks.with_horizon(tasks.find(task), horizon)
        self.name, self.limit, self.discount = found.name, found.limit, found.discount
        self._make: Callable[[], Any] = lambda: tasks.make(found, cost)
        self.parallel = parallel
        self._envs: list[Any] = []

    def envs(self, count: int) -> list[Any]:
        self._envs += [self._make() for _ in range(count - len(self._envs))]
        return self._envs[:count]

    def require_match(self, log: Dataset) -> None:
        """Raise unless the task can be made and a policy learned from this log could act in it."""
        had = log.observations.shape[1], log.actions.shape[1]
        offered = _sizes(self.envs(1)[0])
        if had != offered:
            raise WrongShape(
                f"the log has {had[0]} observations and {had[1]} actions, {self.name} has {offered[0]} and {offered[1]}: "
                "it is another task's"
            )

    def episodes(
        self, policy: Controller, count: int = defaults.EPISODES, *, seed: int = 0, deterministic: bool = True
    ) -> list[Episode]:
        """Episode i is seeded with `seed + i`; the result is the same for any `parallel`."""
        if count < 1:
            raise InvalidSetting(f"episodes must be at least 1, not {count}")
        envs = self.envs(min(self.parallel, count))
        _require_match(policy, envs[0], self.name)
        seeds = range(seed, seed + count)
        numbered = dict(run_episodes(policy, envs, seeds, deterministic=deterministic))
        return [numbered[i] for i in range(count)]

    def __call__(
        self,
        policy: Controller,
        episodes: int = defaults.EPISODES,
        *,
        seed: int = 0,
        limit: float | None = None,
        discount: float | None = None,
        deterministic: bool = True,
        record: bool = False,
    ) -> Evaluation:
        """Limit and discount default to the policy's own, then to the task's. A policy for a range of limits acts by this
        limit, and has none of its own."""
        for name, given in (("limit", limit), ("discount", discount)):
            if given is not None and not (is_number(given) and given >= 0):
                raise InvalidSetting(f"{name} must be a finite number of at least 0, not {given!r}")
        own = facts_of(policy)
        if isinstance(policy, Policy) and policy.artifact.takes_limit:
            policy = policy.at_limit(limit)
            own = policy.metadata
        limit = first_given(limit, own.get("limit"), self.limit)
        discount = first_given(discount, own.get("discount"), self.discount)
        if discount is None or not 0 <= discount <= 1:
            raise InvalidSetting(f"discount must lie between 0 and 1, not {discount}")
        ran = self.episodes(policy, episodes, seed=seed, deterministic=deterministic)
        return Evaluation(
            task=self.name,
            returns=np.array([e.rewards.sum() for e in ran]),
            discounted_returns=np.array([discounted_sum(e.rewards, discount) for e in ran]),
            costs=np.array([e.costs.sum() for e in ran]),
            discounted_costs=np.array([discounted_sum(e.costs, discount) for e in ran]),
            lengths=np.array([len(e) for e in ran]),
            limit=limit,
            discount=discount,
            seed=seed,
            deterministic=deterministic,
            episodes=ran if record else None,
        )

    def doubts(self, policy: Controller, found: Evaluation) -> list[str]:
        """What speaks against the task being that of the policy's log, of an evaluation with its episodes recorded."""
        if not isinstance(policy, Policy) or found.episodes is None:
            return []
        return doubts(policy.artifact, found.episodes, self.envs(1)[0].action_space)

    def close(self) -> None:
        for env in self._envs:
            env.close()
        self._envs = []


def facts_of(policy: Controller) -> Mapping[str, Any]:
    """What is known of its training. A guard, a pacer or turns may hold it to another limit."""
    if isinstance(policy, COST_AWARE):
        return {**policy.policy.metadata, "limit": policy.limit}
    return policy.metadata if isinstance(policy, Policy) else {}


def first_given(*values: Any) -> float | None:
    """The first that is a number."""
    numbers = (value for value in values if is_number(value))
    return next(numbers, None)


@lru_cache(maxsize=4)
def _shared_evaluator(task: TaskLike, parallel: int, cost: Cost | str, horizon: int | None) -> Evaluator:
    return Evaluator(task, parallel=parallel, cost=cost, horizon=horizon)


def evaluate(
    policy: Controller,
    task: TaskLike,
    *,
    episodes: int = defaults.EPISODES,
    seed: int = 0,
    limit: float | None = None,
    discount: float | None = None,
    deterministic: bool = True,
    parallel: int = 10,
    record: bool = False,
    cost: Cost | str = None,
    horizon: int | None = None,
) -> Evaluation:
    """Run exactly `episodes` episodes, the i-th seeded with `seed + i`, `parallel` of them side by side.

    `policy` is a `Policy`, a `Guard`, a `Pacer`, `Turns`, or any function from a batch of observations to a batch of
    actions. What has a method `reset()` remembers its episode: it is reset before each one, and they run one after the
    other. `task` is a name, or a class or function that makes an environment; `cost` is a cost function where its steps do
    not report `info["cost"]`, and `horizon` cuts its episodes off. Limit (a bound on the discounted cost) and discount
    default to the policy's own, then to the task's. `record=True` keeps the episodes themselves.

    >>> import numpy as np
    >>> result = evaluate(lambda observations: np.zeros((len(observations), 3)), "hopper-torque", episodes=2)
    >>> result.costs
    array([0., 0.])
    """
    evaluator = _shared_evaluator(task, parallel, cost, horizon)
    return evaluator(
        policy, episodes, seed=seed, limit=limit, discount=discount, deterministic=deterministic, record=record
    )


def _sizes(env: Any) -> tuple[int, int]:
    return env.observation_space.shape[0], env.action_space.shape[0]


def _require_match(policy: Controller, env: Any, task: str) -> None:
    """Refuse a policy of another robot before the first step, instead of failing with a shape error inside it."""
    policy = policy.policy if isinstance(policy, COST_AWARE) else policy
    wanted = getattr(policy, "observation_dim", None), getattr(policy, "action_dim", None)
    offered = _sizes(env)
    if wanted != (None, None) and wanted != offered:
        raise WrongShape(
            f"the policy takes {wanted[0]} observations and gives {wanted[1]} actions, {task} has {offered[0]} and "
            f"{offered[1]}: it was trained for another task"
        )


class Filmed:
    """An environment with a picture of each state that an action was taken in."""

    def __init__(self, env: Any):
        self.env, self.action_space = env, env.action_space
        self.frames: list[Any] = []

    def reset(self, *, seed: int) -> Any:
        return self.env.reset(seed=seed)

    def step(self, action: np.ndarray) -> Any:
        self.frames.append(self.env.render())
        return self.env.step(action)


def record_video(
    policy: Controller,
    task: TaskLike,
    path: str | Path,
    *,
    seed: int = 0,
    fps: int | None = None,
    cost: Cost | str = None,
    horizon: int | None = None,
) -> Path:
    """One deterministic episode as a video (.mp4, .gif); needs imageio and a MuJoCo that can render off screen. `cost` and
    `horizon` as in `evaluate`."""
    try:
        import imageio
    except ImportError as error:
        raise MissingExtra("a video needs imageio: pip install 'ringfence[mujoco]'") from error
    if not (os.environ.get("DISPLAY") or os.environ.get("MUJOCO_GL")):
        os.environ["MUJOCO_GL"] = "egl"  # without a screen MuJoCo's own default, GLFW, cannot work
    found = tasks.with_horizon(tasks.find(task), horizon)
    try:
        env = tasks.make(found, cost, render_mode="rgb_array")
        env.reset(seed=seed)
        env.render()
    except RingfenceError:  # of the task or its cost
        raise
    except Exception as error:  # the renderer fails in as many ways as there are graphics drivers
        raise MissingExtra(
            f"MuJoCo cannot render here ({error}); set MUJOCO_GL=egl or MUJOCO_GL=osmesa and install its library"
        ) from error
    filmed = Filmed(env)
    list(run_episodes(policy, [filmed], [seed]))
    fps = fps or env.metadata.get("render_fps", 30)
    env.close()
    speed: dict[str, Any] = {"duration": 1000 / fps, "loop": 0} if Path(path).suffix == ".gif" else {"fps": fps}
    try:
        imageio.mimsave(path, filmed.frames, **speed)
    except ValueError as error:  # imageio's way to say that it has no writer for this suffix
        raise MissingExtra(f"imageio cannot write {path}: write a .gif, or pip install 'imageio[ffmpeg]'") from error
    return Path(path)
