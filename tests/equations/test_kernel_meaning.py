"""The kernels mean what the plain network means: any shape, any instruction set, any number of threads, NaN and infinity,
and derivatives of every kind."""

import os
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ringfence.kernels import calls, explanation
from ringfence.networks import MLP, Linear, mlp
from tests.equations.kernel_sets import SETS, kernels_of

needs_kernels = pytest.mark.skipif(not calls.available(), reason=f"XLA computes: {explanation()}")
ROOT = Path(__file__).parents[2]


def plain(network: MLP, x: jax.Array) -> jax.Array:
    return mlp.__wrapped__(x, tuple((layer.weight, layer.bias) for layer in network.layers), network.normalise)


def outputs_and_gradients(function, network: MLP, x: jax.Array, top: jax.Array):
    """The outputs, and the gradients of sum(top * outputs)."""
    return jax.jit(lambda network, x, top: (lambda y, back: (y, back(top)))(*jax.vjp(function, network, x)))(
        network, x, top
    )


def rows_at_a_kink(network: MLP, x: np.ndarray) -> np.ndarray:
    """Rows with a ReLU so close to 0 that rounding decides whether it is open."""
    close = np.zeros(len(x), bool)
    with np.errstate(all="ignore"):
        for layer in network.layers[:-1]:
            x = x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)
            if network.normalise:
                x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
            close |= (np.abs(x) < 1e-4).any(1)
            x = np.maximum(x, 0.0)
    return close


def assert_same(found, expected) -> None:
    """NaN and infinities in the same places, the other numbers close."""
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        size = np.abs(theirs[np.isfinite(theirs)]).max(initial=1e-30)
        np.testing.assert_allclose(ours / size, theirs / size, rtol=1e-4, atol=1e-4)


def random_network(sizes: tuple[int, ...], normalise: bool, rng: np.random.Generator) -> MLP:
    """Without JAX, which would compile a program for every shape."""
    network = object.__new__(MLP)
    layers = [Linear(rng.normal(size=(m, n)) / np.sqrt(m), rng.normal(size=n)) for m, n in pairwise(sizes)]
    object.__setattr__(network, "layers", tuple(jax.tree.map(np.float32, layers)))
    object.__setattr__(network, "normalise", normalise)
    return network


@st.composite
def cases(draw):
    """A network, its inputs, a gradient of its outputs with rows of 0, and a few numbers that are not finite."""
    rows = draw(st.sampled_from([1, 2, 13, 130, 257, 601]))
    widths = st.integers(2, 40) | st.sampled_from([64, 96])
    hidden = tuple(draw(st.lists(widths, max_size=3)))
    inputs, outputs = draw(st.integers(1, 40)), draw(st.sampled_from([1, 2, 9, 33]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    network = random_network((inputs, *hidden, outputs), draw(st.booleans()), rng)
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    top = rng.normal(size=(rows, outputs)).astype(np.float32)
    top[rng.random(rows) < draw(st.sampled_from([0.0, 0.1, 0.6, 1.0]))] = 0.0
    top[rows_at_a_kink(network, x)] = 0.0
    leaves, structure = jax.tree.flatten((network, x, top))
    leaves = [np.array(leaf) for leaf in leaves]
    for _ in range(draw(st.integers(0, 2))):
        leaf = leaves[draw(st.integers(0, len(leaves) - 1))]
        leaf.flat[rng.integers(leaf.size)] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])


@pytest.mark.parametrize("name", SETS)
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # every shape is compiled: looking for the smallest that fails would take minutes
    suppress_health_check=list(HealthCheck),
)
@given(case=cases())
def test_outputs_and_gradients_are_those_of_the_plain_network(name, case, monkeypatch) -> None:
    monkeypatch.setattr(calls, "active", lambda: kernels_of(name))
    kernels_of(name)
    assert_same(outputs_and_gradients(MLP.__call__, *case), outputs_and_gradients(plain, *case))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 5])
def test_the_same_holds_with_other_numbers_of_threads(threads) -> None:
    kernels_of("avx2")
    test = f"{Path(__file__).relative_to(ROOT)}::test_outputs_and_gradients_are_those_of_the_plain_network[avx2]"
    # XLA makes NPROC threads.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NPROC": str(threads)}, capture_output=True, text=True, check=False
    )
    assert "1 passed" in ran.stdout, ran.stdout


@needs_kernels
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("hidden", [(16, 16), (5, 3)])  # whole vectors, and narrower than one
@pytest.mark.parametrize("where", ["x", "weight", "bias"])
def test_nan_goes_through_to_the_outputs_and_to_the_gradients_of_the_weights(where, hidden, normalise) -> None:
    """A ReLU that turns NaN into 0 would make a diverged run look healthy."""
    network = MLP(5, 2, hidden, normalise=normalise, key=jax.random.key(0))
    x = jnp.ones((7, 5))
    leaf = {"x": None, "weight": lambda n: n.layers[0].weight, "bias": lambda n: n.layers[1].bias}[where]
    if leaf is None:
        x = x.at[3].set(jnp.nan)
    else:
        network = jax.tree.map(lambda a: a.at[...].set(jnp.nan) if a is leaf(network) else a, network)
    assert np.isnan(network(x)[3]).all()
    gradient = jax.grad(lambda network: jnp.sum(network(x)[0]))(network)  # of a row without NaN, if x has it
    assert np.isnan(gradient.layers[-1].weight).any()


@needs_kernels
@pytest.mark.parametrize("normalise", [False, True])
def test_every_derivative_exists_and_is_that_of_the_plain_network(normalise) -> None:
    network = MLP(3, 2, (8, 9), normalise=normalise, key=jax.random.key(0))
    x, direction = jax.random.normal(jax.random.key(1), (2, 4, 3))

    def derivatives(function, network, x, direction) -> dict:
        def f(network, x):
            return jnp.sum(jnp.sin(function(network, x)))

        def size_of_gradient(network, x):
            return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(jax.grad(f, (0, 1))(network, x)))

        return {
            "forward": jax.jvp(lambda x: f(network, x), (x,), (direction,)),
            "forward over reverse": jax.jacfwd(jax.grad(f, 1), 1)(network, x),
            "reverse over forward": jax.jacrev(jax.jacfwd(f, 1), 1)(network, x),
            "reverse over reverse": jax.grad(size_of_gradient, (0, 1))(network, x),
            "of several": jax.grad(lambda xs: jnp.sum(jax.vmap(f, (None, 0))(network, xs)))(jnp.stack([x, direction])),
        }

    assert "ffi_call" in str(jax.make_jaxpr(network)(x))
    ours, theirs = (
        jax.jit(partial(derivatives, function))(network, x, direction) for function in (MLP.__call__, plain)
    )
    assert_same(ours, theirs)


@needs_kernels
def test_inputs_of_another_width_are_refused_before_the_call() -> None:
    """Seventeen inputs were once read out of eleven columns."""
    network = MLP(17, 1, (32,), key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"11.*17|17.*11"):
        network(jnp.ones((256, 11)))


@needs_kernels
@pytest.mark.parametrize("change", ["x", "weight", "bias", "output", "hidden"])
def test_the_library_refuses_shapes_that_do_not_fit_together(change) -> None:
    """Also if Python's own check should miss them."""
    shapes = {"x": (8, 5), "weight": (5, 16), "bias": (16,), "output": (8, 2), "hidden": (8, 16)}
    shapes[change] = (*shapes[change][:-1], shapes[change][-1] - 1)
    arguments = [jnp.ones(shapes[name]) for name in ("x", "weight", "bias")]
    last = [jnp.ones((16, 2)), jnp.ones(2)]
    with pytest.raises(Exception, match="shapes of the arguments or results"):
        jax.block_until_ready(
            calls.call("forward", [shapes["output"], shapes["hidden"]], *arguments, *last, normalise=False)
        )
    gradient, weight, x = jnp.ones(shapes["output"]), jnp.ones((16, 2)), jnp.ones(shapes["hidden"])
    if change in ("output", "hidden"):
        with pytest.raises(Exception, match="shapes of the arguments or results"):
            jax.block_until_ready(
                calls.call(
                    "backward", [(8, 16)], gradient, weight, x, normalise=False, wants_input=True, wants_weights=False
                )
            )


@needs_kernels
def test_the_policy_at_a_state_is_computed_once_for_its_actions_and_its_gradient() -> None:
    """Outputs without a gradient, and the same outputs with one: XLA merges the two calls."""
    network = MLP(11, 6, (256, 256), key=jax.random.key(0))

    @jax.jit
    def both(network, x):
        return network(x), jax.grad(lambda network: jnp.sum(network(x) ** 2))(network)

    text = both.lower(network, jnp.ones((256, 11))).compile().as_text()
    assert text.count(".forward") == 1


@needs_kernels
def test_two_processes_at_once_compute_the_same() -> None:
    program = (
        "import hashlib, jax, jax.numpy as jnp\n"
        "from ringfence.networks import MLP\n"
        "network = MLP(14, 1, (128, 128), normalise=True, key=jax.random.key(0))\n"
        "x = jax.random.normal(jax.random.key(1), (512, 14))\n"
        "step = jax.jit(lambda n: jax.tree.map(lambda p, g: p - 0.01 * g, n, jax.grad(lambda n: jnp.mean(n(x) ** 2))(n)))\n"
        "for _ in range(100): network = step(network)\n"
        "print(hashlib.sha256(b''.join(leaf.tobytes() for leaf in jax.tree.leaves(network))).hexdigest())\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate()[0] for process in running)
    assert all(process.returncode == 0 for process in running)
    assert first == second
    assert first
