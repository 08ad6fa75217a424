import numpy as np, sys
from ringfence.evaluation import Evaluator
from ringfence.behaviour.shipped import shipped_policy
task=sys.argv[1]
ev = Evaluator(f"{task}-torque", parallel=10)
s=shipped_policy(f"{task}-torque","safe"); u=shipped_policy(f"{task}-torque","unsafe")
class Sw:
    """switch by time: schedule list of (t, which)"""
    def __init__(self, f): self.f=f; self.t=0
    def __call__(self,o):
        a=np.asarray(s(o)); b=np.asarray(u(o)); w=self.f(self.t); self.t+=1
        return (1-w)*a+w*b
def run(name,f):
    r=ev(Sw(f),10,seed=900,limit=50,discount=.99)
    print(task,name,round(r.returns.mean()),"@",round(r.discounted_costs.mean(),1),round(r.costs.sum()/r.lengths.sum(),3),round(r.lengths.mean()),flush=True)
run("safe",lambda t:0); run("unsafe",lambda t:1)
for w in (.2,.4,.6,.8): run(f"blend{w}",lambda t:w)
run("s->u@300",lambda t:float(t>=300)); run("u->s@300",lambda t:float(t<300))
run("s->u@500",lambda t:float(t>=500)); run("u->s@500",lambda t:float(t<500))
run("100/100",lambda t:float((t//100)%2)); run("25/25",lambda t:float((t//25)%2))
