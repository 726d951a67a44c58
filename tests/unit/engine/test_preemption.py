"""Pods of lower priority are preempted for one that waits for devices."""

from __future__ import annotations

from itertools import islice

import pytest

from builders import a_claim, a_request
from preemption_town import MIB, Town
from vgpu_api.core import Pod, ResourceQuota
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_api.v1alpha1.base import OwnerReference
from vgpu_client.errors import ServerError, TooManyRequests
from vgpu_operator.engine.effects import EvictPod
from vgpu_operator.engine.preemption.preempt_due import preempt_due


async def test_the_least_important_pod_that_suffices_makes_way() -> None:
    town = Town(devices=2)
    for number, priority in enumerate((300, 100, 200, 300)):
        await town.runs(f"p{priority}-{number}", 8000, priority)
    important = town.waits("important", 8000)
    assert await town.evicted() == ["p100-1"]
    assert town.replica.reservation(important) is None  # nothing is free before it is released
    await town.ends(town.replica.cache.pod("uid-of-p100-1").pod)
    assert town.replica.cache.pod("uid-of-important").pod.is_bound
    await town.evicted()
    assert town.results() == {"served": 1}


async def test_one_pod_on_each_of_two_devices_makes_way() -> None:
    town = Town(devices=2)
    for priority in (300, 100, 200, 400):
        await town.runs(f"p{priority}", 8000, priority)
    town.waits("important", 8000, count=2)
    on = {name: town.device_of(name) for name in ("p100", "p200", "p300", "p400")}
    gone = await town.evicted()
    assert len(gone) == 2
    assert {on[name] for name in gone} == {"GPU-0", "GPU-1"}
    assert "p400" not in gone


async def test_a_pod_is_told_who_makes_way_and_the_victim_for_whom() -> None:
    town = Town()
    await town.runs("low", MIB, 7)
    town.waits("important", MIB)
    await town.evicted()
    assert ("important", "Preempting", (
        "evicting less important pods on node-1: default/low (priority 7)"
    )) in town.told  # fmt: skip
    assert ("low", "Preempted", (
        "evicted because it makes way for pod default/important of priority 1000"
    )) in town.told  # fmt: skip


async def test_the_condition_of_a_waiting_claim_says_that_others_make_way() -> None:
    town = Town()
    await town.runs("low", MIB)
    important = town.waits("important", MIB)
    await town.evicted(3)
    (message,) = (
        each.message
        for each in town.replica.claim_of(important).status.conditions
        if each.type == "Allocated"
    )
    assert message.endswith("; less important pods or claims on node-1 are making way: 1")


@pytest.mark.parametrize(
    ("priority", "gap", "expected"),
    [(1000, 0, []), (999, 0, ["low"]), (999, 1, []), (998, 1, ["low"])],
)
async def test_a_victims_priority_must_be_lower_by_more_than_the_gap(
    priority: int, gap: int, expected: list[str]
) -> None:
    town = Town(minGap=gap)
    await town.runs("low", MIB, priority)
    town.waits("important", MIB)
    assert await town.evicted(10) == expected


async def test_it_is_off_by_default() -> None:
    town = Town(enabled=False)
    await town.runs("low", MIB)
    town.waits("important", MIB)
    assert await town.evicted(10) == []


async def test_a_priority_class_that_never_preempts_waits() -> None:
    town = Town()
    await town.runs("low", MIB)
    pod = town.replica.pod("important", priority=1000)
    wire = pod.to_wire()
    wire["spec"]["preemptionPolicy"] = "Never"
    wire["metadata"]["resourceVersion"] = "50"
    town.replica.offer(Pod.model_validate(wire))
    assert await town.evicted(10) == []


async def test_nobody_goes_in_vain() -> None:
    """Half of the device belongs to an equally important pod."""
    town = Town()
    await town.runs("equal", MIB // 2, 1000)
    await town.runs("low", MIB // 2)
    town.waits("important", MIB)
    assert await town.evicted(120) == []


async def test_nobody_else_goes_while_enough_is_ending() -> None:
    town = Town(devices=2)
    low = [await town.runs(f"low-{number}", MIB) for number in range(2)]
    raw = town.replica.cache.pod(low[0].metadata.uid).pod.to_wire()
    raw["metadata"] |= {"deletionTimestamp": "2023-11-14T23:00:00Z", "resourceVersion": "99"}
    town.replica.news.pod_changed(Pod.model_validate(raw))
    town.waits("important", MIB)
    assert await town.evicted(20) == []


async def test_what_ends_on_another_node_is_enough() -> None:
    town = Town()
    town.replica.device(uuid="GPU-9", node="node-9", memory_mib=MIB, slots=4)
    await town.runs("low", 1000, node="node-1")
    going = await town.runs("going", MIB, 2000, node="node-9")
    raw = town.replica.cache.pod(going.metadata.uid).pod.to_wire()
    raw["metadata"] |= {"deletionTimestamp": "2023-11-14T23:00:00Z", "resourceVersion": "99"}
    town.replica.news.pod_changed(Pod.model_validate(raw))
    town.waits("important", MIB)
    assert await town.evicted(20) == []


async def test_a_claim_that_names_a_pod_of_another_node_has_nobody_evicted() -> None:
    """An agent may write the claims of its node, and it may be compromised."""
    town = Town()
    town.replica.device(uuid="GPU-9", node="node-9", memory_mib=1000)
    await town.runs("here", MIB, node="node-1")
    elsewhere = await town.runs("elsewhere", 1000, node="node-9")
    raw = town.replica.claim_of(town.replica.cache.pod("uid-of-here").pod).to_wire()
    raw["status"]["reservedFor"] = {"podName": "elsewhere", "podUID": elsewhere.metadata.uid}
    stored = town.replica.api.put(VGPU_CLAIMS, raw)
    town.replica.news.claim_changed(VGPUClaim.read(stored))
    town.waits("important", MIB)
    assert "elsewhere" not in await town.evicted(20)


async def test_a_pod_that_never_ends_is_not_waited_for() -> None:
    """A finalizer still keeps it half an hour after its grace period."""
    town = Town(devices=2)
    low = [await town.runs(f"low-{number}", MIB) for number in range(2)]
    raw = town.replica.cache.pod(low[0].metadata.uid).pod.to_wire()
    raw["metadata"] |= {"deletionTimestamp": "2023-11-14T22:00:00Z", "resourceVersion": "99"}
    town.replica.news.pod_changed(Pod.model_validate(raw))
    town.waits("important", MIB)
    assert await town.evicted() == ["low-1"]


async def test_two_preemptors_take_different_victims() -> None:
    town = Town(devices=2)
    for number in range(2):
        await town.runs(f"low-{number}", MIB)
    for number in range(2):
        town.waits(f"important-{number}", MIB)
    assert sorted(await town.evicted(4)) == ["low-0", "low-1"]
    assert len(town.replica.state.preemptions.open) == 2


async def test_a_third_preemptor_finds_nobody() -> None:
    town = Town()
    await town.runs("low", MIB)
    town.waits("first", MIB)
    assert await town.evicted() == ["low"]
    town.waits("second", MIB)
    assert await town.evicted(30) == []


async def test_newcomers_stay_off_the_devices_that_become_free() -> None:
    town = Town()
    low = await town.runs("low", MIB)
    town.waits("important", MIB)
    await town.evicted()
    town.waits("newcomer", 1000, priority=0)
    await town.ends(low)
    assert town.replica.cache.pod("uid-of-important").pod.is_bound
    assert not town.replica.cache.pod("uid-of-newcomer").pod.is_bound


@pytest.mark.parametrize("kind", ["DaemonSet", "mirror"])
async def test_pods_that_come_back_to_the_same_node_are_spared(kind: str) -> None:
    town = Town()
    owner = OwnerReference(api_version="apps/v1", kind=kind, name="o", uid="u", controller=True)
    annotations = {"kubernetes.io/config.mirror": "hash"} if kind == "mirror" else {}
    await town.runs("low", MIB, owners=[owner], annotations=annotations)
    town.waits("important", MIB)
    assert await town.evicted(10) == []


async def test_a_namespace_can_be_the_limit() -> None:
    town = Town(scope="Namespace")
    await town.runs("low", MIB, namespace="other")
    town.waits("important", MIB)
    assert await town.evicted(10) == []


async def test_a_protected_pod_is_spared_and_another_goes() -> None:
    town = Town(devices=2)
    await town.runs("protected", MIB, 1, labels={"app": "web"})
    await town.runs("other", MIB, 500)
    town.budget(0, app="web")
    town.waits("important", MIB)
    assert await town.evicted() == ["other"]


async def test_nobody_goes_where_all_are_protected() -> None:
    town = Town()
    await town.runs("protected", MIB, labels={"app": "web"})
    town.budget(0, app="web")
    town.waits("important", MIB)
    assert await town.evicted(120) == []


async def test_a_budget_of_one_spares_the_second_of_two_victims() -> None:
    """The whole device needs two evictions, and the budget allows one."""
    town = Town()
    for number in range(2):
        await town.runs(f"web-{number}", MIB // 2, labels={"app": "web"})
    town.budget(1, app="web")
    town.waits("important", MIB)
    assert await town.evicted(60) == []
    town.budget(2, app="web")
    assert sorted(await town.evicted(130)) == ["web-0", "web-1"]


async def test_a_budget_is_broken_only_where_nothing_else_helps() -> None:
    town = Town(budgets="Prefer")
    await town.runs("protected", MIB, labels={"app": "web"})
    town.budget(0, app="web")
    town.waits("important", MIB)
    await town.evicted()
    assert ("delete", "protected") in town.replica.api.log


async def test_nobody_is_evicted_before_the_budgets_are_known() -> None:
    """The operator may lack the right to read them."""
    town = Town()
    town.replica.state.preemptions.budgets.are_listed = False
    await town.runs("low", MIB)
    town.waits("important", MIB)
    assert await town.evicted(10) == []


async def test_a_refused_eviction_spares_the_pod_and_chooses_anew() -> None:
    """Our copy of its budget may be stale, so the API server decides."""
    town = Town(devices=2)
    await town.runs("protected", MIB, 1)
    await town.runs("other", MIB, 500)
    causes = {"causes": [{"reason": "DisruptionBudget"}]}

    def refuse(verb: str, name: str) -> BaseException | None:
        if (verb, name) == ("evict", "protected"):
            return TooManyRequests("no", status=429, reason="TooManyRequests", details=causes)
        return None

    town.replica.api.before = refuse
    town.waits("important", MIB)
    assert await town.evicted(4) == ["other"]
    assert town.results() == {"protected": 1}


async def test_an_eviction_that_fails_is_tried_again() -> None:
    town = Town()
    await town.runs("low", MIB)
    tries = []

    def fail(verb: str, name: str) -> BaseException | None:
        if verb == "evict":
            tries.append(name)
            return ServerError("busy", status=500) if len(tries) < 3 else None
        return None

    town.replica.api.before = fail
    town.waits("important", MIB)
    assert await town.evicted(6) == ["low"]
    assert len(tries) == 3


async def test_victims_are_evicted_one_after_another() -> None:
    """The second stays if the API server does not answer about the first."""
    town = Town()
    for number in range(2):
        await town.runs(f"low-{number}", MIB // 2, number)
    town.replica.api.after = lambda verb, _: (
        ServerError("lost", status=500) if verb == "evict" else None
    )
    town.waits("important", MIB)
    town.replica.time += 1
    await town.replica.settle()
    assert [each for each in town.replica.api.log if each[0] == "evict"] == [("evict", "low-0")]


async def test_a_minute_has_a_limited_number_of_evictions() -> None:
    town = Town(perMinute=3)
    for number in range(4):
        await town.runs(f"low-{number}", MIB // 4)
    town.waits("important", MIB)
    assert len(await town.evicted(30)) == 3
    assert len(await town.evicted(60)) == 1


async def test_a_deleted_preemptor_ends_nobody_else() -> None:
    town = Town(perMinute=1)
    for number in range(2):
        await town.runs(f"low-{number}", MIB // 2)
    pod = town.waits("important", MIB)
    assert len(await town.evicted()) == 1
    town.replica.api.vanish(PODS, "important")
    town.replica.news.pod_gone(pod.metadata.uid)
    assert await town.evicted(120) == []
    assert town.results() == {"withdrawn": 1}
    assert len(town.replica.state.earmarks) == 0


async def test_a_victim_that_does_not_end_is_given_up_and_another_node_chosen() -> None:
    town = Town()
    await town.runs("stuck", MIB)
    town.replica.device(uuid="GPU-9", node="node-9", memory_mib=MIB, slots=4)
    await town.runs("low", MIB, 5, node="node-9")
    town.waits("important", MIB)
    assert await town.evicted() == ["stuck"]
    raw = town.replica.cache.pod("uid-of-stuck").pod.to_wire()
    raw["metadata"] |= {"deletionTimestamp": "2023-11-14T22:30:10Z", "resourceVersion": "999"}
    town.replica.news.pod_changed(Pod.model_validate(raw))
    assert await town.evicted(65) == ["low"]
    assert town.results() == {"overdue": 1}


async def test_a_pod_that_gets_nothing_although_its_victims_ended_preempts_no_more() -> None:
    """kube-scheduler never binds it, for a reason of its own."""
    town = Town()
    low = await town.runs("low", MIB)
    town.waits("important", MIB)
    await town.evicted()
    raw = town.replica.claim_of(low).to_wire()
    raw["status"]["released"] = {"allocationID": raw["status"]["allocation"]["id"]}
    town.replica.news.claim_changed(VGPUClaim.read(town.replica.api.put(VGPU_CLAIMS, raw)))
    town.replica.api.vanish(PODS, "low")
    town.replica.news.pod_gone(low.metadata.uid)
    await town.evicted(90)
    assert town.results() == {"in_vain": 1}
    town.replica.device(uuid="GPU-2", node="node-2", memory_mib=MIB)
    await town.runs("next", MIB, node="node-2")
    town.replica.offer(town.replica.cache.pod("uid-of-important"), "node-2")
    assert await town.evicted(120) == []


async def test_an_immediate_claim_without_a_pod_is_taken_back() -> None:
    town = Town()
    town.replica.claim(
        a_claim("kept", requests=[a_request(memory="16Gi")], binding_mode="Immediate")
    )
    await town.replica.settle()
    town.waits("important", MIB)
    assert await town.evicted() == []
    town.replica.offer(town.replica.cache.pod("uid-of-important"))
    await town.replica.bound()
    assert town.replica.cache.pod("uid-of-important").pod.is_bound
    kept = VGPUClaim.read(town.replica.api.claim("kept"))
    assert kept.status.allocation is None


async def test_an_immediate_claim_of_higher_priority_is_kept() -> None:
    town = Town()
    town.replica.claim(
        a_claim(
            "kept",
            requests=[a_request(memory="16Gi")],
            binding_mode="Immediate",
            scheduling_priority=1000,
        )
    )
    await town.replica.settle()
    town.waits("important", MIB)
    await town.evicted(60)
    assert VGPUClaim.read(town.replica.api.claim("kept")).status.allocation is not None


async def test_nobody_is_evicted_for_a_quota() -> None:
    town = Town(devices=2)
    await town.runs("low", MIB)
    quota = {
        "metadata": {"name": "quota", "namespace": "default", "resourceVersion": "1"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": str(MIB)}},
    }
    town.replica.news.quota_changed(ResourceQuota.model_validate(quota))
    town.waits("important", 1000)
    assert await town.evicted(60) == []


async def test_nobody_is_evicted_while_another_replica_leads() -> None:
    town = Town()
    await town.runs("low", MIB)
    town.waits("important", MIB)
    town.replica.leading = False
    assert await town.evicted(10) == []


async def test_a_new_leader_waits_for_what_its_predecessor_has_evicted() -> None:
    town = Town(devices=2)
    for number in range(2):
        await town.runs(f"low-{number}", MIB)
    town.waits("important", MIB)
    assert len(await town.evicted()) == 1
    town.replica.state.preemptions.open.clear()  # as it never knew
    town.replica.state.earmarks.remove(next(iter(town.replica.state.earmarks)).key)
    town.replica.offer(town.replica.cache.pod("uid-of-important"))
    assert await town.evicted(20) == []


async def test_the_next_pod_goes_once_the_eviction_of_the_one_before_is_accepted() -> None:
    town = Town()
    for number in range(2):
        await town.runs(f"low-{number}", MIB // 2)
    town.waits("important", MIB)
    evictions = town.replica.state.preemptions.times
    for _ in range(10):
        town.replica.time += 0.1
        town.replica.submit()  # and no answer comes
    assert len(evictions) == 1
    await town.replica.settle()
    assert len(evictions) == 2


async def test_nobody_goes_for_a_pod_that_goes_while_its_victims_are_chosen() -> None:
    """It may go at each step of the choice."""
    evicted_after = None
    for step in range(20):
        town = Town()
        await town.runs("low", MIB)
        town.waits("important", MIB)
        town.replica.time += 1.0
        town.replica.engine.pod("")  # the state learns the time
        steps = preempt_due(town.replica.state)
        before = [effect for effects in islice(steps, step) for effect in effects]
        if any(isinstance(effect, EvictPod) for effect in before):
            evicted_after = step
            break
        town.replica.news.pod_gone("uid-of-important")
        assert [effect for effects in steps for effect in effects] == [], step
        assert town.replica.state.preemptions.open == {}
    assert evicted_after is not None
    assert evicted_after > 2
