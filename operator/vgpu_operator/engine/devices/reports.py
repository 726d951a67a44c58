"""The operator's reports on devices: holders, duplicates, and contradictory links.

They are for people, and no decision reads them. They are written when they change, and after
everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vgpu_api import conditions
from vgpu_api.effective import Use
from vgpu_api.quantity import format_mib
from vgpu_api.v1alpha1 import Condition, GPUDevice
from vgpu_api.v1alpha1.base import version_of
from vgpu_client.clock import rfc3339
from vgpu_client.recorder import Regarding
from vgpu_operator.engine.claims.describe import node_event
from vgpu_operator.engine.effects import Effect, RecordEvent, WriteDevice
from vgpu_operator.engine.state import DeviceView, DeviceWrite, State
from vgpu_operator.ledger import Holder
from vgpu_operator.ledger.device_facts import is_healthy

LINKS_DISAGREE = "AsymmetricLinks"
OUT_OF_SERVICE = "OutOfService"
BACK_IN_SERVICE = "BackInService"
SHOWN_WITHIN_S = 5.0
"""The longest time from the first difference between a device and its status to the write. It also
limits the writes of a device that is filling up, to about one in this time.
"""
LOOKS_EVERY_S = 1.0
_LAST_LOOK_S = SHOWN_WITHIN_S - 1.5 * LOOKS_EVERY_S
"""The age of a difference at which the status is written, because the next look may be too late."""
_ZEROS_AT_ONCE = 32
"""Initial writes, which contain only zeros, in flight at a time. A fleet of 40,000 new devices
needs 40,000 of them, and the writes of claims share the same lanes.
"""
_PAIRS_NAMED = 3
"""Pairs of devices to name in one event."""
_NODES_AT_ONCE = 64
"""Nodes in one slice of a round."""


def describe_due(state: State) -> Iterator[Iterator[Effect]]:
    """Yield the writes and events for the devices of changed nodes, in slices.

    For a new leader, all nodes count as changed: 40,000 devices take a third of a second.
    """
    looks = state.device_looks
    # A difference that this look finds must have appeared after the previous look.
    looks.before, looks.last = state.now if looks.last is None else looks.last, state.now
    for node in list(looks.unwritten)[: _ZEROS_AT_ONCE - len(looks.zeros)]:
        del looks.unwritten[node]
        state.devices[node] = None
    nodes, state.devices = list(state.devices), {}
    for start in range(0, len(nodes), _NODES_AT_ONCE):
        some = nodes[start : start + _NODES_AT_ONCE]
        yield _service(state, some)
        yield _statuses(state, some)


def _statuses(state: State, nodes: Sequence[str]) -> Iterator[Effect]:
    """Yield the writes of devices whose status is outdated.

    Each device has one write in flight at a time, and its content counts as written until the watch
    brings it back. Under load that takes seconds, and every look would write it again meanwhile.
    """
    duplicates = state.ledger.duplicates()
    for node in nodes:
        for device in state.ledger.devices(node):
            name = device.metadata.name
            written = state.device_writes.get(name)
            shown = _shown(device, written)
            status = view_of(device, state.ledger.holders(device.status.uuid))
            if name in duplicates:
                marked = shown.get("conditions") or [_duplicate(device, state)]
                status["conditions"] = marked
            if status == shown:
                state.device_views.pop(name, None)
                continue
            if not _is_due(name, status, shown, state):
                if written is None or written.version is not None:
                    # otherwise the outcome of the write makes it due again
                    state.devices[node] = None
                continue
            if shown["allocated"] is None and not status["claims"]:
                if len(state.device_looks.zeros) >= _ZEROS_AT_ONCE:
                    state.device_looks.unwritten[node] = None
                    continue
                state.device_looks.zeros.add(name)
            state.device_views.pop(name, None)
            state.device_writes[name] = DeviceWrite(status, state.now)
            yield WriteDevice(name, node, status)


def _is_due(name: str, status: dict[str, Any], shown: dict[str, Any], state: State) -> bool:
    """Return True if the device's status should be written now.

    It is due once it has stopped changing and the last write is `SHOWN_WITHIN_S` old, or, even
    while it is still changing, once it has differed from what is shown for almost that long. It is
    never due while a write is in flight. A burst of pods fills a device within moments, and a
    single write then reports them all.
    """
    written = state.device_writes.get(name)
    before = state.device_views.get(name)
    if before is None:
        state.device_views[name] = before = DeviceView(status, state.device_looks.before)
        is_at_rest = "conditions" in status or (shown["allocated"] is None and not status["claims"])
    else:
        is_at_rest = before.status == status
        before.status = status
    if written is not None and written.version is None:
        return False
    if state.now > before.since + _LAST_LOOK_S:
        return True
    return is_at_rest and (written is None or state.now >= written.at + SHOWN_WITHIN_S)


def _service(state: State, nodes: Sequence[str]) -> Iterator[RecordEvent]:
    """Yield events about devices that go out of service or come back.

    The first look at a device causes no event; otherwise a new leader would record one per device.
    """
    duplicates = state.ledger.duplicates()
    for node in nodes:
        for device in state.ledger.devices(node):
            name = device.metadata.name
            now = _older(device, state) if name in duplicates else _why_out(device)
            before = state.out_of_service.get(name)
            state.out_of_service[name] = now
            if before is None or bool(before) == bool(now):
                continue
            regarding = Regarding(device.api_version, device.kind, None, name, device.metadata.uid)
            if now:
                yield RecordEvent(regarding, "Warning", OUT_OF_SERVICE, "Observing", now)
            else:
                note = f"claims are placed on it again; before: {before}"
                yield RecordEvent(regarding, "Normal", BACK_IN_SERVICE, "Observing", note)


def _why_out(device: GPUDevice) -> str:
    """Return why a device is out of service; empty if it is in service."""
    for type_ in (conditions.HEALTHY, conditions.READY):
        found = conditions.find(device.status.conditions, type_)
        if found is not None and found.status != "True":
            return f"{type_} is {found.status}: {found.message or found.reason}"
    return "" if is_healthy(device) else "its agent has not said yet what it has"


def describe_links(state: State) -> Iterator[list[Effect]]:
    """Yield events about links that two devices report differently, one list per node.

    Placement ignores such links. For a new leader, all nodes with links are checked.
    """
    nodes, state.links = state.links, {}
    for name in sorted(nodes):
        node = state.cache.nodes.get(name)
        pairs = _contradictions(state.ledger.devices(name))
        if node is None or not pairs or state.links_reported.get(name) == pairs:
            yield []
            continue
        state.links_reported[name] = pairs
        more = f" and {len(pairs) - _PAIRS_NAMED} more" * (len(pairs) > _PAIRS_NAMED)
        text = "; ".join(pairs[:_PAIRS_NAMED]) + more
        yield [node_event(node, LINKS_DISAGREE, f"links count as none: {text}")]


def view_of(device: GPUDevice, holders: tuple[Holder, ...]) -> dict[str, Any]:
    """Return the fields of a device's status that show its holders."""
    total = sum((holder.use for holder in holders), Use())
    return {
        "allocated": {
            "memory": format_mib(total.memory_mib),
            "cores": total.cores,
            "slots": total.slots,
        },
        "claims": [
            {
                "namespace": holder.key.namespace,
                "name": holder.key.name,
                "memory": format_mib(holder.use.memory_mib),
                "cores": holder.use.cores,
            }
            for holder in holders
        ],
    }


def _older(device: GPUDevice, state: State) -> str:
    """Return a sentence that names the older object with the same UUID as the device."""
    older = state.ledger.first_of(device.status.uuid)
    return (
        f"GPUDevice {older.metadata.name} of node {older.spec.node_name} is older and has UUID "
        f"{device.status.uuid}, too"
    )


def _duplicate(device: GPUDevice, state: State) -> dict[str, Any]:
    """Return the condition of a device whose UUID an older object already has."""
    return Condition(
        type=conditions.DUPLICATE_UUID,
        status="True",
        reason="DuplicateUUID",
        message=f"{_older(device, state)}; nothing is placed on this one",
        last_transition_time=rfc3339(state.unix),
    ).to_wire()


def _shown(device: GPUDevice, written: DeviceWrite | None) -> dict[str, Any]:
    """Return the fields that our field manager has written for a device, or is writing."""
    observed = version_of(device.metadata.resource_version)
    if written is not None and (written.version is None or observed < written.version):
        return written.status
    allocated = device.status.allocated
    duplicate = conditions.find(device.status.conditions, conditions.DUPLICATE_UUID)
    return {
        **({} if duplicate is None else {"conditions": [duplicate.to_wire()]}),
        "allocated": allocated.to_wire() if allocated is not None else None,
        "claims": [claim.to_wire() for claim in device.status.claims],
    }


def _contradictions(devices: tuple[GPUDevice, ...]) -> list[str]:
    """Return a text for each pair of devices that report different scores for their link."""
    scores = {
        device.status.uuid: {link.peer: link.score for link in device.status.links}
        for device in devices
        if device.status.uuid
    }
    pairs = sorted({(a, b) for a, links in scores.items() for b in links if b in scores})
    return [
        f"{a} says {there} to {b}, which says {back}"
        for a, b in pairs
        if (there := scores[a][b]) != (back := scores[b].get(a, 0))
        and (a < b or (b, a) not in pairs)
    ]
