"""A large request does not starve behind small ones, because freed devices are earmarked for it."""

from __future__ import annotations

from collections import Counter

import pytest

from builders import a_claim, a_container, a_device, a_node, a_request, use_of
from replica import Replica
from vgpu_api.conditions import ALLOCATED, find
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, ResourceQuota
from vgpu_api.v1alpha1 import KeptDevices
from vgpu_operator.engine.devices.reports import view_of
from vgpu_operator.engine.scheduling.kept import MOST, MOST_OF_A_NAMESPACE
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import FilterAnswer, FilterRequest

AFTER_S = 60


def asking(mib: int, devices: int = 1) -> dict[str, int]:
    return {"nvidia.com/gpu": devices, "nvidia.com/gpumem": mib}


def filtered(replica: Replica, pod: Pod) -> FilterAnswer:
    """Return the present answer to kube-scheduler about the pod."""
    names = list(replica.cache.nodes)
    request = FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": names})
    return filter_nodes(replica.engine, request)


def end(replica: Replica, pod: Pod) -> None:
    """Remove the pod and its claim, and free its devices."""
    claim = replica.claim_of(pod)
    key = (claim.metadata.namespace, claim.metadata.name)
    replica.news.pod_gone(pod.metadata.uid)
    replica.news.claim_gone(key, claim.metadata.uid)


def has_devices(replica: Replica, pod: Pod) -> bool:
    """Return True if devices are reserved for the pod or allocated in its claim."""
    known = replica.cache.pod(pod.metadata.uid)
    claim = replica.cache.claim(known.claim)
    allocated = claim is not None and claim.status.allocation is not None
    return replica.reservation(pod) is not None or allocated


async def a_full_device(replica: Replica) -> list[Pod]:
    """Create four pods of 4 GiB on a device of 16 GiB."""
    replica.device(memory_mib=16384)
    small = [replica.offered(f"small-{number}", limits=asking(4096)) for number in range(4)]
    await replica.bound()
    assert all(has_devices(replica, pod) for pod in small)
    return small


async def a_starving_pod(replica: Replica, mib: int = 16384) -> Pod:
    """Return a pod that was refused for lack of room for a minute."""
    pod: Pod = replica.offered("zlarge", limits=asking(mib))
    await replica.scheduled()
    replica.time += AFTER_S
    await replica.scheduled()
    return pod


async def days(replica: Replica, large: Pod, running: list[Pod]) -> int | None:
    """Let a small pod end every ten seconds, and another take its place at once.

    Return the number of pods that ended before the large pod got its device, or None.
    """
    for number in range(100, 150):
        replica.time += 10
        end(replica, running.pop(0))
        fresh = replica.offered(f"small-{number}", limits=asking(4096))
        filtered(replica, fresh)  # before the operator's own loop ran
        await replica.bound()
        if has_devices(replica, large):
            return number - 99
        if has_devices(replica, fresh):
            running.append(fresh)
        if not running:
            return None
    return None


async def test_a_stream_of_small_pods_does_not_starve_a_large_one(replica: Replica) -> None:
    """It waits a minute, then for the four pods that run at that time, and for no others."""
    running = await a_full_device(replica)
    large = replica.offered("zlarge", limits=asking(16384))
    await replica.scheduled()
    ended = await days(replica, large, running)
    assert ended is not None
    assert ended <= AFTER_S // 10 + 4


async def test_without_earmarks_the_same_stream_starves_it(replica: Replica) -> None:
    """The simulation can fail."""
    config = ClusterConfig.model_validate({"scheduling": {"starvationAfterSeconds": 0}})
    without = type(replica)(config=config)
    running = await a_full_device(without)
    large = without.offered("zlarge", limits=asking(16384))
    await without.scheduled()
    assert await days(without, large, running) is None
    assert len(running) == 4


async def test_what_is_kept_for_one_pod_is_not_left_idle_when_an_equal_one_ranks_before_it(
    replica: Replica,
) -> None:
    """Pods created in the same second rank by name, so the first to starve may rank later."""
    small = await a_full_device(replica)
    starved = await a_starving_pod(replica)
    replica.offered("an-equal-one", limits=asking(16384))
    for pod in small:
        end(replica, pod)
    assert await replica.scheduled() == [starved.metadata.name]


async def test_what_was_promised_to_a_more_important_pod_is_kept_for_nobody_else(
    replica: Replica,
) -> None:
    """A starving pod could otherwise turn it away, although it was requeued for that room."""
    small = await a_full_device(replica)
    replica.offered("zlarge", limits=asking(16384))
    await replica.scheduled()
    replica.time += AFTER_S - 2
    important = replica.offered("important", limits=asking(12288), priority=10)
    await replica.told()  # the reason of each refusal was just found
    for pod in small:
        end(replica, pod)
    await replica.settle()  # the pod is requeued
    replica.time += 1
    await replica.settle()  # and the other starves
    assert filtered(replica, important).node_names == ["node-1"]


async def test_what_becomes_free_is_kept_also_between_two_rounds(replica: Replica) -> None:
    small = await a_full_device(replica)
    await a_starving_pod(replica)
    end(replica, small[0])
    late = replica.offered("late", limits=asking(4096))
    answer = filtered(replica, late)
    assert answer.node_names == []
    assert answer.refused["node-1"] == (
        "1/1 CardInsufficientMemory; 1 on node-1 held for a request that has waited longer"
    )


async def test_a_claim_says_that_it_was_refused_in_favour_of_another(replica: Replica) -> None:
    small = await a_full_device(replica)
    await a_starving_pod(replica)
    end(replica, small[0])
    late = replica.offered("late", limits=asking(4096))
    await replica.told()
    status = replica.claim_of(late).status
    condition = find(status.conditions, ALLOCATED)
    assert condition is not None
    assert "1 on node-1 held for a request that has waited longer" in condition.message
    assert status.kept_for_others == [KeptDevices(node_name="node-1", devices=1)]


async def test_a_refusal_without_earmarks_keeps_no_devices_for_others(replica: Replica) -> None:
    await a_full_device(replica)
    late = replica.offered("late", limits=asking(4096))
    await replica.told()
    assert replica.claim_of(late).status.kept_for_others == []


async def test_a_claim_that_is_served_says_nothing_of_devices_kept_for_others(
    replica: Replica,
) -> None:
    small = await a_full_device(replica)
    large = await a_starving_pod(replica)
    end(replica, small[0])
    late = replica.offered("late", limits=asking(4096))
    await replica.told()
    assert replica.claim_of(late).status.kept_for_others
    replica.news.pod_gone(large.metadata.uid)
    await replica.scheduled()
    assert replica.claim_of(late).status.allocation is not None
    assert replica.claim_of(late).status.kept_for_others is None


async def test_who_is_refused_for_another_reason_is_not_told_of_earmarks(replica: Replica) -> None:
    await a_full_device(replica)
    await a_starving_pod(replica)
    late = replica.offered("late", limits=asking(20000))
    assert filtered(replica, late).refused["node-1"] == "1/1 CardInsufficientMemory"


async def test_nothing_is_kept_before_its_time(replica: Replica) -> None:
    small = await a_full_device(replica)
    large = replica.offered("zlarge", limits=asking(16384))
    await replica.scheduled()
    replica.time += AFTER_S - 1
    await replica.scheduled()
    end(replica, small[0])
    late = replica.offered("late", limits=asking(4096))
    await replica.scheduled()
    assert has_devices(replica, late)
    assert not has_devices(replica, large)


async def test_an_earmark_is_given_up_when_its_pod_goes(replica: Replica) -> None:
    small = await a_full_device(replica)
    large = await a_starving_pod(replica)
    end(replica, small[0])
    late = replica.offered("late", limits=asking(4096))
    await replica.scheduled()
    assert not has_devices(replica, late)
    replica.news.pod_gone(large.metadata.uid)
    await replica.scheduled()
    assert has_devices(replica, late)
    assert use_of(replica.ledger, "GPU-0").memory_mib == 16384


async def test_an_earmark_is_given_up_when_its_pod_finds_room_elsewhere(replica: Replica) -> None:
    small = await a_full_device(replica)
    large = await a_starving_pod(replica)
    end(replica, small[0])
    await replica.scheduled()
    replica.device(uuid="GPU-1", node="node-2", memory_mib=16384)
    replica.offer(large)  # a new node wakes every pod that an extender refused
    await replica.scheduled()
    assert len(replica.state.earmarks) == 0
    assert replica.claim_of(large).status.allocation.node_name == "node-2"
    assert use_of(replica.ledger, "GPU-0").memory_mib == 3 * 4096


async def test_an_earmark_moves_when_its_device_goes_out_of_order(replica: Replica) -> None:
    small = await a_full_device(replica)
    replica.device(uuid="GPU-1", node="node-2", memory_mib=16384)
    other = replica.offered("other", limits=asking(16000))
    await replica.bound()
    await a_starving_pod(replica, 16384)
    (earmark,) = replica.state.earmarks
    assert earmark.node == "node-2"  # one pod has 16,000 MiB, less than the 16,384 MiB of four
    broken = a_device(
        uuid="GPU-1", node="node-2", memory_mib=16384, healthy=False, resource_version=2
    )
    replica.news.device_changed(broken)
    replica.time += AFTER_S
    await replica.scheduled()
    (earmark,) = replica.state.earmarks
    assert earmark.node == "node-1"
    assert has_devices(replica, other)
    assert has_devices(replica, small[0])


async def test_who_asks_for_what_no_device_could_give_gets_nothing_kept(replica: Replica) -> None:
    await a_full_device(replica)
    await a_starving_pod(replica, 20000)
    assert len(replica.state.earmarks) == 0


async def test_devices_are_kept_for_a_few_at_a_time(replica: Replica) -> None:
    for number in range(5):
        replica.device(uuid=f"GPU-{number}", index=number, memory_mib=16384)
    for number in range(5):
        replica.offered(f"a-{number}", limits=asking(10000))
    await replica.bound()
    for number in range(5):
        replica.offered(f"b-{number}", limits=asking(10000))
    await replica.scheduled()
    replica.time += AFTER_S
    await replica.scheduled()
    earmarks = list(replica.state.earmarks)
    assert len(earmarks) == MOST_OF_A_NAMESPACE
    assert (
        len({device for earmark in earmarks for device in earmark.devices}) == MOST_OF_A_NAMESPACE
    )


async def test_no_namespace_keeps_more_than_its_part_and_all_together_not_everything(
    replica: Replica,
) -> None:
    devices = 16
    for number in range(devices):
        replica.device(uuid=f"GPU-{number}", index=number, memory_mib=16384)
        replica.pod(f"a-{number}", node="node-1", limits=asking(10000))
    await replica.scheduled()
    for namespace in ("n1", "n2", "n3", "n4"):
        for number in range(4):
            replica.offered(f"b-{number}", namespace=namespace, uid=f"{namespace}-{number}",
                            limits=asking(10000))  # fmt: skip
    await replica.scheduled()
    replica.time += AFTER_S
    await replica.scheduled()
    by_namespace = Counter(earmark.key.namespace for earmark in replica.state.earmarks)
    assert max(by_namespace.values()) == MOST_OF_A_NAMESPACE
    assert by_namespace.total() == MOST < devices


async def test_parts_of_one_claim_that_fit_together_nowhere_get_nothing_kept(
    replica: Replica,
) -> None:
    """Each of three containers fits the device alone, but not all three with 40 % each."""
    await a_full_device(replica)
    cores = {**asking(4096), "nvidia.com/gpucores": 40}
    containers = [a_container(f"c{number}", limits=cores) for number in range(3)]
    replica.offered("zlarge", containers=containers)
    await replica.scheduled()
    for _ in range(3):
        replica.time += AFTER_S
        await replica.scheduled()
    assert len(replica.state.earmarks) == 0


async def test_the_most_important_of_those_that_starve_is_served_first(replica: Replica) -> None:
    await a_full_device(replica)
    for name, priority in (("a-low", 0), ("b-high", 10)):
        replica.offered(name, limits=asking(16384), priority=priority)
    await replica.scheduled()
    replica.time += AFTER_S
    await replica.scheduled()
    (earmark,) = replica.state.earmarks
    assert earmark.key.name.startswith("b-high")


@pytest.mark.parametrize("ends", [1, 2])
async def test_who_wants_a_device_alone_is_not_overtaken_by_who_shares(
    replica: Replica, ends: int
) -> None:
    """The small requests include no compute, so only memory excludes them."""
    replica.device(memory_mib=16384)
    small = [replica.offered(f"small-{number}", limits=asking(2048)) for number in range(2)]
    await replica.bound()
    alone = replica.offered("zlarge", limits={**asking(1024), "nvidia.com/gpucores": 100})
    await replica.scheduled()
    replica.time += AFTER_S
    await replica.scheduled()
    for pod in small[:ends]:
        end(replica, pod)
    late = replica.offered("late", limits=asking(1024))
    filtered(replica, late)
    await replica.scheduled()
    assert not has_devices(replica, late)
    assert has_devices(replica, alone) == (ends == 2)


async def test_an_immediate_claim_does_not_starve_either(replica: Replica) -> None:
    small = await a_full_device(replica)
    replica.claim(a_claim("now", requests=[a_request(memory="16Gi")], binding_mode="Immediate"))
    await replica.scheduled()
    replica.time += AFTER_S
    await replica.scheduled()
    for number, pod in enumerate(small):
        end(replica, pod)
        filtered(replica, replica.offered(f"late-{number}", limits=asking(4096)))
        await replica.scheduled()
    assert replica.api.claim("now")["status"]["allocation"]["nodeName"] == "node-1"


async def test_a_node_that_is_cordoned_gives_its_earmark_up(replica: Replica) -> None:
    await a_full_device(replica)
    await a_starving_pod(replica)
    assert len(replica.state.earmarks) == 1
    replica.news.node_changed(a_node("node-1", unschedulable=True, resource_version=2))
    await replica.scheduled()
    assert len(replica.state.earmarks) == 0


async def test_devices_are_kept_for_a_bound_pod_on_its_own_node_alone(replica: Replica) -> None:
    """Another scheduler bound it to node-2, though less would have to become free on node-1."""
    for node, mib in (("node-1", 16384), ("node-2", 8192)):
        replica.device(uuid=f"GPU-of-{node}", node=node, memory_mib=mib)
        replica.offer(replica.pod(f"on-{node}", limits=asking(8192)), node)
    await replica.bound()
    replica.pod("late", node="node-2", limits=asking(8192))
    replica.pod("later", node="node-2", limits=asking(8192))
    await replica.scheduled()
    replica.time += AFTER_S
    await replica.scheduled()
    assert [earmark.node for earmark in replica.state.earmarks] == ["node-2"]


async def test_what_is_kept_is_nobodys_quota_and_not_shown_as_given(replica: Replica) -> None:
    small = await a_full_device(replica)
    await a_starving_pod(replica)
    quota = {
        "metadata": {"name": "q", "namespace": "default", "resourceVersion": "1"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": 20000}},
    }
    replica.ledger.apply_quota(ResourceQuota.model_validate(quota))
    before = replica.ledger.budget("default").memory_mib
    end(replica, small[0])
    assert replica.ledger.budget("default").memory_mib == before + 4096
    (device,) = replica.ledger.devices("node-1")
    view = view_of(device, replica.ledger.holders("GPU-0"))
    assert view["allocated"]["memory"] == "12Gi"
    assert len(view["claims"]) == 3


async def test_an_earmark_that_waits_makes_no_work_for_others(replica: Replica) -> None:
    """Requesting its claim again changes nothing that affects others."""
    await a_full_device(replica)
    large = await a_starving_pod(replica)
    await replica.scheduled()
    cursor, _ = replica.ledger.changed_since(0)
    filtered(replica, large)
    await replica.scheduled()
    assert replica.ledger.changed_since(cursor)[1] == frozenset()


async def test_an_earmarked_device_that_vanishes_takes_nobody_down_with_it(
    replica: Replica,
) -> None:
    """Filter may be called before the earmark is given up."""
    for number in range(2):
        replica.device(uuid=f"GPU-{number}", index=number, memory_mib=16384)
    running = [replica.offered(f"small-{number}", limits=asking(10000)) for number in range(2)]
    await replica.bound()
    large = replica.offered("zlarge", limits=asking(16000, devices=2))
    await replica.scheduled()
    replica.time += AFTER_S
    await replica.scheduled()
    (earmark,) = replica.state.earmarks
    assert len(earmark.devices) == 2
    replica.news.device_gone("gpu-0")
    for pod in running:
        end(replica, pod)
    assert filtered(replica, large).node_names == []
    await replica.scheduled()
    assert len(replica.state.earmarks) == 0


async def test_who_loses_another_place_that_became_free_keeps_its_earmark(replica: Replica) -> None:
    """It is requeued for that place, but kube-scheduler's back-off is not over."""
    for number in range(2):
        replica.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16384)
    small = [replica.offered(f"small-{number}", limits=asking(16384)) for number in range(2)]
    await replica.bound()
    large = await a_starving_pod(replica)
    earmark = replica.state.earmarks.get(replica.cache.pod(large.metadata.uid).claim)
    on = {replica.claim_of(pod).status.allocation.node_name: pod for pod in small}
    (other,) = on.keys() - {earmark.node}
    end(replica, on[other])
    replica.submit()  # a place on the other node is earmarked for it
    late = replica.offered("another", limits=asking(16384))
    assert replica.reservation(late).node == other
    replica.submit()
    assert replica.state.earmarks.get(earmark.key) == earmark
    end(replica, on[earmark.node])
    assert filtered(replica, replica.pod("third", limits=asking(4096))).node_names == []
    assert filtered(replica, large).node_names == [earmark.node]
