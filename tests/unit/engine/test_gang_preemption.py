"""Groups of pods preempt others and are preempted."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from builders import a_container, a_device, a_pod, a_pod_group
from preemption_town import MIB, Town
from vgpu_api.core import Pod, ResourceQuota
from vgpu_api.core.pod import ResourceRequirements
from vgpu_api.names import ANNOTATION_GROUP, ANNOTATION_GROUP_MIN, SCHEDULING_GATE
from vgpu_api.resources import PODS
from vgpu_client.errors import ServerError, TooManyRequests
from vgpu_operator.engine.preemption.together import (
    Placed,
    choose_again,
    holds,
    search_together,
)
from vgpu_operator.engine.scheduling.kept import MOST_OF_A_GROUP

# Groups as victims.


async def test_a_gang_makes_way_as_a_whole_on_all_its_nodes() -> None:
    """Half of a gang is of no use."""
    town = Town()
    town.replica.device(uuid="GPU-9", node="node-9", memory_mib=MIB, slots=4)
    await town.gang("g", MIB, 1, "node-1", "node-9")
    town.waits("important", MIB)
    assert sorted(await town.evicted(4)) == ["g-0", "g-1"]


async def test_a_lone_pod_goes_before_a_gang_that_is_as_important() -> None:
    town = Town()
    for number in (7, 8, 9):
        town.replica.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=MIB, slots=4)
    await town.gang("g", MIB, 1, "node-1", "node-7", "node-8")
    await town.runs("lone", MIB, 1, node="node-9")
    town.waits("important", MIB)
    assert await town.evicted(4) == ["lone"]


async def test_kube_scheduler_is_given_no_gang_that_runs_elsewhere_too() -> None:
    """A victim on another node would make the whole call of kube-scheduler fail."""
    town = Town()
    town.replica.device(uuid="GPU-9", node="node-9", memory_mib=MIB, slots=4)
    await town.gang("g", MIB, 1, "node-1", "node-9")
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": MIB}
    important = town.replica.pod("important", limits=limits, priority=1000)
    assert town.replica.engine.preempt(important, {"node-1": []}) == {}


@pytest.mark.parametrize("mode", [{"single": {}}, "Pod"])
async def test_a_gang_whose_pods_may_end_singly_loses_only_the_pod_that_is_in_the_way(
    mode: Any,
) -> None:
    """Kubernetes 1.36 and 1.37 express this in different ways."""
    town = Town()
    town.device_on(9)
    await town.gang("g", MIB, 1, "node-1", "node-9", disruptionMode=mode)
    town.waits("important", MIB)
    assert len(await town.evicted(4)) == 1


@pytest.mark.parametrize("mode", [{"all": {}}, "PodGroup", {"another": {}}])
@pytest.mark.parametrize("least", [None, 2])
async def test_a_group_that_ends_as_a_whole_does_so_whether_or_not_it_is_a_gang(
    mode: Any, least: int | None
) -> None:
    town = Town()
    town.device_on(9)
    await town.gang("g", MIB, 1, "node-1", "node-9")
    town.replica.news.pod_group_changed(a_pod_group("g", least=least, disruptionMode=mode))
    town.waits("important", MIB)
    assert sorted(await town.evicted(4)) == ["g-0", "g-1"]


async def test_pods_of_a_group_without_a_minimum_make_way_singly() -> None:
    town = Town()
    town.device_on(9)
    await town.gang("g", MIB, 1, "node-1", "node-9")
    town.replica.news.pod_group_changed(a_pod_group("g"))
    town.waits("important", MIB)
    assert len(await town.evicted(4)) == 1


# Groups as preemptors.


async def two_nodes(*priorities: int) -> Town:
    """Return nodes of one device each, which pods of these priorities use completely."""
    town = Town(devices=0)
    town.device_on(*range(len(priorities)))
    for number, priority in enumerate(priorities):
        await town.runs(f"low-{number}", MIB, priority, node=f"node-{number}")
    return town


def running(town: Town, *names: str) -> list[Pod]:
    return [town.replica.cache.pod(f"uid-of-{name}").pod for name in names]


async def test_a_pod_makes_way_for_each_pod_of_a_gang_and_then_it_starts_whole() -> None:
    town = await two_nodes(10, 20, 30)
    pods = town.gang_waits("g", [MIB, MIB])
    assert await town.evicted() == ["low-0", "low-1"]
    assert not any(town.tries(pods))  # no device is free before its release
    await town.ends(*running(town, "low-0", "low-1"))
    assert sorted(await town.starts(pods)) == ["node-0", "node-1"]
    assert await town.evicted() == []
    assert town.results() == {"served": 1}
    assert len(town.replica.state.earmarks) == 0


async def test_nobody_goes_for_a_gang_of_which_too_few_pods_could_start() -> None:
    town = await two_nodes(10, 1000)
    town.gang_waits("g", [MIB, MIB])
    assert await town.evicted(120) == []


async def test_a_gang_takes_what_is_free_first() -> None:
    town = await two_nodes(10, 20)
    town.device_on(7)
    town.gang_waits("g", [MIB, MIB])
    assert await town.evicted() == ["low-0"]


async def test_what_a_try_of_kube_scheduler_has_found_counts_once() -> None:
    """Two of the four halves are reserved on the free device when the victims are chosen."""
    town = await two_nodes(10, 20)
    town.device_on(7)
    town.gang_waits("g", [MIB // 2] * 4)
    assert await town.evicted(20) == ["low-0"]


async def test_only_as_many_make_way_as_must_start_together() -> None:
    town = await two_nodes(10, 20, 30)
    town.gang_waits("g", [MIB, MIB, MIB], least=2)
    assert await town.evicted(20) == ["low-0", "low-1"]


async def test_a_pod_that_fits_nowhere_does_not_keep_the_rest_of_a_gang_from_preempting() -> None:
    town = await two_nodes(10, 20)
    town.gang_waits("g", [2 * MIB, MIB, MIB], least=2)
    assert await town.evicted(20) == ["low-0", "low-1"]


async def test_pods_of_a_gang_share_the_device_of_one_victim() -> None:
    town = await two_nodes(10, 20)
    town.gang_waits("g", [MIB // 2, MIB // 2])
    assert await town.evicted(20) == ["low-0"]
    kept = [name for each in town.replica.state.earmarks for name in each.devices]
    assert len(kept) == 1


async def test_a_gang_is_never_planned_twice_on_one_device() -> None:
    town = await two_nodes(10)
    town.gang_waits("g", [MIB // 2 + 1, MIB // 2 + 1])
    assert await town.evicted(60) == []


async def test_newcomers_stay_off_all_devices_that_become_free_for_a_gang() -> None:
    town = await two_nodes(10, 20)
    pods = town.gang_waits("g", [MIB, MIB])
    await town.evicted()
    await town.ends(*running(town, "low-1"))
    newcomer = town.waits("newcomer", 1000, priority=5)
    assert town.replica.reservation(newcomer) is None
    await town.ends(*running(town, "low-0"))
    assert all(await town.starts(pods))


async def test_devices_stay_kept_where_a_try_leaves_room_on_a_node_for_one_pod_only() -> None:
    """kube-scheduler offers the second pod no node whose CPU the first pod would use up."""
    town = await two_nodes(10, 20)
    pods = town.gang_waits("g", [MIB, MIB])
    await town.evicted()
    await town.ends(*running(town, "low-0"))
    assert town.tries(pods[1:]) == ["node-0"]
    town.replica.offer(pods[0], "node-1")
    await town.evicted(3)
    newcomer = town.waits("newcomer", 1000, priority=5)
    await town.ends(*running(town, "low-1"))
    assert not town.replica.cache.pod(newcomer.metadata.uid).pod.is_bound
    assert all(await town.starts(pods))
    await town.evicted(1)
    assert town.results() == {"served": 1}


async def test_a_gang_has_one_preemption_at_a_time() -> None:
    town = await two_nodes(10, 20, 30, 40)
    pods = town.gang_waits("g", [MIB, MIB])
    assert len(await town.evicted()) == 2
    for _ in range(5):
        town.tries(pods)
        assert await town.evicted(3) == []
    assert len(town.replica.state.preemptions.open) == 1


async def test_a_gang_preempts_a_gang_on_all_its_nodes() -> None:
    town = Town(devices=0)
    town.device_on(1, 2, 3)
    await town.gang("low", MIB, 1, "node-1", "node-2", "node-3")
    pods = town.gang_waits("high", [MIB, MIB])
    gone = ["low-0", "low-1", "low-2"]
    assert sorted(await town.evicted()) == gone
    await town.ends(*running(town, *gone))
    assert all(await town.starts(pods))


async def test_a_gang_never_preempts_its_own_pods_nor_those_as_important() -> None:
    town = Town(devices=0)
    town.device_on(1, 2)
    await town.gang("g", MIB, 1000, "node-1", "node-2")
    town.gang_waits("h", [MIB, MIB])
    assert await town.evicted(60) == []


async def test_a_pod_beyond_the_minimum_of_a_running_gang_preempts_alone() -> None:
    town = Town(devices=0)
    town.device_on(1, 2, 3)
    await town.gang("g", MIB, 1000, "node-1", "node-2")
    await town.runs("low", MIB, 1, node="node-3")
    town.waits("g-2", MIB, group="g")
    assert await town.evicted() == ["low"]


async def test_a_gang_with_a_pod_that_never_preempts_waits() -> None:
    town = await two_nodes(10, 20)
    pods = town.gang_waits("g", [MIB, MIB])
    wire = pods[0].to_wire()
    wire["spec"]["preemptionPolicy"] = "Never"
    wire["metadata"]["resourceVersion"] = "50"
    town.replica.news.pod_changed(Pod.model_validate(wire))
    assert await town.evicted(60) == []


async def test_a_gang_whose_pods_are_not_all_there_preempts_nobody() -> None:
    town = await two_nodes(10, 20)
    town.gang_waits("g", [MIB], least=2)
    assert await town.evicted(60) == []


async def test_one_budget_counts_the_victims_of_all_pods_of_a_gang() -> None:
    """It allows one eviction, but each node needs one."""
    town = Town(devices=0)
    town.device_on(1, 2)
    for number in (1, 2):
        await town.runs(f"web-{number}", MIB, 1, node=f"node-{number}", labels={"app": "web"})
    town.budget(1, app="web")
    town.gang_waits("g", [MIB, MIB])
    assert await town.evicted(60) == []
    town.budget(2, app="web")
    assert sorted(await town.evicted(130)) == ["web-1", "web-2"]


async def test_another_goes_where_a_budget_allows_only_the_victim_of_one_pod_of_a_gang() -> None:
    town = Town(devices=0)
    town.device_on(1, 2, 3)
    for number in (1, 2):
        await town.runs(f"web-{number}", MIB, 1, node=f"node-{number}", labels={"app": "web"})
    await town.runs("other", MIB, 5, node="node-3")
    town.budget(1, app="web")
    town.gang_waits("g", [MIB, MIB])
    gone = await town.evicted(10)
    assert len(gone) == 2
    assert "other" in gone


async def test_a_refused_eviction_ends_a_gangs_preemption_before_more_go() -> None:
    town = await two_nodes(10, 20, 30)
    causes = {"causes": [{"reason": "DisruptionBudget"}]}

    def refuse(verb: str, name: str) -> BaseException | None:
        if (verb, name) == ("evict", "low-0"):
            return TooManyRequests("no", status=429, reason="TooManyRequests", details=causes)
        return None

    town.replica.api.before = refuse
    town.gang_waits("g", [MIB, MIB])
    assert await town.evicted(4) == ["low-1", "low-2"]
    assert town.results() == {"protected": 1}


async def test_a_successor_evicts_only_the_victims_that_its_predecessor_has_left() -> None:
    """The leader ends between the two evictions for a gang."""
    town = await two_nodes(10, 20, 30)
    town.replica.api.before = lambda verb, name: (
        ServerError("down", status=500) if (verb, name) == ("evict", "low-1") else None
    )
    pods = town.gang_waits("g", [MIB, MIB])
    assert await town.evicted() == ["low-0"]
    town.replica.state.preemptions.open.clear()  # which the successor never knew
    for earmark in town.replica.state.earmarks:
        town.replica.state.earmarks.remove(earmark.key)
    town.replica.api.before = lambda verb, name: None
    town.tries(pods)
    assert await town.evicted(20) == ["low-1"]


async def test_a_minute_has_a_limited_number_of_evictions_for_a_gang_too() -> None:
    town = Town(devices=0, perMinute=1)
    town.device_on(1, 2)
    for number in (1, 2):
        await town.runs(f"low-{number}", MIB, 1, node=f"node-{number}")
    town.gang_waits("g", [MIB, MIB])
    assert len(await town.evicted(30)) == 1
    assert len(await town.evicted(60)) == 1


async def test_a_gang_that_goes_has_nobody_else_evicted() -> None:
    town = Town(devices=0, perMinute=1)
    town.device_on(1, 2)
    for number in (1, 2):
        await town.runs(f"low-{number}", MIB, 1, node=f"node-{number}")
    pods = town.gang_waits("g", [MIB, MIB])
    assert len(await town.evicted(5)) == 1
    town.replica.api.vanish(PODS, "g-0")
    town.replica.news.pod_gone(pods[0].metadata.uid)
    assert await town.evicted(5) == []
    assert town.results() == {"withdrawn": 1}
    assert len(town.replica.state.earmarks) == 0
    assert await town.evicted(120) == []


async def test_a_gang_that_gets_nothing_although_its_victims_ended_preempts_no_more() -> None:
    town = await two_nodes(10, 20)
    pods = town.gang_waits("g", [MIB, MIB])
    assert len(await town.evicted()) == 2
    await town.ends(*running(town, "low-0", "low-1"))
    for _ in range(30):  # kube-scheduler tries it and does not bind it, for an unknown reason
        town.tries(pods)
        await town.evicted(3)
    assert town.results() == {"in_vain": 1}
    assert len(town.replica.state.earmarks) == 0
    town.device_on(7, 8)
    for number in (7, 8):
        await town.runs(f"next-{number}", MIB, 1, node=f"node-{number}")
    town.tries(pods)
    assert await town.evicted(120) == []


async def test_nobody_goes_for_a_quota_of_a_gang() -> None:
    town = await two_nodes(10, 20)
    quota = {
        "metadata": {"name": "quota", "namespace": "default", "resourceVersion": "1"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": str(3 * MIB)}},
    }
    town.replica.news.quota_changed(ResourceQuota.model_validate(quota))
    town.gang_waits("g", [MIB, MIB])
    assert await town.evicted(60) == []


async def test_a_gang_of_more_devices_than_are_kept_for_one_preempts_nobody() -> None:
    town, count = Town(devices=0), 16
    for node in range(MOST_OF_A_GROUP // count + 1):
        for index in range(count):
            uuid = f"GPU-{node}-{index}"
            town.replica.device(
                uuid=uuid, node=f"node-{node}", index=index, memory_mib=MIB, slots=4
            )
        await town.runs(f"low-{node}", MIB, count=count)
    fewer = MOST_OF_A_GROUP // count
    town.gang_waits("large", [MIB] * (fewer + 1), count=count)
    assert await town.evicted(60) == []
    town.gang_waits("h", [MIB] * fewer, count=count)
    assert len(await town.evicted(10)) == fewer


async def test_both_sides_are_told() -> None:
    town = await two_nodes(10, 20)
    pods = town.gang_waits("g", [MIB, MIB])
    await town.evicted(3)
    text = (
        "evicting less important pods for group g on node-0, node-1: "
        "default/low-1 (priority 20), default/low-0 (priority 10)"
    )
    assert {("g-0", "Preempting", text), ("g-1", "Preempting", text)} <= set(town.told)
    assert ("low-1", "Preempted", (
        "evicted because it makes way for group default/g of priority 1000"
    )) in town.told  # fmt: skip
    for pod in pods:
        (message,) = (
            each.message
            for each in town.replica.claim_of(pod).status.conditions
            if each.type == "Allocated"
        )
        assert message.endswith(
            "; less important pods or claims on node-0, node-1 are making way: 2"
        )


async def test_a_pod_of_a_group_gets_what_others_made_way_for_before_older_pods_of_it() -> None:
    """A pod of a group without a minimum preempts alone, and devices are kept only for it."""
    town = await two_nodes(10)
    town.replica.news.pod_group_changed(a_pod_group("g"))
    older = town.waits("g-0", MIB, group="g").to_wire()
    older["spec"]["preemptionPolicy"] = "Never"
    older["metadata"]["resourceVersion"] = "50"
    town.replica.offer(Pod.model_validate(older))
    town.waits("g-1", MIB, group="g")
    low = running(town, "low-0")
    assert await town.evicted() == ["low-0"]
    await town.ends(*low)
    await town.evicted(1.0)
    assert [name for verb, name in town.replica.api.log if verb == "merge"] == ["g-1"]


# Groups behind our gate.


def gated(
    town: Town, name: str, least: int, *, count: int = 0, cpu: str = "1", **fields: Any
) -> list[Pod]:
    """Return a gang of whole devices behind our gate, which names itself in our annotations."""
    words = {ANNOTATION_GROUP: name, ANNOTATION_GROUP_MIN: str(least)}
    fields.setdefault("annotations", words)
    pods = []
    for number in range(count or least):
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": MIB}
        resources = ResourceRequirements(limits=limits, requests={"nvidia.com/gpu": 1, "cpu": cpu})
        pod = a_pod(
            f"{name}-{number}",
            containers=[a_container().model_copy(update={"resources": resources})],
            priority=1000,
            scheduler="default-scheduler",
            **fields,
        )
        spec = pod.spec.model_copy(update={"scheduling_gates": [{"name": SCHEDULING_GATE}]})
        pod = Pod.model_validate(
            town.replica.api.put(PODS, pod.model_copy(update={"spec": spec}).to_wire())
        )
        town.replica.news.pod_changed(pod)
        pods.append(pod)
    return pods


async def behind_gates(*priorities: int) -> Town:
    town = Town(devices=0, mode="Gate")
    town.device_on(*range(len(priorities)))
    for number, priority in enumerate(priorities):
        await town.runs(f"low-{number}", MIB, priority, node=f"node-{number}")
    return town


async def test_a_gang_behind_gates_preempts_as_a_whole() -> None:
    town = await behind_gates(10, 20, 30)
    pods = gated(town, "g", 2)
    assert await town.evicted() == ["low-0", "low-1"]
    await town.ends(*running(town, "low-0", "low-1"))
    await town.replica.settle()
    claims = [town.replica.claim_of(pod) for pod in pods]
    assert {each.status.allocation.node_name for each in claims} == {"node-0", "node-1"}
    assert town.results() == {"served": 1}


async def test_nobody_goes_for_a_gang_behind_gates_that_is_not_whole() -> None:
    town = await behind_gates(10, 20, 30)
    gated(town, "g", 3, count=2)
    gated(town, "large", 4)
    assert await town.evicted(60) == []


@pytest.mark.parametrize(("cpu", "gone"), [("4", 2), ("5", 0)])
async def test_nobody_goes_for_a_gang_behind_gates_whose_pods_lack_cpu_beside_each_other(
    cpu: str, gone: int
) -> None:
    """Both pods must go to one node with eight CPUs."""
    town = Town(devices=0, mode="Gate")
    town.device_on(0)
    second = a_device(uuid="GPU-1", node="node-0", index=1, memory_mib=MIB, slots=4)
    town.replica.news.device_changed(second)
    for number in range(2):
        await town.runs(f"low-{number}", MIB, 1)
    gated(town, "g", 2, cpu=cpu)
    assert len(await town.evicted(20)) == gone


async def test_nobody_goes_while_nothing_says_how_many_pods_of_a_group_start() -> None:
    """The cluster serves PodGroups, but this one does not exist."""
    town = await behind_gates(10, 20)
    gated(town, "g", 2, annotations={}, group="g")
    assert await town.evicted(60) == []


# What changes while a plan is made.


@pytest.mark.parametrize(("mib", "is_sound"), [(MIB // 2 - 1, True), (MIB // 2, False)])
async def test_a_plan_is_dropped_if_its_victims_no_longer_suffice(mib: int, is_sound: bool) -> None:
    """The first pod's place is chosen again, and somebody else then takes a part of it."""
    town = Town(devices=0)
    town.device_on(1, 2)
    for number in (1, 2):
        await town.runs(f"low-{number}", MIB // 2, node=f"node-{number}")
    first, _ = town.gang_waits("g", [MIB // 2 + 1] * 2)
    state = town.replica.state
    placed = outcome_of(search_together(state, state.cache.pod(first.metadata.uid).group))
    chosen = choose_again(state, placed)
    next(chosen)
    await town.runs("equal", mib, 1000, node=placed[0].choice.node)
    assert holds(state, outcome_of(chosen)) == is_sound


def outcome_of(steps: Generator[object, None, tuple[Placed, ...]]) -> tuple[Placed, ...]:
    """Run all steps that are left, and return their outcome."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            placed: tuple[Placed, ...] = end.value
            return placed
