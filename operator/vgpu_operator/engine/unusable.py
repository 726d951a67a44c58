"""Immediate claims whose cards can serve no pod any more, while no pod has them.

Such an allocation would keep its claim from ever being used: its pod may go to that node only.
Once it has been unusable for five minutes it is taken back, and the claim is decided anew. A card
that is merely cordoned still serves the claim that holds it.
"""

from __future__ import annotations

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import Allocation, VGPUClaim, VGPUClaimStatus
from vgpu_operator.engine.books import Books, key_of
from vgpu_operator.engine.claim_writer import ClaimWrite, Key, Verdict
from vgpu_operator.engine.status import Wish, status_with
from vgpu_operator.ledger import Ledger
from vgpu_operator.ledger.cards import is_healthy

UNUSABLE_S = 300.0
_LOOK_EVERY_S = 1.0


class UnusableClaims:
    """Finds allocations that have been unusable for long enough.

    Args:
        books: What was seen.
        ledger: The devices.
    """

    def __init__(self, books: Books, ledger: Ledger) -> None:
        self._books = books
        self._ledger = ledger
        self._since: dict[Key, tuple[str, float]] = {}  # allocated time, and since when
        self._idle: dict[Key, None] = {}
        self._looked = float("-inf")

    def look_at(self, claim: VGPUClaim) -> None:
        """A claim has changed: watch its cards, or no longer."""
        if is_idle(claim):
            self._idle[key_of(claim)] = None
        else:
            self._idle.pop(key_of(claim), None)

    def due(self, now: float) -> list[tuple[VGPUClaim, str]]:
        """Claims to be decided anew and why; `now` in monotonic seconds."""
        if now - self._looked < _LOOK_EVERY_S:
            return []
        self._looked = now
        before, self._since = self._since, {}
        found = []
        for key in self._idle:
            claim = self._books.claim(key)
            allocation = claim.status.allocation if claim is not None else None
            why = self._why_unusable(allocation) if allocation is not None else None
            if claim is None or allocation is None or why is None:
                continue
            named, since = before.get(key, ("", now))
            if named != allocation.allocated_time:
                since = now
            self._since[key] = (allocation.allocated_time, since)
            if now - since >= UNUSABLE_S:
                found.append((claim, why))
        return found

    def _why_unusable(self, allocation: Allocation) -> str | None:
        name = allocation.node_name
        node = self._books.nodes.get(name)
        if node is None or not node.is_ready or node.spec.unschedulable:
            return f"node {name} takes no pods"
        duplicates = self._ledger.duplicates()
        sound = {
            device.status.uuid
            for device in self._ledger.devices(name)
            if is_healthy(device) and device.metadata.name not in duplicates
        }
        for device in allocation.devices:
            if device.uuid not in sound:
                return f"card {device.uuid} on {name} is gone or not healthy"
        return None


def unusable_write(claim: VGPUClaim, why: str, *, now: float) -> ClaimWrite:
    """The write that takes an unusable allocation back, unless a pod has got it meanwhile."""
    assert claim.status.allocation is not None
    allocated_time = claim.status.allocation.allocated_time
    wish = Wish.refused(reason=Reason.ALLOCATION_UNUSABLE, message=f"{why}; decided anew")

    def judge(current: VGPUClaim) -> Verdict:
        allocation = current.status.allocation
        same = allocation is not None and allocation.allocated_time == allocated_time
        return "write" if same and is_idle(current) else "moot"

    def status(current: VGPUClaim) -> VGPUClaimStatus:
        return status_with(current, wish, now=now)

    return ClaimWrite(key=key_of(claim), status=status, judge=judge, finalizer="drop")


def is_idle(claim: VGPUClaim) -> bool:
    """Whether it is an Immediate claim that has cards, and no pod has them."""
    reserved = claim.status.reserved_for
    return (
        claim.spec.binding_mode == "Immediate"
        and claim.status.allocation is not None
        and (reserved is None or not reserved.pod_uid)
    )
