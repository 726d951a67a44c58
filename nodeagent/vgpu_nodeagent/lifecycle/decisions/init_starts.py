"""Decides which slot allocations a PreStart fills after the pod's init containers have ended.

The kubelet names slots, not containers, and an ordinary init container may share its slot with a
later container. Once the init containers have ended, their slot allocations stay closed. The
kubelet runs them again when it recreates the pod's sandbox, which no event reports. It shows in a
PreStart of their own slots, or in a PreStart of shared slots that no start of the app container
followed.
"""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_api import init_part
from vgpu_api.core.pod import Pod
from vgpu_api.init_part import InitRound
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_nodeagent.kubelet.identity import Consumer
from vgpu_nodeagent.state.slots import Binding, ClaimAllocation

_REMEMBERED = 4096
"""Remember the last PreStart of this many slot allocations; a forgotten one needs one more."""


@dataclass(frozen=True, slots=True)
class Fill:
    """The slot allocations that a start fills.

    Attributes:
        bindings: The slot allocations with their containers; none if an init container is to start
            whose devices were released.
        allocation: The part of the claim's allocation to fill them with.
        wanted: The round after which the init containers must run again; None if they need not.
    """

    bindings: tuple[Binding, ...]
    allocation: Allocation
    wanted: InitRound | None = None


class InitStarts:
    """Tells starts of init containers from starts of app containers on the same slots."""

    def __init__(self) -> None:
        # For each slot allocation, the round of its last PreStart and the newest container then.
        self._started: dict[str, tuple[InitRound, str]] = {}

    def to_fill(
        self,
        consumer: Consumer,
        claim: VGPUClaim,
        allocation: Allocation,
        claim_allocation: ClaimAllocation | None,
    ) -> Fill:
        """Return the slot allocations to fill.

        Args:
            consumer: The pod and all its slot allocations on the slots.
            claim: Its claim.
            allocation: The claim's allocation, on this node.
            claim_allocation: What the claim holds here already.
        """
        if not init_part.init_requests(claim.spec) or not has_ended(
            claim, allocation, claim_allocation
        ):
            return Fill(consumer.bindings, allocation)
        init = init_part.init_containers(consumer.pod)
        left = tuple(binding for binding in consumer.bindings if binding.container not in init)
        is_shared = len(left) < len(consumer.bindings)
        runs_again = is_shared and init_part.ended_init_ids(consumer.pod) is None
        init_round = init_part.init_round(allocation)
        rest = init_part.without_init_part(claim.spec, allocation)
        if runs_again or not left:
            return Fill((), rest, init_round)
        repeated = is_shared and self._is_repeated(consumer, left, init_round)
        return Fill(left, rest, init_round if repeated else None)

    def _is_repeated(
        self, consumer: Consumer, bindings: tuple[Binding, ...], init_round: InitRound
    ) -> bool:
        """True if no container has started since their last PreStart in this round.

        A PreStart of an earlier round does not count: an init container that it started has ended
        since, or the round would not have ended.
        """
        repeated = False
        for binding in bindings:
            start = (init_round, _last_container(consumer.pod, binding.container))
            repeated |= self._started.pop(binding.slot_allocation, None) == start
            self._started[binding.slot_allocation] = start
            if len(self._started) > _REMEMBERED:
                del self._started[next(iter(self._started))]
        return repeated


def has_ended(
    claim: VGPUClaim, allocation: Allocation, claim_allocation: ClaimAllocation | None
) -> bool:
    """Return True if the init containers' part of this allocation was released."""
    return (
        (
            claim_allocation is not None
            and claim_allocation.init_ended == init_part.init_round(allocation)
        )
        or init_part.init_part_ended(claim)
        or not init_part.has_init_part(claim.spec, allocation)
    )


def _last_container(pod: Pod, name: str) -> str:
    """Return the id of the newest container of that name; empty before the first one."""
    found = (s.container_id for s in pod.status.container_statuses if s.name == name)
    return next(found, "")
