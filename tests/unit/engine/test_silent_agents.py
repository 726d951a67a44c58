"""Devices of a node whose agent is silent take no new claims, until it is back.

An agent is silent if its kubelet does not report its pod as ready, or is silent itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_container, a_device, a_node, a_pod, an_agent_pod
from replica import Replica
from vgpu_api import names
from vgpu_api.v1alpha1 import Condition, GPUDevice
from vgpu_client.recorder import Regarding
from vgpu_operator.engine.nodes.agents import describe_silent
from vgpu_operator.engine.scheduling.refusal import Refusal

READY = Condition(type="Ready", status="True", reason="Present", message="the driver shows it")


class Nodes:
    """Nodes with one device each; a test says which agents are ready, and lets time pass."""

    def __init__(self, replica: Replica, count: int) -> None:
        self.replica = replica
        self.names = [f"node-{number}" for number in range(count)]
        self.devices: dict[str, GPUDevice] = {}
        for node in self.names:
            replica.news.node_changed(a_node(node))
            self.show(self._device(node, READY))
        self.only_ready(*self.names)

    @staticmethod
    def _device(node: str, ready: Condition, version: int = 1) -> GPUDevice:
        made = a_device(name=f"gpu-{node}", node=node, uuid=f"GPU-{node}")
        wire = made.to_wire()
        wire["status"]["conditions"] = [ready.to_wire()]
        wire["metadata"]["resourceVersion"] = str(1000 + version)
        return GPUDevice.model_validate(wire)

    def show(self, device: GPUDevice) -> None:
        self.devices[device.spec.node_name] = device
        self.replica.news.device_changed(device)

    def only_ready(self, *nodes: str) -> None:
        """Report the agents of these nodes as ready, and all others as not."""
        for node in self.names:
            self.replica.news.agent_is(node, ready=node in nodes)

    async def pass_time(self, seconds: int) -> None:
        """Let seconds pass, and deliver the applied statuses."""
        for _ in range(seconds):
            self.replica.time += 1
            before = len(self.replica.api.applied)
            await self.replica.settle()
            for obj in self.replica.api.applied[before:]:
                self._written(obj)

    def _written(self, obj: dict[str, Any]) -> None:
        conditions = obj["status"].get("conditions") or []
        for condition in conditions:
            if condition["type"] == "Ready":
                node = obj["metadata"]["name"].removeprefix("gpu-")
                version = int(self.devices[node].metadata.resource_version) - 999
                found = Condition.model_validate(condition)
                self.show(self._device(node, found, version))

    def marks(self) -> list[dict[str, Any]]:
        """Return the conditions that were written; amounts are written apart."""
        return [obj for obj in self.replica.api.applied if "allocated" not in obj["status"]]

    def ready(self) -> dict[str, str]:
        return {node: device.status.conditions[0].status for node, device in self.devices.items()}


@pytest.fixture
def nodes(replica: Replica) -> Nodes:
    return Nodes(replica, 3)


async def test_a_silent_agents_devices_are_unknown_once_its_patience_has_ended(
    nodes: Nodes,
) -> None:
    nodes.only_ready("node-1", "node-2")
    await nodes.pass_time(names.AGENT_UNREADY_S)
    assert set(nodes.ready().values()) == {"True"}
    await nodes.pass_time(1)
    assert nodes.ready() == {"node-0": "Unknown", "node-1": "True", "node-2": "True"}
    condition = nodes.devices["node-0"].status.conditions[0]
    assert condition.reason == "AgentSilent"
    assert "the agent of node node-0 has not been ready for 16 s" in condition.message
    (mark,) = nodes.marks()
    assert set(mark["status"]) == {"conditions"}  # the rest has other writers


async def test_nothing_is_placed_there_and_something_is_again_when_it_is_back(
    nodes: Nodes, replica: Replica
) -> None:
    nodes.only_ready("node-1", "node-2")
    await nodes.pass_time(20)
    refused = replica.offer(replica.pod("pod-1"), "node-0")
    assert isinstance(refused, Refusal)
    nodes.only_ready(*nodes.names)
    nodes.show(nodes._device("node-0", READY, 50))  # the agent writes over the mark
    await nodes.pass_time(20)
    assert set(nodes.ready().values()) == {"True"}
    assert not isinstance(replica.offer(replica.pod("pod-2"), "node-0"), Refusal)


async def test_a_mark_that_was_overwritten_by_a_dying_agent_is_made_again(nodes: Nodes) -> None:
    nodes.only_ready("node-1", "node-2")
    await nodes.pass_time(20)
    nodes.show(nodes._device("node-0", READY, 50))
    await nodes.pass_time(2)
    assert nodes.ready()["node-0"] == "Unknown"


async def test_a_device_that_is_not_ready_for_a_reason_keeps_it(nodes: Nodes) -> None:
    lost = Condition(type="Ready", status="False", reason="CardGone", message="gone")
    nodes.show(nodes._device("node-0", lost, 50))
    nodes.only_ready("node-1", "node-2")
    await nodes.pass_time(60)
    assert nodes.devices["node-0"].status.conditions[0].reason == "CardGone"
    assert nodes.marks() == []


async def test_pods_that_wait_there_for_their_agent_are_told_once(
    nodes: Nodes, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []

    def record(regarding: Regarding, *, reason: str, note: str, **_: object) -> None:
        if reason == "AgentSilent":
            told.append((regarding.name, note))

    monkeypatch.setattr(replica.recorder, "record", record)
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
    for name, node, phase in (
        ("waits", "node-0", "Pending"),
        ("runs", "node-0", "Running"),
        ("elsewhere", "node-1", "Pending"),
    ):
        containers = [a_container(limits=limits)]
        replica.news.pod_changed(a_pod(name, node=node, phase=phase, containers=containers))
    nodes.only_ready("node-1", "node-2")
    await nodes.pass_time(60)
    note = "waits for the agent of node node-0, which has not been ready for 16 s"
    assert told == [("waits", note)]


async def test_silent_nodes_come_one_by_one_and_no_pods_but_theirs_are_looked_at(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(replica, 6)
    nodes.only_ready("node-3", "node-4", "node-5")
    replica.time += names.AGENT_UNREADY_S + 1
    monkeypatch.setattr(replica.cache, "pods", None)
    replica.engine.pod("")
    silent = describe_silent(replica.state)
    assert [effect.name for effect in next(silent)] == ["gpu-node-0"]
    replica.news.agent_is("node-1", ready=True)  # it is back before it is described
    replica.news.node_gone("node-2")
    replica.news.agent_gone("node-2")
    assert list(silent) == []


async def test_when_most_agents_are_silent_it_is_not_they_who_are(nodes: Nodes) -> None:
    nodes.only_ready("node-2")
    await nodes.pass_time(120)
    assert set(nodes.ready().values()) == {"True"}


async def test_the_agent_of_the_only_node_may_be_silent(replica: Replica) -> None:
    nodes = Nodes(replica, 1)
    nodes.only_ready()
    await nodes.pass_time(20)
    assert nodes.ready() == {"node-0": "Unknown"}


async def test_an_agent_that_is_unready_now_and_then_is_not_silent(nodes: Nodes) -> None:
    for _ in range(6):
        nodes.only_ready("node-1", "node-2")
        await nodes.pass_time(10)
        nodes.only_ready(*nodes.names)
        await nodes.pass_time(1)
    assert set(nodes.ready().values()) == {"True"}


async def test_one_of_two_pods_that_is_ready_is_enough(nodes: Nodes, replica: Replica) -> None:
    """In an update the new agent starts beside the old one."""
    replica.news.pod_changed(an_agent_pod("node-0", ready=False, name="successor"))
    await nodes.pass_time(60)
    assert set(nodes.ready().values()) == {"True"}


async def test_an_agent_whose_pod_is_deleted_is_silent(nodes: Nodes, replica: Replica) -> None:
    replica.news.agent_gone("node-0")
    await nodes.pass_time(20)
    assert nodes.ready() == {"node-0": "Unknown", "node-1": "True", "node-2": "True"}


async def test_an_agent_whose_kubelet_nobody_hears_is_silent(
    nodes: Nodes, replica: Replica
) -> None:
    silent = a_node("node-0", resource_version=2)
    unknown = Condition(type="Ready", status="Unknown")
    status = silent.status.model_copy(update={"conditions": [unknown]})
    replica.news.node_changed(silent.model_copy(update={"status": status}))
    await nodes.pass_time(20)
    assert nodes.ready() == {"node-0": "Unknown", "node-1": "True", "node-2": "True"}


async def test_a_kubelet_that_says_it_is_not_ready_says_nothing_about_its_agent(
    nodes: Nodes, replica: Replica
) -> None:
    replica.news.node_changed(a_node("node-0", ready=False, resource_version=2))
    await nodes.pass_time(60)
    assert set(nodes.ready().values()) == {"True"}


@pytest.mark.parametrize("are_there_others", [True, False])
async def test_an_agent_without_a_pod_is_expected_where_others_have_one(
    replica: Replica, *, are_there_others: bool
) -> None:
    """A former leader may have ended before it marked the devices of a missing agent."""
    nodes = Nodes(replica, 3)
    for gone in nodes.names if not are_there_others else ("node-0",):
        replica.state.agents.pop(gone)
    uids = {an_agent_pod(node).metadata.uid for node in nodes.names}
    replica.news.pods_listed(10_000, uids)
    await nodes.pass_time(names.AGENT_UNREADY_S)
    assert set(nodes.ready().values()) == {"True"}
    await nodes.pass_time(1)
    expected = "Unknown" if are_there_others else "True"
    assert nodes.ready() == {"node-0": expected, "node-1": "True", "node-2": "True"}


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_agents_have_time_to_come_back_after_the_watch_was_lost(
    nodes: Nodes, replica: Replica, lost: str
) -> None:
    """The API server was away: agents are not ready until they have listed again."""
    if lost == "before":
        nodes.only_ready("node-1", "node-2")
    replica.news.pods_listed(10_000, (), after_gap=True)
    await nodes.pass_time(10)
    nodes.only_ready("node-1", "node-2")
    await nodes.pass_time(20 + names.AGENT_UNREADY_S)
    assert set(nodes.ready().values()) == {"True"}
    await nodes.pass_time(1)
    assert nodes.ready()["node-0"] == "Unknown"


async def test_a_replica_that_does_not_lead_marks_nothing(nodes: Nodes, replica: Replica) -> None:
    replica.leading = False
    nodes.only_ready("node-1", "node-2")
    await nodes.pass_time(60)
    assert replica.api.applied == []
