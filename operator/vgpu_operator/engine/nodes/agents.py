"""Finds silent agents, and marks their devices `Ready=Unknown` so that they take no new claims.

An agent counts as alive while the kubelet reports its pod as ready: the readiness probe fails if
the agent's event loop is stuck. If the kubelet itself goes silent, Kubernetes marks the node, so
agents need no heartbeat of their own. How long an agent has been silent is measured by this
replica's own clock. If most agents are silent at once, the fault is with the API server or the
network, and nothing is marked. (Kubernetes' node lifecycle controller stops evictions at the same
share of a zone.)

An agent that comes back overwrites the mark with its own conditions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from vgpu_api import conditions, names
from vgpu_api.v1alpha1 import Condition
from vgpu_api.vendors import kind_of
from vgpu_client.clock import rfc3339
from vgpu_operator.engine.effects import Effect, MarkDevice, RecordEvent
from vgpu_operator.engine.state import State

SILENT = "AgentSilent"
_MOST = 0.55
"""If a larger share of all agents is silent, the agents are not at fault."""


@dataclass(slots=True)
class _Silent:
    """A node whose agent is silent, since a time in monotonic seconds."""

    node: str
    since: float
    seconds: float


def describe_silent(state: State) -> Iterator[list[Effect]]:
    """Mark the devices of nodes with silent agents, and record events on the pods that wait there.

    Yields one list for each node, because a failing zone may have thousands of devices. A device is
    marked again if its mark did not reach the API server, or was overwritten by an agent that fell
    silent again. A device that is not Ready for another reason keeps that reason.
    """
    silent = _silent(state)
    if _too_many(len(silent), state):
        return
    for found in silent:
        agent = state.agents.get(found.node)
        if agent is None or agent.lost_at != found.since:
            continue  # the agent is gone with its node, or has come back
        effects: list[Effect] = list(_marks(found, state))
        if not agent.reported:
            agent.reported = True
            effects += _events(found, state)
        yield effects


def _marks(silent: _Silent, state: State) -> Iterator[MarkDevice]:
    note = (
        f"the agent of node {silent.node} has not been ready for {silent.seconds:.0f} s; "
        "nothing is placed here until it is"
    )
    for device in state.ledger.devices(silent.node):
        if kind_of(device.status.vendor) is not None:
            continue  # the device plugin of its vendor reports its health
        ready = conditions.find(device.status.conditions, conditions.READY)
        if ready is not None and ready.status == "True":
            yield MarkDevice(device.metadata.name, _unknown(note, unix=state.unix))


@dataclass(frozen=True, slots=True)
class Absent:
    """An agent that appears to be down.

    Attributes:
        why: A sentence that says why we think so.
        seen: When the agent was last found ready, in monotonic seconds; minus infinity if it has
            never been there.
    """

    why: str
    seen: float


def absent_agent(node: str, state: State) -> Absent | None:
    """Return the node's agent if it is absent; None while most agents are silent at once."""
    agent = state.agents.get(node)
    if agent is None:
        return Absent(f"node {node} has no agent", -inf)
    if agent.lost_at is None or state.now - agent.lost_at <= names.AGENT_UNREADY_S:
        return None
    if _too_many(len(_silent(state)), state):
        return None
    seconds = state.now - agent.lost_at
    return Absent(f"the agent of node {node} has not been ready for {seconds:.0f} s", agent.lost_at)


def _silent(state: State) -> list[_Silent]:
    return [
        _Silent(node, agent.lost_at, state.now - agent.lost_at)
        for node, agent in state.agents.items()
        if agent.lost_at is not None and state.now - agent.lost_at > names.AGENT_UNREADY_S
    ]


def _too_many(silent: int, state: State) -> bool:
    return silent > max(1.0, _MOST * len(state.agents))


def _events(silent: _Silent, state: State) -> Iterator[RecordEvent]:
    """Yield events for pods with devices on the node that are waiting for its agent."""
    note = (
        f"waits for the agent of node {silent.node}, which has not been ready for "
        f"{silent.seconds:.0f} s"
    )
    for key in state.cache.claims_on(silent.node):
        for pod in state.cache.pods_of(key):
            is_there = pod.is_running and pod.pod.spec.node_name == silent.node
            if is_there and pod.pod.status.phase in ("", "Pending"):
                yield RecordEvent(pod.regarding, "Warning", SILENT, "Observing", note)


def _unknown(note: str, *, unix: float) -> Condition:
    return Condition(
        type=conditions.READY,
        status="Unknown",
        reason=SILENT,
        message=note,
        last_transition_time=rfc3339(unix),
    )
