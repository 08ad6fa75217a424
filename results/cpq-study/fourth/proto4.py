"""CPQ along imagined steps: critics of states, an ensemble of models, actor's gradient through the models."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
from ringfence.algorithms.cpq_departures import CPQ, penalised_value, safe_weights
from ringfence.algorithms.interface import Stage, Export
from ringfence.networks import MLP, TanhGaussianActor, polyak


class MState(eqx.Module):
    limit: Any
    models: Any          # tuple of MLPs
    model_avg: Any
    mopt: Any
    scale: Any           # out_scale (change per column), r centre+scale, c centre+scale
    values: Any          # (vr1, vr2, vc)
    targets: Any
    vopt: Any
    actor: TanhGaussianActor
    aopt: Any
    averaged_actor: TanhGaussianActor
    step: Any
    mstep: Any


@dataclass(frozen=True)
class Proto(CPQ):
    name: ClassVar[str] = "proto4"
    hidden: tuple = (128, 128)
    model_hidden: tuple = (200, 200)
    model_steps: int = 8000
    model_batch: int = 256
    model_rate: float = 1e-3
    members: int = 2
    H: int = 3
    tau: float = 0.02
    anchor: float = 1.0
    unsafe_anchor: float = 0.1
    end: float = 1.0
    noise: float = 0.0      # on imagined actions
    steps_planned: int = 15000
    real: float = 0.0
    rate_a: float = 3e-4

    def init(self, key, limit, spec):
        ks = jax.random.split(key, 8 + self.members)
        n = spec.observation_dim
        models = tuple(MLP(n + spec.action_dim, n + 3, self.model_hidden, normalise=True, key=ks[8 + i]) for i in range(self.members))
        horizon = 1 / (1 - self.discount)
        self_r, self_c = max(spec.mean_reward_size, 1e-3) * horizon, max(spec.mean_cost, 1e-3) * horizon
        v = tuple(MLP(n, 1, self.hidden, normalise=True, key=ks[i]) for i in range(3))
        actor = TanhGaussianActor(n, spec.action_dim, self.hidden, key=ks[3])
        scale = dict(delta=jnp.ones(n), r=jnp.asarray([spec.mean_reward, spec.mean_reward_size]), c=jnp.asarray([spec.mean_cost, max(spec.mean_cost, 1e-3) * 0.5]),
                     vr=jnp.asarray([spec.mean_reward * horizon, self_r]), vc=jnp.asarray([spec.mean_cost * horizon, self_c]))
        return MState(jnp.asarray(limit, jnp.float32), models, models, self._m_adam.init(models), scale, v, v, self._critic_adam.init(v), actor,
                      self._actor_adam.init(actor), actor, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    @property
    def _m_adam(self):
        from ringfence.algorithms.optimise import Adam
        return Adam(self.model_rate)

    def columns(self, log):
        nm = log.normaliser
        d = (log.next_observations - log.observations) / nm.std
        s = d.std(0)
        return {"scale": np.tile(s, (1, 1)).repeat(len(log), 0).astype(np.float32)}

    def stages(self, steps):
        return (Stage("model", self.model_steps, self.update_model), Stage("policy", steps, self.update))

    def update_model(self, state, batch, key):
        delta = batch.extras["scale"][0]
        scale = {**state.scale, "delta": delta}
        x = jnp.concatenate([batch.observations, batch.actions], -1)
        told = jnp.concatenate([(batch.next_observations - batch.observations) / delta, ((batch.rewards - scale["r"][0]) / scale["r"][1])[:, None],
                                ((batch.costs - scale["c"][0]) / scale["c"][1])[:, None]], -1)
        def loss(ms):
            out = 0.0
            for i, m in enumerate(ms):
                raw = m(x)
                out += ((raw[:, :-1] - told) ** 2).mean(0).sum() + (jax.nn.softplus(raw[:, -1]) - (1 - batch.continues) * raw[:, -1]).mean()
            return out
        v, g = jax.value_and_grad(loss)(state.models)
        ms, opt = self._m_adam.step(g, state.mopt, state.models)
        avg = polyak(state.model_avg, ms, 4.0 / (4.0 + state.mstep))
        return replace(state, models=ms, mopt=opt, model_avg=avg, scale=scale, mstep=state.mstep + 1), {"detector_loss": v / len(ms)}

    def imagine(self, model, scale, s, a):
        raw = model(jnp.concatenate([s, a], -1))
        n = s.shape[-1]
        nxt = jnp.clip(s + raw[:, :n] * scale["delta"], -10, 10)
        r = raw[:, n] * scale["r"][1] + scale["r"][0]
        c = jnp.maximum(raw[:, n + 1] * scale["c"][1] + scale["c"][0], 0.0)
        return nxt, r, c, 1 - jax.nn.sigmoid(raw[:, n + 2])

    def values_of(self, v, scale, s):
        r = jnp.minimum(v[0](s)[:, 0], v[1](s)[:, 0]) * scale["vr"][1] + scale["vr"][0]
        c = v[2](s)[:, 0] * scale["vc"][1] + scale["vc"][0]
        return r, c

    def roll(self, actor, models, scale, v, s, l, key, first=None):
        """H imagined steps and the critics' word on what follows: (reward, cost), the first actions."""
        g = self.discount
        parts = jnp.split(s, len(models))
        firsts = jnp.split(first, len(models)) if first is not None else None
        rs, cs, fa = [], [], []
        for i, m in enumerate(models):
            x, alive, R, C = parts[i], 1.0, 0.0, 0.0
            for t in range(self.H):
                a = actor.mode(x)
                if t == 0: fa.append(a)
                if t == 0 and firsts is not None: a = firsts[i]
                if self.noise > 0:
                    a = jnp.clip(a + self.noise * jax.random.normal(jax.random.fold_in(key, 10 * i + t), a.shape), -1, 1)
                x, r, c, cont = self.imagine(m, scale, x, a)
                R = R + g ** t * alive * r
                C = C + g ** t * alive * (c + g * (1 - cont) * self.end * l)
                alive = alive * cont
            vr, vc = self.values_of(v, scale, x)
            rs.append(R + g ** self.H * alive * vr); cs.append(C + g ** self.H * alive * vc)
        return jnp.concatenate(rs), jnp.concatenate(cs), jnp.concatenate(fa)

    def update(self, state, batch, key):
        k1, k2 = jax.random.split(key)
        s, a, l = batch.observations, batch.actions, state.limit
        sc, ms = state.scale, state.model_avg

        def aloss(actor):
            qr, qc, x = self.roll(actor, ms, sc, state.targets, s, l, k1)
            logged = jax.lax.stop_gradient(self.logged_cost(state, batch))
            w = safe_weights(logged, l, self.unsafe_anchor)
            d = jnp.mean((x - a) ** 2, -1)
            obj = penalised_value(qr, qc, l, self.recovery_weight)
            loss = -jnp.mean(obj) + self.anchor * jnp.mean(w * d)
            return loss, (qr, qc, {"qr_policy": qr.mean(), "qc_policy": qc.mean(), "indicator": jnp.mean(qc <= l), "actor_loss": loss, "dist": jnp.sqrt(jnp.mean(w * d)), "safe_logged": jnp.mean(logged <= l)})
        grad, (qr, qc, am) = jax.grad(aloss, has_aux=True)(state.actor)
        actor, aopt = self._actor_adam.step(grad, state.aopt, state.actor)
        tr = jax.lax.stop_gradient((qr - sc["vr"][0]) / sc["vr"][1]); tc = jax.lax.stop_gradient((qc - sc["vc"][0]) / sc["vc"][1])

        def vloss(v):
            return jnp.mean((v[0](s)[:, 0] - tr) ** 2) + jnp.mean((v[1](s)[:, 0] - tr) ** 2) + jnp.mean((v[2](s)[:, 0] - tc) ** 2)
        val, grad = jax.value_and_grad(vloss)(state.values)
        values, vopt = self._critic_adam.step(grad, state.vopt, state.values)
        after = replace(state, actor=actor, aopt=aopt, values=values, vopt=vopt, targets=polyak(state.targets, values, self.tau), step=state.step + 1,
                        averaged_actor=polyak(state.averaged_actor, actor, 2.0 / (2.0 + state.step)))
        return after, {"vloss": val, **am}

    def logged_cost(self, state, batch):
        """c + g Vc(s'): of the logged action, exactly as it went."""
        _, vc = self.values_of(state.targets, state.scale, batch.next_observations)
        return batch.costs + self.discount * (batch.continues * vc + (1 - batch.continues) * self.end * state.limit)

    def policy_actor(self, state): return state.averaged_actor
    def diagnose(self, state, sample, key): return {}
    def warnings(self, stage, history): return []
    def export(self, state): return Export("tanh-gaussian", {"actor": state.averaged_actor}, {})
