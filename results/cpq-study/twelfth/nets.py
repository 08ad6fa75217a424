"""What one, two and three networks say of a trained actor and of the clone, with noise, and what is true.

PYTHONPATH=../../../src python nets.py TASK STEPS LIMIT-SEED-NAME,... GAINS NOISES LOGS STATES

LIMIT-SEED-NAME,... name actors that run.py wrote into STATES (those of nets.txt were of the default before and were not kept). nets.txt is what it printed: for each policy the truth
(return / cost per step / length), then for each noise the first, second and third network, the mean of two and of three."""

import sys, time, json
import jax, numpy as np, jax.numpy as jnp, equinox as eqx
from ringfence.data import load_file
from ringfence.evaluation.ope import dynamics as D
from ringfence.evaluation import Evaluator
from ringfence.networks import TanhGaussianActor
task=sys.argv[1]; steps=int(sys.argv[2]); pols=sys.argv[3].split(","); gains=[float(g) for g in sys.argv[4].split(",")]; noises=[float(g) for g in sys.argv[5].split(",")]
LOGS, STATES = sys.argv[6], sys.argv[7]
log=load_file(f"{LOGS}/{task}.h5"); mean, std = log.normaliser.mean, log.normaliser.std
columns = np.concatenate([log.observations, log.actions], 1); changes = log.next_observations - log.observations
signals = np.stack([log.rewards, log.costs], 1)
inputs, outputs = (D._scaling(x) for x in (columns, np.concatenate([changes, signals], 1)))
x = jnp.asarray((columns - inputs[0]) / inputs[1]); scaled = (np.concatenate([changes, signals], 1) - outputs[0]) / outputs[1]
y = jnp.asarray(np.concatenate([scaled, log.terminations[:, None]], 1), jnp.float32)
t=time.time(); nets=[D._fit(x,y,jnp.arange(len(x)),jax.random.key(i),steps) for i in range(3)]; jax.block_until_ready(nets[2].layers[0].weight); print("fit of 3",round(time.time()-t),flush=True)
rng=np.random.default_rng(0); rows=rng.choice(len(x),20000,replace=False)
p=np.asarray(jax.jit(lambda x: jnp.stack([n(x) for n in nets]))(x[rows])); 
mse=lambda q: ((q[:,:-1]-np.asarray(y[rows])[:,:-1])**2).mean(0)
print("unexplained one", mse(p[0]).mean(), "two", mse(p[:2].mean(0)).mean(), "three", mse(p.mean(0)).mean())
starts=log.observations[rng.choice(log.episode_starts,64,replace=True)]; low,high=log.observations.min(0),log.observations.max(0)
ci,si=inputs; co,so=outputs
def imagine(actor, gain, noise, w, resid, key):
    def step(carry,t):
        o,tot,alive=carry
        a=jnp.tanh(gain*actor((o-mean)/std).mean)
        z=jnp.stack([n((jnp.concatenate([o,a],1)-ci)/si) for n in nets])
        out=jnp.tensordot(w,z,1)
        pr=out[:,:-1]*so+co
        o2=o+pr[:,:-2]+noise*resid[:-2]*jax.random.normal(jax.random.fold_in(key,t),o.shape)
        o2=jnp.clip(o2,low,high)
        return (o2, tot+alive*jnp.stack([pr[:,-2],jnp.maximum(pr[:,-1],0),jnp.ones(64)]), alive*(out[:,-1]<0)),None
    (_,tot,_),_=jax.lax.scan(step,(starts,jnp.zeros((3,64)),jnp.ones(64)),jnp.arange(1000))
    return tot.mean(1)
im=eqx.filter_jit(imagine)
W=[[1,0,0],[0,1,0],[0,0,1],[.5,.5,0],[1/3,1/3,1/3]]
ev=Evaluator(f"{task}-torque", parallel=10)
for pn in pols:
    blank=TanhGaussianActor(log.observations.shape[1],log.actions.shape[1],(128,128),key=jax.random.key(0))
    averaged,clone=eqx.tree_deserialise_leaves(f"{STATES}/{task}-{pn}.eqx",(blank,blank))
    for name,actor in (("avg",averaged),("clone",clone)):
        for g in (gains if name=="avg" else [1.0]):
            run=jax.jit(lambda s: jnp.tanh(g*actor(s).mean))
            f=ev(lambda o: jax.device_get(run((o-mean)/std)),20,seed=50000,limit=30.,discount=.99)
            print(pn,name,g,f"TRUE {f.returns.mean():.0f}/{f.costs.sum()/f.lengths.sum():.3f}/{f.lengths.mean():.0f}")
            for noise in noises:
                row=[]
                for w in W:
                    resid=np.sqrt(mse(np.tensordot(np.array(w),p,1)))*so
                    m=np.asarray(im(actor,jnp.float32(g),jnp.float32(noise),jnp.asarray(w,jnp.float32),resid,jax.random.key(0)))
                    row.append(f"{m[0]:.0f}/{m[1]/m[2]:.3f}/{m[2]:.0f}")
                print("    ",noise,*row,flush=True)
