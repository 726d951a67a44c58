"""Reads and sets conditions. The transition time changes only when the status does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vgpu_api.v1alpha1.base import Condition

# Conditions of a claim.
ALLOCATED = "Allocated"
PREPARED = "Prepared"
RELEASED = "Released"
INIT_RELEASED = "InitReleased"
READY = "Ready"
VIOLATED = "Violated"
RESIZED = "Resized"
# Conditions of a device.
HEALTHY = "Healthy"
UNCLAIMED_PROCESSES = "UnclaimedProcesses"
CONFIGURED = "Configured"
ISOLATED = "Isolated"
DUPLICATE_UUID = "DuplicateUUID"


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """Return the condition of that type, or None."""
    return next((condition for condition in conditions if condition.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Return True if the condition is present and its status is `True`."""
    condition = find(conditions, type_)
    return condition is not None and condition.status == "True"


def with_condition(conditions: Sequence[Condition], new: Condition) -> list[Condition]:
    """Return the list with `new` set; `lastTransitionTime` changes only with the status."""
    old = find(conditions, new.type)
    if old is not None and old.status == new.status and old.last_transition_time:
        new = new.model_copy(update={"last_transition_time": old.last_transition_time})
    if old is None:
        return [*conditions, new]
    return [new if condition.type == new.type else condition for condition in conditions]
