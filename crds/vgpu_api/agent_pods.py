"""The agents' pods, which show that agents are alive and carry a mark of their devices.

An agent watches the pods of its node, so it sees its own pod. The operator writes the mark of the
node's GPUDevices to the annotation `vgpu.dev/poke` of that pod. The agent computes the same mark
from its copies, and reads its devices by name if the marks differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2s

from vgpu_api import conditions
from vgpu_api.core import Pod
from vgpu_api.names import AGENT_LABELS, AGENT_NAMESPACE
from vgpu_api.v1alpha1 import GPUDevice
from vgpu_api.vendors import kind_of


def is_agents(namespace: str | None, labels: Mapping[str, str]) -> bool:
    """Return True for the namespace and the labels of an agent's pod."""
    return namespace == AGENT_NAMESPACE and AGENT_LABELS.items() <= labels.items()


def is_agent_pod(pod: Pod) -> bool:
    """Return True if an agent runs in the pod."""
    return is_agents(pod.metadata.namespace, pod.metadata.labels)


def device_mark(devices: Iterable[GPUDevice]) -> str:
    """Return a value that changes when the node's agent must read its devices again.

    That is when a device object comes, goes or is replaced, when its spec changes, and when the
    operator has written that nobody knows about the device, which the agent takes back. Devices of
    other vendors do not count, because the operator publishes them.
    """
    facts = sorted(
        (device.metadata.name, device.metadata.uid, device.metadata.generation, is_unknown(device))
        for device in devices
        if kind_of(device.status.vendor) is None
    )
    return f"devices {blake2s(repr(facts).encode(), digest_size=8).hexdigest()}"


def is_unknown(device: GPUDevice) -> bool:
    """Return True if the operator has written that nobody knows about the device."""
    ready = conditions.find(device.status.conditions, conditions.READY)
    return ready is not None and ready.status == "Unknown"
