"""Resolves requests for a part of a device on a node that registers parts.

The amounts in such a request are known only on the node. Before any device is checked, it is
converted to a request for the memory and compute of one part, so that the checks need not know
about parts. A part takes one slot: the compute of the parts limits the sum of their sizes to the
device's slots (`vendors.parts.Part`). See docs/design/vendors.md.
"""

from __future__ import annotations

from dataclasses import replace

from vgpu_operator.demand import RequestDemand
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.device_conditions import Facts
from vgpu_operator.vendors.parts import mib_of, of_size, smallest


def on_facts(facts: Facts, request: RequestDemand) -> RequestDemand | None:
    """Resolve a request for a part on a device; None if it has no such part or another vendor."""
    requested = request.part
    if requested is None or facts.vendor != request.vendor:
        return None
    if requested.size:
        part = of_size(facts.parts, requested.size)
    else:
        memory = mib_of(facts.parts, requested.memory) or request.memory_on(facts.memory_mib)
        part = smallest(facts.parts, memory, request.cores)
    if part is None:
        return None
    return replace(
        request,
        memory_mib=part.memory_mib,
        memory_percent=None,
        cores=part.cores,
        part=requested._replace(name=part.name),
    )


def on_device(columns: Columns, device: int, request: RequestDemand) -> RequestDemand | None:
    """Resolve a request on a device; None if it has no such part. Other requests are unchanged."""
    if request.part is None or request.part.name:
        return request
    number = columns.facts[device]
    known = columns.conditions.in_parts.of(request)
    if number not in known:
        known[number] = on_facts(columns.conditions.facts[number], request)
    return known[number]


def on_node(columns: Columns, node: int, request: RequestDemand) -> RequestDemand | None:
    """Resolve a request on a node, as `on_device` does; None if no device there has such a part.

    All devices of a node have the same parts. A healthy device is tried first, because the known
    parts of devices that are no longer registered may be outdated.
    """
    if request.part is None or request.part.name:
        return request
    devices = [
        device for device in columns.node_devices[node] if columns.vendor[device] == request.vendor
    ]
    if not devices:
        return None
    return on_device(columns, max(devices, key=columns.healthy.__getitem__), request)
