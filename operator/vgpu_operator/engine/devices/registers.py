"""Publishes the devices that other vendors' plugins register on their Node as GPUDevice objects.

Our agent publishes NVIDIA's devices. Other vendors' device plugins write an annotation on their
Node, from which these objects are made. A device that is no longer registered, or whose plugin is
no longer connected to the kubelet, is not Ready. See docs/design/vendors.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vgpu_api import conditions, names
from vgpu_api.core import Node
from vgpu_api.errors import BadInput
from vgpu_api.quantity import format_mib
from vgpu_api.v1alpha1 import Condition, GPUDevice, GPUDeviceStatus
from vgpu_api.v1alpha1.base import version_of
from vgpu_api.vendors import Kind, kinds
from vgpu_client.clock import rfc3339
from vgpu_operator.engine.claims.describe import node_event
from vgpu_operator.engine.effects import Effect, PublishDevice
from vgpu_operator.engine.state import DeviceWrite, State
from vgpu_operator.ledger.device_facts import unknown_cordons, unread_words
from vgpu_operator.ledger.device_table import DEVICES_OF_A_NODE
from vgpu_operator.vendors import RegisteredDevice, devices_of, silence_of

UNREADABLE = "RegisterUnreadable"
UNKNOWN_VALUE = "UnknownValue"
NOT_REGISTERED = "NotRegistered"
PLUGIN_SILENT = "PluginNotConnected"
REGISTERED = "Registered"
UNHEALTHY = "ReportedUnhealthy"
NO_EFFECT = "NoEffect"
LINKED = "Group"
"""The type of a link between devices of one group."""
_LINK = 10
_UNDIVIDED = 100
"""The total compute of devices whose compute is requested in percent or not at all."""


def publish_registered(state: State) -> Iterator[list[Effect]]:
    """Yield the writes of registered devices on changed nodes, one list per node.

    For a new leader, all nodes count as changed.
    """
    due, state.registers = state.registers, {}
    for name in due:
        node = state.cache.nodes.get(name)
        if node is None:
            continue
        known = {device.metadata.name: device for device in state.ledger.devices(name)}
        effects = [each for kind in kinds() for each in _publish_kind(kind, node, known, state)]
        yield [*_report_unread(node, state), *effects]


def _report_unread(node: Node, state: State) -> Iterator[Effect]:
    """Report annotations and labels of the node that are invalid, when they change."""
    devices = state.ledger.devices(node.metadata.name)
    text = "; ".join([*unread_words(node), *unknown_cordons(node, devices)])
    if _is_new(text, node, "", state) and text:
        yield node_event(node, UNKNOWN_VALUE, text)


def _is_new(text: str, node: Node, of: str, state: State) -> bool:
    """Return True if this text differs from the last report about a register, and record it."""
    key = node.metadata.name, of
    if text == state.registers_reported.get(key, ""):
        return False
    state.registers_reported[key] = text
    return True


def _publish_kind(
    kind: Kind, node: Node, known: dict[str, GPUDevice], state: State
) -> Iterator[Effect]:
    """Publish a node's devices of a kind, both registered and no longer registered ones."""
    registered, unreadable = _read_register(kind, node)
    if _is_new(unreadable, node, kind.name, state) and unreadable:
        yield node_event(node, UNREADABLE, f"nothing is given of its devices: {unreadable}")
    silence = silence_of(kind, node)
    reason, why = (PLUGIN_SILENT, silence) if silence else (REGISTERED, "")
    named = {_name(device.id, node.metadata.name, state): device for device in registered}
    for name, device in named.items():
        peers = [each.id for each in registered if each.group == device.group != ""]
        status = status_of(kind, device, peers, reason=reason, why=why, unix=state.unix)
        status["conditions"] += _configured(known.get(name), unix=state.unix)
        yield from _publish(name, node, status, known.get(name), state)
    mine = (device for device in known.values() if device.status.vendor == kind.name)
    gone = [device for device in mine if device.metadata.name not in named]
    yield from _publish_gone(node, gone, unreadable, state)


def _publish_gone(
    node: Node, gone: Sequence[GPUDevice], unreadable: str, state: State
) -> Iterator[Effect]:
    """Publish that devices are not registered, or that their register is invalid."""
    reason = UNREADABLE if unreadable else NOT_REGISTERED
    why = unreadable or f"node {node.metadata.name} registers it no more"
    for device in gone:
        status = _without(device, _ready(reason, why, unix=state.unix))
        yield from _publish(device.metadata.name, node, status, device, state)


def _read_register(kind: Kind, node: Node) -> tuple[tuple[RegisteredDevice, ...], str]:
    """Return the devices of a register, or why the register is ignored."""
    try:
        registered = devices_of(kind, node)
    except BadInput as error:
        return (), str(error)
    if len(registered) > DEVICES_OF_A_NODE:
        return (), f"it names {len(registered)}, and may name {DEVICES_OF_A_NODE} at most"
    return registered, ""


def _name(uuid: str, node: str, state: State) -> str:
    """Return the object's name; if another node has taken it, the name includes this node."""
    name = names.device_object_name(uuid)
    holder = state.ledger.node_of(name)
    is_anothers = holder is not None and holder != node
    return names.device_object_name_on_node(uuid, node) if is_anothers else name


def _publish(
    name: str, node: Node, status: dict[str, Any], known: GPUDevice | None, state: State
) -> Iterator[Effect]:
    """Yield the write of a status, unless the device has it or the write is in flight."""
    if known is not None and _says(known, status):
        return
    written = state.register_writes.get(name)
    if written is not None:
        is_under_way = written.version is None
        observed = 0 if known is None else version_of(known.metadata.resource_version)
        has_come_back = not is_under_way and observed >= (written.version or 0)
        if is_under_way or (_same(written.status, status) and not has_come_back):
            return
    state.register_writes[name] = DeviceWrite(status, state.now)
    create = _object(name, node) if known is None else None
    yield PublishDevice(name, node.metadata.name, status, create)


def _object(name: str, node: Node) -> dict[str, Any]:
    """Return the object to create. Its node owns it, so it is deleted together with the node."""
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.metadata.name,
        "uid": node.metadata.uid,
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "GPUDevice",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {"nodeName": node.metadata.name},
    }


def status_of(
    kind: Kind,
    device: RegisteredDevice,
    group: Sequence[str],
    *,
    reason: str,
    why: str,
    unix: float,
) -> dict[str, Any]:
    """Return the status of a registered device.

    Args:
        kind: The kind of the device.
        device: The device as its node registers it.
        group: The ids of the devices in its group, which may include its own.
        reason: The reason of its condition Ready.
        why: The message of its condition Ready; empty if it is Ready.
        unix: The current Unix time.
    """
    is_in_parts = kind.cores is not None and not kind.cores.units
    amount = {
        "memory": format_mib(device.memory_mib),
        "cores": device.cores if is_in_parts else _UNDIVIDED,
        "slots": device.slots,
    }
    unusable = _unusable(kind, device)
    healthy = Condition(
        type=conditions.HEALTHY,
        status="False" if unusable else "True",
        reason=UNHEALTHY if unusable else REGISTERED,
        message=unusable,
        last_transition_time=rfc3339(unix),
    )
    said = {
        "vendor": kind.name,
        "index": device.index,
        "uuid": device.id,
        "model": device.type,
        "capacity": amount,
        "allocatable": amount,
        "links": [
            {"peer": peer, "type": LINKED, "score": _LINK} for peer in group if peer != device.id
        ],
        "conditions": [_ready(reason, why, unix=unix), healthy.to_wire()],
    }
    if kind.in_parts:
        said["parts"] = [
            {
                "name": part.name,
                "size": part.size,
                "memory": format_mib(part.memory_mib),
                "cores": part.cores,
            }
            for part in device.parts
        ]
    return said if device.numa is None else {**said, "numaNode": device.numa}


def _unusable(kind: Kind, device: RegisteredDevice) -> str:
    """Return why a registered device cannot be allocated; empty if it can."""
    if not device.healthy or device.slots < 1:
        return f"the vendor's device plugin registers {device.id} as unusable"
    if kind.cores is not None and kind.cores.units and device.cores < _UNDIVIDED:
        return (
            f"{device.id} has {device.cores} compute units: {_UNDIVIDED} are needed, since "
            "a percent of fewer is less than one"
        )
    numbered = kind.numbered_cores
    if numbered is not None and device.cores < numbered.each:
        return f"{device.id} has {device.cores} cores: {numbered.each} are needed"
    return ""


def _without(device: GPUDevice, ready: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a device that is no longer registered: unchanged, but not Ready."""
    healthy = conditions.find(device.status.conditions, conditions.HEALTHY)
    kept = [] if healthy is None else [healthy.to_wire()]
    return {**_said_by(device.status), "conditions": [ready, *kept]}


def _ready(reason: str, why: str, *, unix: float) -> dict[str, Any]:
    return Condition(
        type=conditions.READY,
        status="True" if reason == REGISTERED else "False",
        reason=reason,
        message=why,
        last_transition_time=rfc3339(unix),
    ).to_wire()


def _configured(device: GPUDevice | None, *, unix: float) -> list[dict[str, Any]]:
    """Return a condition if the spec has settings that a vendor's plugin does not support."""
    spec = None if device is None else device.spec
    set_there = {} if spec is None else {
        "memory": spec.memory is not None,
        "memoryScaling": spec.memory_scaling not in (None, "1"),
        "coreScaling": spec.core_scaling not in (None, "1"),
        "corePolicy": spec.core_policy != "Default",
        "mode": spec.mode == "MIG",
        "migInstances": spec.mig_instances is not None,
    }  # fmt: skip
    found = [name for name, is_wished in set_there.items() if is_wished]
    if not found:
        return []
    condition = Condition(
        type=conditions.CONFIGURED,
        status="False",
        reason=NO_EFFECT,
        message=f"{', '.join(found)} of spec: no effect on a device that its vendor's plugin "
        "serves",
        last_transition_time=rfc3339(unix),
    )
    return [condition.to_wire()]


_FIELDS = (
    *("vendor", "index", "uuid", "model", "numaNode"),
    *("capacity", "allocatable", "links", "parts"),
)
_TYPES = (conditions.READY, conditions.HEALTHY, conditions.CONFIGURED)


def _said_by(status: GPUDeviceStatus) -> dict[str, Any]:
    wire = status.to_wire()
    return {field: wire[field] for field in _FIELDS if field in wire}


def _says(device: GPUDevice, status: dict[str, Any]) -> bool:
    found = [c for type_ in _TYPES if (c := conditions.find(device.status.conditions, type_))]
    shown = {**_said_by(device.status), "conditions": [each.to_wire() for each in found]}
    return _same(shown, status)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if two statuses are equal, apart from transition times."""
    return _timeless(one) == _timeless(other)


def _timeless(status: dict[str, Any]) -> dict[str, Any]:
    plain = [
        {key: value for key, value in condition.items() if key != "lastTransitionTime"}
        for condition in status["conditions"]
    ]
    return {**status, "conditions": plain}
