"""A wheel to be pushed at the right moments: small enough to train on in seconds.

    angle' = angle + 2 pi / 10,   x' = x + 0.2 a,   reward a cos(angle),   cost |a|,   20 steps

Without a limit the best is to push at full torque with the sign of the cosine: return 20 x mean |cos|, about 12.9, cost
20 (18.2 discounted at 0.99). Within a limit it is to push where the cosine is large. Drifting beyond |x| = 3 ends it.
"""

import gymnasium
import numpy as np

from ringfence.tasks import Task


class Wheel(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.angle, self.x = self.np_random.uniform(0, 2 * np.pi), 0.0
        return self._observation(), {}

    def step(self, action):
        torque = float(action[0])
        reward = torque * np.cos(self.angle)
        self.angle += 2 * np.pi / 10
        self.x += 0.2 * torque
        return self._observation(), reward, abs(self.x) > 3.0, False, {"cost": abs(torque)}

    def _observation(self):
        return np.array([np.cos(self.angle), np.sin(self.angle), self.x])


gymnasium.register("Wheel-v0", Wheel, max_episode_steps=20)
TASK = Task("wheel", "Wheel-v0", limit=8.0, discount=0.99, horizon=20, cost=None)
