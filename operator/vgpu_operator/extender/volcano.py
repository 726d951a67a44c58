"""The verbs of Volcano's `extender` plugin: predicate, allocate, deallocate.

Volcano decides a session of whole jobs in memory: it asks about a task and a node, reports the node
that a task was given, and withdraws that if a gang does not come together. It binds pods itself, so
there is no verb for Bind. Devices are reserved at allocate, and later tasks of the gang see them
taken; deallocate withdraws the reservation. Once the watch shows the pod as bound, the allocation
is written; the agent starts no container before its claim has the allocation.

Source: volcano.sh/volcano, pkg/scheduler/plugins/extender, of 2026-08 (v1.16.0-alpha.1); allocate
and deallocate are not in v1.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vgpu_api.errors import BadInput
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.extender.filtering import read_pod

UNSCHEDULABLE = 2
"""Volcano's code for a node that ending other pods could make fit."""


@dataclass(frozen=True, slots=True)
class Task:
    """A pod as Volcano sends it, and the node to check."""

    pod: dict[str, Any]
    node: str

    @classmethod
    def of_predicate(cls, body: Any) -> Task:
        """Read the task from Volcano's predicate request for a node.

        Raises:
            BadInput: Names the field that is missing or wrong.
        """
        return cls(_pod(body), _text(_object(body, "node"), "node", "Name"))

    @classmethod
    def of_event(cls, body: Any) -> Task:
        """Read the task of an event; its pod names the node.

        Raises:
            BadInput: Names the field that is missing or wrong.
        """
        return cls(_pod(body), _text(_object(body, "task"), "task", "NodeName"))


def predicate(engine: Engine, body: Any) -> dict[str, Any]:
    """Answer if a node can take the task's pod; reserve nothing."""
    try:
        task = Task.of_predicate(body)
        refused = engine.filter_without_effect(read_pod(task.pod), frozenset((task.node,)))
    except BadInput as error:
        return {"status": str(error), "code": UNSCHEDULABLE}
    if isinstance(refused, Refusal):
        return {"status": refused.message, "code": UNSCHEDULABLE}
    why = (refused or {}).get(task.node, "")
    return {"status": why, "code": UNSCHEDULABLE if why else 0}


def allocate(engine: Engine, body: Any) -> dict[str, Any]:
    """Reserve devices for the task's pod on its node."""
    try:
        task = Task.of_event(body)
        candidates = frozenset((task.node,))
        outcome = engine.filter(read_pod(task.pod), candidates, may_be_simulated=False)
    except BadInput as error:
        return {"errorMessage": str(error)}
    if isinstance(outcome, Refusal):
        return {"errorMessage": outcome.on(task.node)}
    if outcome is not None:
        outcome.offer_again(engine.state.now)
    return {"errorMessage": ""}


def deallocate(engine: Engine, body: Any) -> dict[str, Any]:
    """Withdraw the reservation of the task's pod, unless the pod may be bound there."""
    try:
        engine.withdraw(read_pod(_pod(body)).metadata.uid)
    except BadInput as error:
        return {"errorMessage": str(error)}
    return {"errorMessage": ""}


VERBS = {"predicate": predicate, "allocate": allocate, "deallocate": deallocate}
"""The verbs, by the last part of the path."""


def _pod(body: Any) -> dict[str, Any]:
    return _object(_object(body, "task"), "Pod", "task")


def _object(holder: Any, name: str, path: str = "") -> dict[str, Any]:
    found = holder.get(name) if isinstance(holder, dict) else None
    if found is None:
        raise BadInput.required(_path(path, name))
    if not isinstance(found, dict):
        raise BadInput(field=_path(path, name), value=found, expected="an object")
    return found


def _text(holder: dict[str, Any], path: str, name: str) -> str:
    found = holder.get(name)
    if found is None or found == "":
        raise BadInput.required(_path(path, name))
    if not isinstance(found, str):
        raise BadInput(field=_path(path, name), value=found, expected="a string")
    return found


def _path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
