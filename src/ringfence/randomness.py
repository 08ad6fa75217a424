"""Random numbers: JAX's own Threefry, the same numbers for the same seed, several times as fast on a CPU.

There JAX makes a loop of the twenty rounds, and a step of training draws six times and waits for each loop. Here a draw is
one call of a kernel, or one pass over its numbers where XLA computes. (Threefry-2x32 with 20 rounds: Salmon and others,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011.)
"""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

from ringfence.errors import InvalidSetting
from ringfence.kernels import calls

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA

Words = UInt32[Array, "*shape"]


def threefry(key: UInt32[Array, "2"], high: Words, low: Words) -> tuple[Words, Words]:
    """The block cipher: two words for every counter of two words."""
    if calls.available():
        return calls.threefry(key, high, low)
    first, second = key[0], key[1]
    schedule = (first, second, first ^ second ^ jnp.uint32(PARITY))
    high, low = high + first, low + second
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            high = high + low
            low = ((low << rotation) | (low >> (32 - rotation))) ^ high
        high = high + schedule[(group + 1) % 3]
        low = low + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return high, low


def counters(shape: tuple[int, ...]) -> tuple[Words, Words]:
    """0, 1, 2, ... in this shape."""
    size = math.prod(shape)
    if size >= 2**32:
        raise InvalidSetting(
            f"{size:,} random numbers would be drawn at once, and fewer than 2^32 can be; use smaller networks or batches"
        )
    low = jax.lax.iota(jnp.uint32, size).reshape(shape)
    return jnp.zeros_like(low), low


def seed_words(seed: Int[Array, ""] | int) -> UInt32[Array, "2"]:
    low = jax.lax.convert_element_type(seed, jnp.uint32)
    return jnp.stack([jnp.zeros_like(low), low])


def split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "*shape 2"]:
    return jnp.stack(threefry(key, *counters(shape)), -1)


def fold_in(key: UInt32[Array, "2"], number: Int[Array, ""] | int) -> UInt32[Array, "2"]:
    return jnp.stack(threefry(key, *seed_words(number)))


def random_bits(key: UInt32[Array, "2"], width: int, shape: tuple[int, ...]) -> Array:
    """Words of 8, 16, 32 or (where JAX has them) 64 bits."""
    high, low = threefry(key, *counters(shape))
    if width == 64:
        return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)
    return (high ^ low).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


THREEFRY = define_prng_impl(
    key_shape=(2,),
    seed=seed_words,
    split=split,
    random_bits=random_bits,
    fold_in=fold_in,
    name="threefry written out",
    tag="rfw",
)


def random_key(seed: int | Int[Array, ""]) -> PRNGKeyArray:
    """Like `jax.random.key`, for seeds from 0 to 2^32 - 1."""
    return jax.random.key(seed, impl=THREEFRY)
