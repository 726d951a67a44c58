"""kube-scheduler preempts for a pod of higher priority only if the pod then gets devices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import a_claim, a_pod, a_request
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, ResourceQuota
from vgpu_api.errors import BadInput
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED
from vgpu_operator.engine import events
from vgpu_operator.errors import NotLeading
from vgpu_operator.extender.preempting import preempt
from vgpu_operator.extender.wire import PreemptRequest

OF_KEPT = {ANNOTATION_CLAIM: "kept", ANNOTATION_SLOTS_ADDED: "main"}


def asking(mib: int, devices: int = 1) -> dict[str, int]:
    return {"nvidia.com/gpu": devices, "nvidia.com/gpumem": mib}


def request_for(pod: Pod, victims: dict[str, list[str]]) -> PreemptRequest:
    """Return kube-scheduler's request to an extender with a cache of its own."""
    by_node = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
        for node, uids in victims.items()
    }
    return PreemptRequest.read({"Pod": pod.to_wire(), "NodeNameToMetaVictims": by_node})


async def kept(replica: Replica, pod: Pod, victims: dict[str, list[Pod]]) -> dict[str, list[str]]:
    """Return the names of the victims by node in the answer."""
    names = {each.metadata.uid: each.metadata.name for pods in victims.values() for each in pods}
    uids = {node: [each.metadata.uid for each in pods] for node, pods in victims.items()}
    answer = (await preempt(replica.engine, request_for(pod, uids))).to_wire()
    return {
        node: [names[victim["UID"]] for victim in found["Pods"]]
        for node, found in answer["NodeNameToMetaVictims"].items()
    }


async def running(replica: Replica, name: str, mib: int, node: str = "", **fields: Any) -> Pod:
    """Return a pod that runs with its devices."""
    pod = replica.pod(name, limits=asking(mib), **fields)
    replica.offer(pod, *([node] if node else []))
    await replica.bound()
    assert replica.claim_of(pod).status.allocation is not None
    return pod


def waiting(replica: Replica, mib: int, devices: int = 1, **fields: Any) -> Pod:
    fields.setdefault("priority", 1000)
    return replica.pod("important", limits=asking(mib, devices), **fields)


def a_quota(namespace: str, mib: int) -> ResourceQuota:
    metadata = {"name": "quota", "namespace": namespace, "resourceVersion": "1"}
    spec = {"hard": {"limits.nvidia.com/gpumem": str(mib)}}
    return ResourceQuota.model_validate({"metadata": metadata, "spec": spec})


async def test_a_victim_whose_devices_suffice_is_confirmed(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    low = await running(replica, "low", 12000)
    assert await kept(replica, waiting(replica, 8000), {"node-1": [low]}) == {"node-1": ["low"]}


async def test_nobody_dies_for_a_pod_that_no_device_could_ever_hold(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    low = [await running(replica, f"low-{number}", 1000) for number in range(10)]
    assert await kept(replica, waiting(replica, 40000), {"node-1": low}) == {}


async def test_nobody_without_devices_dies_where_devices_are_what_is_missing(
    replica: Replica,
) -> None:
    replica.device(memory_mib=16384)
    await running(replica, "holder", 16384)
    web = a_pod("web")
    assert await kept(replica, waiting(replica, 16384), {"node-1": [web]}) == {}


async def test_a_pod_without_devices_may_die_where_devices_are_free(replica: Replica) -> None:
    """Only CPU is short, which is for kube-scheduler to judge."""
    replica.device(memory_mib=16384)
    web = a_pod("web")
    assert await kept(replica, waiting(replica, 16384), {"node-1": [web]}) == {"node-1": ["web"]}


async def test_each_node_is_judged_by_its_own_victims(replica: Replica) -> None:
    victims = {}
    for number, held in enumerate((12000, 4000, 16384)):
        node = f"node-{number}"
        replica.device(uuid=f"GPU-{number}", node=node, memory_mib=16384)
        await running(replica, f"stays-{number}", 16384 - held, node) if held < 16384 else None
        victims[node] = [await running(replica, f"low-{number}", held, node)]
    pod = waiting(replica, 8000)
    assert set(await kept(replica, pod, victims)) == {"node-0", "node-2"}


async def test_all_victims_of_a_node_count_together(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    low = [await running(replica, f"low-{number}", 8192) for number in range(2)]
    pod = waiting(replica, 16384)
    assert await kept(replica, pod, {"node-1": low[:1]}) == {}
    assert await kept(replica, pod, {"node-1": low}) == {"node-1": ["low-0", "low-1"]}


async def test_a_node_without_victims_is_left_out(replica: Replica) -> None:
    """An empty list of victims is an error to kube-scheduler."""
    replica.device(memory_mib=16384)
    assert await kept(replica, waiting(replica, 8000), {"node-1": []}) == {}


async def test_what_a_pod_that_is_going_holds_comes_back_by_itself(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    going = await running(replica, "going", 12000)
    wire = replica.cache.pod(going.metadata.uid).pod.to_wire()
    wire["metadata"] |= {"deletionTimestamp": "2023-11-14T22:30:00Z", "resourceVersion": "99"}
    replica.news.pod_changed(Pod.model_validate(wire))
    web = a_pod("web")
    assert await kept(replica, waiting(replica, 16384), {"node-1": [web]}) == {"node-1": ["web"]}


async def test_nobody_dies_beside_a_pod_that_outlives_its_grace_period(replica: Replica) -> None:
    """A finalizer may keep the pod and its devices indefinitely."""
    replica.device(memory_mib=16384)
    going = await running(replica, "going", 12000)
    wire = replica.cache.pod(going.metadata.uid).pod.to_wire()
    wire["metadata"] |= {"deletionTimestamp": "2023-11-14T22:13:20Z", "resourceVersion": "99"}
    replica.news.pod_changed(Pod.model_validate(wire))
    assert await kept(replica, waiting(replica, 16384), {"node-1": [a_pod("web")]}) == {}


async def test_what_is_reserved_for_a_pod_on_its_way_is_not_free(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    replica.offered("on-its-way", limits=asking(16384))
    await replica.settle()
    web = a_pod("web")
    assert await kept(replica, waiting(replica, 8000), {"node-1": [web]}) == {}


async def test_an_immediate_claim_keeps_its_devices_when_its_pod_ends(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    replica.claim(a_claim("kept", requests=[a_request(memory="12000Mi")], binding_mode="Immediate"))
    await replica.settle()
    user = replica.offered("user", limits={}, annotations=OF_KEPT)
    await replica.bound()
    assert replica.api.claim("kept")["status"]["reservedFor"]["podUID"] == user.metadata.uid
    assert await kept(replica, waiting(replica, 8000), {"node-1": [user]}) == {}


async def test_nobody_dies_for_a_pod_whose_claim_is_immediate(replica: Replica) -> None:
    """The operator places such a claim by itself, on any node."""
    replica.device(memory_mib=16384)
    low = await running(replica, "low", 16384)
    replica.claim(a_claim("kept", requests=[a_request(memory="8Gi")], binding_mode="Immediate"))
    pod = replica.pod("user", limits={}, annotations=OF_KEPT, priority=1000)
    assert await kept(replica, pod, {"node-1": [low]}) == {}


async def test_nobody_dies_where_the_quota_is_what_is_missing(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    low = await running(replica, "low", 4000)
    replica.news.quota_changed(a_quota("other", 4000))
    pod = waiting(replica, 8000, namespace="other")
    assert await kept(replica, pod, {"node-1": [low]}) == {}


async def test_a_victim_of_the_same_namespace_gives_its_quota_back(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    replica.news.quota_changed(a_quota("default", 12000))
    low = await running(replica, "low", 8000)
    assert await kept(replica, waiting(replica, 12000), {"node-1": [low]}) == {"node-1": ["low"]}


async def test_the_verb_changes_nothing(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    low = await running(replica, "low", 12000)
    pod, log = waiting(replica, 8000), list(replica.api.log)
    before = replica.ledger.holders("GPU-0"), replica.ledger.cursors
    await kept(replica, pod, {"node-1": [low]})
    await replica.effector.drain()
    assert (replica.ledger.holders("GPU-0"), replica.ledger.cursors) == before
    assert replica.api.log == log
    assert replica.reservation(pod) is None


async def test_a_pod_that_is_deleted_by_now_ends_nobody(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    low = await running(replica, "low", 12000)
    pod = waiting(replica, 8000)
    replica.news.pod_gone(pod.metadata.uid)
    replica.news.pods_listed(1000, [low.metadata.uid])
    assert await kept(replica, pod, {"node-1": [low]}) == {}


async def test_a_pod_without_gpus_is_kube_schedulers_alone(replica: Replica) -> None:
    victim = a_pod("web")
    assert await kept(replica, a_pod("plain"), {"cpu": [victim]}) == {"cpu": ["web"]}


async def test_a_standby_confirms_nobody(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    low = await running(replica, "low", 12000)
    pod = waiting(replica, 8000)
    replica.leading = False
    with pytest.raises(NotLeading):
        await kept(replica, pod, {"node-1": [low]})


async def test_others_have_their_turn_while_many_nodes_are_judged(replica: Replica) -> None:
    replica.fleet(64, devices=1, memory_mib=16384)
    pod, turns = waiting(replica, 8000), 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(another())
    await kept(replica, pod, {node: [a_pod("web")] for node in replica.cache.nodes})
    other.cancel()
    assert turns >= 8


def test_full_pods_are_read_where_the_scheduler_keeps_no_cache() -> None:
    pods = [a_pod("a", uid="uid-a").to_wire()]
    body = {"pod": {}, "nodenametovictims": {"n": {"pods": pods, "numPDBViolations": 3}}}
    request = PreemptRequest.read(body)
    assert (request.victims["n"].uids, request.victims["n"].broken_budgets) == (["uid-a"], 3)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({"NodeNameToMetaVictims": {}}, "Pod"),
        ({"Pod": {}}, "NodeNameToMetaVictims"),
        ({"Pod": {}, "NodeNameToMetaVictims": []}, "NodeNameToMetaVictims"),
        ({"Pod": {}, "NodeNameToMetaVictims": {"n": 3}}, "NodeNameToMetaVictims[n]"),
        (
            {"Pod": {}, "NodeNameToMetaVictims": {"n": {"Pods": {"a": 1}}}},
            "NodeNameToMetaVictims[n].Pods",
        ),
        (
            {"Pod": {}, "NodeNameToMetaVictims": {"n": {"Pods": [{}]}}},
            "NodeNameToMetaVictims[n].Pods[0].UID",
        ),
        (
            {"Pod": {}, "NodeNameToMetaVictims": {"n": {"NumPDBViolations": "many"}}},
            "NodeNameToMetaVictims[n].NumPDBViolations",
        ),
        (
            {"Pod": {}, "NodeNameToVictims": {"n": {"Pods": [{"metadata": None}]}}},
            "NodeNameToVictims[n].Pods[0].metadata",
        ),
    ],
)
def test_a_request_that_cannot_be_read_names_its_field(body: Any, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        PreemptRequest.read(body)
    assert caught.value.field == field


@pytest.mark.parametrize("are_listed", [True, False])
async def test_nobody_is_added_before_the_budgets_are_known(*, are_listed: bool) -> None:
    """kube-scheduler deletes the victims in our answer without checking budgets."""
    config = ClusterConfig.model_validate({"scheduling": {"preemption": {"enabled": True}}})
    replica = Replica(config=config)
    if are_listed:
        replica.engine.observe(events.BudgetsListed())
    replica.device(memory_mib=16384)
    await running(replica, "low", 12000)
    request = request_for(waiting(replica, 8000), {"node-1": []})
    answer = (await preempt(replica.engine, request)).victims
    assert {node: list(victims.uids) for node, victims in answer.items()} == (
        {"node-1": ["uid-of-low"]} if are_listed else {}
    )


def limited(per_minute: int) -> Replica:
    """Return a replica with a limit of evictions a minute."""
    rules = {"enabled": True, "perMinute": per_minute}
    config = ClusterConfig.model_validate({"scheduling": {"preemption": rules}})
    replica = Replica(config=config)
    replica.engine.observe(events.BudgetsListed())
    return replica


async def added(replica: Replica, pod: Pod, *nodes: str) -> set[str]:
    """Return the UIDs in the answer if kube-scheduler found no victims of its own."""
    answer = await preempt(replica.engine, request_for(pod, {node: [] for node in nodes}))
    return {uid for victims in answer.victims.values() for uid in victims.uids}


def deleted(replica: Replica, pod: Pod) -> None:
    """Delete a victim as kube-scheduler does."""
    wire = replica.cache.pod(pod.metadata.uid).pod.to_wire()
    wire["metadata"] |= {"deletionTimestamp": "2023-11-14T23:00:00Z", "resourceVersion": "99"}
    replica.news.pod_changed(Pod.model_validate(wire))


async def test_no_more_victims_are_added_in_a_minute_than_may_be_evicted() -> None:
    replica = limited(2)
    for number in range(3):
        replica.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16384)
    low = [await running(replica, f"low-{n}", 16384, f"node-{n}") for n in range(3)]
    pods = [replica.pod(f"high-{n}", limits=asking(16384), priority=1000) for n in range(3)]
    for number in range(2):
        assert await added(replica, pods[number], f"node-{number}") == {low[number].metadata.uid}
        deleted(replica, low[number])
    assert await added(replica, pods[2], "node-2") == set()
    replica.time += 61
    assert await added(replica, pods[2], "node-2") == {low[2].metadata.uid}


async def test_a_node_where_too_many_would_have_to_be_added_is_left_out() -> None:
    replica = limited(1)
    for number in range(2):
        replica.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16384)
    for number in range(2):
        await running(replica, f"half-{number}", 8192, "node-0")
    whole = await running(replica, "whole", 16384, "node-1")
    pod = waiting(replica, 16384)
    assert await added(replica, pod, "node-0", "node-1") == {whole.metadata.uid}


async def test_what_kube_scheduler_may_be_about_to_end_counts_once_for_all_its_nodes() -> None:
    """It ends the victims of one node or of none, so they count for two seconds."""
    replica = limited(2)
    for number in range(12):
        replica.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16384)
        await running(replica, f"low-{number}", 16384, f"node-{number}")
    nodes = [f"node-{number}" for number in range(12)]
    pods = [replica.pod(f"high-{n}", limits=asking(16384), priority=1000) for n in range(3)]
    assert len(await added(replica, pods[0], *nodes)) == 12
    assert len(await added(replica, pods[1], *nodes)) == 12
    assert await added(replica, pods[2], *nodes) == set()
    replica.time += 2.5
    assert len(await added(replica, pods[2], *nodes)) == 12


async def test_victims_of_kube_scheduler_alone_are_not_counted() -> None:
    replica = limited(1)
    replica.device(memory_mib=16384)
    low = [await running(replica, f"low-{number}", 8192) for number in range(2)]
    pod = waiting(replica, 16384)
    assert await kept(replica, pod, {"node-1": low}) == {"node-1": ["low-0", "low-1"]}
    for victim in low:
        deleted(replica, victim)
    replica.device(uuid="GPU-9", node="node-9", memory_mib=16384)
    nine = await running(replica, "nine", 16384, "node-9")
    other = replica.pod("other", limits=asking(16384), priority=1000)
    assert await added(replica, other, "node-9") == {nine.metadata.uid}


async def test_own_evictions_and_added_victims_share_the_limit() -> None:
    replica = limited(1)
    replica.device(memory_mib=16384)
    low = await running(replica, "low", 16384)
    assert await added(replica, waiting(replica, 16384), "node-1") == {low.metadata.uid}
    deleted(replica, low)
    replica.device(uuid="GPU-9", node="node-9", memory_mib=16384)
    await running(replica, "nine", 16384, "node-9")
    other = replica.pod("other", limits=asking(16384), priority=1000)
    replica.offer(other, "node-9")
    for _ in range(10):
        replica.time += 3
        await replica.settle()
    assert ("evict", "nine") not in replica.api.log
    for _ in range(12):
        replica.time += 3
        await replica.settle()
    assert ("evict", "nine") in replica.api.log
