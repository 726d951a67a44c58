"""The part of an allocation that only ordinary init containers use, and when it may go or come.

Once they have ended for good, the agent closes their pages and says so; then the operator takes
their cards out of the allocation, and what is left is the app containers' sum. They run again when
the kubelet makes the pod's sandbox anew: the agent refuses that until the operator has fitted them
again. Each giving is a *round* with a name of its own, so that a late word about one round says
nothing of the next.
"""

from __future__ import annotations

from vgpu_api import conditions
from vgpu_api.core.pod import ContainerStatus, Pod
from vgpu_api.v1alpha1 import Allocation, Condition, VGPUClaim, VGPUClaimSpec

ENDED = "InitContainersEnded"
"""Reason of the condition while nothing of the round is in use any more."""
WANTED = "InitContainersRunAgain"
"""Reason of the condition while they need cards again."""


def init_requests(spec: VGPUClaimSpec) -> frozenset[str]:
    """Names of the requests that ordinary init containers make."""
    return frozenset(request.name for request in spec.requests if request.phase == "Init")


def init_round(allocation: Allocation) -> str:
    """What names the giving of cards to init containers that an allocation speaks of."""
    return allocation.init_time or allocation.allocated_time


def has_init_part(spec: VGPUClaimSpec, allocation: Allocation) -> bool:
    """Whether the allocation still has cards of init containers."""
    init = init_requests(spec)
    return any(device.request in init for device in allocation.devices)


def without_init_part(spec: VGPUClaimSpec, allocation: Allocation) -> Allocation:
    """What is left for the containers that run: the same allocation, without init's cards."""
    init = init_requests(spec)
    kept = [device for device in allocation.devices if device.request not in init]
    return allocation.model_copy(update={"devices": kept})


def init_part_ended(claim: VGPUClaim) -> bool:
    """Whether the agent says that nothing of this very round is in use any more."""
    return _says(claim, "True", ENDED)


def init_part_wanted(claim: VGPUClaim) -> bool:
    """Whether the agent says that init containers must run again after this very round."""
    return _says(claim, "False", WANTED)


def _says(claim: VGPUClaim, status: str, reason: str) -> bool:
    allocation = claim.status.allocation
    said: Condition | None = conditions.find(claim.status.conditions, conditions.INIT_RELEASED)
    return (
        allocation is not None
        and said is not None
        and (said.status, said.reason) == (status, reason)
        and bool(said.message)
        and said.message == init_round(allocation)
    )


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
