"""CPQ's step in PyTorch, tuned by hand, to compare with: the same work as `benchmarks.workload.OneKeptAction`.

It runs in the environment of `make bench-peers`. What was tuned: one pass for the logged and the OOD actions, the
encoder's first layer factored, one fused Adam for all critics, no gradients where none are needed, in-place
multi-tensor target updates, no metrics.
"""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.machine import best_seconds


def mlp(inputs: int, outputs: int, width: int) -> nn.Sequential:
    hidden = nn.Linear(width, width)
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), hidden, nn.ReLU(), nn.Linear(width, outputs))


def q(critic: nn.Sequential, observations: Tensor, actions: Tensor) -> Tensor:
    return critic(torch.cat([observations, actions], -1)).squeeze(-1)


class TorchCPQ:
    def __init__(self, obs: int, act: int, width: int, samples: int, limit: float = 30.0, rate: float = 3e-4):
        self.obs, self.act, self.samples, self.limit = obs, act, samples, limit
        self.critics = nn.ModuleList([mlp(obs + act, 1, width) for _ in range(3)])  # two of reward, one of cost
        self.targets = deepcopy(self.critics).requires_grad_(False)
        self.actor = mlp(obs, 2 * act, width)
        self.encoder = mlp(obs + act, 4 * act, width).requires_grad_(False)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=rate, fused=True)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=rate, fused=True)
        self.alpha, self.threshold, self.discount, self.tau = torch.zeros(()), 1.0, 0.99, 0.005
        self.online, self.slow = list(self.critics.parameters()), list(self.targets.parameters())

    def sample(self, gaussian: Tensor, count: int) -> Tensor:
        mean, log_std = gaussian.chunk(2, -1)
        noise = torch.randn(count, *mean.shape)
        return torch.tanh(mean + log_std.clamp(-5, 2).exp() * noise)

    def latent_kl(self, observations: Tensor, actions: Tensor) -> Tensor:
        first = self.encoder[0]
        shared = torch.addmm(first.bias, observations, first.weight[:, : self.obs].T)
        mean, log_std = self.encoder[1:](shared + actions @ first.weight[:, self.obs :].T).chunk(2, -1)
        log_std = log_std.clamp(-8, 4)
        return 0.5 * (mean**2 + (2 * log_std).exp() - 1 - 2 * log_std).sum(-1)

    def step(self, s: Tensor, a: Tensor, r: Tensor, c: Tensor, following: Tensor, continues: Tensor) -> None:
        gaussian = self.actor(s)  # also serves the actor's own loss below
        with torch.no_grad():
            candidates = self.sample(gaussian, self.samples)
            kept = self.latent_kl(s, candidates) >= self.threshold
            has_ood = kept.any(0).float()
            chosen = torch.where(kept, torch.rand(kept.shape), -1.0).argmax(0)
            ood = candidates[chosen, torch.arange(len(s))]
            next_actions = self.sample(self.actor(following), 1)[0]
            first, second, cost = (q(critic, following, next_actions) for critic in self.targets)
            cost_target = c + self.discount * continues * cost
            safe = torch.where(cost <= self.limit, torch.minimum(first, second), 0.0)
            reward_target = r + self.discount * continues * safe

        both = q(self.critics[2], torch.cat([s, s]), torch.cat([a, ood]))
        values, ood_values = both.chunk(2)
        ood_values = ood_values * has_ood
        loss = ((values - cost_target) ** 2).mean() - self.alpha * (ood_values.mean() - 1.5 * self.limit)
        for critic in self.critics[:2]:
            loss = loss + ((q(critic, s, a) - reward_target) ** 2).mean()
        self.critic_adam.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_adam.step()
        self.alpha = (self.alpha + 1e-3 * (1.5 * self.limit - ood_values.detach().mean())).clamp(min=0)

        self.critics.requires_grad_(False)
        actions = self.sample(gaussian, 1)[0]
        first, second, cost = (q(critic, s, actions) for critic in self.critics)
        objective = torch.where(cost <= self.limit, torch.minimum(first, second), 0.0)
        self.actor_adam.zero_grad(set_to_none=True)
        (-objective.mean()).backward()
        self.actor_adam.step()
        self.critics.requires_grad_(True)

        with torch.no_grad():
            torch._foreach_lerp_(self.slow, self.online, self.tau)


COLUMNS = ("observations", "actions", "rewards", "costs", "next_observations", "continues")


def logged_rows(arrays: str) -> list[Tensor]:
    """s, a, r, c, s', continues of a log that `benchmarks.reallog.as_arrays` wrote."""
    saved = np.load(arrays)
    return [torch.from_numpy(saved[name]) for name in COLUMNS]


def speed(
    arrays: str, trained: int, width: int = 256, batch: int = 256, samples: int = 10, seconds: float = 3.0
) -> dict[str, Any]:
    """Steps per second after `trained` steps. Its encoder stays as it was initialised: that changes no work."""
    rows = logged_rows(arrays)
    learner = TorchCPQ(rows[0].shape[1], rows[1].shape[1], width, samples)

    def several(steps: int = 10) -> None:
        for _ in range(steps):
            chosen = torch.randint(0, len(rows[0]), (batch,))
            learner.step(*(column[chosen] for column in rows))

    several(trained)
    taken = best_seconds(several, seconds)
    return {"steps_per_second": 10 / taken.wall, "steps_per_cpu_second": 10 / taken.cpu, "torch": torch.__version__}
