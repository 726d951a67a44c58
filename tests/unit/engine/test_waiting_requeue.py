"""kube-scheduler is notified of changes that it cannot see, at a limited rate."""

from __future__ import annotations

from typing import Any

from builders import a_claim, a_device, a_node, a_pod, a_request
from replica import Replica
from vgpu_api.core import Pod, ResourceQuota
from vgpu_api.core.pod import PodStatus
from vgpu_api.names import ANNOTATION_REQUEUE
from vgpu_api.resources import PODS
from vgpu_api.v1alpha1 import Condition
from vgpu_client.errors import Unreachable
from vgpu_operator.engine.effects import Requeue
from vgpu_operator.engine.scheduling.kept import CROWDED
from vgpu_operator.engine.scheduling.requeue import REQUEUE_EVERY_S
from vgpu_operator.engine.scheduling.reservation import OFFERED_S, TENTATIVE_S
from vgpu_operator.engine.scheduling.schedule_one import SAMPLED_FROM
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import FilterRequest

LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


def filtered(replica: Replica, pod: Pod, *nodes: str) -> list[str]:
    names = list(nodes or replica.cache.nodes)
    request = FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": names})
    return list(filter_nodes(replica.engine, request).node_names)


async def requeued(replica: Replica) -> list[str]:
    """Settle; return the pods that were requeued since the last call."""
    before = getattr(replica, "requeues_seen", 0)
    await replica.settle()
    replica.requeues_seen = len(replica.api.log)
    return [name for verb, name in replica.api.log[before:] if verb.startswith("merge")]


def frees(replica: Replica, version: int = 2, **fields: Any) -> None:
    """Make the device healthy from now on."""
    replica.news.device_changed(a_device(memory_mib=16384, resource_version=version, **fields))


# Requeues in slices.

WHOLE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16384}


def wait_for_eight(replica: Replica) -> None:
    """Let eight pods wait, and one device recover on each of eight nodes."""
    devices = [{"uuid": f"GPU-{number}", "node": f"node-{number}"} for number in range(8)]
    for device in devices:
        replica.device(memory_mib=16384, healthy=False, **device)
    for number in range(8):
        replica.offered(f"pod-{number}", limits=WHOLE)
    for device in devices:
        frees(replica, **device)


async def test_much_room_for_one_class_is_given_in_slices_of_one_pod(replica: Replica) -> None:
    wait_for_eight(replica)
    slices = [sum(isinstance(each, Requeue) for each in of) for of in replica.engine.round()]
    assert sum(slices) == 8
    assert max(slices) == 1


async def test_what_a_filter_takes_between_two_slices_is_given_to_nobody_else(
    replica: Replica,
) -> None:
    wait_for_eight(replica)
    served: list[str] = []
    for effects in replica.engine.round():
        for effect in effects:
            if isinstance(effect, Requeue):
                served.append(effect.name)
                if len(served) == 1:
                    replica.offered("late", limits=WHOLE)
    assert len(served) == 7
    held = list(replica.state.reservations)
    assert len({each.node for each in held}) == len(held) == 8


# The writes.


async def test_a_requeue_is_one_patch_that_a_namesake_refuses(replica: Replica) -> None:
    replica.device(memory_mib=16384, healthy=False)
    pod = replica.offered("a")
    frees(replica)
    assert await requeued(replica) == ["a"]
    stored = replica.api.objects[(PODS.plural, "default", "a")]
    assert ANNOTATION_REQUEUE in stored["metadata"]["annotations"]
    assert not stored["status"].get("nominatedNodeName")
    replica.api.vanish(PODS, "a")
    namesake = replica.api.put(PODS, a_pod("a", uid="another").to_wire())
    replica.time += TENTATIVE_S
    frees(replica, 3, healthy=False)
    filtered(replica, pod)
    frees(replica, 4)
    assert await requeued(replica) == ["a"]
    assert replica.api.objects[(PODS.plural, "default", "a")] == namesake


async def test_of_many_nodes_the_one_with_room_is_nominated_in_the_same_patch(
    replica: Replica,
) -> None:
    """kube-scheduler samples only some nodes, but checks a nominated node first."""
    for number in range(SAMPLED_FROM):
        replica.news.node_changed(a_node(f"plain-{number}"))
    replica.device(memory_mib=16384, healthy=False)
    pod = replica.offered("a")
    frees(replica)
    assert await requeued(replica) == ["a"]
    stored = replica.api.objects[(PODS.plural, "default", "a")]
    assert stored["status"]["nominatedNodeName"] == "node-1"
    assert ANNOTATION_REQUEUE in stored["metadata"]["annotations"]
    replica.time += TENTATIVE_S  # no Filter came: it would keep CPU from other pods
    assert await requeued(replica) == ["a"]
    stored = replica.api.objects[(PODS.plural, "default", "a")]
    assert stored["status"].get("nominatedNodeName") is None
    assert replica.state.reservations.of_pod(pod.metadata.uid) is None


async def test_a_requeue_that_cannot_be_written_is_written_as_soon_as_it_can(
    replica: Replica,
) -> None:
    replica.device(memory_mib=16384, healthy=False)
    replica.offered("a")
    replica.api.before = lambda verb, _: Unreachable("no way") if "merge" in verb else None
    frees(replica)
    await requeued(replica)
    assert not replica.api.objects[(PODS.plural, "default", "a")]["metadata"]["annotations"]
    replica.api.before = lambda verb, name: None
    replica.time += REQUEUE_EVERY_S
    assert await requeued(replica) == ["a"]


async def test_a_pod_that_is_gone_is_requeued_no_more(replica: Replica) -> None:
    replica.device(memory_mib=16384, healthy=False)
    pod = replica.offered("a")
    replica.api.vanish(PODS, "a")
    frees(replica)
    await requeued(replica)
    replica.news.pod_gone(pod.metadata.uid)
    replica.time += TENTATIVE_S
    assert await requeued(replica) == []


# The rate.


async def test_a_pod_is_requeued_once_in_a_few_seconds(replica: Replica) -> None:
    replica.device(memory_mib=16384, healthy=False)
    pod = replica.offered("a")
    for version in range(2, 12, 2):
        frees(replica, version)
        replica.submit()
        frees(replica, version + 1, healthy=False)
        filtered(replica, pod)
        replica.time += REQUEUE_EVERY_S / 5 - 0.01
    frees(replica, 20)
    assert await requeued(replica) == ["a"]
    replica.time += REQUEUE_EVERY_S
    assert await requeued(replica) == ["a"]


async def test_a_pod_that_never_comes_keeps_its_place_for_a_while_and_is_left_alone_then(
    replica: Replica,
) -> None:
    """kube-scheduler found no node for it, for example for lack of CPU, which only it checks."""
    replica.device(memory_mib=8192, healthy=False)
    for name in ("a", "b"):
        replica.offered(name)
    replica.news.device_changed(a_device(memory_mib=8192, resource_version=2))
    assert await requeued(replica) == ["a"]
    replica.time += TENTATIVE_S
    assert await requeued(replica) == ["b"]
    for _ in range(10):
        replica.time += TENTATIVE_S
        assert await requeued(replica) == []


async def test_who_is_not_offered_the_node_lets_twice_as_many_try(replica: Replica) -> None:
    """Pods of one kind may differ in CPU, and this finds one that fits in a few steps."""
    replica.device(memory_mib=8192, healthy=False)
    replica.device(uuid="GPU-9", node="node-2", healthy=False)
    pods = {name: replica.offered(name) for name in "abcdefgh"}
    replica.news.device_changed(a_device(memory_mib=8192, resource_version=2))
    waves = []
    while wave := await requeued(replica):
        waves.append(len(wave))
        for name in wave:
            assert filtered(replica, pods[name], "node-2") == []
    assert waves == [1, 2, 4, 1]


async def test_only_a_few_kinds_of_pods_are_requeued_for_one_node(replica: Replica) -> None:
    replica.device(memory_mib=8192, healthy=False)
    for number in range(2 * CROWDED):
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000 + number}
        replica.offered(f"pod-{number}", limits=limits)
    replica.news.device_changed(a_device(memory_mib=8192, resource_version=2))
    assert len(await requeued(replica)) == CROWDED


async def test_a_pod_set_aside_before_this_replica_led_is_woken(replica: Replica) -> None:
    """The predecessor refused its Filter, which only the pod itself shows."""
    replica.leading = False
    replica.device(memory_mib=16384)
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable")
    pod = replica.pod("a")
    aside = pod.model_copy(update={"status": PodStatus(conditions=[condition])})
    replica.news.pod_changed(Pod.model_validate({**aside.to_wire(), "metadata": {
        **aside.to_wire()["metadata"], "resourceVersion": "2"}}))  # fmt: skip
    replica.leading = True
    replica.engine.lead()
    assert await requeued(replica) == ["a"]


async def test_a_pod_that_no_filter_was_refused_for_is_not_touched(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    replica.pod("a")
    assert await requeued(replica) == []
    assert replica.api.log == []


# The selection of pods.


async def test_a_recovered_device_wakes_exactly_the_pods_that_it_serves(replica: Replica) -> None:
    replica.device(memory_mib=16384, healthy=False)
    for name in ("a", "b", "c"):
        assert filtered(replica, replica.pod(name, limits=LIMITS)) == []
    assert await requeued(replica) == []
    replica.news.device_changed(a_device(memory_mib=16384, resource_version=2))
    assert await requeued(replica) == ["a", "b"]


async def test_room_for_one_wakes_the_more_important_pod_though_it_is_younger(
    replica: Replica,
) -> None:
    replica.device(memory_mib=16384, healthy=False)
    replica.offered("old", limits=WHOLE, priority=-5)
    replica.offered("important", limits=WHOLE, priority=1_000_000)
    frees(replica)
    assert await requeued(replica) == ["important"]


async def test_an_uncordoned_device_wakes_who_waits_for_it(replica: Replica) -> None:
    replica.device(cordoned=True)
    assert filtered(replica, replica.pod("a", limits=LIMITS)) == []
    assert await requeued(replica) == []
    replica.news.device_changed(a_device(resource_version=2))
    assert await requeued(replica) == ["a"]


async def test_an_expired_reservation_wakes_who_waits_for_its_devices(replica: Replica) -> None:
    replica.device(memory_mib=8192)
    replica.offered("holds", limits=LIMITS)
    await replica.settle()
    assert filtered(replica, replica.pod("waits", limits=LIMITS)) == []
    assert await requeued(replica) == []
    replica.time += OFFERED_S
    assert await requeued(replica) == ["waits"]


async def test_who_would_still_not_fit_is_left_alone(replica: Replica) -> None:
    replica.device(memory_mib=8192, healthy=False)
    big = replica.pod("big", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9000})
    assert filtered(replica, big) == []
    replica.news.device_changed(a_device(memory_mib=8192, resource_version=2))
    assert await requeued(replica) == []


def a_quota(version: int, mib: int) -> ResourceQuota:
    return ResourceQuota.model_validate(
        {
            "metadata": {"name": "q", "namespace": "default", "resourceVersion": str(version)},
            "spec": {"hard": {"limits.nvidia.com/gpumem": mib}},
        }
    )


async def test_a_raised_quota_wakes_who_it_kept_waiting(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    replica.news.quota_changed(a_quota(1, 8192))
    first, second = replica.pod("a", limits=LIMITS), replica.pod("b", limits=LIMITS)
    await replica.settle()
    assert filtered(replica, first) == ["node-1"]
    assert filtered(replica, second) == []
    assert await requeued(replica) == []
    replica.news.quota_changed(a_quota(2, 16384))
    assert await requeued(replica) == ["b"]


async def test_who_waits_for_a_quota_gets_no_devices_held(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    replica.news.quota_changed(a_quota(1, 4096))
    replica.offered("a", limits=LIMITS)
    await replica.settle()
    replica.time += 61
    await replica.settle()
    assert len(replica.state.earmarks) == 0


async def test_an_immediate_claim_is_decided_when_its_quota_goes(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    replica.news.quota_changed(a_quota(1, 4096))
    replica.claim(a_claim("now", requests=[a_request(memory="8Gi")], binding_mode="Immediate"))
    await replica.settle()
    assert "allocation" not in replica.api.claim("now")["status"]
    replica.news.quota_gone("default", "q")
    await replica.settle()
    assert "allocation" in replica.api.claim("now")["status"]
