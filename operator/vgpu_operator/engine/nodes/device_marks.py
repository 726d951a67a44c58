"""Tells the agent of a node, by a mark on its pod, that its GPUDevices have changed.

The API server has no index of devices by node, so a watch of devices in each agent would cost it a
comparison of every change with every node. A mark that was lost, or that a former leader did not
write, is noticed here, because the mark is a function of the devices: as long as the pod shows
another one it is written again. So no agent has to read its devices from time to time.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpu_api.agent_pods import device_mark
from vgpu_api.names import AGENT_NAMESPACE
from vgpu_operator.engine.effects import MarkPod
from vgpu_operator.engine.state import State

MARK_AGAIN_S = 5.0


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
            if pod.mark != mark
        ]
        if marks:
            state.unmarked.set(node, state.now + MARK_AGAIN_S)
        yield marks
