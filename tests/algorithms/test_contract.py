"""What every method promises. A new one joins by its entry in `METHODS`."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ringfence
from ringfence.algorithms import METHODS
from ringfence.algorithms.named import method_of
from ringfence.data import Dataset
from ringfence.deploy import KINDS, Policy, RowNoise
from ringfence.training import Member, Plan, RunDirectory, run
from ringfence.training.artifact import scaled_artifact
from ringfence.training.device import spec_of, to_device
from ringfence.training.population import compile_programs, zero_sums

LOW, HIGH = np.array([-2.0, 0.0]), np.array([5.0, 0.5])  # neither symmetric nor of unit size
LIMIT = 0.8
DISCOUNT = 0.5
STEPS = 1200

SHARED = {"hidden": (16, 16), "batch_size": 32, "discount": DISCOUNT, "learning_rate": 3e-3}
every_method = pytest.mark.parametrize("name", METHODS)
pytestmark = pytest.mark.usefixtures("quick_compilation")


def make_log(rows=600, length=6, **columns):
    """Two controllers. The strength u of their first action, in [0, 1], is what each step costs; it earns u (2 - u)."""
    rng = np.random.default_rng(0)
    gentle = (np.arange(rows) // length) % 2 == 0
    u = np.clip(np.where(gentle, 0.3, 0.7) + 0.2 * rng.normal(size=rows), 0, 1)
    actions = LOW + (HIGH - LOW) * np.stack([u, rng.uniform(size=rows)], 1)
    ends = np.arange(1, rows + 1) % length == 0
    given = {
        "observations": rng.normal(size=(rows, 3)),
        "next_observations": rng.normal(size=(rows, 3)),
        "actions": actions,
        "rewards": u * (2 - u),
        "costs": u,
        "terminations": np.zeros(rows, bool),
        "truncations": ends,
    }
    bounds = {"action_low": LOW, "action_high": HIGH}
    return Dataset.from_arrays(**{**given, **columns}, **bounds, source=~gentle, source_names=("gentle", "strong"))


LOG = make_log()
OBSERVATIONS = np.random.default_rng(7).normal(size=(50, 3)).astype(np.float32)


def small(name):
    return method_of(name, {**SHARED, **METHODS[name].small})


@every_method
def test_a_whole_number_for_a_float_is_that_float(name):
    method = method_of(name, {"discount": 0, "limit": 3, "learning_rate": 1})
    assert [type(value) for value in (method.discount, method.limit, method.learning_rate)] == [float] * 3
    assert type(method.batch_size) is int


FEW = 300  # steps, enough for what does not depend on how good a policy is


def plan_of(name, seeds=(0,), steps=FEW):
    members = tuple(Member(seed, LIMIT) for seed in seeds)
    return Plan(small(name), members, steps, log_every=50, evaluate_every=steps, checkpoint_every=80)


@lru_cache
def trained(name, steps=STEPS):
    return run(LOG, plan_of(name, steps=steps), progress=False)


def strength(actions):
    return (actions[:, 0] - LOW[0]) / (HIGH[0] - LOW[0])


@every_method
def test_it_is_a_name_of_the_package(name):
    assert getattr(ringfence, METHODS[name].__name__) is METHODS[name]
    assert METHODS[name].__name__ in dir(ringfence)


@every_method
def test_what_it_shows_while_it_trains_is_measured(name):
    measured = {metric for row in trained(name, FEW).metrics for metric in row}
    assert set(METHODS[name].shown) <= measured


# A policy of constant strength u costs 2 u and earns 2 u (2 - u), discounted. The log's mean strength of 0.5 is over the
# limit of 0.8; the best safe policy has u = 0.4. There the reward gains 2 - 2 u = 1.2 per unit of cost, so that is
# the multiplier at which a policy is content with the limit.


@pytest.mark.parametrize("name", ["bc", "bc-safe"])
def test_cloning_makes_the_log_likelier_and_copies_its_strength(name):
    losses = [row["actor_loss"] for row in trained(name).metrics]
    assert losses[-1] < losses[0]
    copied = {"bc": 0.5, "bc-safe": 0.3}[name]
    assert strength(trained(name).policy(OBSERVATIONS)).mean() == pytest.approx(copied, abs=0.1)


@pytest.mark.parametrize("name", ["cpq", "bcq-lag", "bear-lag"])
def test_reward_is_raised_as_far_as_the_limit_allows(name):
    assert strength(trained(name).policy(OBSERVATIONS)).mean() == pytest.approx(0.4, abs=0.06)


@pytest.mark.parametrize("name", ["bcq-lag", "bear-lag", "cbpl"])
def test_the_multiplier_finds_its_value(name):
    assert trained(name).metrics[-1]["lambda_cost"] == pytest.approx(1.2, abs=0.35)


def test_cbpls_mixture_comes_close_to_solving_the_game():
    last = trained("cbpl").metrics[-1]
    assert last["mixture_cost"] == pytest.approx(LIMIT, abs=0.15)
    assert 0 < last["gap"] < 0.25 * 2 * 0.4 * 1.6  # a quarter of the best safe return


@every_method
def test_the_same_seed_gives_the_same_policy_and_another_seed_another(name):
    first = trained(name, FEW)
    again = run(LOG, plan_of(name), progress=False)
    other = run(LOG, plan_of(name, (1,)), progress=False)
    assert again.policy.checksum == first.policy.checksum
    assert again.metrics == first.metrics
    assert any((other.policy.tensors[k] != v).any() for k, v in first.policy.tensors.items())


class Kill(Exception):
    pass


@pytest.mark.slow
@every_method
def test_a_run_that_was_killed_resumes_to_the_same_numbers(name, tmp_path):
    plan = plan_of(name)
    directory = RunDirectory(tmp_path / "run")
    directory.create(plan.configuration(LOG))

    def kill(row):
        if row["stage"] == "policy" and row["step"] == 200:
            raise Kill

    with pytest.raises(Kill):
        run(LOG, plan, directory=directory, progress=False, observe=kill)
    resumed = run(LOG, plan, directory=directory, resume=True, progress=False)
    assert resumed.policy.checksum == trained(name, FEW).policy.checksum
    assert resumed.metrics == trained(name, FEW).metrics


@every_method
def test_its_policy_file_reloads_to_the_same_actions(name, tmp_path):
    policy = trained(name).policy
    loaded = Policy.load(policy.save(tmp_path / "policy.safetensors"))
    np.testing.assert_array_equal(loaded(OBSERVATIONS), policy(OBSERVATIONS))
    sampled, again = (p(OBSERVATIONS, deterministic=False, rng=np.random.default_rng(3)) for p in (policy, loaded))
    np.testing.assert_array_equal(again, sampled)
    assert loaded.metadata["method"] == name
    assert loaded.metadata["log_fingerprint"] == LOG.fingerprint
    assert loaded.artifact.finished


@every_method
def test_its_policy_is_the_same_in_numpy_and_in_jax(name):
    """Every kind of policy is written once and runs inside a JAX program too."""
    artifact = trained(name).policy.artifact
    actor = KINDS[artifact.kind].act
    inside = jax.jit(lambda s: actor(artifact.model(jnp), s, None))(artifact.normalise(OBSERVATIONS))
    np.testing.assert_allclose(artifact.act(OBSERVATIONS), LOW + (inside + 1) / 2 * (HIGH - LOW), atol=1e-4)


@every_method
def test_an_action_does_not_depend_on_the_batch_it_comes_in(name):
    policy = trained(name).policy

    def row_noise(rows):
        return RowNoise([np.random.default_rng(row) for row in rows])

    batch = policy(OBSERVATIONS)
    sampled = policy(OBSERVATIONS, deterministic=False, rng=row_noise(range(50)))
    for i in (0, 17, 49):
        np.testing.assert_array_equal(policy(OBSERVATIONS[i]), batch[i])
        alone = policy(OBSERVATIONS[i], deterministic=False, rng=row_noise([i]))
        np.testing.assert_array_equal(alone, sampled[i])


@every_method
def test_actions_keep_to_the_bounds(name):
    policy = trained(name).policy
    for observations in (OBSERVATIONS, 1e3 * OBSERVATIONS):
        for deterministic in (True, False):
            actions = policy(observations, deterministic=deterministic)
            assert np.isfinite(actions).all()
            assert (actions >= LOW).all()
            assert (actions <= HIGH).all()


def advance_all(name, seeds, data, steps):
    """The loop without its logs, with the programs compiled for LOG: the states, and all metrics that were seen."""
    method, spec, members = small(name), spec_of(LOG), len(seeds)
    seeds = jnp.asarray(seeds, jnp.uint32)
    state = compile_programs(method, spec, 0, members).init(seeds, jnp.full(members, LIMIT, jnp.float32))
    seen = {}
    for index, stage in enumerate(method.stages(steps)):
        programs = compile_programs(method, spec, index, members)
        sums = zero_sums(method, spec, index, members, state, data)
        span = jnp.asarray(0), jnp.asarray(min(stage.steps, steps))
        state, sums = programs.advance((data, seeds), (state, sums), *span)
        state, report = programs.finish(state, seeds, data)
        seen |= {**sums, **report}
    exports = [method.export(jax.tree.map(lambda x, i=i: x[i], state)) for i in range(members)]
    return [scaled_artifact(export, [0] * 3, [1] * 3, LOW, HIGH) for export in exports], seen


@pytest.mark.slow
@every_method
def test_two_seeds_as_a_population_give_the_numbers_of_two_single_runs(name):
    """Within float tolerance: batched matrix products add up in another order."""
    data = to_device(LOG)
    together, _ = advance_all(name, [0, 1], data, 20)
    for seed in (0, 1):
        [alone], _ = advance_all(name, [seed], data, 20)
        for key, tensor in alone.tensors.items():
            np.testing.assert_allclose(together[seed].tensors[key], tensor, atol=1e-3, err_msg=key)


ROWS = len(LOG)
HARD = {
    "constant actions": {"actions": np.tile((LOW + HIGH) / 2 + 0.1, (ROWS, 1))},
    "actions at a bound": {"actions": np.tile([HIGH[0], LOW[1]], (ROWS, 1))},
    "zero rewards": {"rewards": np.zeros(ROWS)},
    "zero costs": {"costs": np.zeros(ROWS)},
    "one-step episodes": {"terminations": np.ones(ROWS, bool), "truncations": np.zeros(ROWS, bool)},
    "constant observations": {"observations": np.ones((ROWS, 3)), "next_observations": np.ones((ROWS, 3))},
}


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("kind", HARD)
def test_it_stays_finite_on_hard_logs(name, kind):
    [artifact], seen = advance_all(name, [0], to_device(make_log(**HARD[kind])), FEW)
    for metric, value in seen.items():
        assert np.isfinite(value).all(), metric
    assert np.isfinite(Policy(artifact)(OBSERVATIONS)).all()
