"""The fence: before its first decision, a new leader makes late writes of the former leader fail.

The former leader may have sent a decision that has not landed yet. Every decision tests the
resourceVersion of its claim, so the new leader touches each claim whose devices a late write could
still change. A write that landed before shows in the response, and a later one is refused. Claims
whose pods are bound are left alone, because their devices are never moved
(docs/design/leader-and-fence.md).

Before that, the cache must contain everything that the former leader wrote. The first touch proves
it: a watch delivers claims in the order in which they were written, so once it delivers the touch,
nothing earlier is missing. If that does not happen in time, everything is listed again. Pods must
be up to date as well, because the claim of a bound pod must not be moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import ValidationError

from vgpu_api.core import ResourceClaim
from vgpu_api.init_part import init_part_rerun
from vgpu_api.names import ANNOTATION_DECIDER
from vgpu_api.resize import target, was_changed
from vgpu_api.resources import PODS, RESOURCE_CLAIMS, VGPU_CLAIMS, Resource
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_api.v1alpha1.base import version_of
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import ClientError, NotFound
from vgpu_client.object_writer import (
    Conflicted,
    Merge,
    ObjectWriter,
    Patch,
    Rejected,
    Target,
    Unresolved,
    Unsent,
    Write,
    Written,
)
from vgpu_operator.engine.cache import Cache
from vgpu_operator.engine.claims.status_patch import status_patch
from vgpu_operator.engine.events import ClaimObserved, ResourceClaimObserved

logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.05
_LAST_WAIT_S = 1.0
_REACHED_S = 2.0
"""Seconds to wait for the watch of claims; a live stream delivers a write within milliseconds."""
_PODS_S = 1.0
"""Seconds to wait for the watch of pods. While pods wait for a leader, kube-scheduler writes to
some of them more often than this.
"""


class AwaitedInformer(Protocol):
    """The part of a reflector that the fence uses. It keeps one kind of object in the cache."""

    async def reach(self, version: int) -> None:
        """Wait until everything up to a version of the kind has been delivered."""

    async def relist(self) -> None:
        """Wait until a list that started after this call has been delivered."""


class Observer(Protocol):
    """The part of the engine that the fence uses. It keeps the cache."""

    def observe(self, event: ClaimObserved | ResourceClaimObserved) -> None:
        """Queue an event."""

    def observe_all(self) -> None:
        """Apply all queued events at once, including those of the informers."""


def may_be_decided(claim: VGPUClaim, node: str) -> bool:
    """Return True if a write that gives the claim devices, or changes them, may be in flight.

    A Binding is posted only after the claim's write has landed. Every earlier write fails against
    that one, and afterwards the devices are never moved. The devices of an Immediate claim are not
    moved either: it gets new ones only after its allocation was seen to be gone. In both cases,
    however, the amounts may still be raised.

    Args:
        claim: The claim.
        node: The node to which the pod in `status.reservedFor` is bound; empty if unknown.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return True
    if claim.spec.binding_mode != "Immediate" and node != allocation.node_name:
        return True
    is_resized = was_changed(claim) and target(claim.spec, allocation) != allocation.devices
    return is_resized or init_part_rerun(claim)


@dataclass(frozen=True, slots=True)
class Fence:
    """The fence against late writes of a former leader.

    Attributes:
        api: Reads claims.
        writer: Writes their status, many at a time, each within the rest of the lease.
        clock: Waits between attempts.
        cache: All claims and pods.
        claims: The informer of claims.
        pods: The informer of pods.
        others: The informers of all other kinds.
        engine: Receives every version that the fence reads.
        resource_claims: The informer of ResourceClaims, in Claims mode.
    """

    api: Api
    writer: ObjectWriter
    clock: Clock
    cache: Cache
    claims: AwaitedInformer
    pods: AwaitedInformer
    others: Sequence[AwaitedInformer]
    engine: Observer
    resource_claims: AwaitedInformer | None = None

    async def close(self, decider: str) -> int:
        """Wait until no write of a predecessor can land. Return the number of touched claims.

        Args:
            decider: The value that a touch writes. It must be unique to this term; otherwise a
                touch might change nothing.
        """
        marker, *_ = await asyncio.gather(
            self._catch_up(decider),
            self._catch_up_with(PODS, self.pods),
            self._catch_up_with(RESOURCE_CLAIMS, self.resource_claims),
        )
        self.engine.observe_all()
        await self._touch_resource_claims(decider)
        open_claims = [
            claim
            for claim in self.cache.claims()
            if claim.metadata.uid != marker and self._is_open(claim)
        ]
        await asyncio.gather(*(self._touch(claim, decider) for claim in open_claims))
        return len(open_claims) + bool(marker)

    async def _catch_up(self, decider: str) -> str:
        """Wait until the cache has every version of a claim that was written until now.

        Returns:
            The UID of the claim that was touched for that; empty if none was.
        """
        known = list(self.cache.claims())
        marker = next((claim for claim in known if self._is_open(claim)), next(iter(known), None))
        if marker is not None:
            outcome = await self.writer.submit(_touching(marker, decider))
            if isinstance(outcome, Written):
                touched = VGPUClaim.read(outcome.obj)
                self.engine.observe(ClaimObserved(touched))
                version = version_of(touched.metadata.resource_version)
                if await self._reaches(self.claims, version, _REACHED_S):
                    return touched.metadata.uid
            logger.warning("the watch of claims may be behind; everything is listed anew")
        await asyncio.gather(*(each.relist() for each in (self.claims, *self.others)))
        return ""

    async def _catch_up_with(self, resource: Resource, informer: AwaitedInformer | None) -> None:
        """Wait until the cache has every object of a kind as it was when this call began."""
        if informer is None:
            return
        try:
            version = await self.api.current_version(resource)
            if await self._reaches(informer, version, _PODS_S):
                return
        except ClientError as error:
            logger.warning("the version of %s is not known: %s", resource.plural, error)
        await informer.relist()

    async def _touch_resource_claims(self, decider: str) -> None:
        """Make late allocations of ResourceClaims fail, which test their versions, too.

        One that has not been created yet needs no touch: the predecessor would have to get the
        answer of the creation, and sends nothing after its lease.
        """
        await asyncio.gather(
            *(
                self._touch_resource_claim(each, decider)
                for each in self.cache.resource_claims
                if each.status.allocation is None and not each.is_of_scheduler
            )
        )

    async def _touch_resource_claim(self, seen: ResourceClaim, decider: str) -> None:
        metadata = seen.metadata
        marks = {"annotations": {ANNOTATION_DECIDER: decider}}
        touching = Write(
            Target(RESOURCE_CLAIMS, metadata.namespace, metadata.name),
            (Merge({"metadata": {"uid": metadata.uid, **marks}}),),
        )
        wait_s = _FIRST_WAIT_S
        while True:
            match await self.writer.submit(touching):
                case Written(obj):
                    touched = ResourceClaim.model_validate(obj)
                    self.engine.observe(ResourceClaimObserved(touched))
                    return
                case Rejected() | Conflicted():
                    return  # it is gone
                case Unsent() | Unresolved() as outcome:
                    name = metadata.name
                    logger.warning("ResourceClaim %s: %s; touching it again", name, outcome)
                    await self.clock.sleep(wait_s)
                    wait_s = min(wait_s * 2, _LAST_WAIT_S)

    async def _reaches(self, informer: AwaitedInformer, version: int, within_s: float) -> bool:
        reached = asyncio.ensure_future(informer.reach(version))
        late = asyncio.ensure_future(self.clock.sleep(within_s))
        try:
            await asyncio.wait({reached, late}, return_when=asyncio.FIRST_COMPLETED)
            return reached.done()
        finally:
            for each in (reached, late):
                each.cancel()
            await asyncio.gather(reached, late, return_exceptions=True)

    def _is_open(self, claim: VGPUClaim) -> bool:
        reserved = claim.status.reserved_for
        pod = None if reserved is None else self.cache.pod(reserved.pod_uid)
        return may_be_decided(claim, "" if pod is None else pod.pod.spec.node_name or "")

    async def _touch(self, seen: VGPUClaim, decider: str) -> None:
        claim: VGPUClaim | None = seen
        wait_s = _FIRST_WAIT_S
        while claim is not None and self._is_open(claim):
            match await self.writer.submit(_touching(claim, decider)):
                case Written(obj):
                    self.engine.observe(ClaimObserved(VGPUClaim.read(obj)))
                    return
                case Rejected(error):
                    # The claim is gone, or the server refuses the write. It would refuse a
                    # predecessor's write as well.
                    logger.warning("claim %s not touched: %s", claim.metadata.name, error)
                    return
                case Conflicted():
                    pass
                case Unsent() | Unresolved() as outcome:
                    logger.warning("claim %s: %s; touching it again", claim.metadata.name, outcome)
                    await self.clock.sleep(wait_s)
                    wait_s = min(wait_s * 2, _LAST_WAIT_S)
            claim = await self._read(claim)

    async def _read(self, claim: VGPUClaim) -> VGPUClaim | None:
        """Return the current claim, or None if it is gone or invalid."""
        metadata = claim.metadata
        while True:
            try:
                raw = await self.api.get(VGPU_CLAIMS, metadata.name, namespace=metadata.namespace)
            except NotFound:
                return None
            except ClientError as error:
                logger.warning("claim %s not read, again: %s", metadata.name, error)
                await self.clock.sleep(_LAST_WAIT_S)
                continue
            try:
                now = VGPUClaim.read(raw)
            except ValidationError:
                # the reflector reports the invalid claim, and its devices count as full
                return None
            self.engine.observe(ClaimObserved(now))
            return now


def _touching(claim: VGPUClaim, decider: str) -> Write:
    status = claim.status.model_copy(update={"decider": decider})
    metadata = claim.metadata
    operations = status_patch(claim.status, status)
    return Write(
        Target(VGPU_CLAIMS, metadata.namespace, metadata.name),
        (Patch(operations, subresource="status"),),
        metadata.resource_version,
    )
