"""HAMi's events on a pod, for tools and tests that wait for their reasons. Off by default.

They come in addition to our own event with the reason of the refusal, and each costs a write.
Source: HAMi v2.10, pkg/scheduler/event.go.
"""

from __future__ import annotations

from vgpu_operator.engine.effects import RecordEvent
from vgpu_operator.engine.gpu_pod import GPUPod

_ACTION = "Scheduling"


def filtering_failed(pod: GPUPod, nodes: int) -> RecordEvent:
    """Return the event for a pod that none of the `nodes` nodes with devices can serve."""
    note = f"no available node, {nodes} nodes do not meet"
    return RecordEvent(pod.regarding, "Warning", "FilteringFailed", _ACTION, note)


def bound(pod: GPUPod, node: str) -> tuple[RecordEvent, RecordEvent]:
    """Return the events for a pod that was assigned a node and bound to it."""
    regarding, metadata = pod.regarding, pod.pod.metadata
    whose = f"{metadata.namespace}/{metadata.name}"
    return (
        RecordEvent(regarding, "Normal", "FilteringSucceed", _ACTION, f"find fit node({node})"),
        RecordEvent(
            regarding,
            "Normal",
            "BindingSucceed",
            _ACTION,
            f"Successfully binding node [{node}] to {whose}",
        ),
    )
