"""Builds the writes that the steps of `reconcile` return."""

from __future__ import annotations

from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimStatus
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims.announce import is_news
from vgpu_operator.engine.claims.status import DesiredStatus, status_with
from vgpu_operator.engine.effects import WriteClaim
from vgpu_operator.engine.state import State


def write_desired(
    claim: VGPUClaim,
    state: State,
    desired: DesiredStatus,
    *,
    add_finalizer: bool = False,
    let_go: bool = False,
) -> WriteClaim:
    """Return the write that gives a claim the desired status; see `write`."""
    status = status_with(claim, claim.spec, desired, unix=state.unix)
    return write(
        claim, status, add_finalizer=add_finalizer, let_go=let_go, is_news=is_news(claim, desired)
    )


def write(
    claim: VGPUClaim,
    status: VGPUClaimStatus,
    *,
    add_finalizer: bool = False,
    let_go: bool = False,
    is_news: bool = False,
) -> WriteClaim:
    """Return the write of a claim's status; it tests the given version of the claim.

    Args:
        claim: The claim as it was last observed.
        status: The status to write.
        add_finalizer: Add our finalizer, because the claim gets devices that must be freed before
            it is deleted.
        let_go: Remove our finalizer, because the claim holds nothing any more.
        is_news: Record an event once the write is done.
    """
    return WriteClaim(
        key=key_of(claim),
        version=claim.metadata.resource_version,
        before=claim.status,
        status=status,
        finalizers=tuple(claim.metadata.finalizers),
        add_finalizer=add_finalizer,
        let_go=let_go and FINALIZER_IN_USE in claim.metadata.finalizers,
        allocation_id="" if status.allocation is None else status.allocation.id,
        is_news=is_news,
    )
