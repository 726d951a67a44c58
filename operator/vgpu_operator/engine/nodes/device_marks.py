"""Tells the agent of a node, by a mark on its pod, that its GPUDevices have changed.

The API server has no index of devices by node, so a watch of devices in each agent would cost it a
comparison of every change with every node. A mark that was lost, or that a former leader did not
write, is noticed here, because the mark is a function of the devices: as long as the pod shows
another one it is written again. So no agent has to read its devices from time to time.

An agent that starts may take its devices back while its pod is not ready yet; they are then marked
unknown once more, and the mark is the one that the pod has. So an agent that is ready while devices
are unknown gets another mark with the same meaning.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpu_api.agent_pods import device_mark, is_unknown
from vgpu_api.names import AGENT_NAMESPACE
from vgpu_api.vendors import kind_of
from vgpu_operator.engine.effects import MarkPod
from vgpu_operator.engine.state import NodeAgent, State

MARK_AGAIN_S = 5.0
_AGAIN = " again"


def mark_agents(state: State) -> Iterator[list[MarkPod]]:
    """Mark the pods of agents that do not know their devices; yields one list for each node."""
    for node in state.unmarked.pop(state.now):
        agent = state.agents.get(node)
        if agent is None:
            continue
        mark = device_mark(state.ledger.devices(node))
        marks = [
            MarkPod(AGENT_NAMESPACE, pod.name, uid, mark)
            for uid, pod in agent.pods.items()
            if pod.mark.removesuffix(_AGAIN) != mark
        ]
        has_unknown = _has_unknown(node, state)
        if not marks and agent.lost_at is None and has_unknown:
            marks = _told_again(agent, mark, state)
        if marks:
            agent.marked_at = state.now
        if marks or has_unknown:
            state.unmarked.set(node, state.now + MARK_AGAIN_S)
        yield marks


def _has_unknown(node: str, state: State) -> bool:
    return any(
        is_unknown(device)
        for device in state.ledger.devices(node)
        if kind_of(device.status.vendor) is None
    )


def _told_again(agent: NodeAgent, mark: str, state: State) -> list[MarkPod]:
    """Return a mark for each pod of the agent, altered if the pod already has it."""
    if state.now - agent.marked_at < MARK_AGAIN_S:
        return []
    return [
        MarkPod(AGENT_NAMESPACE, pod.name, uid, mark + _AGAIN if pod.mark == mark else mark)
        for uid, pod in agent.pods.items()
    ]
