"""The part of an allocation that only ordinary init containers use: its release and renewal.

When the init containers have ended, the agent closes their limit pages and reports it. The operator
then removes their devices from the allocation, so that only those of the app containers remain.
They run again if the kubelet recreates the pod's sandbox; the agent blocks them until the operator
has allocated devices again. Each such allocation is a *round*, so that a late report about one
round does not affect the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_api.core.pod import ContainerStatus, Pod
from vgpu_api.v1alpha1 import Allocation, VGPUClaim, VGPUClaimSpec

ENDED = "InitContainersEnded"
"""The condition's reason when nothing of the round is in use any more."""
WANTED = "InitContainersRunAgain"
"""The condition's reason while the init containers need devices again."""


@dataclass(frozen=True, slots=True)
class InitRound:
    """One allocation of devices to init containers, of which a claim may have several over time.

    Attributes:
        allocation_id: The allocation.
        number: How many times devices had been allocated again to init containers before.
    """

    allocation_id: str
    number: int


def init_requests(spec: VGPUClaimSpec) -> frozenset[str]:
    """Return the names of the requests of ordinary init containers."""
    return frozenset(request.name for request in spec.requests if request.phase == "Init")


def init_round(allocation: Allocation) -> InitRound:
    """Return the current round of an allocation."""
    return InitRound(allocation.id, allocation.init_round)


def has_init_part(spec: VGPUClaimSpec, allocation: Allocation) -> bool:
    """Return True if the allocation still has devices for init containers."""
    init = init_requests(spec)
    return any(device.request in init for device in allocation.devices)


def without_init_part(spec: VGPUClaimSpec, allocation: Allocation) -> Allocation:
    """Return the allocation without the devices of the init containers."""
    init = init_requests(spec)
    kept = [device for device in allocation.devices if device.request not in init]
    return allocation.model_copy(update={"devices": kept})


def init_part_ended(claim: VGPUClaim) -> bool:
    """Return True if the agent reports that nothing of the current round is in use any more.

    Return False if it also reports that the init containers must run again, so that they keep their
    devices.
    """
    released = claim.status.init_released
    if released is None or init_part_rerun(claim):
        return False
    return _is_current(claim, InitRound(released.allocation_id, released.round))


def init_part_rerun(claim: VGPUClaim) -> bool:
    """Return True if the agent reports that init containers must run again after this round."""
    desired = claim.status.init_wanted
    return desired is not None and _is_current(
        claim, InitRound(desired.allocation_id, desired.round)
    )


def _is_current(claim: VGPUClaim, named: InitRound) -> bool:
    allocation = claim.status.allocation
    return allocation is not None and bool(allocation.id) and named == init_round(allocation)


def init_containers(pod: Pod) -> frozenset[str]:
    """Return the names of the pod's ordinary init containers, without restartable ones."""
    return frozenset(c.name for c in pod.spec.init_containers if not c.is_sidecar)


def ended_init_ids(pod: Pod) -> frozenset[str] | None:
    """Return the ids of the ordinary init containers if all have exited with 0, else None.

    When the kubelet is about to run them again, it keeps reporting the old ones for a while.
    """
    init = init_containers(pod)
    ended = {s.name: s.container_id for s in pod.status.init_container_statuses if _is_done(s)}
    return frozenset(ended[name] for name in init) if init <= ended.keys() else None


def _is_done(status: ContainerStatus) -> bool:
    terminated = status.state.get("terminated")
    return isinstance(terminated, dict) and terminated.get("exitCode") == 0
