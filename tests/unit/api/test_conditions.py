"""Setting a condition keeps its transition time unless the status moved."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import ValidationError

from vgpu_api import conditions
from vgpu_api.core import Node
from vgpu_api.v1alpha1 import Condition

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def a_condition(
    kind: str, status: Literal["True", "False"], time: str, reason: str = ""
) -> Condition:
    return Condition(type=kind, status=status, last_transition_time=time, reason=reason)


def test_a_new_condition_is_appended() -> None:
    ready = a_condition("Ready", "True", EARLY)
    allocated = a_condition("Allocated", "True", LATE)
    assert conditions.with_condition([ready], allocated) == [ready, allocated]


def test_the_same_status_keeps_its_time_and_takes_the_new_reason() -> None:
    old = a_condition("Allocated", "False", EARLY, "CardCordoned")
    new = a_condition("Allocated", "False", LATE, "CardNotHealth")
    [kept] = conditions.with_condition([old], new)
    assert (kept.last_transition_time, kept.reason) == (EARLY, "CardNotHealth")


def test_a_changed_status_takes_the_new_time_in_the_old_place() -> None:
    first, second = a_condition("Allocated", "False", EARLY), a_condition("Ready", "True", EARLY)
    changed = conditions.with_condition([first, second], a_condition("Allocated", "True", LATE))
    assert [c.type for c in changed] == ["Allocated", "Ready"]
    assert changed[0].last_transition_time == LATE


def test_a_time_that_was_never_written_does_not_win() -> None:
    old = a_condition("Ready", "True", "")
    [kept] = conditions.with_condition([old], a_condition("Ready", "True", LATE))
    assert kept.last_transition_time == LATE


def test_only_true_is_true() -> None:
    listed = [a_condition("Ready", "False", EARLY)]
    assert not conditions.is_true(listed, "Ready")
    assert not conditions.is_true(listed, "Allocated")
    assert conditions.find(listed, "Allocated") is None
    assert conditions.is_true([a_condition("Ready", "True", EARLY)], "Ready")


def test_a_node_whose_condition_has_no_time_is_ready() -> None:
    """The API server writes an unset time as null."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": None}
    node = Node.model_validate({"metadata": {"name": "n"}, "status": {"conditions": [ready]}})
    assert node.is_ready
    assert node.status.conditions[0].last_transition_time == ""


def test_the_time_of_a_condition_is_never_anything_else_but_text() -> None:
    with pytest.raises(ValidationError, match="lastTransitionTime"):
        Condition.model_validate({"type": "Ready", "status": "True", "lastTransitionTime": 5})
