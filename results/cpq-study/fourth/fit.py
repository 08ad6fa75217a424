import os, sys, time, json
import jax, jax.numpy as jnp, numpy as np, equinox as eqx
from ringfence.training.compilation import use_compilation_cache
use_compilation_cache()
from ringfence.data import load_file
from ringfence.networks import MLP
from ringfence.algorithms.optimise import Adam
LOGS = os.environ["LOGS"]
task, hidden, ln, steps, batch, rate, seed, out = sys.argv[1], tuple(map(int, sys.argv[2].split('x'))), bool(int(sys.argv[3])), int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]), int(sys.argv[7]), (sys.argv[8] if len(sys.argv) > 8 else None)
log = load_file(f"{LOGS}/{task}.h5")
nm = log.normaliser
S = ((log.observations - nm.mean) / nm.std).astype(np.float32); S2 = ((log.next_observations - nm.mean) / nm.std).astype(np.float32)
A = log.actions.astype(np.float32)
d = (S2 - S).std(0)
rs = [float(log.rewards.mean()), float(np.abs(log.rewards).mean())]; cs = [float(log.costs.mean()), max(float(log.costs.mean()), 1e-3) * .5]
Y = np.concatenate([(S2 - S) / d, ((log.rewards - rs[0]) / rs[1])[:, None], ((log.costs - cs[0]) / cs[1])[:, None], log.terminations[:, None]], 1).astype(np.float32)
X = np.concatenate([S, A], 1)
starts, ends = log.episode_starts, log.episode_ends
rng = np.random.default_rng(0)
held = rng.random(len(starts)) < 0.05
rep = np.repeat(np.arange(len(starts)), ends - starts)
test = np.flatnonzero(held[rep]); 
boot = np.random.default_rng(100 + seed).random(len(starts)) < 0.8
train = np.flatnonzero(~held[rep] & boot[rep])
X, Y = jnp.asarray(X), jnp.asarray(Y)
tr = jnp.asarray(train)
net = MLP(X.shape[1], Y.shape[1], hidden, normalise=ln, key=jax.random.key(seed))
def loss(net, i):
    raw, y = net(X[i]), Y[i]
    return ((raw[:, :-1] - y[:, :-1]) ** 2).mean(0).sum() + (jax.nn.softplus(raw[:, -1]) - y[:, -1] * raw[:, -1]).mean()
adam = Adam(rate)
@jax.jit
def run(net, opt, avg, t0, X, Y, tr):
    def one(i, c):
        net, opt, avg = c
        idx = tr[jax.random.randint(jax.random.fold_in(jax.random.key(seed + 7), i), (batch,), 0, tr.shape[0])]
        def loss(net):
            raw, y = net(X[idx]), Y[idx]
            return ((raw[:, :-1] - y[:, :-1]) ** 2).mean(0).sum() + (jax.nn.softplus(raw[:, -1]) - y[:, -1] * raw[:, -1]).mean()
        net, opt = adam.step(jax.grad(loss)(net), opt, net)
        k = 4.0 / (4.0 + i)
        return net, opt, jax.tree.map(lambda a, b: a + k * (b - a), avg, net)
    return jax.lax.fori_loop(t0, t0 + steps // 4, one, (net, opt, avg))
opt = adam.init(net); avg = net
t = time.time(); c0 = time.process_time()
te = jnp.asarray(test[:20000])
for q in range(4):
    net, opt, avg = run(net, opt, avg, q * (steps // 4), X, Y, tr)
    raw = avg(X[te]); e = np.asarray(((raw[:, :-1] - Y[te][:, :-1]) ** 2).mean(0)); 
    vr = float(np.var(np.asarray(Y[te][:, -3])))
    print(task, hidden, ln, (q + 1) * steps // 4, "unexplained", round(float(e[:-2].mean()), 5), "worst", round(float(e[:-2].max()), 4), "r", round(float(e[-2]) / vr, 5), "c", round(float(e[-1]), 5), f"{time.process_time() - c0:.0f}s", flush=True)
if out:
    leaves = jax.tree.leaves(avg)
    np.savez(out, *[np.asarray(x) for x in leaves], hidden=np.asarray(hidden), d=d, rs=rs, cs=cs)
