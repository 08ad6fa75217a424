"""A chemical reactor with short episodes: `reactor`.

An exothermic continuous stirred-tank reactor turns A into B and is cooled by a jacket. Hotter means more product, and
above about 357 K the reaction runs away: heat makes it faster and faster until the feed is used up. Equations and
parameters are those of Seborg, Edgar and Mellichamp, *Process Dynamics and Control* (2nd edition, 2004), Example 2.5:
flow 100 L/min through 100 L, feed 1 mol/L at 350 K, k0 = 7.2e10 /min, E/R = 8750 K, heat of reaction -5e4 J/mol,
density times heat capacity 239 J/(L K), UA = 5e4 J/(min K); with the jacket at 300 K it rests at 0.5 mol/L and 350 K.

    dC/dt = (q/V) (Cf - C) - k C,    k = k0 exp(-E / (R T))
    dT/dt = (q/V) (Tf - T) + (-dH / (rho Cp)) k C + (UA / (V rho Cp)) (Tc - T)
"""

import math
from typing import Any

import gymnasium
import numpy as np

RESIDENCE = 1.0  # q / V, 1/min
RATE, ACTIVATION = 7.2e10, 8750.0  # k0 in 1/min, E / R in K
HEATING = 5e4 / 239.0  # K per mol/L that reacts
COOLING = 5e4 / (100.0 * 239.0)  # 1/min
FEED = 1.0  # mol/L
FEED_TEMPERATURE, FEED_SPREAD, FEED_MEMORY = 350.0, 2.0, 0.98  # K, K, per step
INTERVAL = 0.05  # minutes between two decisions
HORIZON = 120  # steps
LARGEST_MOVE = 3.0  # K of the jacket in one step
JACKET = (270.0, 330.0)  # K
HOT = 345.0  # K: what is above costs
DEGREES = 10.0  # a step at HOT + DEGREES costs 1

OBSERVATIONS = (
    "concentration [mol/L]",
    "temperature [K]",
    "temperature change [K]",
    "coolant temperature [K]",
    "feed temperature [K]",
)
ACTIONS = ("coolant change [K]",)


def reaction_rate(temperature: float) -> float:
    """k = k0 exp(-E / (R T)), in 1/min."""
    return RATE * math.exp(-ACTIVATION / temperature)


def derivatives(concentration: float, temperature: float, coolant: float, feed: float) -> tuple[float, float]:
    """dC/dt in mol/(L min) and dT/dt in K/min."""
    reacting = reaction_rate(temperature) * concentration
    heat = HEATING * reacting + COOLING * (coolant - temperature)
    return RESIDENCE * (FEED - concentration) - reacting, RESIDENCE * (feed - temperature) + heat


def advance(concentration: float, temperature: float, coolant: float, feed: float) -> tuple[float, float]:
    """Concentration and temperature one interval later: Runge-Kutta of order 4, in steps that are short where the
    reaction is fast (at most 2 K and half of the time in which the feed reacts away)."""
    c, t, left = concentration, temperature, INTERVAL
    while left > 1e-12:
        dc1, dt1 = derivatives(c, t, coolant, feed)
        h = min(left, INTERVAL / 4, 2.0 / (abs(dt1) + 1e-9), 0.5 / (1.0 + reaction_rate(t)))
        dc2, dt2 = derivatives(c + h / 2 * dc1, t + h / 2 * dt1, coolant, feed)
        dc3, dt3 = derivatives(c + h / 2 * dc2, t + h / 2 * dt2, coolant, feed)
        dc4, dt4 = derivatives(c + h * dc3, t + h * dt3, coolant, feed)
        c += h / 6 * (dc1 + 2 * dc2 + 2 * dc3 + dc4)
        t += h / 6 * (dt1 + 2 * dt2 + 2 * dt3 + dt4)
        left -= h
    return c, t


def resting_coolant(temperature: float, feed: float) -> tuple[float, float]:
    """The concentration and the jacket's temperature that hold the reactor at this temperature."""
    concentration = RESIDENCE * FEED / (RESIDENCE + reaction_rate(temperature))
    heat = RESIDENCE * (feed - temperature) + HEATING * reaction_rate(temperature) * concentration
    return concentration, temperature - heat / COOLING


class Reactor(gymnasium.Env[np.ndarray, np.ndarray]):
    """Observations are `OBSERVATIONS`, the action is the change of the jacket's temperature in K.

    The reward of a step is the share of the feed that leaves as product, between 0 and 1; its cost is the temperature
    above `HOT`, in units of `DEGREES`. An episode starts at rest somewhere between 335 and 350 K and is cut off by
    Gymnasium's time limit. The feed's temperature wanders.

    What a log usually lacks: `hotter_feed` (K) shifts the feed's temperature; `sensor_drift` (K per step) is how
    much more the measured temperature lags behind the true one with every step.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's way)
    observation_names, action_names = OBSERVATIONS, ACTIONS

    def __init__(self, hotter_feed: float = 0.0, sensor_drift: float = 0.0):
        self.hotter_feed, self.sensor_drift = hotter_feed, sensor_drift
        low = np.array([0.0, 250.0, -300.0, JACKET[0], 250.0], np.float32)
        high = np.array([FEED, 900.0, 300.0, JACKET[1], 450.0], np.float32)
        self.observation_space = gymnasium.spaces.Box(low, high)
        self.action_space = gymnasium.spaces.Box(-LARGEST_MOVE, LARGEST_MOVE, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.deviation = FEED_SPREAD * self.np_random.standard_normal()
        self.temperature = self.before = self.np_random.uniform(335.0, 350.0)
        self.concentration, coolant = resting_coolant(self.temperature, self.feed - self.hotter_feed)
        self.coolant = float(np.clip(coolant + self.np_random.standard_normal(), *JACKET))
        return self._observation(), {}

    @property
    def feed(self) -> float:
        """The feed's temperature in K."""
        return FEED_TEMPERATURE + self.hotter_feed + self.deviation

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        move = float(np.clip(np.asarray(action).item(), -LARGEST_MOVE, LARGEST_MOVE))
        self.coolant = min(max(self.coolant + move, JACKET[0]), JACKET[1])
        self.before = self.temperature
        self.concentration, self.temperature = advance(self.concentration, self.temperature, self.coolant, self.feed)
        fresh = FEED_SPREAD * math.sqrt(1.0 - FEED_MEMORY**2) * self.np_random.standard_normal()
        self.deviation = FEED_MEMORY * self.deviation + fresh
        self.steps += 1
        cost = max(0.0, self.temperature - HOT) / DEGREES
        return self._observation(), 1.0 - self.concentration / FEED, False, False, {"cost": cost}

    def _observation(self) -> np.ndarray:
        drift = self.sensor_drift * self.steps
        change = self.temperature - self.before - (self.sensor_drift if self.steps else 0.0)
        return np.array([self.concentration, self.temperature - drift, change, self.coolant, self.feed], np.float32)


gymnasium.register("Reactor-v1", lambda **options: Reactor(**options), max_episode_steps=HORIZON)
