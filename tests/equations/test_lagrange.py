"""The multipliers' steps against the same steps by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms.lagrange import (
    RISING_LOGS,
    LogMultiplier,
    Multiplier,
    lagrange_warnings,
    log_dual_step,
    pid_step,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")
VIOLATIONS = [3.0, 1.0, -0.5, 2.0, -6.0, -4.0, 1.0, 5.0]
LIMIT = 7.0


def follow(step, multiplier, violations=VIOLATIONS):
    values = []
    for violation in violations:
        multiplier = step(multiplier, jnp.asarray(violation))
        values.append(float(multiplier.value))
    return values


def test_without_other_gains_it_is_projected_dual_ascent():
    expected, price = [], 0.0
    for violation in VIOLATIONS:
        price = max(price + 0.1 * violation, 0.0)
        expected.append(price)
    got = follow(lambda m, v: pid_step(m, LIMIT + v, LIMIT, 0.1), Multiplier.zero())
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert 0.0 in expected  # the projection was needed
    assert expected[-1] > 0  # and the multiplier came back at once: what lies below 0 is not remembered


def test_pid_adds_the_violation_itself_and_the_rise_of_the_cost_but_not_its_fall():
    """Stooke et al. 2020, Algorithm 2, where the cost before the first step is 0."""
    kp, ki, kd = 0.3, 0.1, 0.7
    expected, integral, cost_before = [], 0.0, 0.0
    for violation in VIOLATIONS:
        cost = LIMIT + violation
        integral = max(integral + violation, 0.0)
        expected.append(max(kp * violation + ki * integral + kd * max(cost - cost_before, 0.0), 0.0))
        cost_before = cost
    got = follow(lambda m, v: pid_step(m, LIMIT + v, LIMIT, ki, kp, kd), Multiplier.zero())
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_a_log_multiplier_takes_an_adam_step_up_its_own_gradient():
    """Adam's first step has the size of its rate and the sign of the gradient; the later ones by hand."""
    rate, log = 0.01, np.log(2.0)
    first, second = 0.0, 0.0
    expected = []
    for t, violation in enumerate(VIOLATIONS, start=1):
        gradient = np.exp(log) * violation
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        log += rate * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        expected.append(np.exp(log))
    got = follow(lambda m, v: log_dual_step(m, v, rate), LogMultiplier.create(2.0, rate))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert got[0] == pytest.approx(2.0 * np.exp(rate), rel=1e-5)


@pytest.mark.parametrize(("violation", "end"), [(1.0, 10.0), (-1.0, -5.0)])
def test_a_log_multiplier_stays_between_its_ends(violation, end):
    multiplier = LogMultiplier.create(1.0, 1.0)
    for _ in range(20):
        multiplier = log_dual_step(multiplier, jnp.asarray(violation), 1.0)
    assert float(multiplier.log) == pytest.approx(end)


def rows(prices, costs):
    return [{"lambda_cost": p, "qc_policy": c} for p, c in zip(prices, costs, strict=True)]


def test_a_price_that_rises_without_effect_is_reported_and_one_that_works_is_not():
    n = RISING_LOGS
    assert "rises without effect" in lagrange_warnings(rows(range(n), [40] * n))[0]
    assert not lagrange_warnings(rows(range(n), range(40, 40 - n, -1)))
    assert not lagrange_warnings(rows([3] * n, [40] * n))
    assert not lagrange_warnings(rows(range(n - 1), [40] * (n - 1)))
