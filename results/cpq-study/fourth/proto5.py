"""proto4 with particles that go on along imagined paths, and pairs on which the models disagree made unsafe."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
import proto4
from proto4 import MState
from ringfence.algorithms.cpq_departures import CPQ, penalised_value, safe_weights
from ringfence.algorithms.interface import Stage
from ringfence.networks import polyak


class PState(MState):
    pool: Any
    edge: Any


@dataclass(frozen=True)
class Proto(proto4.Proto):
    name: ClassVar[str] = "proto5"
    H: int = 2
    batch_size: int = 128
    particles: int = 128
    reset: float = 0.02        # chance of a new start for each imagined step
    from_starts: float = 0.3
    quantile: float = 0.99
    k_r: float = 0.5           # of mean |r| for each edge of disagreement beyond the edge
    k_c: float = 0.5           # of the limit's pace
    cap: float = 10.0
    leave: float = 5.0         # particles whose disagreement is beyond this many edges start anew

    def init(self, key, limit, spec):
        st = super().init(key, limit, spec)
        return PState(**vars(st), pool=jnp.zeros((self.particles, spec.observation_dim)), edge=jnp.ones(()))

    def stages(self, steps):
        return (Stage("model", self.model_steps, self.update_model, self.calibrate), Stage("policy", steps, self.update))

    def raw(self, models, s, a):
        x = jnp.concatenate([s, a], -1)
        return [m(x) for m in models]

    def calibrate(self, state, batch, key):
        raws = self.raw(state.model_avg, batch.observations, batch.actions)
        u = self.disagreement(raws)
        d = batch.extras["scale"][0]
        told = (batch.next_observations - batch.observations) / d
        err = jnp.mean((raws[0][:, :told.shape[1]] - told) ** 2, 0)
        rr = (batch.rewards - state.scale["r"][0]) / state.scale["r"][1]
        report = {"one_step_unexplained": err.mean(), "worst": err.max(), "r_unexplained": jnp.mean((raws[0][:, told.shape[1]] - rr) ** 2) / jnp.var(rr), "u50": jnp.quantile(u, 0.5), "u99": jnp.quantile(u, 0.99)}
        jax.debug.print("{}", report)
        pool = batch.observations[: self.particles]
        return replace(state, edge=jnp.quantile(u, self.quantile), pool=pool), report

    def disagreement(self, raws):
        n = raws[0].shape[-1] - 3
        return jnp.sqrt(jnp.mean((raws[0][..., :n] - raws[1][..., :n]) ** 2, -1) + 1e-12)

    def told(self, raw, scale, s):
        n = s.shape[-1]
        nxt = jnp.clip(s + raw[:, :n] * scale["delta"], -10, 10)
        r = raw[:, n] * scale["r"][1] + scale["r"][0]
        c = jnp.maximum(raw[:, n + 1] * scale["c"][1] + scale["c"][0], 0.0)
        return nxt, r, c, 1 - jax.nn.sigmoid(raw[:, n + 2])

    def roll(self, actor, state, s, l, key):
        g, sc = self.discount, state.scale
        x, alive, R, C = s, 1.0, 0.0, 0.0
        half = (jnp.arange(s.shape[0]) % 2 == 0)[:, None]
        path, us = [], []
        for t in range(self.H):
            a = actor.mode(x)
            if t == 0: fa = a
            if self.noise > 0:
                a = jnp.clip(a + self.noise * jax.random.normal(jax.random.fold_in(key, t), a.shape), -1, 1)
            raws = self.raw(state.model_avg, x, a)
            u = self.disagreement(raws)
            e = jnp.minimum(jnp.maximum(u / state.edge - 1.0, 0.0), self.cap)
            x, r, c, cont = self.told(jnp.where(half, raws[0], raws[1]), sc, x)
            R = R + g ** t * alive * (r - self.k_r * sc["r"][1] * e)
            C = C + g ** t * alive * (c + self.k_c * l * (1 - g) * e + g * (1 - cont) * self.end * l)
            alive = alive * cont
            path.append(x); us.append(u / state.edge)
        vr, vc = self.values_of(state.targets, sc, x)
        return R + g ** self.H * alive * vr, C + g ** self.H * alive * vc, fa, path, us, alive

    def update(self, state, batch, key):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        l, sc, B = state.limit, state.scale, batch.observations.shape[0]
        s = jnp.concatenate([batch.observations, state.pool])
        a = batch.actions
        logged = jax.lax.stop_gradient(self.logged_cost(state, batch))
        w = safe_weights(logged, l, self.unsafe_anchor)

        def aloss(actor):
            qr, qc, x, path, us, alive = self.roll(actor, state, s, l, k1)
            d = jnp.mean((x[:B] - a) ** 2, -1)
            obj = penalised_value(qr, qc, l, self.recovery_weight)
            loss = -jnp.mean(obj) + self.anchor * jnp.mean(w * d)
            return loss, (qr, qc, path, us, alive, {"qr_policy": qr.mean(), "qc_policy": qc.mean(), "indicator": jnp.mean(qc <= l), "actor_loss": loss, "dist": jnp.sqrt(jnp.mean(w * d)),
                "safe_logged": jnp.mean(logged <= l), "u": us[0][:B].mean(), "u_pool": us[0][B:].mean(), "over": (us[0][B:] > 1).mean(), "pool_r": qr[B:].mean(), "pool_c": qc[B:].mean()})
        grad, (qr, qc, path, us, alive, am) = jax.grad(aloss, has_aux=True)(state.actor)
        actor, aopt = self._actor_adam.step(grad, state.aopt, state.actor)
        tr = jax.lax.stop_gradient((qr - sc["vr"][0]) / sc["vr"][1]); tc = jax.lax.stop_gradient((qc - sc["vc"][0]) / sc["vc"][1])

        def vloss(v):
            return jnp.mean((v[0](s)[:, 0] - tr) ** 2) + jnp.mean((v[1](s)[:, 0] - tr) ** 2) + jnp.mean((v[2](s)[:, 0] - tc) ** 2)
        val, grad = jax.value_and_grad(vloss)(state.values)
        values, vopt = self._critic_adam.step(grad, state.vopt, state.values)
        # particles go on, or start anew
        went = path[-1][B:]
        ended = jax.random.uniform(k2, (self.particles,)) > alive[B:] * (1 - self.reset) ** self.H
        ended |= us[-1][B:] > self.leave
        ended |= jnp.any(jnp.abs(went) > 8, -1)
        fresh = jnp.where((jax.random.uniform(k3, (self.particles,)) < self.from_starts)[:, None], batch.starts[: self.particles], batch.observations[: self.particles])
        pool = jax.lax.stop_gradient(jnp.where(ended[:, None], fresh, went))
        after = replace(state, actor=actor, aopt=aopt, values=values, vopt=vopt, targets=polyak(state.targets, values, self.tau), step=state.step + 1, pool=pool,
                        averaged_actor=polyak(state.averaged_actor, actor, 2.0 / (2.0 + state.step)))
        return after, {"vloss": val, "ended": ended.mean(), **am}
