"""Converts device and node objects to the facts that placement needs.

Missing or contradictory facts make a device unusable, never more capable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from vgpu_api import conditions, names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import Amount, GPUDevice
from vgpu_api.v1alpha1.gpudevice import DevicePart, MigStatus
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy
from vgpu_operator.dialects.ack import KINDS
from vgpu_operator.dialects.hami_annotations import DEVICE_POLICIES, NODE_POLICIES
from vgpu_operator.placement.columns import NUMA_UNKNOWN_FROM, DeviceFacts, NodeState
from vgpu_operator.placement.mig_geometry import Offer, Profile, geometry
from vgpu_operator.vendors.parts import Part, in_order


def facts_of(
    device: GPUDevice, *, cordoned_on_node: frozenset[str], duplicate: bool, config: ClusterConfig
) -> DeviceFacts:
    """Return the facts of a device object with a known UUID.

    Args:
        device: The object.
        cordoned_on_node: The UUIDs that the node's annotation cordons.
        duplicate: True if another object had the UUID first.
        config: The default number of slots.
    """
    spec, status = device.spec, device.status
    given = status.allocatable or Amount()
    in_mig_mode = status.mig is not None and status.mig.enabled
    index = status.index if status.index is not None else 0
    slots = spec.slots or given.slots or config.nvidia.device_split_count
    return DeviceFacts(
        name=device.metadata.name,
        node=spec.node_name,
        uuid=status.uuid,
        index=index,
        vendor=status.vendor.lower(),
        model=type_of(status.vendor, status.model),
        product=status.model,
        mode="MIG" if in_mig_mode else spec.mode,
        numa=numa_of(status.numa_node, index=index),
        slots=1 if spec.mode == "Exclusive" else slots,
        cores=given.cores,
        memory_mib=given.memory_mib,
        healthy=is_healthy(device) and not duplicate,
        duplicate=duplicate,
        cordoned=spec.cordoned or status.uuid in cordoned_on_node,
        links=dict(sorted((link.peer, link.score) for link in status.links)),
        profiles=_profiles(status.mig) if in_mig_mode and status.mig is not None else (),
        parts=() if status.parts is None else _parts(status.parts),
    )


def type_of(vendor: str, model: str) -> str:
    """Return the lower-case type by which pods select or exclude a device."""
    return (names.published_model(model) if vendor.lower() == "nvidia" else model).lower()


def numa_of(node: int | None, *, index: int) -> int:
    """Return a device's NUMA node, or a negative number of its own if it is unknown.

    Two devices with unknown NUMA nodes may be on different ones, so they never count as being on
    the same. (On a host with a single NUMA node the agent reports it.) The numbers rise with the
    index, so that a policy that prefers higher NUMA nodes leaves these devices in their order.
    """
    return node if node is not None and node >= 0 else min(index - NUMA_UNKNOWN_FROM, -1)


def _parts(parts: Sequence[DevicePart]) -> tuple[Part, ...]:
    return in_order(Part(part.name, part.size, part.memory_mib, part.cores) for part in parts)


def _profiles(mig: MigStatus) -> tuple[Profile, ...]:
    return geometry(
        Offer(
            name=profile.name,
            memory_mib=profile.memory_mib,
            cores=profile.cores,
            compute_slices=profile.slices,
            places=tuple((place.start, place.size) for place in profile.placements),
        )
        for profile in mig.profiles
    )


def is_gone(device: GPUDevice) -> bool:
    """Return True if the agent reports that the driver no longer lists the device."""
    ready = conditions.find(device.status.conditions, conditions.READY)
    return ready is not None and ready.status == "False"


def is_healthy(device: GPUDevice) -> bool:
    """Return True if Healthy and Ready are absent or True and some amount is allocatable."""
    reported = (
        conditions.find(device.status.conditions, type_)
        for type_ in (conditions.HEALTHY, conditions.READY)
    )
    return device.status.allocatable is not None and all(
        condition is None or condition.status == "True" for condition in reported
    )


def cordoned_uuids(node: Node | None) -> frozenset[str]:
    """Return the UUIDs that a node's annotation cordons."""
    text = node.metadata.annotations.get(names.HAMI_DEVICE_CORDON, "") if node else ""
    return frozenset(uuid for part in text.split(",") if (uuid := part.strip()))


def unknown_cordons(node: Node, devices: Collection[GPUDevice]) -> list[str]:
    """Return field errors for cordoned UUIDs that match no device of the node.

    While no device of the node is known there are no errors, because its agent may not have
    started.
    """
    known = {device.status.uuid for device in devices if device.status.uuid}
    unknown = sorted(cordoned_uuids(node) - known) if known else []
    if not unknown:
        return []
    field = f"metadata.annotations[{names.HAMI_DEVICE_CORDON}]"
    expected = "UUIDs of this node's devices, which kubectl get gpudevices lists"
    return [str(BadInput(field=field, value=", ".join(unknown), expected=expected))]


def state_of(node: Node, *, config: ClusterConfig) -> NodeState:
    """Return the node's readiness for pods, and its own policies."""
    default = (config.scheduling.device_policy,)
    written = node.metadata.annotations.get(names.HAMI_DEVICE_POLICY, "")
    place = node.metadata.annotations.get(names.HAMI_NODE_POLICY, "").strip().lower()
    return NodeState(
        ready=node.is_ready,
        schedulable=not node.spec.unschedulable,
        device_policies=_device_policies(written) or default,
        labelled_policies=_labelled_policies(node.metadata.labels),
        node_policy=NODE_POLICIES.get(place),
    )


def _labelled_policies(labels: Mapping[str, str]) -> tuple[DevicePolicy, ...]:
    """Parse ACK's labels: devices are filled one after the other unless `spread` is set."""
    is_spread = labels.get(names.ACK_NODE_PLACEMENT, "").strip().lower() == "spread"
    one_by_one: DevicePolicy = "Spread" if is_spread else "Binpack"
    by_links = labels.get(names.ACK_NODE_SCHEDULE) == "topology"
    return ("Topology", one_by_one) if by_links else (one_by_one,)


def _device_policies(written: str) -> tuple[DevicePolicy, ...]:
    """Parse a comma-separated chain as HAMi does: skip unknown words; if none is left, Spread."""
    words = [word for part in written.split(",") if (word := part.strip().lower())]
    known = tuple(DEVICE_POLICIES[word] for word in words if word in DEVICE_POLICIES)
    return known or (("Spread",) if words else ())


def unread_words(node: Node) -> list[str]:
    """Return field errors for unknown values of HAMi's policies and ACK's labels.

    HAMi ignores such values, and so does `state_of`: a typo must not keep pods off a node.
    """
    annotations, labels = node.metadata.annotations, node.metadata.labels
    devices = [part.strip() for part in annotations.get(names.HAMI_DEVICE_POLICY, "").split(",")]
    written: list[tuple[str, str, Collection[str]]] = [
        *((f"metadata.annotations[{names.HAMI_DEVICE_POLICY}]", word, DEVICE_POLICIES)
          for word in devices),
        (f"metadata.annotations[{names.HAMI_NODE_POLICY}]",
         annotations.get(names.HAMI_NODE_POLICY, "").strip(), NODE_POLICIES),
        (f"metadata.labels[{names.ACK_NODE_PLACEMENT}]",
         labels.get(names.ACK_NODE_PLACEMENT, "").strip(), ("binpack", "spread")),
    ]  # fmt: skip
    found = [each for each in written if each[1] and each[1].lower() not in each[2]]
    kind = labels.get(names.ACK_NODE_SCHEDULE)
    if kind is not None and kind not in KINDS:
        found.append((f"metadata.labels[{names.ACK_NODE_SCHEDULE}]", kind, sorted(KINDS)))
    return [str(BadInput.unsupported(*each)) for each in found]
