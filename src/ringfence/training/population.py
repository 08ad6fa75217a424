"""Many updates of many members in one compiled program.

A member is a seed and a limit. All members run the same program on the same log, each with its own random numbers, so
a sweep over seeds or limits neither recompiles nor copies the data.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ringfence.algorithms.interface import Method, Metrics, Sample, Spec, State, Update
from ringfence.randomness import random_key
from ringfence.training.device import DeviceData
from ringfence.training.sharding import layout_for

CALIBRATION_ROWS = 20_000


def without_limit(method: Method) -> Method:
    """The method as the compiled program knows it."""
    bare: Method = replace(cast(Any, method), limit=None)
    return bare


class Programs(NamedTuple):
    """The compiled parts of a run; each takes and gives states with a leading axis of members."""

    init: Callable[[Int[Array, " members"], Float[Array, " members"]], State]
    advance: Callable[..., tuple[State, Metrics]]
    finish: Callable[..., tuple[State, Metrics]]
    diagnose: Callable[..., Metrics]


def member_key(seed: Int[Array, ""], purpose: int, step: Int[Array, ""] | int = 0) -> PRNGKeyArray:
    """The random key of a member for one purpose at one step: a function of the step, so that a run that is resumed
    draws the same numbers as one that never stopped."""
    return jax.random.fold_in(jax.random.fold_in(random_key(seed), purpose), step)


@lru_cache(maxsize=32)
def compile_programs(method: Method, spec: Spec, stage_index: int, members: int) -> Programs:
    """The programs of one stage. `method` must come without its limit: limits are data."""
    stage = method.stages(1)[stage_index]
    purpose = 1 + stage_index
    layout = layout_for(members, method.batch_size)

    def over_members(function: Callable[..., Any], mapped: tuple[int | None, ...]) -> Callable[..., Any]:
        """Map over the leading axis of the arguments marked 0; not for one member: batched products are slower."""
        if members > 1:
            return jax.vmap(function, in_axes=mapped, spmd_axis_name=layout.member_axis)

        def single(*arguments: Any) -> Any:
            first = [
                jax.tree.map(lambda x: x[0], argument) if axis == 0 else argument
                for argument, axis in zip(arguments, mapped, strict=True)
            ]
            return jax.tree.map(lambda x: jnp.expand_dims(x, 0), function(*first))

        return single

    @jax.jit
    def init(seeds: Int[Array, " members"], limits: Float[Array, " members"]) -> State:
        def one(seed: Int[Array, ""], limit: Float[Array, ""]) -> State:
            state = method.init(member_key(seed, 0), limit, spec)
            return jax.tree.map(lambda x: jnp.asarray(x, x.dtype), state)  # weak types would compile `advance` twice

        return over_members(one, (0, 0))(seeds, limits)

    def update(state: State, seed: Int[Array, ""], step: Int[Array, ""], data: DeviceData) -> tuple[State, Metrics]:
        batch_key, update_key = jax.random.split(member_key(seed, purpose, step))
        return stage.update(state, layout.split(data.draw(batch_key, method.batch_size)), update_key)

    @eqx.filter_jit(donate="all-except-first")
    def advance(
        constants: tuple[DeviceData, Int[Array, " members"]], carry: tuple[State, Metrics], start: Any, stop: Any
    ) -> tuple[State, Metrics]:
        """Updates number `start` to `stop` - 1, adding their metrics to the sums in the carry."""
        data, seeds = constants

        def loop(state: State, sums: Metrics, seeds: Int[Array, "*members"]) -> tuple[State, Metrics]:
            each = jax.vmap(update, (0, 0, None, None), spmd_axis_name=layout.member_axis) if members > 1 else update
            keep = layout.keep_spread if members > 1 else layout.keep_copied

            def step(number: Int[Array, ""], carry: tuple[State, Metrics]) -> tuple[State, Metrics]:
                state, metrics = each(carry[0], seeds, number, data)
                return keep((state, jax.tree.map(jnp.add, carry[1], metrics)))

            after: tuple[State, Metrics] = jax.lax.fori_loop(start, stop, step, (state, sums))
            return after

        # The axis of a single member is taken off outside the loop: inside, it would cost copies.
        after: tuple[State, Metrics] = (loop if members > 1 else over_members(loop, (0, 0, 0)))(*carry, seeds)
        return after

    def large_batch(function: Update) -> Callable[..., tuple[State, Metrics]]:
        @jax.jit
        def run(state: State, seeds: Int[Array, " members"], data: DeviceData) -> tuple[State, Metrics]:
            def one(state: State, seed: Int[Array, ""], data: DeviceData) -> tuple[State, Metrics]:
                batch_key, key = jax.random.split(member_key(seed, 100 + purpose))
                return function(state, data.draw(batch_key, CALIBRATION_ROWS), key)

            finished: tuple[State, Metrics] = over_members(one, (0, 0, None))(state, seeds, data)
            return finished

        return run

    @jax.jit
    def diagnose(state: State, seeds: Int[Array, " members"], sample: Sample, step: Int[Array, ""]) -> Metrics:
        def one(state: State, seed: Int[Array, ""], sample: Sample, step: Int[Array, ""]) -> Metrics:
            return method.diagnose(state, sample, member_key(seed, 200 + purpose, step))

        seen: Metrics = over_members(one, (0, 0, None, None))(state, seeds, sample, step)
        return seen

    def keep(state: State, seeds: Int[Array, " members"], data: DeviceData) -> tuple[State, Metrics]:
        return state, {}

    return Programs(init, advance, large_batch(stage.finish) if stage.finish else keep, diagnose)


def zero_sums(method: Method, spec: Spec, stage_index: int, members: int, state: State, data: DeviceData) -> Metrics:
    """Zeros in the shape of the stage's metrics."""
    update = method.stages(1)[stage_index].update

    def one(state: State) -> Metrics:
        key = random_key(0)
        return update(state, data.draw(key, method.batch_size), key)[1]

    shapes = jax.eval_shape(one, jax.eval_shape(lambda s: jax.tree.map(lambda x: x[0], s), state))
    return {name: jnp.zeros((members, *shape.shape), shape.dtype) for name, shape in shapes.items()}
