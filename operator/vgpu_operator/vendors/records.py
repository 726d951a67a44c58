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
    """

    id: str
    index: int
    memory_mib: int
    cores: int
    type: str
    core_numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What a rule may write of.

    Attributes:
        kind: The devices' kind.
        given: By container of the pod, init containers first; empty for those without a device.
        node: Where they are.
        unix_time: The second in which they were given.
    """

    kind: Kind
    given: tuple[tuple[Given, ...], ...]
    node: str
    unix_time: int


Rule: TypeAlias = Callable[[Decision, Record], str | None]
"""None: the annotation is not written."""


def records_of(
    given: Mapping[str, Sequence[Sequence[Given]]],
    kinds: Mapping[str, Kind],
    *,
    node: str,
    unix_time: int,
) -> dict[str, str]:
    """What the Binding carries for the plugins of all kinds of which the pod has devices.

    Args:
        given: By kind's name: what each container of the pod got, init containers first.
        kinds: By name.
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
    for name, containers in given.items():
        decision = Decision(kinds[name], tuple(map(tuple, containers)), node, unix_time)
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
    first = next(one for container in decision.given for one in container)
    return f"{first.index}_{first.cores}_{first.memory_mib // unit_mib}"


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
    }
)
"""Each makes one annotation from the decision and its table."""
