"""Writes the annotations of a bound pod that vendors' device plugins read back.

A plugin finds its pod on its node by `hami.io/bind-phase`, `bind-time` and `vgpu-node`. It
allocates the devices that `…-to-allocate` lists for the first container that still has an entry.
Source: HAMi v2.10.0, whose plugins read these annotations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from vgpu_api import names
from vgpu_api.vendors import Kind, Record
from vgpu_operator.vendors.parts import Part


@dataclass(frozen=True, slots=True)
class Given:
    """A device, or a part of one, that is allocated to a container.

    Attributes:
        id: The plugin's id of the device.
        index: The number of the device on its node.
        memory_mib: The allocated memory.
        cores: The allocated compute in the plugin's unit; numbered cores are bits.
        type: The type of the device in the record.
        core_numbers: The numbers of the allocated cores, if cores were requested.
        minor: The driver's number of the device, if the register contains it.
        part: The allocated part, if the device is divided into parts.
    """

    id: str
    index: int
    memory_mib: int
    cores: int
    type: str
    core_numbers: tuple[int, ...] = ()
    minor: str = ""
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The data that a rule may use.

    Attributes:
        kind: The kind of the devices.
        given: The devices of each container, init containers first.
        containers: The names of the containers.
        node: The node of the devices.
        unix_time: The time of the allocation in seconds since 1970.
    """

    kind: Kind
    given: tuple[tuple[Given, ...], ...]
    containers: tuple[str, ...]
    node: str
    unix_time: int


Rule: TypeAlias = Callable[[Decision, Record], str | None]
"""Returns the value of an annotation, or None if it is not written."""


def records_of(
    given: Mapping[str, Sequence[Sequence[Given]]],
    kinds: Mapping[str, Kind],
    *,
    containers: Sequence[str],
    node: str,
    unix_time: int,
) -> dict[str, str]:
    """Return the annotations that the Binding carries for the device plugins.

    Args:
        given: The devices of each container, by name of the kind.
        kinds: The kinds, by name.
        containers: The names of the containers, in the same order.
        node: The node of the pod.
        unix_time: The time of the allocation in seconds since 1970.
    """
    if not given:
        return {}
    written = {
        names.HAMI_NODE: node,
        names.HAMI_TIME: str(unix_time),
        names.HAMI_BIND_PHASE: "allocating",
        names.HAMI_BIND_TIME: str(unix_time),
    }
    for name, of_kind in given.items():
        devices = tuple(map(tuple, of_kind))
        decision = Decision(kinds[name], devices, tuple(containers), node, unix_time)
        written.update(_of_kind(decision))
    return written


def _of_kind(decision: Decision) -> dict[str, str]:
    records, encoded = decision.kind.records, encode(decision)
    written = {records.allocated: encoded}
    if records.to_allocate is not None:
        written[records.to_allocate] = encoded
    for key, record in records.more.items():
        value = RULES[record.rule](decision, record)
        if value is not None:
            written[key] = value
    return written


def encode(decision: Decision) -> str:
    """Encode the devices of all containers in HAMi's format.

    Each device is `id,type,MiB,cores:`; each container ends with `;`, even without a device.
    """
    instead = decision.kind.records.memory
    return "".join(
        "".join(
            f"{one.id},{one.type},{one.memory_mib if instead is None else instead},{one.cores}:"
            for one in container
        )
        + ";"
        for container in decision.given
    )


def _text(decision: Decision, record: Record) -> str:
    """Return the text from the table."""
    return record.value


def _first(decision: Decision, record: Record) -> str:
    """Return index, compute and memory of the first device, in the units of requests."""
    memory = decision.kind.memory
    unit_mib = 1 if memory is None else memory.unit_mib
    first = _first_of(decision)
    return f"{first.index}_{first.cores}_{first.memory_mib // unit_mib}"


def _first_of(decision: Decision) -> Given:
    return next(one for container in decision.given for one in container)


def _first_index(decision: Decision, record: Record) -> str:
    """Return the number of the first device on its node."""
    return str(_first_of(decision).index)


def _first_minor(decision: Decision, record: Record) -> str:
    """Return the driver's number of the first device."""
    return _first_of(decision).minor


def _first_size(decision: Decision, record: Record) -> str | None:
    """Return the size of the first device's part."""
    part = _first_of(decision).part
    return None if part is None else str(part.size)


def _parts_by_container(decision: Decision, record: Record) -> str:
    """Return each container's part as JSON. The plugin marks each part that it has created."""
    part_of = {
        name: container[0].part
        for name, container in zip(decision.containers, decision.given, strict=True)
        if container
    }
    return json.dumps(
        {
            name: {
                "allocated": False,
                "request": part.size,
                **({"profileID": part.id} if part.id else {}),
                "profileName": part.name,
            }
            for name, part in sorted(part_of.items())
            if part is not None
        },
        separators=(",", ":"),
    )


def _seconds(decision: Decision, record: Record) -> str:
    """Return the time of the allocation in seconds since 1970."""
    return str(decision.unix_time)


def _sizes(decision: Decision, record: Record) -> str:
    """Return all devices as JSON: `UUID`, `memory`, and the name of a part's size (`temp`)."""
    memory = decision.kind.memory
    sizes = None if memory is None else memory.sizes
    name_of = {} if sizes is None else {part.memory_mib: part.name for part in sizes.parts}
    return json.dumps(
        [
            {
                "UUID": one.id,
                **({"temp": name_of[one.memory_mib]} if one.memory_mib in name_of else {}),
                "memory": one.memory_mib,
            }
            for container in decision.given
            for one in container
        ],
        separators=(",", ":"),
    )


def _nanoseconds(decision: Decision, record: Record) -> str:
    """Return the time of the allocation in nanoseconds since 1970."""
    return f"{decision.unix_time}000000000"


def _indexes(decision: Decision, record: Record) -> str:
    """Return the numbers of the devices of the last container that has any."""
    given = [container for container in decision.given if container]
    return ",".join(str(one.index) for one in given[-1])


def _node(decision: Decision, record: Record) -> str:
    """Return the name of the node."""
    return decision.node


def _numbers(decision: Decision, record: Record) -> str:
    """Return the numbers of all devices, or of all cores if cores were requested."""
    given = (one for container in decision.given for one in container)
    return ",".join(str(each) for one in given for each in (one.core_numbers or (one.index,)))


def _containers(decision: Decision, record: Record) -> str:
    """Return each container's devices as JSON: `uuid`, and `compute` and `vRam` if set."""
    return json.dumps(
        [
            [
                {
                    "uuid": one.id,
                    **({"compute": one.cores} if one.cores else {}),
                    **({"vRam": one.memory_mib} if one.memory_mib else {}),
                }
                for one in container
            ]
            for container in decision.given
        ],
        separators=(",", ":"),
    )


def _cores_word(decision: Decision, record: Record) -> str | None:
    """Return the keyword for a request of numbered cores, or None for a request of devices."""
    numbered = decision.kind.numbered_cores
    is_requested = any(one.core_numbers for container in decision.given for one in container)
    return numbered.resource if numbered is not None and is_requested else None


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "text": _text,
        "first": _first,
        "seconds": _seconds,
        "nanoseconds": _nanoseconds,
        "sizes": _sizes,
        "indexes": _indexes,
        "node": _node,
        "numbers": _numbers,
        "coresWord": _cores_word,
        "containers": _containers,
        "partsByContainer": _parts_by_container,
        "firstIndex": _first_index,
        "firstMinor": _first_minor,
        "firstSize": _first_size,
    }
)
"""The rules by name; each writes one annotation."""
