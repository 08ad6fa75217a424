"""Small logs made on the spot."""

import numpy as np

from ringfence.data import Dataset


def narrow_log(rows=2000, seed=0, obs=3, act=2, episode_length=50, low=-1.0, high=1.0, with_source=False):
    """A controller that acts as a smooth function of the state with a little noise: reward for large actions, which
    also cost. A second controller, writing the later half, acts twice as strongly."""
    rng = np.random.default_rng(seed)
    observations = np.cumsum(rng.normal(size=(rows, obs)), 0) % 2.0 - 1.0
    weights = rng.normal(size=(obs, act))
    strength = np.where(np.arange(rows) < rows // 2, 0.3, 0.6)[:, None]
    actions = np.clip(strength * np.tanh(observations @ weights) + 0.05 * rng.normal(size=(rows, act)), -1, 1)
    ends = np.arange(1, rows + 1) % episode_length == 0
    terminated = ends & (rng.uniform(size=rows) < 0.5)
    scaled = low + (actions + 1) / 2 * (high - low)
    return Dataset.from_arrays(
        observations=observations,
        actions=scaled,
        rewards=1 + np.abs(actions).sum(1),
        costs=np.abs(actions).mean(1),
        next_observations=np.roll(observations, -1, 0),
        terminations=terminated,
        truncations=ends & ~terminated,
        source=(np.arange(rows) >= rows // 2).astype(int) if with_source else None,
        source_names=("gentle", "strong") if with_source else (),
        action_low=np.full(act, low),
        action_high=np.full(act, high),
        name="narrow",
    )


def still_with_costs(policy):
    """The policy with gains for a pacer and a second policy to take turns with. Paced it does nothing in any state; in turns
    all its actions are 0.5."""
    from dataclasses import replace

    from ringfence.deploy import Network, Policy

    artifact = policy.artifact
    size = 2 * artifact.action_dim
    names = ("paced_actor", "cheap_actor", "costly_actor")
    layers = {f"{name}.0.weight": np.zeros((artifact.observation_dim, size)) for name in names}
    layers |= {f"{name}.0.bias": np.full(size, 0.0 if name == "paced_actor" else np.arctanh(0.5)) for name in names}
    networks = {name: Network(name, ("observation",), "tanh-gaussian") for name in names}
    turns = {"cheap_cost": 1.0, "costly_cost": 90.0, "share": 0.1, "expected_return": 5.0}
    return Policy(
        replace(
            artifact,
            networks={**artifact.networks, **networks},
            tensors={**artifact.tensors, **layers},
            action_low=np.full(artifact.action_dim, -1.0),
            action_high=np.full(artifact.action_dim, 1.0),
            discount=0.99,
            horizon=50,
            metadata={**artifact.metadata, "pacing": {"low": 0.5, "high": 2.0, "spending": 0.9}, "turns": turns},
        )
    )


def random_walks(low=-np.inf, high=np.inf, columns=1, episodes=60, length=40, seed=0, at_random=0.0):
    """Random walks in `columns` dimensions. An episode ends when the first column passes a level, or `at_random`."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(episodes):
        state = 0.2 * rng.standard_normal(columns)
        for step in range(length):
            action = rng.uniform(-1, 1, 1)
            following = state + 0.3 * action + 0.1 * rng.standard_normal(columns)
            ends = not low <= following[0] <= high or rng.random() < at_random
            rows.append((state, action, following, ends, not ends and step == length - 1))
            if ends:
                break
            state = following
    s, a, n, ends, cut = (np.array(column) for column in zip(*rows, strict=True))
    return Dataset.from_arrays(
        observations=s, actions=a, rewards=np.ones(len(s)), costs=np.ones(len(s)), next_observations=n,
        terminations=ends, truncations=cut, action_low=[-1.0], action_high=[1.0],
    )  # fmt: skip
