"""Applies events about agents' pods and nodes, which show the state of the agents."""

from __future__ import annotations

from vgpu_api.core import Pod
from vgpu_api.names import ANNOTATION_REQUEUE
from vgpu_api.vendors import kind_of
from vgpu_operator.engine.state import AgentPod, NodeAgent, State

_LISTED_AGAIN_S = 30.0
"""The longest time between two attempts of an agent to list."""
_SETTLE_S = 0.5
"""An agent that starts creates its devices one after the other; one mark is enough for all."""


def agent_pod_observed(pod: Pod, state: State) -> None:
    """Apply an added or updated pod of an agent."""
    metadata, node = pod.metadata, pod.spec.node_name
    if not node or pod.is_terminal:
        agent_pod_deleted(metadata.uid, state)
        return
    mark = metadata.annotations.get(ANNOTATION_REQUEUE, "")
    lost_at = max(state.now, state.agents_back_at)
    agent = state.agents.setdefault(node, NodeAgent(lost_at=lost_at))
    agent.pods[metadata.uid] = AgentPod(metadata.name, pod.is_ready, mark)
    state.agent_nodes[metadata.uid] = node
    review_agent(node, state)
    note_devices(node, state)


def agent_pod_deleted(uid: str, state: State) -> None:
    """Forget a pod if it is an agent's. The node is remembered, because its agent is missing."""
    node = state.agent_nodes.pop(uid, None)
    if node is not None:
        state.agents[node].pods.pop(uid, None)
        review_agent(node, state)


def review_agent(node: str, state: State) -> None:
    """Record that the agent of a node, if there is one, is lost or has come back."""
    agent, known = state.agents.get(node), state.cache.nodes.get(node)
    if agent is None:
        return
    if known is None and not agent.pods:
        del state.agents[node]
    elif (
        known is not None
        and not known.is_silent
        and any(pod.is_ready for pod in agent.pods.values())
    ):
        agent.lost_at, agent.reported = None, False
    elif agent.lost_at is None:
        agent.lost_at = max(state.now, state.agents_back_at)


def agents_listed(state: State, *, after_gap: bool) -> None:
    """Take account of a complete list of the pods.

    What ended our watch may have ended those of the agents, which are not ready until they have
    listed again, too. And agents count as lost whose devices are there and whose pods the list
    lacks: a former leader may have ended before it marked their devices. Where no agent has a pod,
    nothing is known about agents.
    """
    if after_gap:
        state.agents_back_at = state.now + _LISTED_AGAIN_S
        for agent in state.agents.values():
            if agent.lost_at is not None:
                agent.lost_at = state.agents_back_at
    if not state.agents:
        return
    for node in state.cache.nodes:
        if node not in state.agents and any(
            kind_of(device.status.vendor) is None for device in state.ledger.devices(node)
        ):
            state.agents[node] = NodeAgent(lost_at=max(state.now, state.agents_back_at))


def note_devices(node: str, state: State) -> None:
    """Compare the mark on the agent's pod with the node's devices soon."""
    state.unmarked.set(node, state.now + _SETTLE_S)
