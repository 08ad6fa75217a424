"""Many updates of many members in one compiled program.

A member is a seed and a limit. All members run the same program on the same log, each with its own random numbers, so
a sweep over seeds or limits neither recompiles nor copies the data.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ringfence.algorithms.batches import DeviceData, Sample, Sampler
from ringfence.algorithms.interface import Learner, Metrics, Spec, State, Update, sampler_of
from ringfence.randomness import random_key
from ringfence.training.sharding import layout_of

CALIBRATION_ROWS = 20_000
PREPARING = 300  # the purpose of a member's random key that its sampler is prepared with


def without_limit(method: Learner) -> Learner:
    """The method as the compiled program knows it."""
    bare: Learner = replace(cast(Any, method), limit=None)
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
def compile_programs(method: Learner, spec: Spec, stage_index: int, members: int) -> Programs:
    """The programs of one stage. `method` must come without its limit: limits are data."""
    stage = method.stages(1)[stage_index]
    purpose = 1 + stage_index
    sampler = sampler_of(method, stage)
    layout = layout_of(method, members)

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

    def update(
        state: State, seed: Int[Array, ""], prepared: Any, step: Int[Array, ""], data: DeviceData
    ) -> tuple[State, Metrics]:
        batch_key, update_key = jax.random.split(member_key(seed, purpose, step))
        return stage.update(state, layout.split(sampler.draw(data, batch_key, prepared)), update_key)

    @eqx.filter_jit(donate="all-except-first")
    def advance(
        constants: tuple[DeviceData, Int[Array, " members"]], carry: tuple[State, Metrics], start: Any, stop: Any
    ) -> tuple[State, Metrics]:
        """Updates number `start` to `stop` - 1, adding their metrics to the sums in the carry."""
        data, seeds = constants

        def loop(state: State, sums: Metrics, seeds: Int[Array, "*members"]) -> tuple[State, Metrics]:
            each: Any = update
            prepared_for: Any = partial(prepared_by, sampler, data)
            if members > 1:
                each = jax.vmap(update, (0, 0, 0, None, None), spmd_axis_name=layout.member_axis)
                prepared_for = jax.vmap(prepared_for, spmd_axis_name=layout.member_axis)
            prepared = prepared_for(seeds)
            keep = layout.keep_spread if members > 1 else layout.keep_copied

            def step(number: Int[Array, ""], carry: tuple[State, Metrics]) -> tuple[State, Metrics]:
                state, metrics = each(carry[0], seeds, prepared, number, data)
                return keep((state, jax.tree.map(jnp.add, carry[1], metrics)))

            after: tuple[State, Metrics] = jax.lax.fori_loop(start, stop, step, (state, sums))
            return after

        # The axis of a single member is taken off outside the loop: inside, it would cost copies.
        after: tuple[State, Metrics] = (loop if members > 1 else over_members(loop, (0, 0, 0)))(*carry, seeds)
        return after

    def large_batch(function: Update) -> Callable[..., tuple[State, Metrics]]:
        many: Sampler = replace(cast(Any, sampler), size=CALIBRATION_ROWS)

        @jax.jit
        def run(state: State, seeds: Int[Array, " members"], data: DeviceData) -> tuple[State, Metrics]:
            def one(state: State, seed: Int[Array, ""], data: DeviceData) -> tuple[State, Metrics]:
                batch_key, key = jax.random.split(member_key(seed, 100 + purpose))
                batch = many.draw(data, batch_key, prepared_by(many, data, seed))
                return function(state, batch, key)

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


def prepared_by(sampler: Sampler, data: DeviceData, seed: Int[Array, ""]) -> Any:
    """What a member draws from: a function of its seed, the same in every stage."""
    return sampler.prepare(data, member_key(seed, PREPARING))


def zero_sums(method: Learner, spec: Spec, stage_index: int, members: int, state: State, data: DeviceData) -> Metrics:
    """Zeros in the shape of the stage's metrics."""
    stage = method.stages(1)[stage_index]
    sampler = sampler_of(method, stage)

    def one(state: State) -> Metrics:
        key = random_key(0)
        batch = sampler.draw(data, key, sampler.prepare(data, key))
        return stage.update(state, batch, key)[1]

    shapes = jax.eval_shape(one, jax.eval_shape(lambda s: jax.tree.map(lambda x: x[0], s), state))
    return {name: jnp.zeros((members, *shape.shape), shape.dtype) for name, shape in shapes.items()}
