"""The default with the log as witness: rows whose own episode kept the limit are safe whatever the critic says."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
from ringfence.algorithms.cpq_departures import CPQ, AveragedState, averaging_rate, safe_weights, anchor_loss, reward_bellman_target
from ringfence.algorithms.critics import smaller_value
from ringfence.algorithms.interface import Stage
from ringfence.networks import MLP, polyak


class WState(AveragedState):
    gate: Any
    gopt: Any


@dataclass(frozen=True)
class Proto(CPQ):
    name: ClassVar[str] = "proto7"
    hidden: tuple = (128, 128)
    cvae_steps: int = 10
    steps_planned: int = 15000
    limit_known: float = 0.0
    label: str = "episode"     # witness / either / critic / episode
    gated: bool = True
    witness_hinge: bool = True
    least: float = 0.1
    early_stop: float = 0.0
    anneal: float = 0.0        # final learning rate share
    margin: float = 0.0
    inner: bool = False
    kappa: float = 0.0
    share: float = 0.0

    def columns(self, log):
        g, lim = self.discount, self.limit_known
        st, en = log.episode_starts, log.episode_ends
        N = len(log)
        left = np.repeat(en, en - st) - np.arange(N)
        c = log.cost_to_go(g)
        whole = (c + g ** left * lim)                       # goes on at the limit's pace after its end
        if self.label == "episode":
            whole = np.repeat(whole[st], en - st)
        edge = max(lim, np.quantile(whole, self.least))
        print("witness share", float((whole <= lim).mean()), "edge", edge, "terminated", float(log.terminations[en - 1].mean()), flush=True)
        return {"label": (whole <= edge).astype(np.float32)[:, None]}

    def init(self, key, limit, spec):
        st = super().init(key, limit, spec)
        c = MLP(spec.observation_dim, 1, self.hidden, normalise=True, key=jax.random.fold_in(key, 9))
        return WState(**vars(st), gate=c, gopt=self._critic_adam.init(c))

    def stages(self, steps): return (Stage("policy", steps, self.update),)

    def update(self, state, batch, key):
        y = batch.extras["label"][:, 0]
        def loss(m):
            z = m(batch.observations)[:, 0]
            return jnp.mean(jax.nn.softplus(z) - y * z)
        gate, gopt = self._critic_adam.step(jax.grad(loss)(state.gate), state.gopt, state.gate)
        p = jax.nn.sigmoid(gate(batch.observations)[:, 0])
        batch = batch._replace(extras={**batch.extras, "p": p[:, None]})
        after, m = super().update(replace(state, gate=gate, gopt=gopt), batch, key)
        return after, {**m, "gate": p.mean(), "label": y.mean()}

    def actor_loss(self, actor, critics, batch, limit, key):
        y, p = batch.extras["label"][:, 0], batch.extras["p"][:, 0]
        logged_cost = critics.cost(batch.observations, batch.actions)
        mode = actor.mode(batch.observations)
        qr = smaller_value(critics.reward, batch.observations, mode)
        qc = critics.cost(batch.observations, mode)
        aim = (1 - self.margin) * limit
        edge = jnp.where(y > 0, jnp.maximum(aim, logged_cost), aim) if self.witness_hinge else aim
        scale = jax.lax.stop_gradient(jnp.mean(jnp.abs(qr))) + 1e-6
        obj = qr / scale - self.recovery_weight * jnp.maximum(qc - edge, 0.0) / limit
        loss = -jnp.mean(obj)
        safe = y
        if self.label == "either": safe = jnp.maximum(y, (logged_cost <= limit).astype(y.dtype))
        if self.label == "critic": safe = (logged_cost <= limit).astype(y.dtype)
        unsafe = self.unsafe_anchor * ((1 - p) if self.gated else 1.0)
        w = jnp.where(safe > 0, 1.0, unsafe)
        if self.label == "episode" and self.inner:
            w = y + (1 - y) * (1 - p) * jnp.where(logged_cost <= limit, 1.0, self.unsafe_anchor)
        w = jax.lax.stop_gradient(w / jnp.mean(w))
        a = anchor_loss(mode, batch.actions, w)
        loss += self.anchor * (1 + self.kappa * self.share) * a
        return loss, {"actor_loss": loss, "indicator": jnp.mean(qc <= edge), "qr_policy": qr.mean(), "qc_policy": qc.mean(), "dist": jnp.sqrt(a), "safe_logged": jnp.mean(safe)}

    def diagnose(self, state, sample, key): return {}
    def warnings(self, stage, history): return []
