"""The part of an allocation that only ordinary init containers use, and when it may go or come.

Once they have ended, the agent closes their pages and reports it; then the operator takes their
devices out of the allocation, and what is left is the app containers' sum. They run again when
the kubelet makes the pod's sandbox anew: the agent refuses that until the operator has fitted them
again. Each giving is a *round*, so that a late report about one round does not concern the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_api.core.pod import ContainerStatus, Pod
from vgpu_api.v1alpha1 import Allocation, VGPUClaim, VGPUClaimSpec

ENDED = "InitContainersEnded"
"""Reason of the condition while nothing of the round is in use any more."""
WANTED = "InitContainersRunAgain"
"""Reason of the condition while they need devices again."""


@dataclass(frozen=True, slots=True)
class InitRound:
    """One giving of devices to init containers, among all that a claim may ever have.

    Attributes:
        allocation_id: The allocation.
        number: How often init containers had been given devices anew in it.
    """

    allocation_id: str
    number: int


def init_requests(spec: VGPUClaimSpec) -> frozenset[str]:
    """Names of the requests that ordinary init containers make."""
    return frozenset(request.name for request in spec.requests if request.phase == "Init")


def init_round(allocation: Allocation) -> InitRound:
    """The round that an allocation is in."""
    return InitRound(allocation.id, allocation.init_round)


def has_init_part(spec: VGPUClaimSpec, allocation: Allocation) -> bool:
    """Whether the allocation still has devices of init containers."""
    init = init_requests(spec)
    return any(device.request in init for device in allocation.devices)


def without_init_part(spec: VGPUClaimSpec, allocation: Allocation) -> Allocation:
    """What is left for the containers that run: the same allocation, without init's devices."""
    init = init_requests(spec)
    kept = [device for device in allocation.devices if device.request not in init]
    return allocation.model_copy(update={"devices": kept})


def init_part_ended(claim: VGPUClaim) -> bool:
    """Whether the agent reports that nothing of this very round is in use any more.

    Not where it reports as well that they must run again: then nothing is taken from them first.
    """
    released = claim.status.init_released
    if released is None or init_part_rerun(claim):
        return False
    return _is_current(claim, InitRound(released.allocation_id, released.round))


def init_part_rerun(claim: VGPUClaim) -> bool:
    """Whether the agent reports that init containers must run again after this very round."""
    desired = claim.status.init_wanted
    return desired is not None and _is_current(
        claim, InitRound(desired.allocation_id, desired.round)
    )


def _is_current(claim: VGPUClaim, named: InitRound) -> bool:
    allocation = claim.status.allocation
    return allocation is not None and bool(allocation.id) and named == init_round(allocation)


def init_containers(pod: Pod) -> frozenset[str]:
    """Names of the pod's ordinary init containers; restartable ones run beside the others."""
    return frozenset(c.name for c in pod.spec.init_containers if not c.is_sidecar)


def ended_init_ids(pod: Pod) -> frozenset[str] | None:
    """The ids of the ordinary init containers once all have exited 0; None before.

    The kubelet goes on showing the old ones for a while when it is about to run them again.
    """
    init = init_containers(pod)
    ended = {s.name: s.container_id for s in pod.status.init_container_statuses if _is_done(s)}
    return frozenset(ended[name] for name in init) if init <= ended.keys() else None


def _is_done(status: ContainerStatus) -> bool:
    terminated = status.state.get("terminated")
    return isinstance(terminated, dict) and terminated.get("exitCode") == 0
