"""The default with an effective limit: what chains of the policy in a fitted model cost, fed back."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import jax, jax.numpy as jnp
from ringfence.algorithms.cpq_departures import CPQ, AveragedState, safe_weights
from ringfence.algorithms.optimise import Adam
from ringfence.networks import MLP, tanh_log_prob, polyak, pairs


class CState(AveragedState):
    model: Any
    mopt: Any
    mavg: Any
    scale: Any      # of changes
    low: Any
    high: Any
    chain: Any
    age: Any
    disc: Any
    pace: Any
    J: Any
    edge: Any       # effective limit


@dataclass(frozen=True)
class Proto(CPQ):
    name: ClassVar[str] = "proto9"
    hidden: tuple = (128, 128)
    steps_planned: int = 15000
    kind: str = "mse"
    smooth: float = 0.02
    chains: int = 128
    reach: int = 300
    feedback: float = 5e-4
    after: int = 1500
    least: float = 0.6
    most: float = 1.3
    aim: float = 0.98
    model_rate: float = 2e-3
    horizon_known: int = 1000
    both: bool = True
    decay: float = 0.0

    @property
    def _model_adam(self): return Adam(self.model_rate)

    def init(self, key, limit, spec):
        st = super().init(key, limit, spec)
        n = spec.observation_dim
        m = MLP(n + spec.action_dim, n + 1, self.hidden, normalise=True, key=jax.random.fold_in(key, 77))
        M = self.chains
        age = jax.random.randint(jax.random.fold_in(key, 78), (M,), 0, self.reach)
        z = jnp.zeros
        return CState(**vars(st), model=m, mopt=self._model_adam.init(m), mavg=m, scale=jnp.ones((n + 1,)), low=z((n,)), high=z((n,)),
                      chain=z((M, n)), age=age, disc=z((M,)), pace=jnp.full((2,), limit * 0.01, jnp.float32), J=jnp.full((2,), limit, jnp.float32), edge=jnp.asarray(limit, jnp.float32))

    def learn_model(self, st, batch):
        y = jnp.concatenate([batch.next_observations - batch.observations, batch.costs[:, None]], -1)
        r = jnp.maximum(0.001, 1.0 / (1.0 + jnp.sum(st.mopt[0].count if isinstance(st.mopt, tuple) and hasattr(st.mopt[0], "count") else 1000)))
        scale = jnp.sqrt((1 - 0.01) * st.scale**2 + 0.01 * jnp.mean(y**2, 0)) + 1e-6
        def loss(m):
            p = m(pairs(batch.observations, batch.actions))
            return jnp.mean((p - y / scale) ** 2)
        val, g = jax.value_and_grad(loss)(st.model)
        m, o = self._model_adam.step(g, st.mopt, st.model)
        return replace(st, model=m, mopt=o, mavg=polyak(st.mavg, m, 0.002), scale=scale, low=jnp.minimum(st.low, batch.observations.min(0)), high=jnp.maximum(st.high, batch.observations.max(0))), val

    def update_detector(self, state, batch, key):
        state, m = super().update_detector(state, batch, key)
        state, val = self.learn_model(state, batch)
        return state, {**m, "model_loss": val}

    def advance(self, st, batch):
        M = self.chains
        half = lambda x: x.reshape(2, M // 2, *x.shape[1:])
        x = half(st.chain)
        a = jnp.concatenate([st.actor.mode(x[0]), st.averaged_actor.mode(x[1])])
        out = st.mavg(pairs(st.chain, a)) * st.scale
        c = jnp.maximum(out[:, -1], 0.0)
        raw = st.chain + out[:, :-1]
        nxt = jnp.clip(raw, st.low, st.high)
        lost = jnp.any((raw < st.low - 0.1 * (st.high - st.low)) | (raw > st.high + 0.1 * (st.high - st.low)), -1)
        late = st.age >= self.reach // 2
        n = half(late).sum(1)
        pace = jnp.where(n > 0, st.pace + 0.005 * (half(late * c).sum(1) / jnp.maximum(n, 1) - st.pace), st.pace)
        disc = st.disc + self.discount ** st.age * c
        done = st.age + 1 >= self.reach
        k = half(done).sum(1)
        full = half(done * disc).sum(1) / jnp.maximum(k, 1) + self.discount ** self.reach * pace / (1 - self.discount)
        J = jnp.where((k > 0) & (st.step > self.reach), st.J + 0.01 * jnp.minimum(k, 5) * (full - st.J), st.J)
        again = done | lost
        chain = jnp.where(again[:, None], batch.starts[:M], nxt)
        u = jnp.maximum(J, pace / (1 - self.discount)).max()
        edge = jnp.clip(st.edge + self.feedback / (1.0 + self.decay * st.step) * (self.aim * st.limit - u) * (st.step > self.after), self.least * st.limit, self.most * st.limit)
        return replace(st, chain=chain, age=jnp.where(again, 0, st.age + 1), disc=jnp.where(again, 0.0, disc), pace=pace, J=J, edge=edge), {"pace": pace[0] * 100, "pace_avg": pace[1] * 100, "J": J[1], "edge": edge, "lost": lost.mean() * self.reach}

    def update(self, state, batch, key):
        after, m = super().update(state, batch, key)
        after, val = self.learn_model(after, batch)
        after, cm = self.advance(after, batch)
        return after, {**m, **cm, "model_loss": val}

    def actor_loss(self, actor, critics, batch, state, key):
        loss, actions, metrics = self.objective_loss(actor, critics, batch, state.edge, key)
        logged_cost = critics.cost(batch.observations, batch.actions)
        w = safe_weights(logged_cost, state.edge, self.unsafe_anchor)
        d = actions[0] - batch.actions
        if self.kind == "l1": a = jnp.mean(w[:, None] * jnp.sqrt(d**2 + self.smooth**2))
        elif self.kind == "mse": a = jnp.mean(w[:, None] * d**2)
        loss += state.anchor * a
        return loss, {**metrics, "actor_loss": loss, "dist": jnp.sqrt(jnp.mean(d**2))}
