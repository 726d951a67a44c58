"""The life of a claim on a whole cluster: created, used, protected, released, deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_CLAIM_TEMPLATE, FINALIZER_IN_USE
from vgpu_api.resources import GPU_DEVICES, PODS
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import (
    a_claim,
    a_container,
    a_pod,
    claim,
    claim_name,
    create,
    delete_claim,
    delete_pod,
    is_allocated,
    is_prepared,
    memory_seen,
    reason,
    running,
    until,
)

pytestmark = pytest.mark.timeout(180)

WHOLE = {"nvidia.com/gpu": 1}


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([gpu_node("one", [T4])], ClusterOptions(lease_s=4)) as cluster:
        yield cluster
        assert excesses(cluster.server.history()) == []


def a_user(name: str, of: str, **fields: Any) -> dict[str, Any]:
    """Return a pod that uses a claim."""
    return a_pod(name, a_container(), annotations={ANNOTATION_CLAIM: of}, **fields)


def said(status: dict[str, Any], type_: str) -> str:
    """Return the reason of a condition, or an empty string if it is missing."""
    found = [c["reason"] for c in status.get("conditions", []) if c["type"] == type_]
    return found[0] if found else ""


def names(cluster: LocalCluster) -> set[str]:
    found = cluster.server.objects("vgpuclaims.vgpu.dev", "default")
    return {claim["metadata"]["name"] for claim in found}


def test_a_pod_made_anew_under_its_name_gets_a_claim_of_its_own_after_the_first_let_go(
    cluster: LocalCluster,
) -> None:
    """As with a StatefulSet, the name is reused at once.

    Only one device is available, so each pod has to wait until its predecessor's claim lets go.
    """
    seen = []
    for _ in range(3):
        create(cluster, a_pod("db-0", a_container(limits=WHOLE)))
        pod = running(cluster, "db-0", limit=60)
        found = claim(cluster, claim_name(pod), is_allocated)
        assert found["status"]["reservedFor"]["podUID"] == pod["metadata"]["uid"]
        seen.append(found["metadata"]["uid"])
        delete_pod(cluster, "db-0")
        until(cluster, lambda: not cluster.server.objects("pods", "default"))
    assert len(set(seen)) == 3


def test_the_pods_of_a_deployment_run_at_once_on_copies_of_one_template(
    cluster: LocalCluster,
) -> None:
    create(cluster, a_claim("shape", {"memory": "3Gi"}))
    annotations = {ANNOTATION_CLAIM_TEMPLATE: "shape"}
    for number in range(4):
        create(cluster, a_pod(f"web-{number}", a_container(), annotations=annotations))
    for number in range(4):
        pod = running(cluster, f"web-{number}")
        assert memory_seen(cluster, f"web-{number}") == [3072]
        assert claim_name(pod) in names(cluster)
    claim(cluster, "shape", lambda status: reason(status) == "Template")


@pytest.mark.parametrize("key", [ANNOTATION_CLAIM, ANNOTATION_CLAIM_TEMPLATE])
def test_a_pod_that_comes_before_its_claim_waits_for_it_and_starts_when_it_comes(
    cluster: LocalCluster, key: str
) -> None:
    """Helm creates objects in this order: custom resources last."""
    pod = create(cluster, a_pod("early", a_container(), annotations={key: "late"}))

    def told() -> list[str]:
        return [
            event["message"]
            for event in cluster.server.objects("events", "default")
            if event["reason"] == "ClaimMissing"
            and event["involvedObject"]["uid"] == pod["metadata"]["uid"]
        ]

    until(cluster, lambda: bool(told()))
    assert "late does not exist" in told()[0]
    create(cluster, a_claim("late", {"memory": "2Gi"}))
    running(cluster, "early")
    assert memory_seen(cluster, "early") == [2048]


@pytest.mark.parametrize("asked", ["worker", ""])
def test_a_pod_of_several_containers_that_comes_first_starts_whichever_the_claim_is_for(
    cluster: LocalCluster, asked: str
) -> None:
    """Slots cannot be added later, so each container has one, even one without a request."""
    containers = [a_container("web"), a_container("worker")]
    pod = a_pod("early", *containers, annotations={ANNOTATION_CLAIM: "late"})
    create(cluster, pod)
    create(cluster, a_claim("late", {"memory": "2Gi", "name": asked}))
    running(cluster, "early")
    shown, other = ("worker", "web") if asked else ("web", "worker")
    assert memory_seen(cluster, "early", container=shown) == [2048]
    seen = cluster.exec("early", ["printenv", "NVIDIA_VISIBLE_DEVICES"], container=other)
    assert seen.stdout.strip() == "void"
    claim(cluster, "late", is_prepared)


def test_a_claim_without_a_ttl_is_kept_released_and_serves_the_next_pod(
    cluster: LocalCluster,
) -> None:
    create(cluster, a_claim("kept", {"memory": "4Gi"}))
    for number in range(2):
        create(cluster, a_user(f"uses-{number}", "kept"))
        running(cluster, f"uses-{number}")
        assert memory_seen(cluster, f"uses-{number}") == [4096]
        delete_pod(cluster, f"uses-{number}")
        claim(
            cluster,
            "kept",
            lambda status: status.get("state") == "Released" and "allocation" not in status,
        )


def test_a_claim_with_a_ttl_goes_after_its_pod(cluster: LocalCluster) -> None:
    create(cluster, a_claim("passing", {"memory": "4Gi"}, ttlSecondsAfterUnused=1))
    create(cluster, a_user("uses", "passing"))
    running(cluster, "uses")
    delete_pod(cluster, "uses")
    until(cluster, lambda: "passing" not in names(cluster))


def test_a_claim_that_is_deleted_while_its_pod_runs_keeps_its_devices_and_goes_with_it(
    cluster: LocalCluster,
) -> None:
    create(cluster, a_claim("going", {}))
    create(cluster, a_user("uses", "going"))
    running(cluster, "uses")
    delete_claim(cluster, "going")
    create(cluster, a_pod("waits", a_container(limits=WHOLE)))
    waiting = cluster.wait_for(PODS, "waits", lambda _: True)
    claim(cluster, claim_name(waiting), lambda status: reason(status).startswith("Card"))
    kept = claim(cluster, "going", lambda status: status.get("state") == "Terminating")
    assert said(kept["status"], "Allocated") == "BeingDeleted"
    assert kept["metadata"]["finalizers"] == [FINALIZER_IN_USE]
    assert kept["status"]["allocation"]
    delete_pod(cluster, "uses")
    running(cluster, "waits", limit=60)
    assert "going" not in names(cluster)


def test_a_pods_own_claim_is_made_and_written_once_until_its_containers_run(
    cluster: LocalCluster,
) -> None:
    """Only the running container shows that the limits are in place; no status reports it.

    See docs/design/node-and-grants.md.
    """
    create(cluster, a_pod("once", a_container(limits=WHOLE)))
    pod = running(cluster, "once")
    assert memory_seen(cluster, "once") == [16384]
    writes = [
        (write.type, write.object.get("status", {}).get("state"))
        for write in cluster.server.history()
        if write.resource == "vgpuclaims.vgpu.dev"
        and write.object["metadata"]["name"] == claim_name(pod)
    ]
    assert writes == [("ADDED", None), ("MODIFIED", "Allocated")]


def test_a_pod_deleted_by_force_frees_its_device_only_when_its_container_is_gone(
    cluster: LocalCluster,
) -> None:
    create(cluster, a_pod("forced", a_container(limits=WHOLE)))
    pod = running(cluster, "forced")
    name = claim_name(pod)
    delete_pod(cluster, "forced", grace_s=0)
    until(cluster, lambda: name not in names(cluster))
    last = [
        write.object
        for write in cluster.server.history()
        if write.resource == "vgpuclaims.vgpu.dev" and write.object["metadata"]["name"] == name
    ]
    freed = next(
        c
        for c in last
        if c["metadata"].get("deletionTimestamp") and not c["status"].get("allocation")
    )
    released = [c for c in freed["status"]["conditions"] if c["type"] == "Released"]
    assert released[0]["status"] == "True"


def test_an_immediate_claim_has_its_device_before_its_pod_and_serves_it(
    cluster: LocalCluster,
) -> None:
    create(cluster, a_claim("now", {"memory": "8Gi"}, bindingMode="Immediate"))
    held = claim(cluster, "now", lambda status: status.get("allocation"))
    assert "reservedFor" not in held["status"]
    create(cluster, a_user("uses", "now"))
    pod = running(cluster, "uses")
    assert memory_seen(cluster, "uses") == [8192]
    used = claim(cluster, "now", is_prepared)
    assert used["status"]["reservedFor"]["podUID"] == pod["metadata"]["uid"]
    assert used["status"]["allocation"] == held["status"]["allocation"]


def test_a_claim_for_several_containers_is_decided_together(cluster: LocalCluster) -> None:
    requests = [{"name": "left", "memory": "2Gi"}, {"name": "right", "memory": "6Gi"}]
    create(cluster, a_claim("both", *requests))
    pod = a_pod(
        "pair",
        a_container("left"),
        a_container("right"),
        annotations={ANNOTATION_CLAIM: "both"},
    )
    create(cluster, pod)
    running(cluster, "pair")
    assert memory_seen(cluster, "pair", container="left") == [2048]
    assert memory_seen(cluster, "pair", container="right") == [6144]


def test_what_an_init_container_had_is_given_on_while_its_pod_runs(cluster: LocalCluster) -> None:
    """It prepares with 12 GiB and runs with 2 GiB.

    Another pod then gets 12 GiB of the same 16 GiB device.
    """
    prepare = a_container("prepare", {**WHOLE, "nvidia.com/gpumem": 12_288}, command=["true"])
    main = a_container("main", {**WHOLE, "nvidia.com/gpumem": 2048})
    create(cluster, a_pod("first", main, initContainers=[prepare]))
    pod = running(cluster, "first")
    create(cluster, a_pod("second", a_container(limits={**WHOLE, "nvidia.com/gpumem": 12_288})))
    running(cluster, "second", limit=60)
    assert memory_seen(cluster, "first") == [2048]
    assert memory_seen(cluster, "second") == [12_288]
    left = claim(cluster, claim_name(pod), is_allocated)
    assert [device["request"] for device in left["status"]["allocation"]["devices"]] == ["main"]


def test_init_containers_that_run_again_wait_until_they_fit_again(cluster: LocalCluster) -> None:
    """The first pod's sandbox is recreated while the second pod holds what the first gave back."""
    prepare = a_container("prepare", {**WHOLE, "nvidia.com/gpumem": 12_288}, command=["true"])
    main = a_container("main", {**WHOLE, "nvidia.com/gpumem": 2048})
    create(cluster, a_pod("first", main, initContainers=[prepare]))
    name = claim_name(running(cluster, "first"))
    create(cluster, a_pod("second", a_container(limits={**WHOLE, "nvidia.com/gpumem": 12_288})))
    running(cluster, "second", limit=60)
    cluster.run(cluster.kubelets["one"].remake_sandbox("default", "first"))
    claim(cluster, name, lambda status: said(status, "InitReleased") == "InitContainersRunAgain")
    claim(cluster, name, lambda status: said(status, "Prepared") == "InitContainersEnded")
    delete_pod(cluster, "second")
    claim(cluster, name, lambda status: status["allocation"]["initRound"] == 1)
    running(cluster, "first", limit=60)
    left = claim(
        cluster, name, lambda status: said(status, "InitReleased") == "InitContainersEnded"
    )
    claim(cluster, name, lambda status: len(status["allocation"]["devices"]) == 1)
    assert left["status"]["initReleased"]["round"] == left["status"]["allocation"]["initRound"] == 1
    assert "initWanted" not in left["status"]
    assert memory_seen(cluster, "first") == [2048]


def test_a_running_pod_whose_annotation_is_changed_keeps_its_claim(cluster: LocalCluster) -> None:
    for name in ("first", "second"):
        create(cluster, a_claim(name, {"memory": "4Gi"}))
    create(cluster, a_user("uses", "first"))
    running(cluster, "uses")
    changes = {"metadata": {"annotations": {ANNOTATION_CLAIM: "second"}}}
    cluster.run(cluster.api.merge_patch(PODS, "uses", changes, namespace="default"))
    cluster.operator.kill()
    cluster.operator.start()
    cluster.wait_ready()
    create(cluster, a_user("other", "second"))
    running(cluster, "other", limit=60)
    first = claim(cluster, "first", is_prepared)
    assert first["status"]["reservedFor"]["podName"] == "uses"
    second = claim(cluster, "second", is_prepared)
    assert second["status"]["reservedFor"]["podName"] == "other"


def test_an_object_that_repeats_a_devices_uuid_is_marked_and_the_device_serves_on(
    cluster: LocalCluster,
) -> None:
    (device,) = cluster.server.objects("gpudevices.vgpu.dev")
    name = device["metadata"]["name"]
    twin = f"{name}.elsewhere"
    create_twin(cluster, twin, device)
    cluster.wait_for(GPU_DEVICES, twin, is_marked)
    create(cluster, a_pod("serves", a_container(limits=WHOLE)))
    running(cluster, "serves")
    (device,) = (d for d in cluster.objects("gpudevices.vgpu.dev") if d["metadata"]["name"] == name)
    assert not is_marked(device)
    cluster.run(cluster.api.delete(GPU_DEVICES, twin))


def create_twin(cluster: LocalCluster, name: str, device: dict[str, Any]) -> None:
    """Create a device object in which another node publishes the same device."""
    kind = {"apiVersion": device["apiVersion"], "kind": "GPUDevice"}
    made = {**kind, "metadata": {"name": name}, "spec": {"nodeName": "elsewhere"}}
    cluster.run(cluster.api.create(GPU_DEVICES, made))
    published = {"metadata": {"name": name}, "status": {"uuid": device["status"]["uuid"]}}
    cluster.run(
        cluster.api.apply(
            GPU_DEVICES, published, field_manager="elsewhere", force=True, subresource="status"
        )
    )


def is_marked(device: dict[str, Any]) -> bool:
    conditions = device.get("status", {}).get("conditions", [])
    return any(c["type"] == "DuplicateUUID" and c["status"] == "True" for c in conditions)
