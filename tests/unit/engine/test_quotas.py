"""Quotas of devices hold for claims, with a pod and without one, and a refusal names them."""

from __future__ import annotations

import pytest

from builders import a_claim, a_pod, a_request
from replica import Replica
from vgpu_api.conditions import ALLOCATED, find
from vgpu_api.core import ResourceQuota
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED
from vgpu_api.v1alpha1 import VGPUClaim


def a_quota(devices: int, version: int = 1) -> ResourceQuota:
    metadata = {"name": "gpus", "namespace": "default", "resourceVersion": str(version)}
    return ResourceQuota.model_validate(
        {"metadata": metadata, "spec": {"hard": {"requests.nvidia.com/gpu": devices}}}
    )


def four_devices(replica: Replica) -> None:
    for number in range(4):
        replica.device(uuid=f"GPU-{number}", index=number)


def allocated(replica: Replica, name: str) -> tuple[str, str, str]:
    condition = find(VGPUClaim.read(replica.api.claim(name)).status.conditions, ALLOCATED)
    assert condition is not None
    return condition.status, condition.reason, condition.message


@pytest.mark.parametrize("mode", ["Immediate", "WaitForFirstConsumer"])
async def test_a_claim_for_four_devices_gets_none_under_a_quota_of_one(
    replica: Replica, mode: str
) -> None:
    four_devices(replica)
    replica.news.quota_changed(a_quota(1))
    replica.claim(a_claim("mine", requests=[a_request(count=4)], binding_mode=mode))
    if mode != "Immediate":
        annotations = {ANNOTATION_CLAIM: "mine", ANNOTATION_SLOTS_ADDED: "main"}
        replica.offer(a_pod("pod-1", annotations=annotations))
    await replica.told()
    assert allocated(replica, "mine") == (
        "False",
        "ResourceQuotaNotFit",
        "4/4 ResourceQuotaNotFit; exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, "
        "used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=1",
    )


async def test_what_an_immediate_claim_holds_counts_for_the_next(replica: Replica) -> None:
    four_devices(replica)
    replica.news.quota_changed(a_quota(3))
    for name in ("first", "second"):
        request = a_request(count=2, memory="1Gi")
        replica.claim(a_claim(name, requests=[request], binding_mode="Immediate"))
        await replica.settle()
    await replica.told()
    assert allocated(replica, "first")[0] == "True"
    assert (
        "requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=2"
        in (allocated(replica, "second")[2])
    )
    replica.news.quota_changed(a_quota(4, version=2))
    await replica.settle()
    assert allocated(replica, "second")[0] == "True"
