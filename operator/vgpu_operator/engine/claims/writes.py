"""Makes the write that a step of `reconcile` wants."""

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
    """Return the write that makes a claim's status say this; see `write`."""
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
    """Return the write of a claim's status, on the version of the claim that it was decided on.

    Args:
        claim: As it was observed last.
        status: What is written.
        add_finalizer: The claim gets devices, and may not go before they are free.
        let_go: The claim holds nothing any more, so it may go.
        is_news: An event tells of the write.
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
