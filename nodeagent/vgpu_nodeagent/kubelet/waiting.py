"""Pods with a refused container, and when to wake them.

The kubelet retries a refused container every 10 to 15 seconds, but at once when its pod changes.
So the pod is touched, once per refusal, as soon as it can be granted.
"""

from __future__ import annotations

from typing import Protocol

from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_nodeagent.errors import Why
from vgpu_nodeagent.events import ClaimChanged, Event, PodChanged, RoomMade
from vgpu_nodeagent.state.node_view import NodeView, Place

_FOR_ROOM = frozenset({Why.OVER_CAPACITY, Why.SLOT_TAKEN, Why.CLAIM_CLOSED})


class Touching(Protocol):
    """Makes the kubelet retry a pod; implemented by the agent's reports."""

    def touch(self, pod: Pod) -> None:
        """Change the pod, so that the kubelet retries its containers at once."""


class WaitingPods:
    """Remembers refused pods and wakes them.

    Args:
        view: The pods of this node.
        reports: Touches pods.
    """

    def __init__(self, view: NodeView, reports: Touching) -> None:
        self._view = view
        self._reports = reports
        self._waiting: dict[Place, Why] = {}

    def add(self, place: Place, reason: Why) -> None:
        """Note that a container of this pod was refused."""
        self._waiting[place] = reason

    def done(self, place: Place) -> None:
        """Forget the pod: its container was granted, or it is gone."""
        self._waiting.pop(place, None)

    def observe(self, event: Event) -> None:
        """Wake the pods that an event may let start."""
        match event:
            case PodChanged(old=Pod() as gone, new=None):
                self.done((gone.metadata.namespace or "", gone.metadata.name))
            case ClaimChanged(old=old, new=new):
                self._claim_changed(old, new)
            case RoomMade():
                self.room_was_made()

    def room_was_made(self) -> None:
        """Wake the pods that wait for capacity or a slot."""
        for place, reason in list(self._waiting.items()):
            if reason in _FOR_ROOM:
                self._wake(place)

    def _claim_changed(self, old: VGPUClaim | None, new: VGPUClaim | None) -> None:
        if new is None or new.status.reserved_for is None:
            return
        granted = (new.status.reserved_for, new.status.allocation)
        # Only a new grant counts: our own conditions change the claim too, and must wake no pod.
        if old is None or granted != (old.status.reserved_for, old.status.allocation):
            self._wake((new.metadata.namespace or "", new.status.reserved_for.pod_name))

    def _wake(self, place: Place) -> None:
        pod = self._view.pods.objects.get(place)
        if pod is not None and self._waiting.pop(place, None) is not None:
            self._reports.touch(pod)
