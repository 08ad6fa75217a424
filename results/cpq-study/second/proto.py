"""Research prototype."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import optax, equinox as eqx, jax, jax.numpy as jnp, numpy as np
from ringfence.algorithms.cpq import PaperCPQ, State, cost_bellman_target
from ringfence.algorithms.cpq_departures import CPQ, penalised_value
from ringfence.algorithms.critics import Critics, fresh_critics, smaller_value
from ringfence.algorithms.interface import Stage
from ringfence.networks import MLP, Critic, TanhGaussianActor, polyak


class Sched:
    def __init__(self, rate, T):
        self.o = optax.adam(lambda t: rate * jnp.maximum(0.1, 1.0 - 0.9 * t / T))
    def init(self, p): return self.o.init(p)
    def step(self, g, s, p):
        up, s = self.o.update(g, s, p)
        return optax.apply_updates(p, up), s


@dataclass(frozen=True)
class Early:
    size: int
    share: float
    length: int
    def prepare(self, data, key): return ()
    def draw(self, data, key, prepared):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        rows = jax.random.randint(k1, (self.size,), 0, data.rows.shape[0])
        e = jax.random.randint(k2, (self.size,), 0, data.episode_starts.shape[0])
        first = jnp.minimum(data.episode_starts[e] + jax.random.randint(k3, (self.size,), 0, self.length), data.episode_ends[e] - 1)
        n = int(self.size * self.share)
        rows = jnp.where(jnp.arange(self.size) < n, first, rows)
        return data.batch(rows, data.episode_starts[e])


class PState(State):
    step: Any
    averaged_actor: TanhGaussianActor
    pace: Any
    value: Any
    price: Any


@dataclass(frozen=True)
class Proto(CPQ):
    name: ClassVar[str] = "proto"
    hidden: tuple = (128, 128)
    cvae_steps: int = 10
    tau: float = 0.05
    anchor: float = 1.0
    anchor_to: str = "luck"      # luck, safe, relative, all; "luck+safe"
    ahead: int = 30
    temperature: float = 0.1
    noise: float = 0.1
    actor_noise: float = 0.0
    average_power: float = 4.0
    pace_discount: float = 0.0
    pace_from: str = "max"
    safe_share: float = 0.3
    margin: float = 0.0
    end: float = 1.0             # times l after termination
    wlow: float = -5.0
    whigh: float = 2.0
    second_actor: float = 0.0    # weight of the anchor of the actor that critics evaluate; 0: the same
    qr_soft: float = 0.0
    warm: int = 0
    decay: bool = False
    steps_planned: int = 12000
    tail: float = 0.0
    ramp: int = 0
    early: float = 0.0
    early_length: int = 30

    def columns(self, log):
        n, g = self.ahead, self.discount
        N = len(log)
        starts, ends = log.episode_starts, log.episode_ends
        last = np.repeat(ends, ends - starts) - 1
        idx = np.arange(N)
        later = np.minimum(idx + n - 1, last)
        k = later - idx + 1
        out = []
        for x in (log.rewards, log.costs):
            x = x.astype(np.float64)
            tot = np.zeros(N)
            w = 1.0
            for j in range(n):
                at = idx + j
                ok = at <= last
                tot[ok] += w * x[at[ok]]
                w *= g
            out.append(tot)
        cont = ~log.terminations[later]
        obs = log.normaliser
        later_obs = (log.next_observations[later] - obs.mean) / obs.std
        start_cost = log.cost_to_go(g)[starts]
        return {"ahead": np.stack([out[0], out[1], g ** k, cont], 1), "later": later_obs, "episode": np.repeat(start_cost, ends - starts)[:, None]}

    def init(self, key, limit, spec):
        printed = PaperCPQ.init(self, key, limit, spec)
        ks = jax.random.split(jax.random.fold_in(key, 7), 3)
        pace = None
        if self.pace_discount > 0:
            c = fresh_critics(spec, self.hidden, jax.random.split(ks[0], 3), normalise=True, horizon=1 / (1 - self.pace_discount)).cost
            pace = (c, c, self._critic_adam.init(c))
        v = MLP(spec.observation_dim, 1, self.hidden, normalise=True, key=ks[1])
        value = (v, self._critic_adam.init(v))
        second = printed.actor
        price = (second, self._actor_adam.init(second)) if self.second_actor > 0 else None
        return PState(**vars(printed), step=jnp.zeros((), jnp.int32), averaged_actor=printed.actor, pace=pace, value=value, price=price)

    def stages(self, steps):
        return (Stage("policy", steps, self.update, sampler=Early(self.batch_size, self.early, self.early_length) if self.early > 0 else None),)

    def noisy(self, a, key, sigma):
        return jnp.clip(a + sigma * jax.random.normal(key, a.shape), -1, 1) if sigma > 0 else a

    def update(self, state, batch, key):
        k1, k2, k3 = jax.random.split(key, 3)
        s, a, l = batch.observations, batch.actions, state.limit
        g = self.discount
        backup = state.price[0] if self.second_actor > 0 else state.actor
        na = self.noisy(backup.mode(batch.next_observations), k1, self.noise)
        done = 1 - batch.continues
        ct = cost_bellman_target(state.targets.cost, batch, na, g) + g * done * self.end * l
        rt = batch.rewards + g * batch.continues * smaller_value(state.targets.reward, batch.next_observations, na)

        def closs(c):
            qc = c.cost(s, a)
            q1, q2 = c.reward[0](s, a), c.reward[1](s, a)
            return jnp.mean((qc - ct) ** 2) + jnp.mean((q1 - rt) ** 2) + jnp.mean((q2 - rt) ** 2), (qc, q1)
        grad, (qc_d, qr_d) = jax.grad(closs, has_aux=True)(state.critics)
        critics, copt = self._critic_adam.step(grad, state.critic_optimiser, state.critics)

        pace = state.pace
        if pace is not None:
            c, t, opt = pace
            gp = self.pace_discount
            pt = cost_bellman_target(t, batch, na, gp) + gp * done * self.end * l * (1 - g) / (1 - gp)
            grad = jax.grad(lambda c: jnp.mean((c(s, a) - pt) ** 2))(c)
            c, opt = self._critic_adam.step(grad, opt, c)
            pace = (c, polyak(t, c, self.tau), opt)

        def cost_of(x):
            q = critics.cost(s, x)
            if pace is not None:
                p = pace[0](s, x) * (1 - self.pace_discount) / (1 - g)
                q = jnp.maximum(q, p) if self.pace_from == "max" else (p if self.pace_from == "only" else 0.5 * (q + p))
            return q

        aim = (1 - self.margin) * l
        # value of what followed in the log
        value = state.value
        m = {}
        if "luck" in self.anchor_to:
            rn, cn, gk, cont = jnp.split(batch.extras["ahead"], 4, -1)
            rn, cn, gk, cont = (x[:, 0] for x in (rn, cn, gk, cont))
            later = batch.extras["later"]
            la = state.actor.mode(later)
            gr = rn + gk * cont * smaller_value(state.targets.reward, later, la)
            gc = cn + gk * (cont * state.targets.cost(later, la) + (1 - cont) * self.end * l)
            score = penalised_value(gr, gc, aim, self.recovery_weight)
            net, vopt = value
            vs = net(s)[:, 0]
            grad = jax.grad(lambda n: jnp.mean((n(s)[:, 0] - score) ** 2))(net)
            net, vopt = self._critic_adam.step(grad, vopt, net)
            value = (net, vopt)
            adv = score - vs
            w = jnp.exp(jnp.clip(adv / self.temperature, self.wlow, self.whigh))
            m |= {"adv_abs": jnp.mean(jnp.abs(adv)), "w_min": jnp.mean(w < 0.5)}
        else:
            w = jnp.ones_like(qc_d)
        lc = cost_of(a)

        def aloss(actor, anchor):
            mode = actor.mode(s)
            x = self.noisy(mode, k2, self.actor_noise)
            qr, qc = smaller_value(critics.reward, s, x), cost_of(x)
            ww = w
            if "mc" in self.anchor_to:
                ec = batch.extras["episode"][:, 0]
                ww = ww * ((ec <= jnp.maximum(l, jnp.quantile(ec, self.safe_share))) + self.tail)
            if "safe" in self.anchor_to:
                ww = ww * ((lc <= jnp.maximum(aim, jnp.quantile(lc, self.safe_share))) + self.tail)
            elif "relative" in self.anchor_to:
                ww = ww * ((lc <= jnp.maximum(aim, jax.lax.stop_gradient(qc))) + 1e-3)
            ww = jax.lax.stop_gradient(ww / jnp.mean(ww))
            d = jnp.mean((mode - a) ** 2, -1)
            obj = penalised_value(qr, qc, aim, self.recovery_weight)
            on = jnp.where(state.step < self.warm, 0.0, 1.0)
            on = on * jnp.minimum(1.0, (state.step + 1 - self.warm) / max(self.ramp, 1))
            loss = -on * jnp.mean(obj) + anchor * jnp.mean(ww * d)
            return loss, {"qr_policy": qr.mean(), "qc_policy": qc.mean(), "indicator": jnp.mean(qc <= aim), "actor_loss": loss, "dist": jnp.sqrt(jnp.mean(ww * d)), "safe_logged": jnp.mean(lc <= aim)}
        grad, am = jax.grad(aloss, has_aux=True)(state.actor, self.anchor)
        actor, aopt = self._actor_adam.step(grad, state.actor_optimiser, state.actor)
        price = state.price
        if self.second_actor > 0:
            grad, _ = jax.grad(aloss, has_aux=True)(price[0], self.second_actor)
            price = self._actor_adam.step(grad, price[1], price[0])
        since = jnp.maximum(state.step - self.warm, 0)
        rate = jnp.where(state.step < self.warm, 1.0, self.average_power / (self.average_power + since))
        after = replace(state, critics=critics, targets=polyak(state.targets, critics, self.tau), actor=actor,
                        critic_optimiser=copt, actor_optimiser=aopt, pace=pace, value=value, price=price, step=state.step + 1,
                        averaged_actor=polyak(state.averaged_actor, actor, rate))
        return after, {"qc_data": qc_d.mean(), "qr_data": qr_d.mean(), **am, **m}

    @property
    def _critic_adam(self):
        return Sched(self.learning_rate, self.steps_planned) if self.decay else CPQ._critic_adam.fget(self)

    @property
    def _actor_adam(self):
        return Sched(self.actor_learning_rate, self.steps_planned) if self.decay else CPQ._actor_adam.fget(self)

    def policy_actor(self, state):
        return state.averaged_actor

    def diagnose(self, state, sample, key):
        return {}

    def warnings(self, stage, history):
        return []
