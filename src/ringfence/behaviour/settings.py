"""How each shipped behaviour policy was trained. The standard deviation is the width of the log: a choice."""

from typing import Literal

from ringfence.behaviour.cpo import CPO
from ringfence.behaviour.ppo import PPO

Method = Literal["ppo", "cpo"]

STEPS: dict[Method, int] = {"ppo": 2_000_000, "cpo": 2_400_000}

SETTINGS: dict[tuple[str, Method], PPO | CPO] = {
    ("hopper-torque", "ppo"): PPO(std=0.2),
    ("halfcheetah-torque", "ppo"): PPO(std=0.2),
    ("walker2d-torque", "ppo"): PPO(std=0.2),
    ("hopper-torque", "cpo"): CPO(std=0.15),
    ("halfcheetah-torque", "cpo"): CPO(std=0.15),
    ("walker2d-torque", "cpo"): CPO(std=0.15),
}
