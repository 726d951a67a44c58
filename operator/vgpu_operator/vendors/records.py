"""The annotations that vendors' device plugins read back from a pod that was bound.

Source: HAMi v2.10.0, whose plugins read them. A plugin finds its pod among those of its node by
`hami.io/bind-phase`, `bind-time` and `vgpu-node`, and hands out what `…-to-allocate` names for the
first container that still has something there.
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
    """A part of a device that a container was given.

    Attributes:
        id: The device, as its plugin knows it.
        index: Its number on the node.
        memory_mib: Memory given.
        cores: Compute given, in the unit in which the plugin reads it; numbered cores are bits.
        type: What the record calls the device.
        core_numbers: The cores given, by their numbers on the node, where cores were asked for.
        minor: The device's number in the driver, where the register has that.
        part: The part that it is, of a device that is given in parts.
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
    """What a rule may write of.

    Attributes:
        kind: The devices' kind.
        given: By container of the pod, init containers first; empty for those without a device.
        containers: Their names.
        node: Where they are.
        unix_time: The second in which they were given.
    """

    kind: Kind
    given: tuple[tuple[Given, ...], ...]
    containers: tuple[str, ...]
    node: str
    unix_time: int


Rule: TypeAlias = Callable[[Decision, Record], str | None]
"""None: the annotation is not written."""


def records_of(
    given: Mapping[str, Sequence[Sequence[Given]]],
    kinds: Mapping[str, Kind],
    *,
    containers: Sequence[str],
    node: str,
    unix_time: int,
) -> dict[str, str]:
    """What the Binding carries for the plugins of all kinds of which the pod has devices.

    Args:
        given: By kind's name: what each container of the pod got, init containers first.
        kinds: By name.
        containers: Names of the pod's containers, in that order.
        node: The node of the pod.
        unix_time: The second in which the devices were given.
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
    """`id,type,MiB,cores:` for each device, `;` behind each container, also those without one."""
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
    """The text that the table gives."""
    return record.value


def _first(decision: Decision, record: Record) -> str:
    """Index, compute and memory (in the unit in which it is asked for) of the first device."""
    memory = decision.kind.memory
    unit_mib = 1 if memory is None else memory.unit_mib
    first = _first_of(decision)
    return f"{first.index}_{first.cores}_{first.memory_mib // unit_mib}"


def _first_of(decision: Decision) -> Given:
    return next(one for container in decision.given for one in container)


def _first_index(decision: Decision, record: Record) -> str:
    """The number of the first device."""
    return str(_first_of(decision).index)


def _first_minor(decision: Decision, record: Record) -> str:
    """The number that the driver has for the first device."""
    return _first_of(decision).minor


def _first_size(decision: Decision, record: Record) -> str | None:
    """The size of the first part."""
    part = _first_of(decision).part
    return None if part is None else str(part.size)


def _parts_by_container(decision: Decision, record: Record) -> str:
    """The part of each container that has one, as JSON; the plugin marks it when it is made."""
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
    """The second in which the devices were given."""
    return str(decision.unix_time)


def _sizes(decision: Decision, record: Record) -> str:
    """All devices as JSON: `UUID`, `temp` (the name of the size, if it is a part), `memory`."""
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
    """The second in which the devices were given, in nanoseconds."""
    return f"{decision.unix_time}000000000"


def _indexes(decision: Decision, record: Record) -> str:
    """The numbers of the devices of the last container that has any."""
    given = [container for container in decision.given if container]
    return ",".join(str(one.index) for one in given[-1])


def _node(decision: Decision, record: Record) -> str:
    """The node."""
    return decision.node


def _numbers(decision: Decision, record: Record) -> str:
    """The numbers of all devices, or of all cores where cores were asked for."""
    given = (one for container in decision.given for one in container)
    return ",".join(str(each) for one in given for each in (one.core_numbers or (one.index,)))


def _containers(decision: Decision, record: Record) -> str:
    """A list of devices for each container as JSON: `uuid`, `compute`, `vRam`, if not 0."""
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
    """The word in which numbered cores are asked for, where they were."""
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
"""Each makes one annotation from the decision and its table."""
