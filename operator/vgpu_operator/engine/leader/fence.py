"""What a new leader does before it decides anything: it makes late writes of the former one fail.

The former leader may have sent a decision that has not landed yet. Every decision tests the
resourceVersion of its claim, so each claim that may still be given cards, or other cards, is
touched: what landed before is seen in the answer, what lands afterwards is refused. Claims in use
stay as they are: their cards are never moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from vgpu_api.conditions import PREPARED, is_true
from vgpu_api.init_part import init_part_wanted
from vgpu_api.resize import target, was_changed
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.errors import ClientError, NotFound
from vgpu_client.object_writer import (
    Conflicted,
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
from vgpu_operator.engine.clock import Clock

logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.05
_LAST_WAIT_S = 1.0


def may_be_decided(claim: VGPUClaim) -> bool:
    """Whether a decision about the claim's cards may be under way.

    The devices of a prepared claim are never moved, but what it holds of them may be made larger.
    """
    allocation = claim.status.allocation
    if allocation is None or not is_true(claim.status.conditions, PREPARED):
        return True
    is_resized = was_changed(claim) and target(claim.spec, allocation) != allocation.devices
    return is_resized or init_part_wanted(claim)


@dataclass(frozen=True, slots=True)
class Fence:
    """Touches claims.

    Attributes:
        api: Where they are read.
        writer: Writes their status, many at a time, each within what is left of the lease.
        clock: Waits between attempts.
        cache: All claims, as listed since the lease was taken.
        learned: Takes every version that this brings.
        decider: Who touches; differs from process to process, or nothing would change.
    """

    api: Api
    writer: ObjectWriter
    clock: Clock
    cache: Cache
    learned: Callable[[VGPUClaim], None]
    decider: str

    async def close(self) -> int:
        """Return when no write of a predecessor can land any more; says how many were touched."""
        open_claims = [claim for claim in self.cache.claims() if may_be_decided(claim)]
        await asyncio.gather(*(self._touch(claim) for claim in open_claims))
        return len(open_claims)

    async def _touch(self, seen: VGPUClaim) -> None:
        claim: VGPUClaim | None = seen
        wait_s = _FIRST_WAIT_S
        while claim is not None and may_be_decided(claim):
            match await self.writer.submit(self._touching(claim)):
                case Written(obj):
                    self.learned(VGPUClaim.read(obj))
                    return
                case Rejected(error):
                    # Gone, or of a shape that is refused: from the predecessor as from us.
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
        """The claim as it stands; None if it is gone or cannot be read."""
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
                return None  # the reflector tells of it, and its cards count as full
            self.learned(now)
            return now

    def _touching(self, claim: VGPUClaim) -> Write:
        status = claim.status.model_copy(update={"decider": self.decider})
        metadata = claim.metadata
        operations = [{"op": "add", "path": "/status", "value": status.to_wire()}]
        return Write(
            Target(VGPU_CLAIMS, metadata.namespace, metadata.name),
            (Patch(operations, subresource="status"),),
            metadata.resource_version,
        )
