"""Turns a status write into a JSON patch of the changed fields. Pure functions.

A claim's status may have fields that this version does not know, because a replica of a later
version wrote them before it lost the Lease. Writing the whole status would drop them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, Condition, VGPUClaimStatus
from vgpu_api.v1alpha1.base import ApiModel

Operation: TypeAlias = dict[str, Any]

_NOTHING = VGPUClaimStatus(conditions=[])
_CONDITIONS = "/status/conditions"
_DEVICES = "/status/allocation/devices"


def status_patch(before: VGPUClaimStatus | None, after: VGPUClaimStatus) -> list[Operation]:
    """Return the operations that turn the status `before` into `after`.

    Args:
        before: The status at the version that the write tests; None if the claim does not exist.
        after: The status to write.
    """
    if before is None or before == _NOTHING:  # the object may have no status to add to
        return [{"op": "add", "path": "/status", "value": after.to_wire()}]
    return list(_fields("/status", before, after))


def _fields(path: str, before: ApiModel, after: ApiModel) -> Iterator[Operation]:
    for name, field in type(after).model_fields.items():
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield from _value(f"{path}/{field.alias or name}", old, new)


def _value(path: str, old: Any, new: Any) -> Iterator[Operation]:
    if new is None:
        yield {"op": "remove", "path": path}
    elif isinstance(new, Allocation) and isinstance(old, Allocation) and old.id == new.id:
        yield from _fields(path, old, new)
    elif path == _CONDITIONS and old:
        yield from _conditions(old, new)
    elif path == _DEVICES and [_place(each) for each in old] == [_place(each) for each in new]:
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _fields(f"{path}/{number}", before, after)
    else:
        yield {"op": "add", "path": path, "value": _wire(new)}


def _conditions(old: Sequence[Condition], new: Sequence[Condition]) -> Iterator[Operation]:
    """Patch conditions by type: their order has no meaning, and each type occurs only once."""
    before = {condition.type: number for number, condition in enumerate(old)}
    after = {condition.type: condition for condition in new}
    for type_, number in before.items():
        if type_ in after:
            yield from _fields(f"{_CONDITIONS}/{number}", old[number], after[type_])
    for type_ in reversed(before):  # from the end, so that the lower indexes stay valid
        if type_ not in after:
            yield {"op": "remove", "path": f"{_CONDITIONS}/{before[type_]}"}
    for type_, condition in after.items():
        if type_ not in before:
            yield {"op": "add", "path": f"{_CONDITIONS}/-", "value": condition.to_wire()}


def _place(device: AllocatedDevice) -> tuple[str, str]:
    return device.request, device.uuid


def _wire(value: Any) -> Any:
    match value:
        case ApiModel():
            return value.to_wire()
        case list():
            return [_wire(item) for item in value]
        case _:
            return value
