"""The kernels against NumPy in float64, optax and JAX's own random numbers."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ringfence.kernels import calls, explanation
from ringfence.networks import MLP
from ringfence.optimise import Adam
from ringfence.randomness import counters, random_key, threefry

needs_kernels = pytest.mark.skipif(not calls.available(), reason=f"XLA computes: {explanation()}")

# rows, inputs, hidden, outputs: multiples of the panel's width and not, more rows than one core takes at once, depth 1 to 4
SHAPES = [
    (256, 14, (256, 256), 1),
    (255, 23, (256, 256), 12),
    (1300, 14, (64, 96), 6),
    (7, 3, (5,), 2),
    (1, 3, (40, 33, 70), 17),
    (300, 290, (270, 31), 40),
    (3000, 4, (32,), 1),
    (50, 9, (), 3),
]


def network(shape: tuple, normalise: bool) -> tuple[MLP, jax.Array]:
    rows, inputs, hidden, outputs = shape
    mlp = MLP(inputs, outputs, hidden, normalise=normalise, key=jax.random.key(1))
    return mlp, jax.random.normal(jax.random.key(2), (rows, inputs))


def by_hand(mlp: MLP, x: np.ndarray, top: np.ndarray | None = None) -> tuple:
    """Outputs, and the gradients of sum(top * outputs), in float64."""
    weights = [np.asarray(layer.weight, np.float64) for layer in mlp.layers]
    biases = [np.asarray(layer.bias, np.float64) for layer in mlp.layers]
    inputs, normalised, scales = [np.asarray(x, np.float64)], [], []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        z = inputs[-1] @ weight + bias
        if mlp.normalise:
            scales.append(1.0 / np.sqrt(z.var(1, keepdims=True) + 1e-5))
            z = (z - z.mean(1, keepdims=True)) * scales[-1]
        normalised.append(z)
        inputs.append(np.maximum(z, 0.0))
    output = inputs[-1] @ weights[-1] + biases[-1]
    if top is None:
        return (output,)
    signal, found = np.asarray(top, np.float64), []
    for i in reversed(range(len(weights))):
        found.append((inputs[i].T @ signal, signal.sum(0)))
        signal = signal @ weights[i].T
        if i > 0:
            signal = signal * (inputs[i] > 0)
            if mlp.normalise:
                n = normalised[i - 1]
                along = (signal * n).mean(1, keepdims=True)
                signal = scales[i - 1] * (signal - signal.mean(1, keepdims=True) - n * along)
    return output, signal, found[::-1]


def close(found: jax.Array, expected: np.ndarray) -> None:
    size = np.abs(expected).max() + 1e-30
    np.testing.assert_allclose(np.asarray(found) / size, expected / size, atol=2e-5)


def close_gradients(mlp: MLP, x: jax.Array, expected_x: np.ndarray, expected_layers: list) -> None:
    close(x, expected_x)
    for layer, (weight, bias) in zip(mlp.layers, expected_layers, strict=True):
        close(layer.weight, weight)
        close(layer.bias, bias)


@needs_kernels
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_network_and_its_gradients_are_those_of_numpy(shape: tuple, normalise: bool) -> None:
    mlp, x = network(shape, normalise)
    top = jax.random.normal(jax.random.key(3), (shape[0], shape[3]))

    @jax.jit
    def gradients(mlp: MLP, x: jax.Array) -> tuple:
        output, back = jax.vjp(lambda mlp, x: mlp(x), mlp, x)
        return output, *back(top)

    output, mlp_gradient, x_gradient = gradients(mlp, x)
    expected_output, *expected = by_hand(mlp, x, top)
    close(output, expected_output)
    close(jax.jit(lambda mlp, x: mlp(x))(mlp, x), expected_output)
    close_gradients(mlp_gradient, x_gradient, *expected)


@needs_kernels
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("live", ["every other", "first", "last", "all but one", "one column", "none"])
@pytest.mark.parametrize("shape", [(256, 14, (64, 64), 2), (700, 9, (33,), 40)], ids=str)
def test_rows_without_gradient_change_nothing(shape: tuple, live: str, normalise: bool) -> None:
    mlp, x = network(shape, normalise)
    row = np.arange(shape[0])[:, None]
    keep = {
        "every other": row % 2 == 0,
        "first": row == 0,
        "last": row == shape[0] - 1,
        "all but one": row != 5,
        "one column": (row % 3 == 0) & (np.arange(shape[3]) == 1),
        "none": row < 0,
    }[live]
    top = jnp.where(keep, jax.random.normal(jax.random.key(3), (shape[0], shape[3])), 0.0)
    mlp_gradient, x_gradient = jax.jit(lambda mlp, x: jax.vjp(lambda mlp, x: mlp(x), mlp, x)[1](top))(mlp, x)
    close_gradients(mlp_gradient, x_gradient, *by_hand(mlp, x, top)[1:])


@needs_kernels
@pytest.mark.parametrize("normalise", [False, True])
def test_each_gradient_alone_is_the_one_of_both(normalise: bool) -> None:
    mlp, x = network((256, 14, (64, 64), 1), normalise)
    both = jax.grad(lambda mlp, x: jnp.sum(mlp(x) ** 2), (0, 1))(mlp, x)
    close(jax.grad(lambda x: jnp.sum(mlp(x) ** 2))(x), np.asarray(both[1]))
    alone = jax.grad(lambda mlp: jnp.sum(mlp(x) ** 2))(mlp)
    for found, expected in zip(jax.tree.leaves(alone), jax.tree.leaves(both[0]), strict=True):
        close(found, np.asarray(expected))


@needs_kernels
@pytest.mark.parametrize(("of", "wanted"), [(0, (False, True)), (1, (True, False)), ((0, 1), (True, True))])
def test_only_the_gradients_that_are_asked_for_are_computed(of: object, wanted: tuple[bool, bool]) -> None:
    mlp, x = network((256, 14, (64, 64), 1), False)
    program = str(jax.make_jaxpr(jax.grad(lambda mlp, x: jnp.sum(mlp(x)), of))(mlp, x))
    assert f"('wants_input', {wanted[0]})" in program
    assert f"('wants_weights', {wanted[1]})" in program


@needs_kernels
@pytest.mark.parametrize("normalise", [False, True])
def test_several_networks_at_once_are_as_each_alone(normalise: bool) -> None:
    keys = jax.random.split(jax.random.key(0), 9)
    networks = jax.vmap(lambda key: MLP(14, 2, (32, 48), normalise=normalise, key=key))(keys)
    x = jax.random.normal(jax.random.key(1), (9, 600, 14))

    def value_and_gradients(mlp: MLP, x: jax.Array) -> tuple:
        return jax.value_and_grad(lambda mlp, x: jnp.sum(jnp.sin(mlp(x))), (0, 1))(mlp, x)

    together = jax.jit(jax.vmap(value_and_gradients))(networks, x)
    for i in range(9):
        alone = value_and_gradients(jax.tree.map(lambda leaf, i=i: leaf[i], networks), x[i])
        for found, expected in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            close(found[i], np.asarray(expected))


@needs_kernels
def test_calls_at_the_same_time_do_not_disturb_each_other() -> None:
    mlp, x = network((700, 14, (128, 128), 1), True)
    step = jax.jit(jax.grad(lambda mlp, x: jnp.sum(mlp(x) ** 2)))
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(step(mlp, x))]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(30):
            found = jax.tree.leaves(step(mlp, x))
            wrong.extend(1 for a, b in zip(found, expected, strict=True) if not np.array_equal(a, b))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_kernels
def test_adam_is_that_of_optax_and_leaves_its_arguments_alone() -> None:
    mlp, x = network((64, 5, (40, 30), 3), False)
    ours, theirs = Adam(1e-2), optax.adam(1e-2)
    params, state = mlp, ours.init(mlp)
    expected, expected_state = mlp, theirs.init(mlp)
    before = [np.array(leaf) for leaf in jax.tree.leaves((params, state))]
    for number in range(5):
        gradient = jax.grad(lambda net, n=number: jnp.sum(net(x + n) ** 2))(expected)
        params, state = jax.jit(ours.step)(gradient, state, params)
        updates, expected_state = theirs.update(gradient, expected_state)
        expected = optax.apply_updates(expected, updates)
    for found, wanted in zip(
        jax.tree.leaves((params, state)), jax.tree.leaves((expected, expected_state)), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)  # 1 - 0.999^t has few digits in float32
    for leaf, old in zip(jax.tree.leaves((mlp, ours.init(mlp))), before, strict=True):
        np.testing.assert_array_equal(leaf, old)


@needs_kernels
def test_adam_of_several_networks_is_that_of_each() -> None:
    networks = jax.vmap(lambda key: MLP(4, 2, (16,), key=key))(jax.random.split(jax.random.key(0), 3))
    gradients = jax.tree.map(lambda leaf: jnp.cos(7 * leaf), networks)
    adam = Adam(1e-3)
    states = jax.vmap(adam.init)(networks)
    together = jax.jit(jax.vmap(adam.step))(gradients, states, networks)
    for i in range(3):
        one = [jax.tree.map(lambda leaf, i=i: leaf[i], tree) for tree in (gradients, states, networks)]
        for found, expected in zip(jax.tree.leaves(together), jax.tree.leaves(adam.step(*one)), strict=True):
            np.testing.assert_allclose(found[i], expected, rtol=1e-6)


@needs_kernels
@pytest.mark.parametrize("average", ["mu", "nu"])
def test_averages_that_the_kernels_do_not_know_are_left_to_optax(average: str) -> None:
    mlp, x = network((8, 5, (40,), 3), False)
    gradient = jax.grad(lambda mlp: jnp.sum(mlp(x) ** 2))(mlp)
    averages, *rest = Adam(1e-2).init(mlp)
    halved = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), getattr(averages, average))
    state = (averages._replace(**{average: halved}), *rest)
    moved, _ = Adam(1e-2).step(gradient, state, mlp)
    updates, _ = optax.adam(1e-2).update(gradient, state)
    for found, expected in zip(jax.tree.leaves(moved), jax.tree.leaves(optax.apply_updates(mlp, updates)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("with_kernels", [pytest.param(True, marks=needs_kernels), False])
@pytest.mark.parametrize("seed", [0, 1, 77, 2**31 + 5, 2**32 - 1])
def test_random_numbers_are_those_of_jax(seed: int, with_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "available", lambda: with_kernels)
    ours, theirs = random_key(np.uint32(seed)), jax.random.key(np.uint32(seed))
    for draw in (
        lambda key: jax.random.normal(key, (10, 7)),
        lambda key: jax.random.uniform(jax.random.fold_in(key, 3), (5,)),
        lambda key: jax.random.randint(jax.random.split(key, 4)[2], (9,), 0, 1000),
        lambda key: jax.random.permutation(key, 11),
        lambda key: jax.random.bits(key, (4, 3), jnp.uint8),
        lambda key: jax.random.normal(key, (6,), jnp.bfloat16),
        lambda key: jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i), (4,)))(jnp.arange(3)),
    ):
        np.testing.assert_array_equal(jax.jit(draw)(ours), jax.jit(draw)(theirs))


@pytest.mark.parametrize("with_kernels", [pytest.param(True, marks=needs_kernels), False])
def test_threefry_gives_its_published_words(with_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The known answers that the authors publish for 20 rounds."""
    monkeypatch.setattr(calls, "available", lambda: with_kernels)
    ones = 0xFFFFFFFF
    for key, counter, words in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ones, ones), (ones, ones), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ):
        high, low = (jnp.array([word], jnp.uint32) for word in counter)
        found = threefry(jnp.array(key, jnp.uint32), high, low)
        assert tuple(int(word[0]) for word in found) == words
    assert counters((2, 3))[1].tolist() == [[0, 1, 2], [3, 4, 5]]


@needs_kernels
def test_other_kinds_of_numbers_go_the_plain_way() -> None:
    mlp, x = network((4, 3, (8,), 2), False)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), mlp)
    assert "ffi_call" in str(jax.make_jaxpr(mlp)(x))
    assert "ffi_call" not in str(jax.make_jaxpr(half)(x.astype(jnp.bfloat16)))
    assert half(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@needs_kernels
def test_no_rows_give_no_outputs_and_gradients_of_0() -> None:
    mlp, _ = network((4, 3, (8,), 2), False)
    assert mlp(jnp.zeros((0, 3))).shape == (0, 2)
    gradient = jax.grad(lambda mlp: jnp.sum(mlp(jnp.zeros((0, 3)))))(mlp)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))


@needs_kernels
def test_a_lone_state_has_no_batch() -> None:
    mlp, x = network((4, 3, (8,), 2), False)
    np.testing.assert_allclose(mlp(x[0]), mlp(x)[0], rtol=1e-6)
