"""Conditions of pods and nodes as Kubernetes' programs write them, which no schema checks."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from vgpu_api.empties import no_items
from vgpu_api.v1alpha1.base import Condition

_STATUSES = ("True", "False", "Unknown")
_LONGEST = {"type": 64, "reason": 128, "message": 4096}
"""The longest texts that a condition of ours may have."""


def _readable(value: object) -> object:
    """Make every condition readable: cut long texts, and read a missing status as Unknown.

    kube-scheduler patches what it has changed of the condition PodScheduled, by the pod's name. If
    the pod was recreated in the meantime, this leaves a condition without a status.
    """
    return [_one(each) for each in value] if isinstance(value, list) else value


def _one(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    is_known = value.get("status") in _STATUSES
    texts = {name: str(value.get(name) or "") for name in _LONGEST}
    if is_known and all(len(texts[name]) <= most for name, most in _LONGEST.items()):
        return value
    cut = {name: texts[name][:most] for name, most in _LONGEST.items()}
    return {**value, **cut, "status": value["status"] if is_known else "Unknown"}


WrittenConditions: TypeAlias = Annotated[
    list[Condition], BeforeValidator(_readable), Field(default_factory=no_items)
]
