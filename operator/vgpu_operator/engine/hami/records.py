"""The annotations that other tools expect on a bound pod. The operator never reads them."""

from __future__ import annotations

from vgpu_api.v1alpha1 import Allocation, VGPUClaimSpec
from vgpu_operator.dialects import ack_bind_records, bind_records, binding_annotations
from vgpu_operator.dialects.moved import restored
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.state import State


def records_of(
    state: State, pod: GPUPod, spec: VGPUClaimSpec, allocation: Allocation, *, unix_time: int
) -> dict[str, str]:
    """Return the annotations with which HAMi, ACK and other vendors describe an allocation.

    Args:
        state: The engine's state, with the devices and the node.
        pod: The pod to annotate.
        spec: The spec of its claim.
        allocation: The allocation in its claim's status.
        unix_time: The time of the Binding, in seconds.

    Raises:
        BadInput: The claim's requests do not match the pod's containers, or the node's register no
            longer has the values of a device that its vendor's plugin will read.
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
    """Return the memory of a device in MiB, given its object's name; 0 if it is unknown."""
    node = state.ledger.node_of(device)
    known = () if node is None else state.ledger.devices(node)
    found = (each.status.capacity for each in known if each.metadata.name == device)
    capacity = next(found, None)
    return 0 if capacity is None else capacity.memory_mib
