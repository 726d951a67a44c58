"""Reads the register: the devices that a vendor's device plugin announces on its Node.

A register is accepted or rejected as a whole: if any part of it is invalid, none of its devices is
used. Source of the formats: HAMi v2.10.0, whose plugins write them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vgpu_api import names, quantity
from vgpu_api.errors import BadInput, Fault, QuantityError
from vgpu_api.vendors import Capacity, Kind
from vgpu_api.vendors.model import JsonKey
from vgpu_operator.vendors.parts import Part, named_parts
from vgpu_operator.vendors.records import Given

if TYPE_CHECKING:
    from vgpu_api.core import Node  # slow to load, and `kubectl vgpu get` needs none

MAX_DEVICES = 64
"""The most devices of one kind on a node."""
_MAX_ID = 128
_MAX_NUMBER = (1 << 31) - 1
_MAX_CORES = 64
"""The most numbered cores of a device, one bit each. A trn2 has 8."""
_MAX_SLOTS = 1000
"""The most slots of a device, and thus of a part of it."""
_MAX_PARTS = 64
_MAX_PART_NAME = 63
_PERCENT = 100
_FIELDS = (7, 9)


@dataclass(frozen=True, slots=True)
class RegisteredDevice:
    """A device as its node registers it.

    Attributes:
        id: The plugin's id, unique on the node.
        index: Its number on the node.
        type: The model as the plugin names it.
        memory_mib: Its total memory.
        cores: Its total compute, in the unit of requests.
        slots: The largest number of requests that it can serve at a time.
        numa: Its NUMA node; None if the register does not contain it.
        healthy: False if it must not be allocated.
        group: Its group of linked devices; empty if there is none.
        parts: The parts in which it is allocated, smallest first; empty if any amount can be
            allocated.
        minor: The driver's number of the device, if the register contains it.
    """

    id: str
    index: int
    type: str
    memory_mib: int
    cores: int
    slots: int
    numa: int | None
    healthy: bool
    group: str = ""
    parts: tuple[Part, ...] = ()
    minor: str = ""


def field_of(kind: Kind) -> str:
    """Return the field that names the register in an error."""
    register = kind.register_
    if register.capacity is not None:
        return f"status.capacity[{register.capacity.resource}]"
    return f"metadata.annotations[{register.annotation}]"


def devices_of(kind: Kind, node: Node) -> tuple[RegisteredDevice, ...]:
    """Return the devices of a kind that the node registers.

    Raises:
        BadInput: The register is invalid. The message names the annotation or resource, the value
            and the mistake.
    """
    if kind.register_.capacity is not None:
        found = _by_capacity(kind, kind.register_.capacity, node)
    else:
        written = node.metadata.annotations.get(kind.register_.annotation or "")
        if written is None or not written.strip():
            return ()
        found = _FORMS[kind.register_.form](kind, written, node.metadata.name)
    ids = [device.id for device in found]
    for device in found:
        if not 0 < len(device.id) <= _MAX_ID:
            raise _bad(kind, device.id, f"an id of 1 to {_MAX_ID} characters")
        if ids.count(device.id) > 1:
            raise _bad(kind, device.id, "an id of one device: two have it")
    if len(found) > MAX_DEVICES:
        raise BadInput.too_many(field_of(kind), len(found), MAX_DEVICES, "devices")
    return found


def values_of(kind: Kind, node: Node) -> tuple[object, ...]:
    """Return all values on the node from which the register and its state are derived."""
    register, by = kind.register_, kind.register_.capacity
    offered = node.status.allocatable.get(register.alive or kind.count)
    if by is None:
        return offered, node.metadata.annotations.get(register.annotation or "")
    resources = (by.resource, by.memory, by.cores)
    has = (node.status.capacity.get(resource or "") for resource in resources)
    return offered, *has, _ring(by, node)


def given_of(
    kind: Kind,
    node: Node | None,
    device_id: str,
    *,
    index: int,
    memory_mib: int,
    cores: int,
    core_ids: Sequence[int] = (),
    part: str = "",
) -> Given:
    """Describe a container's allocation in the plugin's terms.

    Args:
        kind: The kind of the device.
        node: The node of the device, if known.
        device_id: The plugin's id of the device.
        index: The number of the device on its node.
        memory_mib: The allocated memory.
        cores: The allocated compute, in the unit of requests.
        core_ids: The numbers of the cores within the device, if cores were requested.
        part: The name of the part, if the device is divided into parts.

    Raises:
        BadInput: The record needs values from the register, which is invalid or does not contain
            the device or its part.
    """
    in_units = kind.cores is not None and kind.cores.units
    of_register = in_units or kind.numbered_cores is not None or kind.in_parts
    if not of_register and kind.records.type == "word":
        return Given(device_id, index, memory_mib, cores, kind.word)
    registered = () if node is None else devices_of(kind, node)
    found = next((each for each in registered if each.id == device_id), None)
    if found is None:
        raise BadInput(
            field=field_of(kind),
            value=device_id,
            fault=Fault.NOT_FOUND,
            detail="the node registers this device no more",
        )
    if in_units:
        # The plugin counts in cores of the device, while requests are percentages.
        cores = max(1, found.cores * cores // _PERCENT)
    elif kind.numbered_cores is not None:
        cores = sum(1 << core for core in core_ids or range(found.cores))
    return Given(
        device_id,
        index,
        memory_mib,
        cores,
        found.type if kind.records.type == "model" else kind.word,
        tuple(index * found.cores + core for core in core_ids),
        minor=found.minor,
        part=_part_of(kind, found, part) if kind.in_parts else None,
    )


def _part_of(kind: Kind, device: RegisteredDevice, name: str) -> Part:
    found = next((part for part in device.parts if part.name == name), None)
    if found is None:
        raise BadInput(
            field=field_of(kind),
            value=name,
            fault=Fault.NOT_FOUND,
            detail=f"the node registers no such part of {device.id}",
        )
    return found


def silence_of(kind: Kind, node: Node) -> str:
    """Return why no device of the node may be allocated; empty if the plugin is alive.

    An annotation remains after its plugin is gone. The kubelet, however, offers the count resource
    only while a plugin is connected.
    """
    resource = kind.register_.alive or kind.count
    offered = node.status.allocatable.get(resource, 0)
    try:
        if quantity.parse(offered) > 0:
            return ""
    except QuantityError:
        pass
    return f"the kubelet offers no {resource}: the vendor's device plugin is not connected"


def _by_capacity(kind: Kind, by: Capacity, node: Node) -> tuple[RegisteredDevice, ...]:
    """Derive the devices from the node's capacity. The last one may be incomplete."""
    unit_mib = 1 if kind.memory is None else kind.memory.unit_mib
    units = _capacity_of(by.resource, node, most=MAX_DEVICES * by.each)
    # Rounded up: a device that lacks some of its cores is still a device.
    count = -(-units // by.each)
    memory = _capacity_of(by.memory, node, most=_MAX_NUMBER // unit_mib)
    cores = _capacity_of(by.cores, node, most=max(count, 1) * _MAX_CORES)
    return tuple(
        RegisteredDevice(
            id=by.id.format(node=node.metadata.name, index=index),
            index=index,
            type=kind.word,
            memory_mib=memory * unit_mib * by.each // units,
            cores=by.each if by.cores is None else cores // count,
            slots=by.slots,
            numa=0,
            healthy=True,
            group=_ring(by, node),
        )
        for index in range(count)
    )


def _ring(by: Capacity, node: Node) -> str:
    """Return the common group of devices that are linked in a ring; empty if they are not."""
    if by.ring is None:
        return ""
    is_ring = by.ring.has in node.metadata.labels.get(by.ring.label, "").lower()
    return "ring" if is_ring else ""


def _capacity_of(resource: str | None, node: Node, *, most: int) -> int:
    """Return the node's capacity of a resource; 0 if no resource is named."""
    given = 0 if resource is None else node.status.capacity.get(resource, 0)
    try:
        amount = quantity.whole(given)
    except QuantityError:
        amount = -1
    if not 0 <= amount <= most:
        expected = f"a whole number, 0 to {most}"
        raise BadInput(field=f"status.capacity[{resource}]", value=given, expected=expected)
    return amount


def _fields(kind: Kind, written: str, node: str) -> tuple[RegisteredDevice, ...]:
    """Parse `id,count,memory,cores,type,numa,health[,index,mode]:` for each device."""
    if ":" not in written:
        raise _bad(kind, written, "a list of devices with a colon behind each")
    found: list[RegisteredDevice] = []
    for entry in (part for part in written.split(":") if part.strip()):
        parts = [part.strip() for part in entry.split(",")]
        if len(parts) not in _FIELDS:
            raise _bad(kind, entry, "id,count,memory,cores,type,numa,health[,index,mode]")
        said = dict(zip(("id", "count", "devmem", "devcore", "type", "numa", "health", "index"),
                        parts, strict=False))  # fmt: skip
        found.append(
            RegisteredDevice(
                id=said["id"],
                index=_number(kind, said, "index", len(found)),
                type=said["type"],
                memory_mib=_number(kind, said, "devmem"),
                cores=_number(kind, said, "devcore"),
                slots=_number(kind, said, "count"),
                numa=_numa(kind, said),
                healthy=_switch(kind, said, "health"),
            )
        )
    return tuple(found)


def _json(kind: Kind, written: str, node: str) -> tuple[RegisteredDevice, ...]:
    """Parse a list of JSON objects.

    Go omits zero values, so a missing key means 0, empty or false.
    """
    document = _loaded(kind, written, "a JSON list of devices")
    if not isinstance(document, list):
        raise _bad(kind, written, "a JSON list of devices")
    found: list[RegisteredDevice] = []
    for place, entry in enumerate(document):
        if not isinstance(entry, dict):
            raise _bad(kind, entry, "a JSON object for each device")
        said = _renamed(kind, entry)
        found.append(
            RegisteredDevice(
                id=_text(kind, said, "id"),
                index=place if _has_no(kind, "index") else _number(kind, said, "index"),
                type=_text(kind, said, "type"),
                memory_mib=_number(kind, said, "devmem"),
                cores=_number(kind, said, "devcore"),
                slots=_number(kind, said, "count"),
                numa=_numa(kind, said),
                healthy=_switch(kind, said, "health"),
                group=_group(kind, said),
            )
        )
    # If only some devices name a group, the register does not show how the others are linked, so no
    # group counts.
    if kind.register_.zone is None and not all(each.group for each in found):
        return tuple(replace(each, group="") for each in found)
    return tuple(found)


def _loaded(kind: Kind, written: str, expected: str) -> Any:
    try:
        return json.loads(written)
    except (ValueError, RecursionError) as error:
        raise _bad(kind, written, expected) from error


def _in_parts(kind: Kind, written: str, node: str) -> tuple[RegisteredDevice, ...]:
    """Parse an object with `devices` and `profiles`, in which all devices have all parts.

    A device without an index gets its position in the list; one without a minor gets its index.
    """
    expected = "a JSON object with devices and profiles"
    document = _loaded(kind, written, expected)
    entries = document.get("devices") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise _bad(kind, written, expected)
    parts, largest = _profiles(kind, document.get("profiles"))
    found: list[RegisteredDevice] = []
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise _bad(kind, entry, "a JSON object for each device")
        index = place if entry.get("index") in (None, "") else _number(kind, entry, "index")
        minor = entry.get("minor", "")
        if not isinstance(minor, str) or len(minor) > _MAX_ID:
            raise _bad(kind, minor, f"a text of at most {_MAX_ID} characters, as minor")
        slots = _number(kind, entry, "capacity")
        if not largest <= slots <= _MAX_SLOTS:
            raise _bad(
                kind,
                slots,
                f"{largest} to {_MAX_SLOTS} as capacity: a part of size {largest} is registered",
            )
        found.append(
            RegisteredDevice(
                id=str(kind.register_.id).format(node=node, index=index),
                index=index,
                type=kind.word,
                memory_mib=max(part.memory_mib for part in parts),
                cores=_PERCENT,
                slots=slots,
                numa=0,
                healthy=True,
                parts=parts,
                minor=minor.strip() or str(index),
            )
        )
    return tuple(found)


def _profiles(kind: Kind, written: object) -> tuple[tuple[Part, ...], int]:
    """Return the parts, and the largest size in any name."""
    expected = "a part with its size and memory, such as 3g.24gb, and its id, as profiles"
    if not isinstance(written, dict):
        raise _bad(kind, written, expected)
    if len(written) > _MAX_PARTS:
        raise BadInput.too_many(field_of(kind), len(written), _MAX_PARTS, "profiles")
    for name, id_ in written.items():
        if not isinstance(id_, str) or len(id_) > _MAX_ID:
            raise _bad(kind, id_, f"a text of at most {_MAX_ID} characters, as the id of {name}")
    parts, largest = named_parts(written)
    for part in parts:
        if len(part.name) > _MAX_PART_NAME or part.memory_mib > _MAX_NUMBER:
            raise _bad(kind, part.name, expected)
    if not parts:
        raise _bad(kind, written, expected)
    return parts, largest


def _renamed(kind: Kind, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an entry of a register with standard keys."""
    keys = kind.register_.keys
    if not keys:
        return entry
    named = {key: name for key, name in keys.items() if name}
    return {**entry, **{key: entry[name] for key, name in named.items() if name in entry}}


def _has_no(kind: Kind, key: JsonKey) -> bool:
    """Return True if entries of this register never have the key."""
    return kind.register_.keys.get(key) == ""


def _group(kind: Kind, said: Mapping[str, Any]) -> str:
    """Return the device's group of linked devices; empty if there is none."""
    custom = said.get("custominfo")
    register = kind.register_
    if register.zone is not None:
        return str(_number(kind, said, register.zone) or "")
    if register.group is None or not isinstance(custom, dict):
        return ""
    if any(custom.get(key) != value for key, value in register.group_when.items()):
        return ""
    shared = custom.get(register.group)
    return str(shared) if type(shared) is int or isinstance(shared, str) else ""


_FORMS: Mapping[str, Callable[[Kind, str, str], tuple[RegisteredDevice, ...]]] = MappingProxyType(
    {"fields": _fields, "json": _json, "parts": _in_parts}
)
"""The parsers of the annotation's formats. The last argument is the name of the node."""


def _number(kind: Kind, said: Mapping[str, Any], key: str, default: int = 0) -> int:
    given = said.get(key, default)
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 10:
        given = int(given)
    if type(given) is not int or not 0 <= given <= _MAX_NUMBER:
        raise _bad(kind, given, f"a whole number, 0 to {_MAX_NUMBER}, as {key}")
    return given


def _numa(kind: Kind, said: Mapping[str, Any]) -> int | None:
    given = said.get("numa")
    return None if given in (-1, "-1") else _number(kind, said, "numa")


def _text(kind: Kind, said: Mapping[str, Any], key: str) -> str:
    given = said.get(key, "")
    if not isinstance(given, str):
        raise _bad(kind, given, f"a text, as {key}")
    return given


def _switch(kind: Kind, said: Mapping[str, Any], key: str) -> bool:
    given = said.get(key, False)
    if isinstance(given, bool):
        return given
    if isinstance(given, str) and given in names.TRUE | names.FALSE:
        return given in names.TRUE
    raise _bad(kind, given, f"true or false, as {key}")


def _bad(kind: Kind, value: object, expected: str) -> BadInput:
    return BadInput(field=field_of(kind), value=value, expected=expected)
