"""Logged next actions in the targets: a departure at the next state is pessimistic (after ReBRAC, Tarasov et al. 2023)."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import proto
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
from ringfence.algorithms.cpq import PaperCPQ, cost_bellman_target
from ringfence.algorithms.cpq_departures import CPQ, penalised_value, safe_weights, averaging_rate, AveragedState
from ringfence.algorithms.critics import Critics, fresh_critics, smaller_value
from ringfence.algorithms.interface import Stage
from ringfence.networks import polyak, MLP, Linear, TanhGaussianActor


class GState(AveragedState):
    gcls: Any
    gopt: Any


class SumActor(eqx.Module):
    base: TanhGaussianActor
    res: MLP
    def mean(self, s, stop=False):
        m = self.base(s).mean
        return (jax.lax.stop_gradient(m) if stop else m) + self.res(s)
    def mode(self, s, stop=False): return jnp.tanh(self.mean(s, stop))
    def __call__(self, s):
        g = self.base(s)
        return g._replace(mean=g.mean + self.res(s))

    def joined(self):
        b, r = self.base.mlp.layers, self.res.layers
        act = r[-1].bias.shape[-1]
        n = len(b)
        out = []
        for i, (x, y) in enumerate(zip(b, r)):
            if i == 0: w, c = jnp.concatenate([x.weight, y.weight], -1), jnp.concatenate([x.bias, y.bias], -1)
            elif i < n - 1:
                w = jnp.zeros((x.weight.shape[0] + y.weight.shape[0], x.weight.shape[1] + y.weight.shape[1]))
                w = w.at[:x.weight.shape[0], :x.weight.shape[1]].set(x.weight).at[x.weight.shape[0]:, x.weight.shape[1]:].set(y.weight)
                c = jnp.concatenate([x.bias, y.bias], -1)
            else:
                yw = jnp.concatenate([y.weight, jnp.zeros((y.weight.shape[0], x.weight.shape[1] - act))], -1)
                w, c = jnp.concatenate([x.weight, yw], 0), x.bias + jnp.concatenate([y.bias, jnp.zeros(x.weight.shape[1] - act)])
            out.append(Linear(w, c))
        return eqx.tree_at(lambda a: a.mlp.layers, self.base, tuple(out))


@dataclass(frozen=True)
class Proto(CPQ):
    name: ClassVar[str] = "proto3"
    hidden: tuple = (128, 128)
    cvae_steps: int = 10
    tau: float = 0.02
    steps_planned: int = 15000
    pen_r: float = 0.0        # in mean rewards per sigma^2 of departure
    pen_c: float = 0.0        # in limits' pace per sigma^2
    pen_safe: bool = False    # only where the logged next action is safe
    mix: float = 0.0          # probability of backing up the logged next action
    mix_where: str = "all"    # all / unsafe
    norm: str = "mean"        # how anchor's distance is scaled: mean / sigma
    actor_noise: float = 0.0
    rate_fall: bool = False
    residual: int = 0
    nstep: int = 1
    limit_known: float = 0.0
    rcap: float = 0.0         # largest displacement by the reward, in the log's own deviations
    gate: float = -1.0        # weight of unsafe rows where no safe alternative is logged; < 0: off
    least: float = 0.1
    nmix: float = 1.0
    res_rate: float = 1.0
    lift: float = 0.0         # least share of the log that counts as safe in the penalty
    square: bool = False
    agree: str = "min"        # min / minmod / mean
    aux: float = 0.0          # anchor of the actor that the critics evaluate
    aux_unsafe: float = 1.0

    def columns(self, log):
        N = len(log)
        ends = log.episode_ends
        last = np.zeros(N, bool); last[ends - 1] = True
        nxt = np.minimum(np.arange(N) + 1, N - 1)
        act = np.asarray(log.actions, np.float32)
        space = getattr(log, "action_scaler", None)
        extra = {}
        if self.gate >= 0:
            g, N = self.discount, len(log)
            st, en = log.episode_starts, log.episode_ends
            cost = log.cost_to_go(g)[st]
            term = log.terminations[en - 1]
            lim = self.limit_known
            cost = cost + term * g ** (en - st) * lim
            edge = max(lim, np.quantile(cost, self.least))
            extra["label"] = np.repeat(cost <= edge, en - st).astype(np.float32)[:, None]
        if self.nstep > 1:
            o = proto.Proto(ahead=self.nstep, discount=self.discount).columns(log)
            extra = {"ahead": o["ahead"], "later": o["later"]}
        return {**extra, "next_action": act[nxt] * (~last)[:, None], "has_next": (~last).astype(np.float32)[:, None]}

    def init(self, key, limit, spec):
        st = super().init(key, limit, spec)
        if self.gate >= 0:
            c = MLP(spec.observation_dim, 1, self.hidden, normalise=True, key=jax.random.fold_in(key, 9))
            st = GState(**vars(st), gcls=c, gopt=self._critic_adam.init(c))
        if not self.residual: return st
        res = MLP(spec.observation_dim, spec.action_dim, (self.residual,) * len(self.hidden), key=jax.random.fold_in(key, 5))
        res = eqx.tree_at(lambda m: m.layers[-1], res, replace_fn=lambda l: jax.tree.map(lambda x: 0 * x, l))
        actor = SumActor(st.actor, res)
        return replace(st, actor=actor, averaged_actor=actor, actor_optimiser=self._actor_adam.init(actor))

    def stages(self, steps):
        return (Stage("policy", steps, self.update),)

    def update(self, state, batch, key):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        s, a, l, g = batch.observations, batch.actions, state.limit, self.discount
        sn = batch.next_observations
        na_log, has = batch.extras["next_action"], batch.extras["has_next"][:, 0]
        mode_n = state.actor.mode(sn)
        noisy = jnp.clip(mode_n + self.target_noise * jax.random.normal(k1, a.shape), -1, 1)
        dep = has * jnp.mean((mode_n - na_log) ** 2, -1)   # E = sigma^2 + departure^2
        base = 0.0225
        if self.mix > 0:
            take = (jax.random.uniform(k3, has.shape) < self.mix) & (has > 0)
            if self.mix_where == "unsafe":
                take = take & (state.targets.cost(sn, na_log) > l)
            noisy = jnp.where(take[:, None], na_log, noisy)
            dep = jnp.where(take, 0.0, dep)
        if self.pen_safe:
            dep = dep * (state.targets.cost(sn, na_log) <= l)
        done = 1 - batch.continues
        ct = cost_bellman_target(state.targets.cost, batch, noisy, g) + g * done * l
        ct = ct + self.pen_c * l * (1 - g) * dep / base
        rt = batch.rewards + g * batch.continues * smaller_value(state.targets.reward, sn, noisy)
        if self.nstep > 1:
            rn, cn, gk, cont = (batch.extras["ahead"][:, i] for i in range(4))
            later = batch.extras["later"]
            la = jnp.clip(state.actor.mode(later) + self.target_noise * jax.random.normal(k4, a.shape), -1, 1)
            rt2 = rn + gk * cont * smaller_value(state.targets.reward, later, la)
            ct2 = cn + gk * (cont * state.targets.cost(later, la) + (1 - cont) * l)
            rt, ct = rt + self.nmix * (rt2 - rt), ct + self.nmix * (ct2 - ct)
        rmean = jnp.mean(jnp.abs(batch.rewards))
        rt = rt - self.pen_r * rmean * dep / base

        def closs(c):
            qc = c.cost(s, a)
            q1, q2 = c.reward[0](s, a), c.reward[1](s, a)
            return jnp.mean((qc - ct) ** 2) + jnp.mean((q1 - rt) ** 2) + jnp.mean((q2 - rt) ** 2), (qc, q1)
        grad, (qc_d, qr_d) = jax.grad(closs, has_aux=True)(state.critics)
        critics, copt = self._critic_adam.step(grad, state.critic_optimiser, state.critics)
        lc = critics.cost(s, a)
        more = {}
        if self.gate >= 0:
            y = batch.extras["label"][:, 0]
            def bce(n):
                z = n(s)[:, 0]
                return jnp.mean(jnp.logaddexp(0.0, z) - y * z)
            gr = jax.grad(bce)(state.gcls)
            cls, cls_opt = self._critic_adam.step(gr, state.gopt, state.gcls)
            more = {"gcls": cls, "gopt": cls_opt}
            p = jax.nn.sigmoid(state.gcls(s)[:, 0])
            gw = jnp.where(y > 0, 1.0, self.gate * jnp.maximum(1 - 2 * p, 0.0))
            gw = gw / jnp.mean(gw)

        def aloss(actor):
            mode = actor.mode(s, True) if self.residual else actor.mode(s)
            x = jnp.clip(mode + self.actor_noise * jax.random.normal(k2, a.shape), -1, 1) if self.actor_noise else mode
            qr, qc = smaller_value(critics.reward, s, x), critics.cost(s, x)
            ww = jax.lax.stop_gradient(safe_weights(lc, l, self.unsafe_anchor))
            if self.gate >= 0: ww = jax.lax.stop_gradient(gw)
            d = jnp.mean((mode - a) ** 2, -1)
            g1, g2 = (jax.grad(lambda y: c(s, y).sum())(jax.lax.stop_gradient(x)) for c in critics.reward)
            cos = jnp.sum(g1 * g2, -1) / (jnp.linalg.norm(g1, axis=-1) * jnp.linalg.norm(g2, axis=-1) + 1e-8)
            edge = jax.lax.stop_gradient(jnp.maximum(l, jnp.quantile(lc, self.lift))) if self.lift else l
            if self.agree == "min":
                obj = penalised_value(qr, qc, edge, self.recovery_weight)
                if self.square:
                    scale = jax.lax.stop_gradient(jnp.mean(jnp.abs(qr))) + 1e-6
                    e = jnp.maximum(qc - edge, 0) / edge
                    obj = qr / scale - self.recovery_weight * 0.5 * e * e
            else:
                gg = jnp.where(g1 * g2 > 0, jnp.sign(g1) * jnp.minimum(jnp.abs(g1), jnp.abs(g2)), 0.0) if self.agree == "minmod" else 0.5 * (g1 + g2)
                if self.agree.startswith("cos"): gg = 0.5 * (g1 + g2) * (jnp.maximum(cos, 0)[:, None] ** int(self.agree[3:] or 1))
                lin = jnp.sum(jax.lax.stop_gradient(gg) * x, -1)
                scale = jax.lax.stop_gradient(jnp.mean(jnp.abs(qr))) + 1e-6
                obj = lin / scale - self.recovery_weight * jnp.maximum(qc - l, 0.0) / l
            if self.rcap:
                D = a.shape[-1]
                scale = jax.lax.stop_gradient(jnp.mean(jnp.abs(qr))) + 1e-6
                gr_ = jax.grad(lambda y: smaller_value(critics.reward, s, y).sum())(jax.lax.stop_gradient(x)) / scale
                sigma = jax.lax.stop_gradient(jnp.sqrt(jnp.mean(ww * d)))
                size = jnp.linalg.norm(gr_, axis=-1) / D**0.5 * D / (2 * self.anchor)
                part = jnp.minimum(1.0, self.rcap * sigma / (size + 1e-8))
                lin = jnp.sum(jax.lax.stop_gradient(gr_ * part[:, None]) * x, -1)
                obj = obj - qr / scale + lin
            loss = -jnp.mean(obj) + self.anchor * jnp.mean(ww * d) 
            if self.residual: loss = loss + jnp.mean(ww[:, None] * (actor.base.mode(s) - a) ** 2)
            return loss, {"qr_policy": qr.mean(), "qc_policy": qc.mean(), "indicator": jnp.mean(qc <= l), "actor_loss": loss, "dist": jnp.sqrt(jnp.mean(ww * d)), "safe_logged": jnp.mean(lc <= l), "adv_abs": jnp.sqrt(dep.mean()), "verr_r": jnp.mean(size / sigma) if self.rcap else 0.0, "verr_c": jnp.mean(part < 1) if self.rcap else 0.0, "ar": cos.mean(), "ac": jnp.mean(jnp.linalg.norm(g1, axis=-1)) / (jnp.mean(jnp.abs(qr)) + 1e-6)}
        grad, am = jax.grad(aloss, has_aux=True)(state.actor)
        actor, aopt = self._actor_adam.step(grad, state.actor_optimiser, state.actor)
        after = replace(state, critics=critics, targets=polyak(state.targets, critics, self.tau), actor=actor, critic_optimiser=copt, actor_optimiser=aopt,
                        **more, step=state.step + 1, averaged_actor=polyak(state.averaged_actor, actor, averaging_rate(state.step)))
        return after, am

    def export(self, state):
        from ringfence.algorithms.interface import Export
        return Export("tanh-gaussian", {"actor": state.averaged_actor.joined() if self.residual else state.averaged_actor}, {})

    def warnings(self, stage, history): return []
    def diagnose(self, state, sample, key): return {}
