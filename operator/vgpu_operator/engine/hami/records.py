"""The annotations that a pod gets with its node, for tools that read them; we never do."""

from __future__ import annotations

from vgpu_api.v1alpha1 import Allocation, VGPUClaimSpec
from vgpu_operator.dialects import ack_bind_records, bind_records, binding_annotations
from vgpu_operator.dialects.moved import restored
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.state import State


def records_of(
    state: State, pod: GPUPod, spec: VGPUClaimSpec, allocation: Allocation, *, unix_time: int
) -> dict[str, str]:
    """What HAMi, ACK and other vendors write of an allocation.

    Args:
        state: Has the devices and the node.
        pod: The pod.
        spec: The claim's.
        allocation: Its status's.
        unix_time: The second in which the pod gets its node.

    Raises:
        BadInput: The claim's requests do not match the pod's containers, or what a vendor's plugin
            is to read of a device is not in its node's register any more.
    """
    requested = restored(pod.pod, state.config)
    node = state.cache.nodes.get(allocation.node_name)
    device_mib = _memory_of(state, allocation.devices[0].name)
    in_acks_words = ack_bind_records(
        requested, allocation, state.config, device_mib=device_mib, unix_time=unix_time
    )
    return {
        **in_acks_words,
        **bind_records(requested, spec, allocation, unix_time=unix_time),
        **binding_annotations(requested, spec, allocation, node=node, unix_time=unix_time),
    }


def _memory_of(state: State, device: str) -> int:
    """MiB that a device has, by its object's name; 0 where it is not known."""
    node = state.ledger.node_of(device)
    known = () if node is None else state.ledger.devices(node)
    found = (each.status.capacity for each in known if each.metadata.name == device)
    capacity = next(found, None)
    return 0 if capacity is None else capacity.memory_mib
