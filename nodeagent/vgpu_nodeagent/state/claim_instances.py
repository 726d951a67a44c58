"""The agent's record of the MIG instance that was made for each claim.

NVML lists instances but not their owners. So the agent records an instance before it makes it, and
drops the record after it has removed it: a recorded instance may exist, and an instance without a
record belongs to somebody else. On a static device an administrator's instance is recorded as
adopted while a claim has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from vgpu_nodeagent.discovery.drivers.base import MigInstance

InstancePlace: TypeAlias = tuple[str, int]
"""A device's UUID and a first memory slice."""


@dataclass(frozen=True, slots=True)
class ClaimInstance:
    """A MIG instance that was made for a claim, or is about to be.

    Attributes:
        card: The device's UUID; the name that the checkpoint has on disk (docs/design/tests.md).
        instance: Its profile and place, and its UUID once it was made.
        claim_uid: The claim.
        allocation_id: The allocation of the claim.
        adopted: True if an administrator made it, so that it stays when the claim ends.
    """

    card: str
    instance: MigInstance
    claim_uid: str
    allocation_id: str
    adopted: bool = False

    @property
    def place(self) -> InstancePlace:
        """Return its device and first memory slice."""
        return self.card, self.instance.start

    @property
    def key(self) -> str:
        """Return the place as a text."""
        return f"{self.card}/{self.instance.start}"


ClaimInstances: TypeAlias = Mapping[str, ClaimInstance]


def places(instances: ClaimInstances) -> frozenset[InstancePlace]:
    """Return the places of instances that the agent made, not those of administrators."""
    return frozenset(instance.place for instance in instances.values() if not instance.adopted)


def made(instances: ClaimInstances) -> Mapping[InstancePlace, ClaimInstance]:
    """Return the instances that programs can use, by place."""
    return {each.place: each for each in instances.values() if each.instance.uuid}


def of_claim(instances: ClaimInstances, claim_uid: str) -> list[ClaimInstance]:
    """Return the instances of a claim."""
    return [instance for instance in instances.values() if instance.claim_uid == claim_uid]


def with_instance(instances: ClaimInstances, instance: ClaimInstance) -> ClaimInstances:
    """Return the record with an instance added or replaced."""
    return {**instances, instance.key: instance}


def without(instances: ClaimInstances, key: str) -> ClaimInstances:
    """Return the record without an instance."""
    return {other: instance for other, instance in instances.items() if other != key}
