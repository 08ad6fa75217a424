"""A log that is too large for the device stays in main memory, and training comes to the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import BC, CPQ
from ringfence.algorithms.batches import BootstrapTransitions, EpisodeWindows, Held, StreamedRows, Transitions
from ringfence.training import Plan, device, run
from ringfence.training.configuration import Member
from ringfence.training.device import to_device
from tests.logs import narrow_log

SMALL = {"hidden": (8,), "batch_size": 16}
CASES = {"bc": BC(**SMALL), "cpq": CPQ(**SMALL, cvae_steps=6, ood_samples=2)}


@pytest.fixture
def log():
    return narrow_log()


def streamed(monkeypatch, room=64):
    """As if the device had so few bytes."""
    monkeypatch.setattr(device, "device_memory", lambda: room)


@pytest.mark.parametrize("name", CASES)
def test_a_streamed_log_gives_the_same_policies_bit_for_bit(monkeypatch, log, name):
    members = Member(0, 5.0), Member(1, 5.0)  # a population draws other rows for each member
    plan = Plan(CASES[name], members, steps=6, log_every=3)
    held = run(log, plan, progress=False)
    streamed(monkeypatch)
    from_memory = run(log, plan, progress=False)
    for one, other in zip(held.artifacts, from_memory.artifacts, strict=True):
        assert one.tensors.keys() == other.tensors.keys()
        for tensor in one.tensors:
            np.testing.assert_array_equal(one.tensors[tensor], other.tensors[tensor])


@pytest.mark.parametrize(
    "sampler", [Transitions(5, with_times=True), BootstrapTransitions(5, with_times=True), EpisodeWindows(3, 4)]
)
def test_every_sampler_draws_the_same_from_a_streamed_log(monkeypatch, log, sampler):
    key = jax.random.key(2)
    extras = {"number": np.arange(len(log), dtype=np.float32)[:, None]}
    drawn = []
    for room in (None, 64):
        streamed(monkeypatch, room)
        data = to_device(log, extras)
        assert isinstance(data.rows, StreamedRows) == (room is not None)
        drawn.append(jax.jit(lambda key, data=data: sampler.draw(data, key, sampler.prepare(data, key)))(key))
    jax.tree.map(np.testing.assert_array_equal, *drawn)


def test_a_log_is_streamed_if_it_takes_more_than_half_of_the_device(monkeypatch, log):
    size = to_device(log).rows.nbytes
    for room, expected in ((2 * size, False), (2 * size - 1, True), (None, False)):
        streamed(monkeypatch, room)
        assert isinstance(to_device(log).rows, StreamedRows) == expected


def test_a_streamed_batch_is_the_rows_of_the_array_and_nothing_else_reaches_the_device():
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows = StreamedRows(Held(array))
    assert jax.tree.leaves(rows) == []
    assert rows.shape == (4, 3)
    np.testing.assert_array_equal(rows[jnp.array([2, 0])], array[[2, 0]])
    np.testing.assert_array_equal(rows[jnp.array([1, 3]), :2], array[[1, 3], :2])
    both = jax.vmap(lambda at: rows[at])(jnp.array([[0, 1], [3, 2]]))
    np.testing.assert_array_equal(both, array[[[0, 1], [3, 2]]])
