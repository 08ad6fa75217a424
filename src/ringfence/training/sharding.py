"""Several devices: members are spread over them first, then the batch of each member.

With one device nothing here does anything. With more, a population of seeds or limits runs side by side without talking,
and a member that has several devices splits its batch over them and adds up the gradients. The numbers are those of one
device, up to the order in which floats are added: random numbers do not depend on where they are drawn.
"""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ringfence.algorithms.interface import Learner, sampler_of

Tree = TypeVar("Tree")
MEMBERS, BATCH = "members", "batch"


class Layout(NamedTuple):
    """Where members and batches go; no mesh means one device."""

    mesh: Mesh | None = None

    @property
    def member_axis(self) -> str | None:
        """The name of the mesh's axis that a `vmap` over members runs along."""
        return None if self.mesh is None else MEMBERS

    def spread(self, tree: Tree) -> Tree:
        """Give each device its members: the leading axis of every array."""
        return self._place(jax.device_put, tree, MEMBERS)

    def copy(self, tree: Tree) -> Tree:
        """Give every device all of it."""
        return self._place(jax.device_put, tree)

    def keep_spread(self, tree: Tree) -> Tree:
        """The same as `spread`, inside a compiled program."""
        return self._place(jax.lax.with_sharding_constraint, tree, MEMBERS)

    def keep_copied(self, tree: Tree) -> Tree:
        """The same as `copy`, inside a compiled program."""
        return self._place(jax.lax.with_sharding_constraint, tree)

    def split(self, batch: Tree) -> Tree:
        """Split one member's batch over its devices, inside a compiled program."""
        return self._place(jax.lax.with_sharding_constraint, batch, BATCH)

    def _place(self, place: Callable[..., Any], tree: Tree, *axes: str) -> Tree:
        if self.mesh is None:
            return tree
        spec: Any = PartitionSpec
        placed: Tree = place(tree, NamedSharding(self.mesh, spec(*axes)))
        return placed


def layout_of(method: Learner, members: int) -> Layout:
    """One layout for all stages of a run: the state stays on its devices from one to the next."""
    return layout_for(members, gcd(*(sampler_of(method, stage).size for stage in method.stages(1))))


def layout_for(members: int, batch_size: int) -> Layout:
    """Use as many of the devices as divide the work evenly: members over some of them, batches over the rest."""
    devices = jax.devices()
    along_members = gcd(members, len(devices))
    along_batch = gcd(batch_size, len(devices) // along_members)
    used = along_members * along_batch
    if used == 1:
        return Layout()
    return Layout(Mesh(np.array(devices[:used]).reshape(along_members, along_batch), (MEMBERS, BATCH)))
