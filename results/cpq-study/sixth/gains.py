import numpy as np, sys
from ringfence.evaluation import Evaluator
from ringfence.behaviour.shipped import shipped_policy
task=sys.argv[1]
ev = Evaluator(f"{task}-torque", parallel=10)
s=shipped_policy(f"{task}-torque","safe"); u=shipped_policy(f"{task}-torque","unsafe")
def run(name,f):
    r=ev(f,10,seed=900,limit=50,discount=.99)
    print(task,name,round(r.returns.mean()),"@",round(r.discounted_costs.mean(),1),round(r.costs.sum()/r.lengths.sum(),3),round(r.lengths.mean()),flush=True)
for k in (1.05,1.1,1.2,1.3,1.5): run(f"safe x{k}",lambda o:np.clip(k*np.asarray(s(o)),-1,1))
for p in (1.1,1.25,1.5): 
    run(f"safe tanh x{p}",lambda o:(lambda a:np.tanh(p*np.arctanh(np.clip(a,-.999,.999))))(np.asarray(s(o))))
for k in (.9,.8): run(f"unsafe x{k}",lambda o:k*np.asarray(u(o)))
