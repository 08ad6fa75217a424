"""The policies that `benchmarks.ope` judges: controllers made by hand, behaviours with and without noise, and what our
methods learn, at several checkpoints, well trained and badly."""

import json
from typing import NamedTuple

import numpy as np

import ringfence
from ringfence import api
from ringfence.behaviour.controllers import pi_controller
from ringfence.behaviour.shipped import shipped_policy
from ringfence.deploy import Policy
from ringfence.evaluation.ope.actions import batched

ROBOTS = {"hopper": (30.0, 34.0), "halfcheetah": (30.0, 50.0), "walker2d": (30.0, 36.0)}  # limits trained for
REACTOR_LIMITS = (8.0, 14.0, 20.0, 30.0)
NETWORK = {"hidden": (64, 64), "batch_size": 128}
GENERATOR = {"cvae_steps": 1000, "decoder_std": 0.1, "tau": 0.05, "lambda_rate": 1e-2}  # for short training
TRAINED = ("bc", "bc-safe", "cpq", "bcq-lag", "bear-lag")
KINDS = (*TRAINED, "cbpl", "cpq-paper")  # of saved policies
VARIANT = "cpq variant"  # saved policies of studies, learned like the others


PARTS = ("development", "held-out")  # looked at while the judge was made; judged once, when it was done
SEEDS = {"development": (0, 1), "held-out": (4, 5)}  # of short trainings


class Case(NamedTuple):
    name: str
    kind: str
    policy: object
    part: str = "development"


def reactor_policies(log, work, methods=TRAINED):
    """PI controllers, good and bad, and what our methods learn."""
    rng = np.random.default_rng(7)
    for _ in range(12):
        setpoint, gain = rng.uniform(343, 357), float(np.exp(rng.uniform(np.log(2), np.log(12))))
        lag = rng.uniform(0.6, 2.0)
        yield Case(f"pi {setpoint:.1f} {gain:.1f} {lag:.1f}", "controller", pi_controller(setpoint, gain, lag))
    steps = {"bc": (500, 1500), "bc-safe": (500, 1500), "cpq": (500, 1500), "bcq-lag": (1500,), "bear-lag": (1500,)}
    yield from trained(log, work / "reactor", REACTOR_LIMITS, {method: steps[method] for method in methods})


def robot_policies(name, log, work, methods=TRAINED, parts=PARTS):
    """What our methods learn; and, for development, the shipped behaviours as they are logged and without noise, scaled and
    blended."""
    steps = {"bc": (1000, 4000), "bc-safe": (1000, 4000), "cpq": (2000, 4000), "bcq-lag": (3000,), "bear-lag": (3000,)}
    checkpoints = {method: steps[method] for method in methods}
    for part in parts:
        if part == "development":
            yield from changed_behaviours(name)
        folder = work / name if part == "development" else work / part / name
        yield from trained(log, folder, ROBOTS[name], checkpoints, part)


def changed_behaviours(name):
    safe, unsafe = (shipped_policy(f"{name}-torque", which) for which in ("safe", "unsafe"))
    for which, policy in (("safe", safe), ("unsafe", unsafe)):
        yield Case(f"{which}, mode", "behaviour", policy)
        yield Case(f"{which}, noisy", "behaviour", with_noise(policy))
    for share in (0.3, 0.7):
        yield Case(f"blend {share}", "blend", changed(lambda a, b, s=share: s * a + (1 - s) * b, safe, unsafe))
    yield Case("safe x 0.9", "scaled", changed(lambda a: 0.9 * a, safe))
    yield Case("unsafe x 0.8", "scaled", changed(lambda a: 0.8 * a, unsafe))


def saved_policies(folder, part):
    """Policy files of any training, named by file; of a method that has no name here they are variants of CPQ."""
    for path in sorted(folder.glob("*.safetensors")):
        policy = Policy.load(path)
        method = policy.artifact.method
        yield Case(path.stem, method if method in KINDS else VARIANT, policy, part)


def fast(policy):
    """In NumPy a policy takes a product per row: fine in the simulator, slow for a log."""
    large = batched(policy)
    return lambda observations: large(observations) if len(observations) > 64 else policy(observations)


def changed(change, *policies):
    policies = [fast(policy) for policy in policies]
    return lambda observations: change(*(policy(observations) for policy in policies))


def with_noise(policy):
    """The behaviour as it wrote the log: Gaussian noise around its mean action."""
    spread, rng = np.exp(policy.artifact.tensors["log_std"]), np.random.default_rng(5)
    return changed(lambda a: a + spread * rng.standard_normal(a.shape).astype(np.float32), policy)


def trained(log, work, limits, checkpoints, part="development"):
    """Each method for each limit and seed, all in one program; a policy at each checkpoint. Kept under `work`."""
    two = SEEDS[part]
    methods = {
        "bc": (ringfence.BC(limit=limits[0], **NETWORK), limits[:1], two),
        "bc-safe": (ringfence.BCSafe(limit=limits[0], **NETWORK), limits[:1], two),
        "cpq": (ringfence.CPQ(**NETWORK, cvae_steps=1000), limits, two[:1]),
        "bcq-lag": (ringfence.BCQLag(**NETWORK, **GENERATOR), limits, two[:1]),
        "bear-lag": (ringfence.BEARLag(**NETWORK, **GENERATOR, warmup_steps=1000), limits, two[:1]),
    }
    for name, steps in checkpoints.items():
        method, for_limits, seeds = methods[name]
        for updates in steps:
            folder = work / f"{name}-{updates}"
            if not (folder / "done.json").exists():
                run = train_or_go_on(log, method, for_limits, seeds, updates, work / name, updates > steps[0])
                names = []
                for number, (member, policy) in enumerate(zip(run.members, run.policies, strict=True)):
                    policy.save(folder_of(folder) / f"{number}.safetensors", overwrite=True)
                    names.append(f"{name} {member.limit:g} seed {member.seed} steps {updates}")
                (folder / "done.json").write_text(json.dumps(names))
            for number, case in enumerate(json.loads((folder / "done.json").read_text())):
                yield Case(case, name, Policy.load(folder / f"{number}.safetensors"), part)


def train_or_go_on(log, method, limits, seeds, steps, out, go_on):
    if go_on:
        return api.resume(out, log, steps=steps, progress=False)
    return ringfence.train(log, method, limits=limits, seeds=seeds, steps=steps, out=out, progress=False)


def folder_of(path):
    path.mkdir(parents=True, exist_ok=True)
    return path
