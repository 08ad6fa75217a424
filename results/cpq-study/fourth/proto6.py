"""Models fitted before (model-TASK-k.npz); one imagined step, the worse of two models' words; particles."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
import proto4, proto5
from ringfence.algorithms.cpq_departures import CPQ, penalised_value, safe_weights
from ringfence.algorithms.interface import Stage, Export
from ringfence.networks import MLP, TanhGaussianActor, polyak


def load(task, k):
    z = np.load(f"model-{task}-{k}.npz")
    arr = [z[f"arr_{i}"] for i in range(len(z.files) - 4)]
    hidden = tuple(int(x) for x in z["hidden"])
    net = MLP(arr[0].shape[0], arr[-1].shape[0], hidden, normalise=True, key=jax.random.key(0))
    tree = jax.tree.structure(net)
    return jax.tree.unflatten(tree, [jnp.asarray(a) for a in arr]), z


class S6(eqx.Module):
    limit: Any
    models: Any
    scale: Any
    values: Any
    targets: Any
    vopt: Any
    actor: TanhGaussianActor
    aopt: Any
    averaged_actor: TanhGaussianActor
    step: Any
    pool: Any
    edge: Any


@dataclass(frozen=True)
class Proto(proto5.Proto):
    name: ClassVar[str] = "proto6"
    task: str = "halfcheetah"
    members: int = 4
    tau: float = 0.05
    worse_r: float = 1.0
    worse_c: float = 1.0
    k_r: float = 0.0
    k_c: float = 0.0
    pool_actor: float = 1.0   # weight of the objective at particles
    pool_anchor: float = 0.0
    start_particles: bool = True

    def columns(self, log): return {}

    def init(self, key, limit, spec):
        ks = jax.random.split(key, 8)
        n = spec.observation_dim
        both = [load(self.task, k) for k in range(self.members)]
        z = both[0][1]
        horizon = 1 / (1 - self.discount)
        v = tuple(MLP(n, 1, self.hidden, normalise=True, key=ks[i]) for i in range(3))
        actor = TanhGaussianActor(n, spec.action_dim, self.hidden, key=ks[3])
        rs, cs = z["rs"], z["cs"]
        scale = dict(delta=jnp.asarray(z["d"]), r=jnp.asarray(rs, jnp.float32), c=jnp.asarray(cs, jnp.float32),
                     vr=jnp.asarray([rs[0] * horizon, rs[1] * horizon], jnp.float32), vc=jnp.asarray([cs[0] * horizon, cs[0] * horizon], jnp.float32))
        return S6(jnp.asarray(limit, jnp.float32), tuple(b[0] for b in both), scale, v, v, self._critic_adam.init(v), actor,
                  self._actor_adam.init(actor), actor, jnp.zeros((), jnp.int32), jnp.zeros((self.particles, n)), jnp.ones(()))

    def stages(self, steps):
        return (Stage("model", 1, lambda s, b, k: (s, {"detector_loss": jnp.zeros(())}), self.calibrate), Stage("policy", steps, self.update))

    def calibrate(self, state, batch, key):
        u = self.disagreement(self.raw(state.models[:2], batch.observations, batch.actions))
        return replace(state, edge=jnp.quantile(u, self.quantile), pool=batch.observations[: self.particles]), {"u99": jnp.quantile(u, .99)}

    def look(self, actor, state, s, l):
        g, sc = self.discount, state.scale
        a = actor.mode(s)
        K = self.members
        xs, as_ = jnp.split(s, K), jnp.split(a, K)
        R, C, nxt, us, conts = [], [], [], [], []
        for i in range(K):
            raws = self.raw((state.models[i], state.models[(i + 1) % K]), xs[i], as_[i])
            u = self.disagreement(raws) / state.edge
            e = jnp.minimum(jnp.maximum(u - 1.0, 0.0), self.cap)
            both = []
            for raw in raws:
                x, r, c, cont = self.told(raw, sc, xs[i])
                vr, vc = self.values_of(state.targets, sc, x)
                both.append((r + g * cont * vr, c + g * (cont * vc + (1 - cont) * self.end * l), x, cont))
            (r1, c1, x1, k1), (r2, c2, x2, k2) = both
            R.append(0.5 * (r1 + r2) - 0.5 * self.worse_r * jnp.abs(r1 - r2) - self.k_r * sc["r"][1] * e)
            C.append(0.5 * (c1 + c2) + 0.5 * self.worse_c * jnp.abs(c1 - c2) + self.k_c * l * (1 - g) * e)
            nxt.append(x1); us.append(u); conts.append(k1)
        cat = jnp.concatenate
        return cat(R), cat(C), a, cat(nxt), cat(us), cat(conts)

    def update(self, state, batch, key):
        k1, k2, k3, k4 = jax.random.split(key, 4)
        l, sc, B, P = state.limit, state.scale, batch.observations.shape[0], self.particles
        # each model sees data and particles: interleave
        order = jax.random.permutation(k4, B + P)
        back = jnp.argsort(order)
        s = jnp.concatenate([batch.observations, state.pool])[order]
        a = batch.actions
        logged = jax.lax.stop_gradient(self.logged_cost(state, batch))
        w = safe_weights(logged, l, self.unsafe_anchor)

        def aloss(actor):
            qr, qc, x, nxt, us, cont = jax.tree.map(lambda y: y[back], self.look(actor, state, s, l))
            d = jnp.mean((x[:B] - a) ** 2, -1)
            obj = penalised_value(qr, qc, l, self.recovery_weight)
            obj = jnp.where(jnp.arange(B + P) < B, obj, self.pool_actor * obj)
            loss = -jnp.mean(obj) + self.anchor * jnp.mean(w * d)
            return loss, (qr, qc, nxt, us, cont, {"qr_policy": qr.mean(), "qc_policy": qc.mean(), "indicator": jnp.mean(qc <= l), "actor_loss": loss, "dist": jnp.sqrt(jnp.mean(w * d)),
                "safe_logged": jnp.mean(logged <= l), "u": us[:B].mean(), "u_pool": us[B:].mean(), "over": (us[B:] > 1).mean(), "pool_r": qr[B:].mean(), "pool_c": qc[B:].mean()})
        grad, (qr, qc, nxt, us, cont, am) = jax.grad(aloss, has_aux=True)(state.actor)
        actor, aopt = self._actor_adam.step(grad, state.aopt, state.actor)
        tr = jax.lax.stop_gradient((qr - sc["vr"][0]) / sc["vr"][1]); tc = jax.lax.stop_gradient((qc - sc["vc"][0]) / sc["vc"][1])
        s0 = jnp.concatenate([batch.observations, state.pool])

        def vloss(v):
            return jnp.mean((v[0](s0)[:, 0] - tr) ** 2) + jnp.mean((v[1](s0)[:, 0] - tr) ** 2) + jnp.mean((v[2](s0)[:, 0] - tc) ** 2)
        val, grad = jax.value_and_grad(vloss)(state.values)
        values, vopt = self._critic_adam.step(grad, state.vopt, state.values)
        went = nxt[B:]
        ended = jax.random.uniform(k2, (P,)) > cont[B:] * (1 - self.reset)
        ended |= us[B:] > self.leave
        ended |= jnp.any(jnp.abs(went) > 8, -1)
        fresh = jnp.where((jax.random.uniform(k3, (P,)) < self.from_starts)[:, None], batch.starts[:P], batch.observations[:P])
        pool = jax.lax.stop_gradient(jnp.where(ended[:, None], fresh, went))
        after = replace(state, actor=actor, aopt=aopt, values=values, vopt=vopt, targets=polyak(state.targets, values, self.tau), step=state.step + 1, pool=pool,
                        averaged_actor=polyak(state.averaged_actor, actor, 2.0 / (2.0 + state.step)))
        return after, {"vloss": val, "ended": ended.mean(), **am}
