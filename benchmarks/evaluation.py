"""Evaluation in a simulator while training: how fast, and what share of a run it takes."""

import time
from typing import Any

import numpy as np


def evaluation_speed(task: str = "halfcheetah-torque", episodes: int = 10, hidden: int = 256) -> dict[str, Any]:
    """Environment steps per second of an evaluation as training does it. HalfCheetah never ends early, so each episode has
    its full 1,000 steps."""
    import jax
    import jax.numpy as jnp

    from ringfence.algorithms import CPQ, Spec
    from ringfence.deploy import Policy
    from ringfence.evaluation import Evaluator
    from ringfence.training.artifact import scaled_artifact

    evaluator = Evaluator(task, parallel=min(episodes, 10))
    env = evaluator.envs(1)[0]
    obs, act = env.observation_space.shape[0], env.action_space.shape[0]
    method = CPQ(hidden=(hidden, hidden))
    state = method.init(jax.random.key(0), jnp.asarray(30.0), Spec(obs, act))
    scale = (np.zeros(obs), np.ones(obs), -np.ones(act), np.ones(act))
    policy = Policy(scaled_artifact(method.export(state), *scale))
    evaluator(policy, episodes)  # environments are made once per run
    began = time.perf_counter()
    result = evaluator(policy, episodes)
    seconds = time.perf_counter() - began
    steps = int(result.lengths.sum())
    return {"task": task, "env_steps": steps, "seconds": seconds, "env_steps_per_second": steps / seconds}


def share_of_run(evaluation_seconds: float, steps_per_second: float, every: int = 5000) -> float:
    """The part of a run's time that goes into one evaluation every so many steps."""
    return evaluation_seconds / (evaluation_seconds + every / steps_per_second)
