"""How many updates of the policy a method needs. No JAX here: the command line's help is made without it."""

STEPS = 50_000  # of CPQ's default, of a method that does not say how many it needs, and in the paper's figures
LEAST_STEPS = 15_000  # of `steps_with_critics`: the actor needs them too, where critics need fewer


def critic_steps(tau: float, discount: float) -> int:
    """How many steps critics need to reach their scale: targets follow at the rate tau, and each backup covers the
    share 1 - discount of the way, so that after 3 / (tau (1 - discount)) steps 5 % of the way is left."""
    return round(3.0 / (tau * (1.0 - discount)))


def steps_with_critics(tau: float, discount: float) -> int:
    """As many steps as critics need, at least LEAST_STEPS: what CPQ as printed, BCQ-Lagrangian and BEAR-Lagrangian make by
    default, and the least that CPQ makes."""
    return max(critic_steps(tau, discount), LEAST_STEPS)
