"""Devices of a node whose agent is silent take no new claims, until it is back."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_container, a_device, a_node, a_pod
from replica import Replica
from vgpu_api import names
from vgpu_api.v1alpha1 import Condition, GPUDevice
from vgpu_client.recorder import Regarding
from vgpu_operator.engine.nodes.agents import describe_silent
from vgpu_operator.engine.scheduling.refusal import Refusal

READY = Condition(type="Ready", status="True", reason="Present", message="the driver shows it")


class Nodes:
    """Nodes with one device each; a test lets their agents beat, and time pass."""

    def __init__(self, replica: Replica, count: int) -> None:
        self.replica = replica
        self.names = [f"node-{number}" for number in range(count)]
        self.devices: dict[str, GPUDevice] = {}
        for node in self.names:
            replica.news.node_changed(a_node(node))
            self.show(self._device(node, READY))
            self.beat(node)

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

    def beat(self, *nodes: str) -> None:
        for node in nodes:
            self.replica.news.agent_renewed(node, f"renewed at {self.replica.time}")

    async def pass_time(self, seconds: int, *beating: str) -> None:
        """Let seconds pass; some agents beat every ten of them, and what is applied is shown."""
        for second in range(seconds):
            self.replica.time += 1
            if second % 10 == 9:
                self.beat(*beating)
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


async def test_a_silent_agents_devices_are_unknown_within_forty_seconds(nodes: Nodes) -> None:
    await nodes.pass_time(names.AGENT_LEASE_S, "node-1", "node-2")
    assert set(nodes.ready().values()) == {"True"}
    await nodes.pass_time(40 - names.AGENT_LEASE_S, "node-1", "node-2")
    assert nodes.ready() == {"node-0": "Unknown", "node-1": "True", "node-2": "True"}
    condition = nodes.devices["node-0"].status.conditions[0]
    assert condition.reason == "AgentSilent"
    assert "the agent of node node-0 has not renewed its Lease for 36 s" in condition.message
    (mark,) = nodes.marks()
    assert set(mark["status"]) == {"conditions"}  # the rest has other writers


async def test_nothing_is_placed_there_and_something_is_again_when_it_is_back(
    nodes: Nodes, replica: Replica
) -> None:
    await nodes.pass_time(40, "node-1", "node-2")
    refused = replica.offer(replica.pod("pod-1"), "node-0")
    assert isinstance(refused, Refusal)
    nodes.beat("node-0")
    nodes.show(nodes._device("node-0", READY, 50))  # the agent writes over the mark
    await nodes.pass_time(5, "node-1", "node-2")
    assert set(nodes.ready().values()) == {"True"}
    assert not isinstance(replica.offer(replica.pod("pod-2"), "node-0"), Refusal)


async def test_a_mark_that_was_overwritten_by_a_dying_agent_is_made_again(nodes: Nodes) -> None:
    await nodes.pass_time(40, "node-1", "node-2")
    nodes.show(nodes._device("node-0", READY, 50))
    await nodes.pass_time(2, "node-1", "node-2")
    assert nodes.ready()["node-0"] == "Unknown"


async def test_a_device_that_is_not_ready_for_a_reason_keeps_it(nodes: Nodes) -> None:
    lost = Condition(type="Ready", status="False", reason="CardGone", message="gone")
    nodes.show(nodes._device("node-0", lost, 50))
    await nodes.pass_time(60, "node-1", "node-2")
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
    await nodes.pass_time(60, "node-1", "node-2")
    note = "waits for the agent of node node-0, which has not been heard of for 36 s"
    assert told == [("waits", note)]


async def test_silent_nodes_come_one_by_one_and_no_pods_but_theirs_are_looked_at(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(replica, 6)
    replica.time += names.AGENT_LEASE_S + 1
    nodes.beat("node-3", "node-4", "node-5")
    monkeypatch.setattr(replica.cache, "pods", None)
    silent = describe_silent(replica.state)
    assert [effect.name for effect in next(silent)] == ["gpu-node-0"]
    nodes.beat("node-1")  # it is back before its turn
    replica.news.agent_gone("node-2")
    assert list(silent) == []


async def test_when_most_agents_are_silent_it_is_not_they_who_are(nodes: Nodes) -> None:
    await nodes.pass_time(120, "node-2")
    assert set(nodes.ready().values()) == {"True"}


async def test_the_agent_of_the_only_node_may_be_silent(replica: Replica) -> None:
    nodes = Nodes(replica, 1)
    await nodes.pass_time(40)
    assert nodes.ready() == {"node-0": "Unknown"}


async def test_nobody_is_silent_who_could_not_be_heard(nodes: Nodes, replica: Replica) -> None:
    await nodes.pass_time(30, "node-1", "node-2")
    replica.news.agents_listed()  # the watch was lost, and is made up for
    await nodes.pass_time(30, "node-1", "node-2")
    assert set(nodes.ready().values()) == {"True"}
    await nodes.pass_time(10, "node-1", "node-2")
    assert nodes.ready()["node-0"] == "Unknown"


async def test_an_agent_that_never_kept_a_lease_is_not_expected_to(nodes: Nodes) -> None:
    nodes.replica.news.agent_gone("node-0")
    await nodes.pass_time(120, "node-1", "node-2")
    assert set(nodes.ready().values()) == {"True"}


async def test_a_replica_that_does_not_lead_marks_nothing(nodes: Nodes, replica: Replica) -> None:
    replica.leading = False
    await nodes.pass_time(60, "node-1", "node-2")
    assert replica.api.applied == []
