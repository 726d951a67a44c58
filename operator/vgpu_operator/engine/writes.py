"""The writes to a claim other than its allocation: refused, in use, released, let go. Pure.

Each carries a judge, so that it is dropped where the claim has meanwhile become something else.
"""

from __future__ import annotations

from typing import Any, Literal

from vgpu_api.conditions import PREPARED, is_true
from vgpu_api.init_part import has_init_part, init_part_ended, without_init_part
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.v1alpha1 import Allocation, VGPUClaim, VGPUClaimStatus
from vgpu_operator.engine.books import key_of
from vgpu_operator.engine.claim_writer import ClaimWrite, Key, Verdict
from vgpu_operator.engine.release import is_stranded
from vgpu_operator.engine.status import Wish, in_use, says, status_with, with_devices


def refusal_write(
    key: Key,
    wish: Wish,
    *,
    now: float,
    create: dict[str, Any] | None = None,
    instead_of: str | None = None,
) -> ClaimWrite:
    """Say why a claim has nothing.

    Args:
        key: The claim.
        wish: What to say.
        now: Unix time.
        create: The claim to make where there is none.
        instead_of: The allocation (by its time) that goes with this; None: there must be none.
    """

    def judge(claim: VGPUClaim) -> Verdict:
        allocation = claim.status.allocation
        standing = allocation.allocated_time if allocation is not None else None
        if standing is None and says(claim, wish):
            return "done"
        return "write" if standing in (None, instead_of) else "moot"

    def status(claim: VGPUClaim) -> VGPUClaimStatus:
        return status_with(claim, wish, now=now)

    finalizer: Literal["drop", "leave"] = "drop" if instead_of is not None else "leave"
    return ClaimWrite(key=key, status=status, judge=judge, create=create, finalizer=finalizer)


def in_use_write(claim: VGPUClaim, *, now: float) -> ClaimWrite:
    """Say that the limits are in place."""

    def judge(current: VGPUClaim) -> Verdict:
        if current.status.state != "Allocated":
            return "moot"
        return "write" if is_true(current.status.conditions, PREPARED) else "moot"

    def status(current: VGPUClaim) -> VGPUClaimStatus:
        return in_use(current, now=now)

    return ClaimWrite(key=key_of(claim), status=status, judge=judge)


def release_write(claim: VGPUClaim, reason: str, *, now: float) -> ClaimWrite:
    """The write that takes the allocation, then the finalizer, off the claim."""
    assert claim.status.allocation is not None
    allocated_time = claim.status.allocation.allocated_time
    wish = Wish.released(reason)

    def judge(current: VGPUClaim) -> Verdict:
        allocation = current.status.allocation
        if allocation is not None:
            return "write" if allocation.allocated_time == allocated_time else "moot"
        return "write" if FINALIZER_IN_USE in current.metadata.finalizers else "done"

    def status(current: VGPUClaim) -> VGPUClaimStatus:
        return status_with(current, wish, now=now)

    return ClaimWrite(key=key_of(claim), status=status, judge=judge, finalizer="drop")


def unreserve_write(claim: VGPUClaim, *, now: float) -> ClaimWrite:
    """The write that takes the pod's name off an allocation, which stays (an Immediate claim's)."""
    allocation, reserved_for = claim.status.allocation, claim.status.reserved_for
    assert allocation is not None
    wish = Wish.allocated(allocation, None)

    def judge(current: VGPUClaim) -> Verdict:
        standing = current.status.allocation
        if standing is None or standing.allocated_time != allocation.allocated_time:
            return "moot"
        return "write" if current.status.reserved_for == reserved_for else "moot"

    def status(current: VGPUClaim) -> VGPUClaimStatus:
        return status_with(current, wish, now=now)

    return ClaimWrite(key=key_of(claim), status=status, judge=judge)


def init_ended_write(claim: VGPUClaim) -> ClaimWrite:
    """The write that takes the cards of ended init containers out of the allocation."""

    def judge(current: VGPUClaim) -> Verdict:
        return "write" if init_cards_are_free(current) else "moot"

    def status(current: VGPUClaim) -> VGPUClaimStatus:
        assert current.status.allocation is not None
        rest = without_init_part(current.spec, current.status.allocation)
        return with_devices(current, rest)

    return ClaimWrite(key=key_of(claim), status=status, judge=judge)


def init_again_write(claim: VGPUClaim, allocation: Allocation) -> ClaimWrite:
    """The write that gives init containers cards anew, in place of the same allocation."""
    assert claim.status.allocation is not None
    before = claim.status.allocation

    def judge(current: VGPUClaim) -> Verdict:
        if current.status.allocation == allocation:
            return "done"
        same = current.status.allocation == before and current.spec == claim.spec
        return "write" if same and current.metadata.deletion_timestamp is None else "moot"

    def status(current: VGPUClaim) -> VGPUClaimStatus:
        return with_devices(current, allocation)

    return ClaimWrite(key=key_of(claim), status=status, judge=judge)


def init_cards_are_free(claim: VGPUClaim) -> bool:
    """Whether ended init containers still have cards that can be had again.

    MIG instances stay as they are while the pod lives: their places may be another's afterwards.
    """
    allocation = claim.status.allocation
    if allocation is None or any(device.mig is not None for device in allocation.devices):
        return False
    return has_init_part(claim.spec, allocation) and init_part_ended(claim)


def unstrand_write(claim: VGPUClaim) -> ClaimWrite:
    """The write that lets a stranded claim go."""

    def judge(current: VGPUClaim) -> Verdict:
        return "write" if is_stranded(current) else "moot"

    return ClaimWrite(
        key=key_of(claim), status=lambda current: current.status, judge=judge, finalizer="drop"
    )
