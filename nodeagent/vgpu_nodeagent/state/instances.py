"""Makes MIG instances for claims before a container starts, and removes them after its pod ends.

The operator decides where an instance lies, and it is made at exactly that place. Every step is
recorded, so that an agent that was killed at any moment finds what it had made: first that an
instance is wanted, then its UUID; once it is gone, the record is dropped. An instance without a
record belongs to an administrator and is never used or removed.

Of a static device (docs/design/node-and-grants.md) nothing is made or removed: the claim gets
the instance at the place as it is. It is recorded as adopted, and only the record is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace

from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim
from vgpu_nodeagent.discovery.drivers.base import Driver, MigInstance
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.errors import (
    DriverUnavailable,
    InstanceInUse,
    InstanceLost,
    PlaceTaken,
    Refused,
    Why,
)
from vgpu_nodeagent.state import claim_instances
from vgpu_nodeagent.state.checkpoint import Checkpoint
from vgpu_nodeagent.state.claim_instances import ClaimInstance, ClaimInstances

logger = logging.getLogger(__name__)


class Instances:
    """Makes and removes MIG instances, one at a time.

    Args:
        driver: Makes and removes instances of its devices.
        checkpoint: Records them.
        inventory: The devices; they are read again after a change.
    """

    def __init__(
        self,
        driver: Driver,
        checkpoint: Checkpoint,
        inventory: Inventory,
    ) -> None:
        self._driver = driver
        self._checkpoint = checkpoint
        self._inventory = inventory
        self._one_at_a_time = asyncio.Lock()

    async def make(self, claim: VGPUClaim, allocation: Allocation) -> None:
        """Make the instances of an allocation that do not exist yet.

        Raises:
            Refused: One of them cannot be made; others may exist by then, and stay the claim's.
        """
        async with self._one_at_a_time:
            for device in allocation.devices:
                if device.mig is not None:
                    await self._make(claim, allocation, device)

    async def remove(self, claim_uid: str, allocation_id: str) -> bool:
        """Remove all instances of one allocation; return False to be tried again."""
        gone = True
        async with self._one_at_a_time:
            for claim_instance in claim_instances.of_claim(self._claim_instances, claim_uid):
                if claim_instance.allocation_id == allocation_id:
                    gone &= await self._remove(claim_instance)
        return gone

    async def remove_all(self, over: Iterable[ClaimInstance]) -> bool:
        """Remove these and all others of their allocations; return True if one is left."""
        allocations = sorted({(each.claim_uid, each.allocation_id) for each in over})
        return not all([await self.remove(*allocation) for allocation in allocations])

    @property
    def _claim_instances(self) -> ClaimInstances:
        return self._checkpoint.state.claim_instances

    def _commit(self, changed: ClaimInstances) -> None:
        self._checkpoint.commit(replace(self._checkpoint.state, claim_instances=changed))

    async def _make(
        self, claim: VGPUClaim, allocation: Allocation, device: AllocatedDevice
    ) -> None:
        assert device.mig is not None
        desired = MigInstance(device.mig.profile, device.mig.start, device.mig.size)
        claim_instance = ClaimInstance(device.uuid, desired, claim.metadata.uid, allocation.id)
        before = self._claim_instances.get(claim_instance.key)
        self._refuse_if_taken(claim_instance)
        if before.adopted if before is not None else self._inventory.is_static(claim_instance.card):
            await self._adopt(replace(claim_instance, adopted=True), before)
            return
        try:
            if before is None:
                await self._driver.check_place(claim_instance.card, desired)
                self._write(claim_instances.with_instance(self._claim_instances, claim_instance))
            there = await self._there(claim_instance, before)
        except PlaceTaken as error:
            if (
                before is None and claim_instance.key in self._claim_instances
            ):  # the agent made no instance there
                self._write(claim_instances.without(self._claim_instances, claim_instance.key))
            self._inventory.look_soon()
            raise Refused(Why.MIG_PLACE_TAKEN, str(error)) from error
        except DriverUnavailable as error:
            raise Refused(Why.DRIVER_UNAVAILABLE, f"{desired}: {error}") from error
        if before is None or before.instance != there:
            self._write(
                claim_instances.with_instance(
                    self._claim_instances, replace(claim_instance, instance=there)
                )
            )
            logger.info(
                "claim %s: made %s on GPU %s", claim.metadata.name, there, claim_instance.card
            )
            self._inventory.look_soon()

    async def _adopt(self, claim_instance: ClaimInstance, before: ClaimInstance | None) -> None:
        """Record the administrator's instance at the claim's place as the claim's.

        Raises:
            Refused: There is no usable instance, or the driver does not respond.
        """
        try:
            there = await self._driver.instance_at(claim_instance.card, claim_instance.instance)
        except DriverUnavailable as error:
            raise Refused(Why.DRIVER_UNAVAILABLE, f"{claim_instance.instance}: {error}") from error
        if there is None or not there.uuid:
            self._inventory.look_soon()
            raise Refused(
                Why.MIG_PLACE_MISSING,
                f"{claim_instance.instance} on GPU {claim_instance.card} is not there, and the "
                "instances of this GPU are made by its administrator",
            )
        if before is None or before.instance != there:
            self._write(
                claim_instances.with_instance(
                    self._claim_instances, replace(claim_instance, instance=there)
                )
            )
            logger.info("%s on GPU %s is allocated as it is", there, claim_instance.card)
            self._inventory.look_soon()

    async def _there(
        self, claim_instance: ClaimInstance, before: ClaimInstance | None
    ) -> MigInstance:
        """Return the instance, made now unless it exists."""
        known = before.instance.uuid if before is not None else None
        try:
            return await self._driver.make_instance(
                claim_instance.card, claim_instance.instance, known=known
            )
        except InstanceLost:
            # The record must not name the old UUID when a new instance may exist already.
            self._write(claim_instances.with_instance(self._claim_instances, claim_instance))
            return await self._driver.make_instance(
                claim_instance.card, claim_instance.instance, known=""
            )

    def _refuse_if_taken(self, claim_instance: ClaimInstance) -> None:
        """Refuse if another instance is recorded at the place and not removed yet."""
        mine = claim_instance.instance
        for other in self._claim_instances.values():
            if other.card == claim_instance.card and other.instance.overlaps(mine.start, mine.size):
                if _is_alike(other, claim_instance):
                    continue
                raise Refused(
                    Why.MIG_PLACE_TAKEN,
                    f"{mine} on GPU {claim_instance.card} overlaps {other.instance} of the claim "
                    f"with UID {other.claim_uid}; its release is under way",
                )

    async def _remove(self, claim_instance: ClaimInstance) -> bool:
        try:
            if not claim_instance.adopted:
                await self._driver.remove_instance(claim_instance.card, claim_instance.instance)
        except (InstanceInUse, DriverUnavailable) as error:
            logger.warning(
                "%s on GPU %s is not removed yet: %s",
                claim_instance.instance,
                claim_instance.card,
                error,
            )
            return False
        try:
            self._commit(claim_instances.without(self._claim_instances, claim_instance.key))
        except OSError as error:
            logger.warning("cannot record the end of %s: %s", claim_instance.instance, error)
            return False
        done = "released" if claim_instance.adopted else "removed"
        logger.info("%s %s on GPU %s", done, claim_instance.instance, claim_instance.card)
        self._inventory.look_soon()
        return True

    def _write(self, changed: ClaimInstances) -> None:
        try:
            self._commit(changed)
        except OSError as error:
            raise Refused(Why.STORAGE_FAILED, f"cannot record an instance: {error}") from error


def _is_alike(one: ClaimInstance, other: ClaimInstance) -> bool:
    """True if both are the same part of a device for the same allocation."""
    return (one.key, one.claim_uid, one.allocation_id) == (
        other.key,
        other.claim_uid,
        other.allocation_id,
    ) and (one.instance.profile, one.instance.size) == (other.instance.profile, other.instance.size)
