"""Prototype: N reward critics, slow averages of critics for the actor."""
from dataclasses import dataclass, replace
from typing import Any, cast
import jax, jax.numpy as jnp
import ringfence.algorithms.cpq as cpq
import ringfence.algorithms.cpq_departures as dep
from ringfence.algorithms.critics import Critics, fresh_critics, smaller_value
from ringfence.algorithms.cpq_departures import *
from ringfence.algorithms.cpq_departures import CPQ, AveragedState
from ringfence.networks import polyak, Critic

def nloss(reward_critics, batch, target):
    v = [c(batch.observations, batch.actions) for c in reward_critics]
    t = target if isinstance(target, (tuple, list)) else [target]*len(v)
    return sum(jnp.mean((x - y) ** 2) for x, y in zip(v, t)), jnp.minimum(v[0], v[1])
cpq.reward_critic_loss = nloss

class SlowState(AveragedState):
    slow: Any

@dataclass(frozen=True)
class Proto(CPQ):
    critics_n: int = 2
    slow_rate: float = 0.0      # 0: the actor uses the current critics; else EMA rate; negative: averaging_rate-like (last half)
    actor_value: str = "min"    # min | mean
    backup: str = "min"         # min of first two | mean | own (each backs up its own target, mean actor)
    safe_rows: str = "qc"
    critic_decay: float = 0.0

    def init(self, key, limit, spec):
        s = super().init(key, limit, spec)
        return SlowState(**vars(s), slow=s.critics)

    def fresh_critics(self, spec, keys):
        horizon = 1.0 / (1.0 - self.discount)
        first = fresh_critics(spec, self.hidden, keys, normalise=True, horizon=horizon)
        more = []
        for i in range((self.critics_n - 1) // 2):
            ks = jax.random.split(jax.random.fold_in(keys[0], 100 + i), 3)
            more += list(fresh_critics(spec, self.hidden, ks, normalise=True, horizon=horizon).reward)
        return Critics((first.reward + tuple(more))[: self.critics_n], first.cost)

    def reward_target(self, state, batch, next_actions):
        vs = [c(batch.next_observations, next_actions) for c in state.targets.reward]
        go = lambda f: batch.rewards + self.discount * batch.continues * f
        if self.backup == "own": return tuple(go(v) for v in vs)
        if self.backup == "mean": return go(sum(vs) / len(vs))
        if self.backup == "pairs":  # min of each pair
            out = []
            for i in range(0, len(vs), 2): out += [go(jnp.minimum(vs[i], vs[i+1]))]*2
            return tuple(out)
        return go(jnp.minimum(vs[0], vs[1]))

    def update(self, state, batch, key):
        after, metrics = super().update(state, batch, key)
        if self.slow_rate == 0: return replace(after, slow=state.slow), metrics
        rate = self.slow_rate if self.slow_rate > 0 else 2.0 / (2.0 + state.step)
        rate = jnp.maximum(rate, 2.0 / (2.0 + state.step))
        return replace(after, slow=polyak(state.slow, after.critics, rate)), metrics

    def objective_loss(self, actor, critics, batch, limit, key):
        gaussian = actor(batch.observations)
        from ringfence.networks import sample_tanh
        actions, _ = sample_tanh(gaussian, key, (1,))
        vs = [c(batch.observations, actions) for c in critics.reward]
        qr = sum(vs) / len(vs) if self.actor_value == "mean" else jnp.minimum(vs[0], vs[1])
        qc = critics.cost(batch.observations, actions)
        objective = self.actor_objective(qr, qc, limit)
        loss = -jnp.mean(objective)
        means = {"indicator": jnp.mean(qc <= limit), "qr_policy": qr.mean(), "qc_policy": qc.mean()}
        return cpq.ActorLoss(loss, actions, {"actor_loss": loss, **means})

    def actor_loss(self, actor, critics, batch, state, key):
        if self.slow_rate != 0: critics = state.slow
        return super().actor_loss(actor, critics, batch, state, key)

    def export(self, state):
        return super().export(replace(state, critics=Critics(state.critics.reward[:2], state.critics.cost)))
    def diagnose(self, state, sample, key):
        return super().diagnose(replace(state, critics=Critics(state.critics.reward[:2], state.critics.cost), targets=Critics(state.targets.reward[:2], state.targets.cost)), sample, key)
