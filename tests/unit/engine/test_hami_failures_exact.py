"""Rows of our survey of HAMi's issues that need exact timing."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_container, a_pod, use_of
from replica import Replica
from vgpu_api.core import ResourceQuota
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import ServerError
from vgpu_operator.engine.scheduling.reservation import PINNED_S
from vgpu_operator.extender.wire import BindRequest

QUARTER = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}
WHOLE = {"nvidia.com/gpu": 1}
CORES = "nvidia.com/gpucores"


def binding(pod: Any) -> BindRequest:
    return BindRequest("default", pod.metadata.name, pod.metadata.uid, "node-1")


async def test_row_1_a_node_is_not_locked_between_bind_and_allocate(replica: Replica) -> None:
    """HAMi: a pod that is bound and never allocated locks its node for five minutes.

    Here no agent reports, and every pod that fits is bound at once all the same.
    """
    replica.device()
    pods = [replica.pod(f"pod-{number}", limits=QUARTER) for number in range(4)]
    for pod in pods:
        assert await replica.binder.bind(binding(pod)) == ""
    assert use_of(replica.ledger, "GPU-0").memory_mib == 4 * 4096


async def test_row_1_a_failed_bind_leaves_its_node_free_for_others(replica: Replica) -> None:
    replica.device()
    stuck, other = replica.pod("stuck", limits=QUARTER), replica.pod("other", limits=QUARTER)
    replica.api.before = lambda verb, name: (
        ServerError("no", status=500) if (verb, name) == ("bind", "stuck") else None
    )
    assert await replica.binder.bind(binding(stuck)) != ""
    assert await replica.binder.bind(binding(other)) == ""


async def test_row_5_a_bind_that_failed_leaves_no_ghost(replica: Replica) -> None:
    """HAMi: the reservation in memory outlives a failed bind, and the devices stay idle.

    Here it expires, whatever happens to its pod.
    """
    replica.device()
    pod = replica.pod(limits=WHOLE)
    replica.api.before = lambda verb, _: ServerError("no", status=500) if verb == "bind" else None
    assert await replica.binder.bind(binding(pod)) != ""
    replica.time += PINNED_S
    await replica.settle()
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0
    next_one = replica.offered("next", limits=WHOLE)
    await replica.settle()
    assert replica.claim_of(next_one).status.allocation is not None


async def test_row_6_an_unreadable_record_frees_no_device(replica: Replica) -> None:
    """HAMi: a pod whose annotation cannot be parsed counts as using nothing.

    Here its devices count as full, for the operator that saw the change and for a new one.
    """
    replica.device()
    pod = replica.offered(limits=QUARTER)
    await replica.settle()
    raw = replica.api.claim(replica.claim_of(pod).metadata.name)
    raw["status"]["allocation"]["devices"][0]["memory"] = "some"
    ruined = replica.api.put(VGPU_CLAIMS, raw)
    replica.news.claim_unreadable(ruined)
    successor = type(replica)()
    successor.device()
    successor.news.claim_unreadable(ruined)
    for operator in (replica, successor):
        other = a_pod("other", containers=[a_container(limits=QUARTER)])
        operator.api.put(PODS, other.to_wire())
        consumer = operator.news.pod_changed(other)
        refusal = operator.offer(consumer)
        assert "CardTimeSlicingExhausted" in refusal.message


def say_that_init_ended(replica: Replica, pod: Any) -> None:
    raw = replica.api.claim(replica.claim_of(pod).metadata.name)
    allocation = replica.claim_of(pod).status.allocation
    raw["status"]["initReleased"] = {"allocationID": allocation.id, "round": 0}
    raw["status"]["conditions"] = [
        {"type": "Prepared", "status": "True", "reason": "Agent", "message": ""},
    ]
    replica.news.claim_changed(VGPUClaim.read(replica.api.put(VGPU_CLAIMS, raw)))


@pytest.mark.parametrize(("init_cores", "app_cores", "shared"), [(0, 100, False), (100, 0, True)])
async def test_row_8_a_device_that_is_one_pods_alone_stays_so_after_its_init_containers(
    replica: Replica, init_cores: int, app_cores: int, shared: bool
) -> None:
    """HAMi: an exclusive device is shared once the init containers have ended."""
    replica.device(cores=200)
    pod = a_pod(
        node="node-1",
        init_containers=[a_container("prepare", limits={**QUARTER, CORES: init_cores})],
        containers=[a_container(limits={**QUARTER, CORES: app_cores})],
    )
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    await replica.settle()
    other = replica.offered("other", limits=QUARTER)
    await replica.told()
    assert replica.claim_of(other).status.allocation is None
    say_that_init_ended(replica, pod)
    await replica.settle()
    replica.offer(other)
    await replica.settle()
    assert len(replica.claim_of(pod).status.allocation.devices) == 1
    assert (replica.claim_of(other).status.allocation is not None) is shared


def a_quota(mib: int) -> ResourceQuota:
    metadata = {"name": "q", "namespace": "default", "resourceVersion": "1"}
    hard = {"limits.nvidia.com/gpumem": mib}
    return ResourceQuota.model_validate({"metadata": metadata, "spec": {"hard": hard}})


async def test_row_8_what_init_containers_ask_for_does_not_pass_by_the_quota(
    replica: Replica,
) -> None:
    replica.device()
    replica.news.quota_changed(a_quota(8000))
    pod = a_pod(
        init_containers=[a_container("prepare", limits=WHOLE)],
        containers=[a_container(limits=QUARTER)],
    )
    refusal = replica.offer(replica.news.pod_changed(pod))
    assert refusal.reason == "ResourceQuotaNotFit"


@pytest.mark.parametrize(
    "limits",
    [
        QUARTER,
        WHOLE,
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 25},
        {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 2048},
        {"aliyun.com/gpu-mem": 4},
        {"aliyun.com/gpu-count": 1},
        {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4096},
        {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 25},
    ],
)
async def test_row_22_a_quota_counts_what_is_given_in_whatever_words_it_was_asked_for(
    replica: Replica, limits: dict[str, int]
) -> None:
    """HAMi: of several devices only one counts, percentages and whole devices count as nothing, and
    only one vendor's resource names are known."""
    for index in (0, 1):
        replica.device(uuid=f"GPU-{index}", index=index)
    replica.news.quota_changed(a_quota(4095))
    pod = a_pod(containers=[a_container(limits=limits)])
    consumer = replica.news.pod_changed(pod)
    refusal = replica.offer(consumer)
    assert refusal.reason == "ResourceQuotaNotFit"
    replica.news.quota_gone("default", "q")
    assert replica.offer(consumer).node == "node-1"
