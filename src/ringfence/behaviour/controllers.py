"""PI controllers that write the reactor's log: a cautious one and one that drives the plant too hot.

A PI controller in velocity form has no memory of its own: it moves the jacket by

    K (change of the error + interval / integral time x error),    error = setpoint - temperature,

and the plant's observation holds both. The move saturates smoothly, as tanh, and is dithered: a log without any
variation shows nothing.
"""

import numpy as np

from ringfence.deploy import Policy
from ringfence.tasks import TASKS

INTERVAL, LARGEST_MOVE = 0.05, 3.0  # of the reactor in `ringfence.tasks.plant`, which needs Gymnasium; a test compares
SETPOINTS = {"safe": 346.0, "unsafe": 354.0}  # K
GAIN, INTEGRAL_TIME, DITHER = 6.0, 1.0, 0.4  # K/K, minutes, of the largest move


def pi_controller(
    setpoint: float, gain: float = GAIN, integral_time: float = INTEGRAL_TIME, dither: float = DITHER
) -> Policy:
    """A PI controller of the reactor's temperature, as a `Policy`. `dither` is the standard deviation of its moves, as a
    share of the largest one, when it is sampled.

    >>> move = pi_controller(346.0, gain=2.0)([0.6, 345.0, 0.5, 300.0, 350.0])  # 1 K too cold, rising by 0.5 K a step
    >>> round(float(move[0]), 3) == round(3 * float(np.tanh(2 * (0.05 * 1 - 0.5) / 3)), 3)
    True
    """
    weight = np.zeros((5, 1), np.float32)
    weight[1, 0] = -gain * INTERVAL / integral_time / LARGEST_MOVE  # temperature, measured from the setpoint
    weight[2, 0] = -gain / LARGEST_MOVE  # its change over the last step
    return Policy.from_tensors(
        "clipped-gaussian",
        {"actor.0.weight": weight, "actor.0.bias": np.zeros(1), "log_std": np.log([dither])},
        observation_mean=[0.0, setpoint, 0.0, 0.0, 0.0],
        observation_std=np.ones(5),
        action_low=[-LARGEST_MOVE],
        action_high=[LARGEST_MOVE],
        metadata={
            "method": "pi",
            "task": "reactor",
            "setpoint": setpoint,
            "gain": gain,
            "integral_time": integral_time,
            "std": dither,
            "limit": TASKS["reactor"].limit,
            "discount": TASKS["reactor"].discount,
        },
    )
