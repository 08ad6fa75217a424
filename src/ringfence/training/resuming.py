"""What must hold before a run goes on: the same settings, the same log, the same computation."""

from dataclasses import replace
from pathlib import Path

from ringfence.algorithms import METHODS
from ringfence.algorithms.named import method_of
from ringfence.data.dataset import Dataset
from ringfence.errors import CheckpointError, InvalidSetting, RingfenceError
from ringfence.training.computation import changes_since, computed_by, versions
from ringfence.training.configuration import Configuration
from ringfence.training.plan import Plan


def plan_of(configuration: Configuration) -> Plan:
    """The plan of a run from its configuration; its settings are checked as if a user had typed them."""
    name = configuration.method
    if name not in METHODS:
        raise CheckpointError(f"the run was trained by {name!r}, which this ringfence does not have")
    try:
        method = method_of(name, configuration.settings)
    except RingfenceError as error:
        raise CheckpointError(f"the run's settings are not those of this ringfence's {name}: {error}") from None
    schedule = configuration.schedule
    return Plan(method, configuration.members, **vars(schedule), keep_every=configuration.extras.get("keep_every"))


def longer(plan: Plan, configuration: Configuration, steps: int) -> tuple[Plan, Configuration]:
    """The plan for more steps, if it goes through the same numbers as the shorter one until that ends."""
    if steps < plan.steps:
        raise InvalidSetting(f"the run was planned for {plan.steps} steps: it can go on for longer, not for {steps}")
    extended = replace(plan, steps=steps)
    name = plan.method.name
    if getattr(plan.method, "depends_on_steps", False) and steps != plan.steps:
        raise InvalidSetting(
            f"{name} plans its whole training by the number of steps: a run of {plan.steps} cannot become one of {steps}; "
            "start a new one"
        )
    before, after = plan.method.stages(plan.steps), extended.method.stages(steps)
    same = [(s.name, s.steps) for s in before[:-1]] == [(s.name, s.steps) for s in after[:-1]]
    if not same or before[-1].name != after[-1].name or before[-1].finish is not None:
        raise InvalidSetting(f"{name} has other stages with {steps} steps than with {plan.steps}; start a new run")
    return extended, configuration.longer(steps)


def check_log(log: Dataset, configuration: Configuration, path: Path) -> None:
    if log.fingerprint != configuration.log.fingerprint:
        raise CheckpointError(
            f"{log.name} is not the log that {path} was trained on (its fingerprint differs); "
            "restore the log, or start a new run"
        )
    if (log.horizon, len(log)) != (configuration.log.horizon, configuration.log.rows):
        raise CheckpointError(f"{path} states another horizon or number of rows than its log has: it was edited")


def check_own_code(configuration: Configuration, **named: str | None) -> None:
    """Code of the user's own ("module:name") is imported only if the user names it; what is named must be the run's."""
    for option, given in named.items():
        recorded = configuration.extras.get(option)
        if given is not None and given != recorded:
            raise InvalidSetting(f"the run has the {option} {recorded!r}, not {given!r}; leave --{option} out")
        if given is None and isinstance(recorded, str) and ":" in recorded:
            raise InvalidSetting(
                f"the run imports code of yours for its {option}; say that it may: --{option} {recorded}"
            )


def check_computation(configuration: Configuration, path: Path, allow_other: bool) -> Configuration:
    """The configuration, with a change of what computes noted if that is allowed."""
    changes = changes_since(configuration.computed_by[-1], configuration.versions)
    if not changes:
        return configuration
    if not allow_other:
        raise CheckpointError(
            f"this machine computes in another way than {path} was computed in ({'; '.join(changes)}), so that it cannot go "
            "on to the same numbers; "
            "allow other ones with --other-computation (other_computation=True)"
        )
    return replace(configuration, computed_by=(*configuration.computed_by, computed_by()), versions=versions())
