"""CPO's step against an independent solver, and its matrix-free algebra against plain matrices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from ringfence.behaviour import cpo
from ringfence.behaviour.actor_critic import actor_network
from ringfence.behaviour.on_policy import mean_kl
from ringfence.behaviour.trust_region import conjugate_gradients, solve_dual

DELTA = 0.05


def random_problem(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(4, 4))
    return root @ root.T + 0.5 * np.eye(4), rng.normal(size=4), rng.normal(size=4)


def analytic_step(h, g, b, c):
    inverse_g, inverse_b = np.linalg.solve(h, g), np.linalg.solve(h, b)
    dual = solve_dual(g @ inverse_g, g @ inverse_b, b @ inverse_b, c, DELTA)
    if dual.case == "recovery":
        return -dual.nu * inverse_b, dual
    return (inverse_g - dual.nu * inverse_b) / dual.lam, dual


def numerical_optimum(objective, h, constraints):
    """The best of several starts of SciPy's SLSQP inside the ball."""
    ball = {"type": "ineq", "fun": lambda x: DELTA - 0.5 * x @ h @ x}
    rng = np.random.default_rng(0)
    runs = [
        minimize(lambda x: -objective @ x, rng.normal(size=4) * 0.1, method="SLSQP", constraints=[ball, *constraints])
        for _ in range(4)
    ]
    return max(-run.fun for run in runs if run.success)


@pytest.mark.parametrize("seed", range(40))
def test_the_dual_solves_the_constrained_problem(seed):
    h, g, b = random_problem(seed)
    reach = np.sqrt(2 * DELTA * b @ np.linalg.solve(h, b))  # the most that b^T x can be inside the ball
    c = np.random.default_rng(1000 + seed).uniform(-0.95, 0.95) * reach
    step, _ = analytic_step(h, g, b, c)
    assert c + b @ step <= 1e-8
    assert 0.5 * step @ h @ step <= DELTA * (1 + 1e-8)
    constraint = {"type": "ineq", "fun": lambda x: -(c + b @ x)}
    assert g @ step == pytest.approx(numerical_optimum(g, h, [constraint]), abs=1e-4)


def test_both_multipliers_cases_occur_among_the_random_problems():
    cases = set()
    for seed in range(40):
        h, g, b = random_problem(seed)
        reach = np.sqrt(2 * DELTA * b @ np.linalg.solve(h, b))
        cases.add(analytic_step(h, g, b, np.random.default_rng(1000 + seed).uniform(-0.95, 0.95) * reach)[1].case)
    assert cases == {"constrained", "unconstrained"}


@pytest.mark.parametrize("seed", range(10))
def test_far_inside_the_limit_the_step_is_that_of_the_trust_region_alone(seed):
    h, g, b = random_problem(seed)
    step, dual = analytic_step(h, g, b, -100.0)
    assert dual.case == "unconstrained"
    assert g @ step == pytest.approx(numerical_optimum(g, h, []), abs=1e-4)


@pytest.mark.parametrize("seed", range(10))
def test_where_nothing_is_feasible_recovery_lowers_the_cost_as_far_as_the_ball_allows(seed):
    h, g, b = random_problem(seed)
    step, dual = analytic_step(h, g, b, 100.0)
    assert dual.case == "recovery"
    assert -b @ step == pytest.approx(numerical_optimum(-b, h, []), abs=1e-4)


def test_a_constraint_that_does_not_depend_on_the_policy_is_ignored():
    assert solve_dual(1.0, 0.0, 0.0, 5.0, DELTA).case == "unconstrained"


def test_exactly_at_the_limit_the_step_moves_along_it():
    step, dual = analytic_step(np.eye(4), np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 0, 0]), 0.0)
    np.testing.assert_allclose(step, [0, np.sqrt(2 * DELTA), 0, 0], atol=1e-6)
    assert dual.case == "constrained"


def test_conjugate_gradients_solve_a_linear_system():
    h, g, _ = random_problem(3)
    np.testing.assert_allclose(
        conjugate_gradients(lambda v: jnp.asarray(h) @ v, jnp.asarray(g), 8), np.linalg.solve(h, g), rtol=1e-3
    )


def test_conjugate_gradients_stop_at_the_solution_without_dividing_by_zero():
    assert conjugate_gradients(lambda v: 2.0 * v, jnp.ones(3), 50) == pytest.approx(0.5)
    assert conjugate_gradients(lambda v: 2.0 * v, jnp.zeros(3), 50) == pytest.approx(0.0)


def test_the_fisher_vector_product_is_the_change_of_the_kl_gradient_along_the_vector():
    with jax.enable_x64(True):  # finite differences need the digits
        actor = actor_network(3, 2, (5,), key=jax.random.key(0))
        actor = jax.tree.map(lambda x: 3.0 * jnp.asarray(x, jnp.float64), actor)
        rng = np.random.default_rng(0)
        observations, std = jnp.asarray(rng.normal(size=(30, 3))), jnp.asarray(0.3)
        flat, rebuild = ravel_pytree(actor)
        gradient = jax.grad(lambda x: mean_kl(actor, rebuild(x), observations, std))
        v = jnp.asarray(rng.normal(size=len(flat)))
        expected = (gradient(flat + 1e-5 * v) - gradient(flat - 1e-5 * v)) / 2e-5
        product = cpo.fisher_vector_product(actor, observations, std, v)
        np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-6)
        assert float(jnp.abs(expected).max()) > 1.0


def made_up_rows(seed=0, count=200):
    rng = np.random.default_rng(seed)
    observations, actions = rng.normal(size=(count, 3)), rng.normal(size=(count, 2)) * 0.3
    torque = np.abs(actions).mean(1)
    return actions, {
        "observations": jnp.asarray(observations, jnp.float32),
        "actions": jnp.asarray(actions, jnp.float32),
        "reward_advantages": jnp.asarray(actions[:, 0], jnp.float32),
        "cost_advantages": jnp.asarray(torque - torque.mean(), jnp.float32),
        "value_targets": jnp.zeros((count, 2)),
    }


def step_from(excess, cost_advantages=None):
    """An actor, made-up rows of it, and the surrogates before and after CPO's step."""
    config, std = cpo.CPO(), jnp.float32(0.3)
    actor = actor_network(3, 2, (16,), key=jax.random.key(0))
    _, columns = made_up_rows()
    if cost_advantages is not None:
        columns["cost_advantages"] = cost_advantages(columns)
    log_probs = cpo.gaussian(actor, std, columns["observations"]).log_prob(columns["actions"])
    rows = cpo.Rows(log_probs=log_probs, **columns)
    after, report = cpo.constrained_step(config, actor, rows, std, excess)
    return cpo.surrogates(actor, actor, rows, std), cpo.surrogates(after, actor, rows, std), report


def test_the_recovery_step_lowers_the_cost_surrogate():
    before, after, report = step_from(excess=10.0, cost_advantages=lambda c: c["actions"][:, 0] + c["actions"][:, 1])
    assert report["case"] == 2.0
    assert after.cost < before.cost - 0.01


def test_inside_the_limit_the_step_raises_the_reward_surrogate_within_the_trust_region():
    before, after, report = step_from(excess=-10.0)
    assert report["case"] == 0.0
    assert after.reward > before.reward + 0.01
    assert 0 < after.kl <= cpo.CPO().delta


def test_at_the_limit_the_step_does_not_raise_the_cost():
    """Reward and cost pull the same way in one joint, so going on would cost; the step must not."""
    before, after, report = step_from(excess=0.0, cost_advantages=lambda c: c["actions"][:, 0])
    free = step_from(excess=-10.0, cost_advantages=lambda c: c["actions"][:, 0])[1]
    assert free.cost > before.cost + 0.01
    assert after.cost <= before.cost
    assert report["case"] == 1.0


def test_without_an_acceptable_step_the_policy_stays(monkeypatch):
    monkeypatch.setattr(cpo, "shortened", lambda a, *_: (a, cpo.Surrogates(0.0, 1e9 if _[1] else 0.0, 0.0)))
    _, after, report = step_from(excess=-1.0)
    assert report["step"] == 0.0
    assert eqx.tree_equal(after.kl, jnp.zeros(())) or float(after.kl) == 0.0
