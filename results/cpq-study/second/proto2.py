"""V + A critics."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import equinox as eqx, jax, jax.numpy as jnp, numpy as np, optax
from ringfence.algorithms.cpq import PaperCPQ
from ringfence.algorithms.cpq_departures import CPQ
from ringfence.algorithms.critics import Critics, value_size, smaller_value
from ringfence.algorithms.interface import Stage
from ringfence.networks import MLP, Critic, TanhGaussianActor, polyak, pairs
import proto


class Nets(eqx.Module):
    v: MLP
    a1: MLP
    a2: MLP


class S2(eqx.Module):
    limit: Any
    nets: Nets
    vt: MLP
    actor: Any
    averaged_actor: Any
    nets_opt: Any
    actor_opt: Any
    scorer: Any
    scorer_opt: Any
    step: Any
    limit0: Any


class Say:
    """critics for the runner's diagnostics"""
    def __init__(self, m, st): self.m, self.st = m, st
    def cost(self, s, a): return self.m.level(self.st, s, a)[1]
    @property
    def reward(self): return (lambda s, a: self.m.level(self.st, s, a)[0],) * 2


@dataclass(frozen=True)
class Proto(proto.Proto):
    name: ClassVar[str] = "proto2"
    evaluate: str = "policy"    # or "log"
    warm: int = 3000
    va_rate: float = 1e-3
    actor_learning_rate: float = 1e-3
    decay: bool = True          # cosine-like fall of rates
    steps_planned: int = 12000
    gate: bool = True
    score_weight: float = 3.0

    def init(self, key, limit, spec):
        ks = jax.random.split(key, 6)
        obs, act, h = spec.observation_dim, spec.action_dim, self.hidden
        nets = Nets(MLP(obs, 2, h, normalise=True, key=ks[0]), MLP(obs + act, 2, h, normalise=True, key=ks[1]), MLP(obs + act, 2, h, normalise=True, key=ks[2]))
        actor = TanhGaussianActor(obs, act, h, key=ks[3])
        scorer = MLP(obs, 1, h, normalise=True, key=ks[4])
        H = 1 / (1 - self.discount)
        object.__setattr__(self, "_size", (np.array([value_size(spec.mean_reward_size * H), value_size(spec.mean_cost * H)], np.float32), np.array([value_size(spec.mean_reward_size), value_size(spec.mean_cost)], np.float32) / 2, np.array([spec.mean_reward * H, spec.mean_cost * H], np.float32)))
        return S2(limit=jnp.asarray(limit, jnp.float32), nets=nets, vt=nets.v, actor=actor, averaged_actor=actor, nets_opt=self.vo.init(nets), actor_opt=self.ao.init(actor), scorer=scorer, scorer_opt=self.vo.init(scorer), step=jnp.zeros((), jnp.int32), limit0=jnp.asarray(limit, jnp.float32))

    def sched(self, rate):
        if not self.decay: return rate
        T = self.steps_planned
        return lambda t: rate * jnp.maximum(0.1, 1.0 - 0.9 * t / T)

    @property
    def vo(self): return optax.adam(self.sched(self.va_rate))
    @property
    def ao(self): return optax.adam(self.sched(self.actor_learning_rate))

    def V(self, net, s):
        return net(s) * self._size[0] + self._size[2]

    def A(self, nets, s, a):
        """pessimistic (A_r, A_c)"""
        x = pairs(s, a)
        one, two = nets.a1(x) * self._size[1], nets.a2(x) * self._size[1]
        return jnp.stack([jnp.minimum(one[..., 0], two[..., 0]), jnp.maximum(one[..., 1], two[..., 1])], -1)

    def level(self, st, s, a):
        v, adv = self.V(st.nets.v, s), self.A(st.nets, s, a)
        k = 1.0 if self.evaluate == "policy" else 1 / (1 - self.discount)
        return (v + k * adv)[..., 0], (v + k * adv)[..., 1]

    def update(self, st, batch, key):
        k1, k2 = jax.random.split(key)
        s, a, l, g = batch.observations, batch.actions, st.limit, self.discount
        cont = batch.continues[:, None]
        rc = jnp.stack([batch.rewards, batch.costs], -1)
        end = jnp.stack([0.0 * l, self.end * l])
        ah = batch.extras["ahead"]
        later = batch.extras["later"]
        v_later = self.V(st.vt, later)
        n_step = ah[:, :2] + ah[:, 2:3] * (ah[:, 3:4] * v_later + (1 - ah[:, 3:4]) * end)
        v_next = cont * self.V(st.vt, batch.next_observations) + (1 - cont) * end
        one_step = rc + g * v_next
        warm = st.step < self.warm
        if self.evaluate == "policy":
            noisy = self.noisy(st.actor.mode(s), k1, self.noise)
            corrected = one_step - self.A(st.nets, s, a) + self.A(st.nets, s, noisy)
            v_target = jnp.where(warm, n_step, corrected)
        else:
            v_target = n_step
        delta = one_step - self.V(st.vt, s)
        v_target, delta = jax.lax.stop_gradient((v_target, delta))

        def loss(nets):
            x = pairs(s, a)
            ev = (self.V(nets.v, s) - v_target) / self._size[0]
            e1, e2 = ((n(x) * self._size[1] - delta) / self._size[1] for n in (nets.a1, nets.a2))
            return jnp.mean(ev**2) + jnp.mean(e1**2) + jnp.mean(e2**2), (jnp.abs(ev * self._size[0]).mean(0), jnp.mean(delta**2, 0), jnp.mean((e1 * self._size[1]) ** 2, 0))
        grad, (verr, dvar, aerr) = jax.grad(loss, has_aux=True)(st.nets)
        up, nopt = self.vo.update(grad, st.nets_opt, st.nets)
        nets = optax.apply_updates(st.nets, up)

        scale = jnp.mean(jnp.abs(self.V(nets.v, s)[:, 0])) + 1e-6
        aim = (1 - self.margin) * l
        k = 1.0 if self.evaluate == "policy" else 1 / (1 - g)

        scorer, sopt, m = st.scorer, st.scorer_opt, {}
        if "luck" in self.anchor_to:
            sc = n_step
            if self.evaluate == "log":  # what the policy would make of it from there
                sc = sc + ah[:, 2:3] * ah[:, 3:4] * self.A(nets, later, st.actor.mode(later)) / (1 - g)
            score = sc[:, 0] / scale - self.score_weight * jnp.maximum(sc[:, 1] - aim, 0) / l
            vs = scorer(s)[:, 0]
            gr = jax.grad(lambda n: jnp.mean((n(s)[:, 0] - score) ** 2))(scorer)
            up, sopt = self.vo.update(gr, sopt, scorer)
            scorer = optax.apply_updates(scorer, up)
            adv = score - vs
            w = jnp.exp(jnp.clip(adv / self.temperature, self.wlow, self.whigh))
            m = {"adv_abs": jnp.mean(jnp.abs(adv)), "w_min": jnp.mean(w < 0.5)}
        else:
            w = jnp.ones(s.shape[0])
        v = self.V(nets.v, s)

        def aloss(actor):
            mode = actor.mode(s)
            x = self.noisy(mode, k2, self.actor_noise)
            adv = self.A(nets, s, x)
            level = v + k * adv
            qr, qc = v[:, 0] + adv[:, 0], level[:, 1]
            over = jax.lax.stop_gradient(qc > aim)
            obj = adv[:, 0] / scale - self.recovery_weight * over * adv[:, 1] / l
            ww = w
            if "safe" in self.anchor_to:
                lc = (v + k * self.A(nets, s, a))[:, 1]
                ww = ww * (lc <= jnp.maximum(aim, jnp.quantile(lc, self.safe_share)))
            ww = jax.lax.stop_gradient(ww / jnp.mean(ww))
            d = jnp.mean((mode - a) ** 2, -1)
            on = jnp.where(warm, 0.0, 1.0)
            loss = -on * jnp.mean(obj) + self.anchor * jnp.mean(ww * d)
            return loss, {"qr_policy": level[:, 0].mean(), "qc_policy": qc.mean(), "indicator": jnp.mean(qc <= aim), "actor_loss": loss, "dist": jnp.sqrt(jnp.mean(ww * d)), "ar": adv[:, 0].mean(), "ac": adv[:, 1].mean()}
        grad, am = jax.grad(aloss, has_aux=True)(st.actor)
        up, aopt = self.ao.update(grad, st.actor_opt, st.actor)
        actor = optax.apply_updates(st.actor, up)
        rate = self.average_power / (self.average_power + st.step)
        rate = jnp.where(st.step < self.warm, 1.0, self.average_power / (self.average_power + st.step - self.warm))
        after = replace(st, nets=nets, vt=polyak(st.vt, nets.v, self.tau), actor=actor, nets_opt=nopt, actor_opt=aopt, scorer=scorer, scorer_opt=sopt, step=st.step + 1, averaged_actor=polyak(st.averaged_actor, actor, rate))
        return after, {**am, **m, "verr_r": verr[0], "verr_c": verr[1], "dvar_r": dvar[0], "aerr_r": aerr[0], "dvar_c": dvar[1], "aerr_c": aerr[1], "scale": scale}

    def export(self, state):
        from ringfence.algorithms.interface import Export
        return Export("tanh-gaussian", {"actor": state.averaged_actor}, {})
