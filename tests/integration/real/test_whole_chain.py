"""The whole chain on Kubernetes' own API server, controllers and scheduler, with our programs.

The kubelets are the stand-in's, so containers are processes on simulated devices; everything else
is real.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_api.resources import GPU_DEVICES, PODS, RESOURCE_QUOTAS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import ApiError, Invalid
from vgpu_local.apiserver import Fault
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import a100_node, t4_node, v100_node
from vgpu_local.programs import PROBE, ROOT
from vgpu_local.real_cluster import real_cluster

EXAMPLES = ROOT / "examples"
CLAIMS = "vgpuclaims.vgpu.dev"
MIB = 1 << 20
AT_ONCE = 30

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[LocalCluster]:
    nodes = [t4_node("t4", 4), v100_node("v100"), a100_node("a100")]
    with real_cluster(nodes) as cluster:
        yield cluster


@pytest.fixture
def whole(running_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster; after each test it must be empty again, including the agents' disks."""
    yield running_cluster
    empty(running_cluster)


def empty(cluster: LocalCluster) -> None:
    for plural, resource in (("pods", PODS), (CLAIMS, VGPU_CLAIMS)):
        for found in cluster.objects(plural, "default"):
            name = found["metadata"]["name"]
            if resource is PODS or not found["metadata"].get("ownerReferences"):
                cluster.run(cluster.api.delete(resource, name, namespace="default", grace_s=1))
    until(cluster, lambda: not left(cluster), limit=60)


def left(cluster: LocalCluster) -> list[str]:
    """Return the pods, claims, container folders and CDI specs that are left on the nodes."""
    there = [
        found["metadata"]["name"]
        for plural in ("pods", CLAIMS)
        for found in cluster.objects(plural, "default")
    ]
    for node in cluster.kubelets:
        folder = cluster.folder / node
        there += [str(path) for path in (folder / "agent" / "slots").glob("*")]
        there += [str(path) for path in folder.glob("cdi/*.json")]
    return there


def until(cluster: LocalCluster, holds: Callable[[], object], *, limit: float = 30.0) -> None:
    deadline = time.monotonic() + limit
    while not holds():
        cluster.check()
        assert time.monotonic() < deadline, f"not within the time limit; there: {left(cluster)}"
        time.sleep(0.1)


def running(cluster: LocalCluster, pod: str) -> dict[str, Any]:
    return cluster.wait_for(PODS, pod, lambda p: p["status"].get("phase") == "Running", limit=60)


def devices(pod: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return UUID, MiB and cores of each device in HAMi's record."""
    record = pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
    entries = record.replace(";", "").split(":")
    fields = [entry.split(",") for entry in entries if entry]
    return [(uuid, int(mib), int(cores)) for uuid, _, mib, cores in fields]


def seen_inside(cluster: LocalCluster, pod: str) -> dict[str, int]:
    """Return what CUDA shows in the container: bytes by UUID."""
    done = cluster.exec(pod, [str(PROBE), "info"])
    assert done.exit_code == 0, done.stderr
    return {device["uuid"]: device["cuda_total"] for device in json.loads(done.stdout)["devices"]}


def claim_of(cluster: LocalCluster, pod: str) -> dict[str, Any]:
    (claim,) = (
        claim
        for claim in cluster.objects(CLAIMS, "default")
        if [owner["name"] for owner in claim["metadata"].get("ownerReferences", ())] == [pod]
    )
    return claim


def a_pod(name: str, **limits: int) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "none",
        "command": ["sleep", "infinity"],
        "resources": {"limits": {f"nvidia.com/{what}": amount for what, amount in limits.items()}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container]},
    }


def create(cluster: LocalCluster, pod: dict[str, Any]) -> None:
    cluster.run(cluster.api.create(PODS, pod))


def test_example_1_two_pods_share_one_device_with_8192_mib_each(whole: LocalCluster) -> None:
    whole.apply(EXAMPLES / "seeds/01-two-pods-one-card.yaml")
    first = devices(running(whole, "inference-service-a"))
    second = devices(running(whole, "inference-service-b"))
    assert first == second
    assert first[0][1:] == (8192, 50)
    for pod in ("inference-service-a", "inference-service-b"):
        assert seen_inside(whole, pod) == {first[0][0]: 8192 * MIB}


def test_examples_2_and_3_do_not_share_a_device(whole: LocalCluster) -> None:
    whole.apply(EXAMPLES / "seeds/03-exclusive.yaml")
    ((exclusive, mib, cores),) = devices(running(whole, "training-job"))
    assert cores == 100
    assert seen_inside(whole, "training-job") == {exclusive: mib * MIB}
    whole.apply(EXAMPLES / "seeds/02-memory-only.yaml")
    ((other, given, _),) = devices(running(whole, "memory-only-isolation"))
    assert (other != exclusive, given) == (True, 4096)


def test_a_pod_that_fits_nowhere_says_why_in_its_claim_and_in_its_event(
    whole: LocalCluster,
) -> None:
    why = "6/6 CardInsufficientMemory; asked 100,000 MiB; the largest device has 81,920 MiB "
    create(whole, a_pod("huge", gpu=1, gpumem=100_000))
    whole.wait_for(PODS, "huge", lambda _: True)

    def claim_says_so() -> bool:
        try:
            claim = claim_of(whole, "huge")
        except ValueError:
            return False
        conditions = claim.get("status", {}).get("conditions", ())
        return any(
            (c["type"], c["reason"]) == ("Allocated", "Impossible") and c["message"].startswith(why)
            for c in conditions
        )

    def scheduler_says_so() -> bool:
        return any(
            event["reason"] == "FailedScheduling"
            and event["involvedObject"]["name"] == "huge"
            and "CardInsufficientMemory" in event["message"]
            for event in whole.objects("events", "default")
        )

    until(whole, claim_says_so)
    until(whole, scheduler_says_so)


def test_30_pods_at_once_all_run_and_each_sees_exactly_its_own(whole: LocalCluster) -> None:
    shapes: list[dict[str, int]] = [
        {"gpu": 1, "gpumem": 2000, "gpucores": 10},
        {"gpu": 2, "gpumem": 1024},
        {"gpumem-percentage": 10, "gpucores": 10},
    ]
    names = [f"pod-{number:02}" for number in range(AT_ONCE)]
    for number, name in enumerate(names):
        create(whole, a_pod(name, **shapes[number % len(shapes)]))

    def all_run() -> bool:
        phases = [pod["status"].get("phase") for pod in whole.objects("pods", "default")]
        return phases.count("Running") == AT_ONCE

    until(whole, all_run, limit=90)
    for name in names:
        allocation = VGPUClaim.read(claim_of(whole, name)).status.allocation
        assert allocation is not None
        granted = {device.uuid: device.memory_mib * MIB for device in allocation.devices}
        assert seen_inside(whole, name) == granted
    history = whole.server.history()
    assert sum(write.resource == CLAIMS for write in history) > AT_ONCE
    assert excesses(history) == []


def test_what_a_deleted_pod_held_is_free_and_nothing_of_it_is_left(whole: LocalCluster) -> None:
    create(whole, a_pod("first", gpu=7, gpumem=10_000, gpucores=60))
    until(whole, lambda: claim_says(whole, "first", "NodeInsufficientDevice"))
    whole.run(whole.api.delete(PODS, "first", namespace="default", grace_s=1))
    create(whole, a_pod("second", gpu=4, gpumem=10_000, gpucores=60))
    create(whole, a_pod("third", gpu=4, gpumem=10_000, gpucores=60))
    until(whole, lambda: phases(whole).count("Running") == 1)
    (holder,) = (
        pod["metadata"]["name"]
        for pod in whole.objects("pods", "default")
        if pod["status"].get("phase") == "Running"
    )
    (waits,) = {"second", "third"} - {holder}
    whole.run(whole.api.delete(PODS, holder, namespace="default", grace_s=1))
    running(whole, waits)


def phases(cluster: LocalCluster) -> list[str]:
    return [pod["status"].get("phase", "") for pod in cluster.objects("pods", "default")]


def claim_says(cluster: LocalCluster, pod: str, reason: str) -> bool:
    return any(
        reason in condition["message"]
        for claim in cluster.objects(CLAIMS, "default")
        if [owner["name"] for owner in claim["metadata"].get("ownerReferences", ())] == [pod]
        for condition in claim.get("status", {}).get("conditions", ())
    )


def quota(mib: int) -> dict[str, Any]:
    """Return a ResourceQuota for GPU memory, which Kubernetes accepts but does not enforce."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": str(mib)}},
    }


def test_a_pod_over_its_namespaces_quota_runs_when_the_quota_is_raised(
    whole: LocalCluster,
) -> None:
    whole.apply_object(quota(3000))
    try:
        create(whole, a_pod("within", gpu=1, gpumem=2048))
        running(whole, "within")
        create(whole, a_pod("over", gpu=1, gpumem=2048))
        until(whole, lambda: claim_says(whole, "over", "ResourceQuotaNotFit"))
        whole.wait_for(PODS, "over", is_set_aside)
        whole.apply_object(quota(5000))
        running(whole, "over")
    finally:
        whole.run(whole.api.delete(RESOURCE_QUOTAS, "gpus", namespace="default"))


def cordon(cluster: LocalCluster, *, cordoned: bool) -> None:
    for device in cluster.objects("gpudevices.vgpu.dev"):
        changes = {"spec": {"cordoned": cordoned}}
        name = device["metadata"]["name"]
        cluster.run(cluster.api.merge_patch(GPU_DEVICES, name, changes))


def test_a_pod_that_kube_scheduler_set_aside_wakes_when_a_device_is_uncordoned(
    whole: LocalCluster,
) -> None:
    """kube-scheduler cannot see the uncordon and would retry only after five minutes."""
    cordon(whole, cordoned=True)
    try:
        create(whole, a_pod("patient", gpu=1, gpumem=2048))
        whole.wait_for(PODS, "patient", is_set_aside)
        until(whole, lambda: claim_says(whole, "patient", "CardCordoned"))
    finally:
        cordon(whole, cordoned=False)
    running(whole, "patient")


def is_set_aside(pod: dict[str, Any]) -> bool:
    return any(
        condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
        for condition in pod["status"].get("conditions", ())
    )


def test_a_pod_that_no_filter_asks_about_holds_nothing(whole: LocalCluster) -> None:
    """Its scheduler does not exist, and it asks for all devices of the only node with T4s."""

    def all_t4(name: str) -> dict[str, Any]:
        pod = a_pod(name, gpu=4)
        pod["metadata"]["annotations"] = {"nvidia.com/use-gputype": "T4"}
        return pod

    asked_in_vain = all_t4("queued")
    asked_in_vain["spec"]["schedulerName"] = "nobody"
    create(whole, asked_in_vain)
    create(whole, all_t4("runs"))
    assert len(devices(running(whole, "runs"))) == 4
    (queued,) = (p for p in whole.objects("pods", "default") if p["metadata"]["name"] == "queued")
    assert "nominatedNodeName" not in queued["status"]
    claims = whole.objects(CLAIMS, "default")
    allocated = [c["metadata"]["name"] for c in claims if "allocation" in c.get("status", {})]
    assert allocated == [claim_of(whole, "runs")["metadata"]["name"]]


def test_pods_run_though_a_share_of_our_programs_requests_goes_wrong(
    whole: LocalCluster,
) -> None:
    faults = whole.server.faults
    armed = [
        faults.add(Fault(action="status", code=503, verb=verb, share=0.1, times=None))
        for verb in ("patch", "create", "list", "get")
    ]
    armed += [faults.add(Fault(action="lost", share=0.1, times=None, verb="patch"))]
    names = [f"faulty-{number}" for number in range(8)]
    for name in names:
        create_patiently(whole, a_pod(name, gpu=1, gpumem=1500))
    whole.server.break_watches("*", "drop")
    until(whole, lambda: phases(whole).count("Running") == len(names), limit=90)
    befell = sum(faults.count(fault) for fault in armed)
    faults.clear()
    assert befell > 0
    for name in names:
        allocation = VGPUClaim.read(claim_of(whole, name)).status.allocation
        assert allocation is not None
        granted = {device.uuid: device.memory_mib * MIB for device in allocation.devices}
        assert seen_inside(whole, name) == granted


def create_patiently(cluster: LocalCluster, pod: dict[str, Any]) -> None:
    """Create an object, and retry while a webhook refuses because it cannot read an object yet."""
    deadline = time.monotonic() + 30
    while True:
        try:
            create(cluster, pod)
        except ApiError:
            assert time.monotonic() < deadline, "never admitted"
            time.sleep(0.2)
        else:
            return


def test_a_tenant_cannot_make_an_allocated_claim_into_another(whole: LocalCluster) -> None:
    create(whole, a_pod("tenant", gpu=1, gpumem=2048))
    running(whole, "tenant")
    claim = claim_of(whole, "tenant")
    claim["spec"]["requests"][0]["count"] = 3
    with pytest.raises(Invalid, match=r"once (the claim is )?allocated"):
        whole.run(whole.api.replace(VGPU_CLAIMS, claim))
