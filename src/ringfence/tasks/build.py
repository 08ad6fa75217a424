"""From a task's name to an environment."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ringfence.errors import InvalidSetting, MissingExtra, UnknownName
from ringfence.tasks.catalogue import TASKS, Task
from ringfence.tasks.costs import ClipActions, Cost, ReportCost, RequireCost, torque_cost

if TYPE_CHECKING:
    import gymnasium


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtra("environments need Gymnasium: pip install 'ringfence[mujoco]'") from error
    return gymnasium


def find(name: str | Task) -> Task:
    """The built-in task of this name, or one made from a registered Gymnasium environment.

    A Gymnasium environment has no limit of its own, and must report `info["cost"]`.
    """
    if isinstance(name, Task):
        return name
    if name in TASKS:
        return TASKS[name]
    gymnasium = _gymnasium()
    try:
        spec = gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise UnknownName(
            f"no task or Gymnasium environment is called {name!r}; built-in tasks: {', '.join(TASKS)}"
        ) from error
    return Task(name, name, limit=None, horizon=spec.max_episode_steps, cost=None)


def make(name: str | Task, cost: Cost = None, **options: Any) -> "gymnasium.Env[Any, Any]":
    """The environment of a task. Its steps report `info["cost"]`, the cost of the action as executed.

    `name` is a built-in task, a `Task` or a Gymnasium id. `cost` replaces the task's own cost: "mean" or "sum" of
    the joints' torques, or a function `cost(observation, action, next_observation, info) -> float`. Further options
    go to `gymnasium.make` (e.g. `render_mode="rgb_array"`).

    >>> env = make("hopper-torque")
    >>> observation, info = env.reset(seed=0)
    >>> round(env.step([0.3, -0.3, 2.0])[4]["cost"], 4)  # 2.0 is executed as 1.0
    0.5333
    """
    task = find(name)
    cost = task.cost if cost is None else cost
    env = _create(task, options)
    if not hasattr(env.action_space, "low"):
        raise InvalidSetting(f"{task.name} has the action space {env.action_space}; ringfence needs a Box")
    if isinstance(cost, str) and cost not in ("mean", "sum"):
        raise InvalidSetting(f"cost must be 'mean', 'sum' or a function, not {cost!r}")
    if cost == "mean" or cost == "sum":
        cost = torque_cost(env, cost)
    return ClipActions(RequireCost(env) if cost is None else ReportCost(env, cost))


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """MuJoCo 4 warns, for each environment made, that Gymnasium's robots use an old attribute, and leaves a
    MUJOCO_LOG.TXT in the person's directory. While models compile, its warnings go nowhere; afterwards as before."""
    try:
        import mujoco
    except ImportError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _create(task: Task, options: dict[str, Any]) -> Any:
    gymnasium = _gymnasium()
    if task.horizon is not None:
        options = {"max_episode_steps": task.horizon, **options}
    try:
        with quiet_compiler():
            return gymnasium.make(task.env_id, disable_env_checker=True, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtra(f"{task.name} needs MuJoCo: pip install 'ringfence[mujoco]'") from error
    except gymnasium.error.Error as error:
        raise UnknownName(
            f"no Gymnasium environment is called {task.env_id!r}; built-in tasks: {', '.join(TASKS)}"
        ) from error
