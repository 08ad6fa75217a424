"""How each shipped behaviour policy was trained.

`std`, the standard deviation of the final policy, is the width of the log it writes: a choice. Wider, and the policy's
own return suffers; narrower, and a learner sees no alternatives to what was done. docs/behaviour.md has measurements.
"""

from typing import Literal

from ringfence.behaviour.cpo import CPO
from ringfence.behaviour.ppo import PPO

Method = Literal["ppo", "cpo"]
TRAINERS: tuple[Method, Method] = ("ppo", "cpo")

DEFAULT_STEPS = 2_000_000
STEPS: dict[tuple[str, Method], int] = {
    ("hopper-torque", "ppo"): 1_400_000,
    ("halfcheetah-torque", "ppo"): 2_000_000,
    ("walker2d-torque", "ppo"): 2_000_000,
    ("hopper-torque", "cpo"): 1_200_000,
    ("halfcheetah-torque", "cpo"): 1_600_000,
    ("walker2d-torque", "cpo"): 2_000_000,
}

SETTINGS: dict[tuple[str, Method], PPO | CPO] = {
    # In trials with a discount of 0.99 PPO's Hopper (at a std of 0.2) fell after 400 steps and CPO's Walker after 180.
    # Looking further ahead, with 0.995, both walk on.
    ("hopper-torque", "ppo"): PPO(std=0.15, std_start=0.35, std_anneal=0.86, discount=0.995, gae_lambda=0.97),
    ("halfcheetah-torque", "ppo"): PPO(std=0.2),
    ("walker2d-torque", "ppo"): PPO(std=0.15, std_start=0.35, std_anneal=0.8, discount=0.995, gae_lambda=0.97),
    ("hopper-torque", "cpo"): CPO(std=0.15, discount=0.995, gae_lambda=0.97),
    ("halfcheetah-torque", "cpo"): CPO(std=0.15),
    ("walker2d-torque", "cpo"): CPO(std=0.15, discount=0.995, gae_lambda=0.97),
}
