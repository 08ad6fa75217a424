"""From a task's name, or a simulator of the user's own, to an environment."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.errors import InvalidSetting, MissingExtra, SimulatorError, UnknownName
from ringfence.tasks.catalogue import TASKS, Task
from ringfence.tasks.costs import Cost, CostFunction, torque_cost
from ringfence.tasks.wrappers import Checked, ClipActions, ReportCost, StopAfter, adapted

if TYPE_CHECKING:
    import gymnasium


def find(name: str | Task | Callable[..., Any]) -> Task:
    """The task of this name: a built-in one, a Gymnasium id ("Env-v0", or "module:Env-v0", which imports the module that
    registers it), "module:name" of a class or function that makes an environment, or such a class or function itself.

    All but the built-in ones have no limit of their own and report `info["cost"]`, unless a cost function is given.
    """
    if isinstance(name, Task):
        return name
    if callable(name):
        return Task(getattr(name, "__name__", "task"), "", limit=None, horizon=None, cost=None, maker=name)
    if name in TASKS:
        return TASKS[name]
    module, colon, attribute = name.partition(":")
    maker = found_in(imported(module), attribute) if colon else None
    if maker is not None:
        return Task(name, name, limit=None, horizon=None, cost=None, maker=maker)
    gymnasium = _gymnasium()
    try:
        spec = gymnasium.spec(attribute or name)  # a module has registered it when it was imported
    except (gymnasium.error.Error, ValueError) as error:
        there = f"{module} has nothing called {attribute!r}, and " if colon else ""
        raise UnknownName(
            f"{there}no task or Gymnasium environment is called {name!r}; built-in tasks: {', '.join(TASKS)}; "
            "your own: MODULE:ENV-ID, or MODULE:NAME of a class or function that makes it"
        ) from error
    return Task(name, name, limit=None, horizon=spec.max_episode_steps, cost=None)


def make(name: str | Task | Callable[..., Any], cost: Cost | str = None, **options: Any) -> "gymnasium.Env[Any, Any]":
    """The environment of a task. Its steps report `info["cost"]`, the cost of the action as executed.

    `name` is whatever `find` takes. `cost` replaces the task's own cost: "mean" or "sum" of the joints' torques, a
    function `cost(observation, action, next_observation, info) -> float`, or "module:function". Further options go to
    `gymnasium.make` (e.g. `render_mode="rgb_array"`), or to the class or function.

    >>> env = make("hopper-torque")
    >>> observation, info = env.reset(seed=0)
    >>> round(env.step([0.3, -0.3, 2.0])[4]["cost"], 4)  # 2.0 is executed as 1.0
    0.5333
    """
    task = find(name)
    cost = task.cost if cost is None else cost
    env = _create(task, options)
    spaces = [getattr(env, space, None) for space in ("observation_space", "action_space")]
    if not all(hasattr(spaces[1], bound) for bound in ("low", "high")):
        raise InvalidSetting(f"{task.name} has the action space {spaces[1]}; ringfence needs a Box")
    if len(getattr(spaces[0], "shape", None) or ()) != 1:
        raise InvalidSetting(
            f"{task.name} has the observation space {spaces[0]}; ringfence needs a Box of one dimension"
        )
    return ClipActions(Checked(env, task.name) if cost is None else _costed(env, cost, task.name))


def _costed(env: Any, cost: Cost | str, name: str) -> Any:
    function: CostFunction
    if isinstance(cost, str) and ":" in cost:
        function = cost_function(cost)
    elif cost in ("mean", "sum"):
        function = torque_cost(env, "mean" if cost == "mean" else "sum")
    elif callable(cost):
        function = cost
    else:
        raise InvalidSetting(f"cost must be 'mean', 'sum', a function or MODULE:FUNCTION, not {cost!r}")
    return Checked(ReportCost(env, function), name)


def with_horizon(task: Task, horizon: int | None) -> Task:
    """The task with episodes cut off after so many steps."""
    if horizon is not None and horizon < 1:
        raise InvalidSetting(f"horizon must be at least 1 step, not {horizon}")
    return task if horizon is None else replace(task, horizon=horizon)


def cost_function(name: str) -> CostFunction:
    """The function that "module:name" means."""
    module, _, attribute = name.partition(":")
    function = found_in(imported(module), attribute)
    if function is None:
        raise UnknownName(f"{module} has no function {attribute!r} for the cost")
    chosen: CostFunction = function
    return chosen


def imported(name: str) -> Any:
    """A module by its name, from where Python looks, and last from the working directory."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UnknownName(
                f"there is no module {name!r}; call ringfence where it lies, or set PYTHONPATH to its directory"
            ) from None
        raise InvalidSetting(f"{name} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        raise InvalidSetting(f"{name} cannot be imported ({type(error).__name__}: {error})") from error


def found_in(module: Any, attribute: str) -> Callable[..., Any] | None:
    """What "name" or "Class.name" is in a module, if it can be called."""
    found = reduce(lambda at, part: getattr(at, part, None), attribute.split("."), module)
    return found if callable(found) else None


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """MuJoCo 4 warns, for each environment made, that Gymnasium's robots use an old attribute, and leaves a
    MUJOCO_LOG.TXT in the user's directory. While models compile, its warnings go nowhere; afterwards as before."""
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
    if task.maker is not None:
        try:
            env = adapted(task.maker(**options))
        except (Exception, SystemExit) as error:  # whatever the user's code does
            raise SimulatorError(f"{task.name} could not be made ({type(error).__name__}: {error})") from error
        return env if task.horizon is None else StopAfter(env, task.horizon)
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
    except (Exception, SystemExit) as error:  # whatever the environment does when it is made
        raise SimulatorError(f"{task.name} could not be made ({type(error).__name__}: {error})") from error


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtra(
            "an environment by its id needs Gymnasium: pip install gymnasium (built-in robots: 'ringfence[mujoco]')"
        ) from error
    return gymnasium
