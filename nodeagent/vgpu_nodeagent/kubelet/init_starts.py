"""Which slot allocations a PreStart fills once the init containers of its pod have ended.

The kubelet names slots, not containers, and an ordinary init container may share its slot with a
later one. After the end of the init containers their slot allocations stay shut. They are started
again when the kubelet makes the sandbox anew, which no event reports: it shows in a PreStart of
their own slots, or in one of shared slots that no start of the app container followed.
"""

from __future__ import annotations

from vgpu_api import init_part
from vgpu_api.core.pod import Pod
from vgpu_api.init_part import InitRound
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.kubelet.identity import Consumer
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state.slots import Binding, ClaimAllocation

_REMEMBERED = 4096
"""Slot allocations whose last PreStart is remembered; a forgotten one takes one PreStart more."""


class InitStarts:
    """Distinguishes, as far as possible, what is started on the slots of an init container.

    Args:
        reports: Reports that init containers need devices anew.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        # by slot allocation: the round of its last PreStart, the container that it followed
        self._started: dict[str, tuple[InitRound, str]] = {}

    def to_fill(
        self,
        consumer: Consumer,
        claim: VGPUClaim,
        allocation: Allocation,
        claim_allocation: ClaimAllocation | None,
    ) -> tuple[tuple[Binding, ...], Allocation]:
        """The slot allocations to fill, and the part of the allocation that may fill them.

        Args:
            consumer: The pod and all its slot allocations on the slots.
            claim: Its claim.
            allocation: The claim's allocation, on this node.
            claim_allocation: What the claim holds here already.

        Raises:
            Refused: An init container is to start whose devices were given back.
        """
        if not init_part.init_requests(claim.spec) or not _has_ended(
            claim, allocation, claim_allocation
        ):
            return consumer.bindings, allocation
        init = init_part.init_containers(consumer.pod)
        left = tuple(binding for binding in consumer.bindings if binding.container not in init)
        is_shared = len(left) < len(consumer.bindings)
        runs_again = is_shared and init_part.ended_init_ids(consumer.pod) is None
        init_round = init_part.init_round(allocation)
        if runs_again or not left or (is_shared and self._is_repeated(consumer, left, init_round)):
            self._reports.init_wanted(claim, init_round)
        if runs_again or not left:
            raise Refused(
                Why.INIT_ENDED,
                "the pod's init containers had ended and gave back what they had; "
                "they start again once there is room for them",
            )
        return left, init_part.without_init_part(claim.spec, allocation)

    def _is_repeated(
        self, consumer: Consumer, bindings: tuple[Binding, ...], init_round: InitRound
    ) -> bool:
        """Whether no container started after their last PreStart in this round.

        A PreStart of an earlier round does not count: the init container that it started unseen has
        ended since, or the round would not have.
        """
        repeated = False
        for binding in bindings:
            start = (init_round, _last_container(consumer.pod, binding.container))
            repeated |= self._started.pop(binding.slot_allocation, None) == start
            self._started[binding.slot_allocation] = start
            if len(self._started) > _REMEMBERED:
                del self._started[next(iter(self._started))]
        return repeated


def _has_ended(
    claim: VGPUClaim, allocation: Allocation, claim_allocation: ClaimAllocation | None
) -> bool:
    """Whether init containers have given back what this allocation gave them, if anything."""
    return (
        (
            claim_allocation is not None
            and claim_allocation.init_ended == init_part.init_round(allocation)
        )
        or init_part.init_part_ended(claim)
        or not init_part.has_init_part(claim.spec, allocation)
    )


def _last_container(pod: Pod, name: str) -> str:
    """What names the newest container of that name; empty while there was none."""
    found = (s.container_id for s in pod.status.container_statuses if s.name == name)
    return next(found, "")
