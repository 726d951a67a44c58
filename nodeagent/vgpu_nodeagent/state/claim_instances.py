"""What of this node's devices in MIG mode is cut for which claim: the agent's own record of it.

NVML lists the instances, never their owners. So the agent writes down that it is about to make
one before it does, and strikes it off after it has removed it: whatever is recorded may be there,
and whatever is not recorded belongs to others. On a static device an administrator's instance is
recorded while a claim has it, as adopted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from vgpu_nodeagent.discovery.drivers.base import MigInstance

InstancePlace: TypeAlias = tuple[str, int]
"""A device's UUID, and the first memory slice."""


@dataclass(frozen=True, slots=True)
class ClaimInstance:
    """An instance that is made for a claim, or about to be.

    Attributes:
        card: The device's UUID; the name that the checkpoint has on disk (docs/design/tests.md).
        instance: Profile and place; with its UUID once it was made.
        claim_uid: The claim.
        allocation_id: Which allocation of the claim.
        adopted: An administrator made it: it stays when the claim ends.
    """

    card: str
    instance: MigInstance
    claim_uid: str
    allocation_id: str
    adopted: bool = False

    @property
    def place(self) -> InstancePlace:
        """Where it lies."""
        return self.card, self.instance.start

    @property
    def key(self) -> str:
        """The same as a text."""
        return f"{self.card}/{self.instance.start}"


ClaimInstances: TypeAlias = Mapping[str, ClaimInstance]


def places(instances: ClaimInstances) -> frozenset[InstancePlace]:
    """Where instances of ours may lie; those of administrators are not among them."""
    return frozenset(instance.place for instance in instances.values() if not instance.adopted)


def of_claim(instances: ClaimInstances, claim_uid: str) -> list[ClaimInstance]:
    """The instances of a claim."""
    return [instance for instance in instances.values() if instance.claim_uid == claim_uid]


def with_instance(instances: ClaimInstances, instance: ClaimInstance) -> ClaimInstances:
    """With one more, or another in its place."""
    return {**instances, instance.key: instance}


def without(instances: ClaimInstances, key: str) -> ClaimInstances:
    """With one less."""
    return {other: instance for other, instance in instances.items() if other != key}
