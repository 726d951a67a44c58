"""Allocations that only an absent agent could release are released by age once the pod ended."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_container, a_node, a_pod, use_of
from replica import Replica
from vgpu_api import names
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim

LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


class Orphan:
    """A claim whose pod runs on node-1; a test ends the pod and silences the agent."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        for node in ("node-1", "node-2", "node-3"):
            replica.news.node_changed(a_node(node))
        replica.device(node="node-1")
        replica.news.agent_is("node-1", ready=True)

    async def start(self) -> None:
        replica = self.replica
        pod = replica.offered()
        await replica.settle()
        self.name = replica.claim_of(pod).metadata.name
        self.pod = self._show(phase="Running", version=500)
        await replica.settle()
        assert self.is_allocated

    def _show(self, *, phase: str, version: int) -> Any:
        pod = a_pod(
            "pod-1",
            node="node-1",
            phase=phase,
            resource_version=version,
            containers=[a_container(limits=LIMITS)],
        )
        self.replica.api.put(PODS, pod.to_wire())
        self.replica.news.pod_changed(pod)
        return pod

    def ends(self) -> None:
        self._show(phase="Failed", version=501)

    def goes(self) -> None:
        self.replica.api.vanish(PODS, "pod-1")
        self.replica.news.pod_gone(self.pod.metadata.uid)

    def is_deleted_by_its_namespace(self) -> None:
        raw = self.replica.api.claim(self.name)
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        stored = self.replica.api.put(VGPU_CLAIMS, raw)
        self.replica.news.claim_changed(VGPUClaim.read(stored))

    async def pass_time(self, seconds: float, *, is_silent: bool = True) -> None:
        """Let time pass, ten seconds at a time, with an agent of the claim's node or without."""
        for node in ("node-2", "node-3"):
            self.replica.news.agent_is(node, ready=True)
        self.replica.news.agent_is("node-1", ready=not is_silent)
        end = self.replica.time + seconds
        while self.replica.time < end:
            self.replica.time = min(end, self.replica.time + 10)
            await self.replica.settle()

    @property
    def is_allocated(self) -> bool:
        return "allocation" in self.replica.api.claim(self.name)["status"]

    @property
    def words(self) -> str:
        conditions = self.replica.api.claim(self.name)["status"]["conditions"]
        return next(c["message"] for c in conditions if c["type"] == "Allocated")


@pytest.fixture
async def orphan(replica: Replica) -> Orphan:
    made = Orphan(replica)
    await made.start()
    return made


async def test_a_deleted_claim_whose_agent_is_gone_ends_by_itself(orphan: Orphan) -> None:
    orphan.goes()
    orphan.is_deleted_by_its_namespace()
    await orphan.pass_time(names.AGENT_GONE_S - 10)
    assert orphan.is_allocated
    await orphan.pass_time(2 * names.AGENT_UNREADY_S + 10)
    raw = orphan.replica.api.claim(orphan.name)
    assert "allocation" not in raw["status"]
    assert raw["metadata"]["finalizers"] == []
    assert "its pod has ended, and the agent of node node-1 has not been ready" in orphan.words
    assert use_of(orphan.replica.ledger, "GPU-0").memory_mib == 0


async def test_a_claim_of_a_pod_that_ended_and_is_still_there_is_released_too(
    orphan: Orphan,
) -> None:
    orphan.ends()
    await orphan.pass_time(2 * names.AGENT_GONE_S)
    assert not orphan.is_allocated


async def test_a_pod_that_is_still_there_keeps_its_devices_however_long_its_agent_is_silent(
    orphan: Orphan,
) -> None:
    await orphan.pass_time(10 * names.AGENT_GONE_S)
    assert orphan.is_allocated


async def test_while_its_agent_lives_the_claim_waits_for_its_word(orphan: Orphan) -> None:
    orphan.goes()
    await orphan.pass_time(3 * names.AGENT_GONE_S, is_silent=False)
    assert orphan.is_allocated


async def test_an_agent_that_comes_back_in_time_has_the_word_again(orphan: Orphan) -> None:
    orphan.goes()
    await orphan.pass_time(names.AGENT_GONE_S - 10)
    await orphan.pass_time(20, is_silent=False)
    await orphan.pass_time(names.AGENT_GONE_S - 10)
    assert orphan.is_allocated
    await orphan.pass_time(2 * names.AGENT_UNREADY_S + 20)
    assert not orphan.is_allocated


async def test_when_most_agents_are_silent_nothing_is_released(orphan: Orphan) -> None:
    for node in ("node-1", "node-2", "node-3"):
        orphan.replica.news.agent_is(node, ready=node == "node-3")
    orphan.goes()
    for _ in range(100):
        orphan.replica.time += 10
        await orphan.replica.settle()
    assert orphan.is_allocated


async def test_an_agent_that_was_uninstalled_is_absent(orphan: Orphan) -> None:
    orphan.replica.state.agents.clear()  # a leader that never observed an agent pod
    orphan.goes()
    await orphan.replica.settle()
    orphan.replica.time += names.AGENT_GONE_S + 1
    await orphan.replica.settle()
    assert not orphan.is_allocated
    assert "node node-1 has no agent" in orphan.words


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_leader_that_never_saw_the_pod_reads_it_first(
    replica: Replica, is_there: bool
) -> None:
    """Its cache has GPU pods only, as its configuration reads them today."""
    first = Orphan(replica)
    await first.start()
    successor = type(replica)(replica.api)
    for node in ("node-1", "node-2", "node-3"):
        successor.news.node_changed(a_node(node))
    successor.device(node="node-1")
    successor.news.claim_changed(VGPUClaim.read(replica.api.claim(first.name)))
    successor.engine.lead()
    if not is_there:
        replica.api.vanish(PODS, "pod-1")
    later = Orphan.__new__(Orphan)
    later.replica, later.name = successor, first.name
    await later.pass_time(2 * names.AGENT_GONE_S)
    assert later.is_allocated == is_there


async def test_a_waiting_pod_that_a_read_finds_gone_waits_no_more(replica: Replica) -> None:
    """Its node came back under its name meanwhile, and the watch reports the deletion later."""
    replica.device(uuid="GPU-0", node="node-1")
    replica.device(uuid="GPU-1", node="node-2")
    replica.pod("busy", node="node-2", limits={"nvidia.com/gpu": 1})
    await replica.settle()
    pod = replica.pod("p", limits=LIMITS)
    replica.offer(pod, "node-1")
    await replica.settle()
    replica.offer(pod, "node-2")  # kube-scheduler rules node-1 out, and node-2 is full
    replica.submit()  # the pod is being read
    uid, key = pod.metadata.uid, replica.claim_of(pod).metadata
    replica.api.vanish(PODS, "p")
    replica.news.node_gone("node-1")
    node = a_node("node-1", resource_version=900)
    metadata = node.metadata.model_copy(update={"uid": "another"})
    replica.news.node_changed(node.model_copy(update={"metadata": metadata}))
    await replica.settle()
    replica.news.pod_gone(uid)
    replica.news.claim_gone((key.namespace, key.name), key.uid)
    for _ in range(3):
        replica.time += 20
        await replica.settle()
    assert uid not in {waiter.pod_uid for waiter in replica.state.queue}
