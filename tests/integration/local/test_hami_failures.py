"""Failures that users reported to HAMi, by the rows of our survey, do not happen here.

Row 6, and cases that depend on an exact moment, are covered by the engine's tests of the same name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_api.resources import GPU_DEVICES, PODS
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.steps import (
    a_claim,
    a_container,
    a_pod,
    claim,
    claim_name,
    create,
    delete_pod,
    memory_seen,
    reason,
    running,
)

pytestmark = pytest.mark.timeout(180)

WHOLE = {"nvidia.com/gpu": 1}
COMES = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([gpu_node("one", [T4, T4])]) as cluster:
        yield cluster
        assert excesses(cluster.server.history()) == []


def slice_of(mib: int) -> dict[str, int]:
    return {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}


def test_row_2_a_dead_owner_that_is_still_there_blocks_nobody(cluster: LocalCluster) -> None:
    """HAMi: a Failed or Succeeded pod keeps the node's lock until it times out.

    Here its devices are allocated to other pods at once, while the dead pod's object still exists.
    """
    for number, command in enumerate((["true"], ["false"])):
        pod = a_pod(
            f"ended-{number}", a_container(limits=WHOLE, command=command), restartPolicy="Never"
        )
        create(cluster, pod)
        cluster.wait_for(
            PODS, f"ended-{number}", lambda p: p["status"].get("phase") in ("Succeeded", "Failed")
        )
    for number in range(2):
        create(cluster, a_pod(f"next-{number}", a_container(limits=WHOLE)))
    for number in range(2):
        running(cluster, f"next-{number}")
    assert len(cluster.server.objects("pods", "default")) == 4


def test_row_3_many_pods_are_not_served_one_after_the_other(cluster: LocalCluster) -> None:
    """HAMi: one pod at a time per node, back-off in seconds, minutes for a hundred pods.

    Here as many as fit are on their node at once, each with one write of its allocation.
    """
    for number in range(20):  # two devices of ten slots
        create(cluster, a_pod(f"many-{number}", a_container(limits=slice_of(1024))))
    for number in range(20):
        running(cluster, f"many-{number}", limit=60)
    names: dict[str, set[str]] = {}
    for write in cluster.server.history():
        if write.resource == "vgpuclaims.vgpu.dev":
            allocation = (write.object.get("status") or {}).get("allocation")
            if allocation and write.object["metadata"]["name"].startswith("many-"):
                names.setdefault(write.object["metadata"]["uid"], set()).add(allocation["id"])
    assert [len(found) for found in names.values()] == [1] * 20


def test_row_4_no_pod_gets_anothers_device(cluster: LocalCluster) -> None:
    """HAMi: the device plugin guesses which pod it allocates for; a 1 GiB pod got 30 GiB.

    Here pods of different sizes that start together on one node each see exactly their own.
    """
    sizes = {f"size-{mib}": mib for mib in (512, 1024, 1536, 2048, 2560, 3072, 3584, 4096)}
    for name, mib in sizes.items():
        create(cluster, a_pod(name, a_container(limits=slice_of(mib))))
    for name in sizes:
        running(cluster, name)
    assert {name: memory_seen(cluster, name) for name in sizes} == {
        name: [mib] for name, mib in sizes.items()
    }


def test_row_5_a_deleted_pod_leaves_no_ghost(cluster: LocalCluster) -> None:
    """HAMi: a deleted pod's reservation stays in memory; eight devices idle while pods are Pending.

    Here pods that run, wait or are just being bound are deleted, some by force, and everything
    becomes free.
    """
    for number in range(6):
        create(cluster, a_pod(f"ghost-{number}", a_container(limits=WHOLE)))
    running(cluster, "ghost-0")
    for number in range(6):
        delete_pod(cluster, f"ghost-{number}", grace_s=number % 2)
    for number in range(2):
        create(cluster, a_pod(f"after-{number}", a_container(limits=WHOLE)))
    for number in range(2):
        running(cluster, f"after-{number}", limit=60)


def test_row_7_a_forged_annotation_gives_nothing(cluster: LocalCluster) -> None:
    """HAMi: the allocation is stored in pod annotations, which the pod's author can write.

    Here annotations are only informative, and a status in a newly created claim is dropped.
    """
    uuid = cluster.server.objects("gpudevices.vgpu.dev")[0]["status"]["uuid"]
    forged = {
        "hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,16384,100:;",
        "hami.io/vgpu-node": "one",
        "hami.io/bind-phase": "success",
    }
    create(cluster, a_pod("forger", a_container(limits=slice_of(1024)), annotations=forged))
    pod = running(cluster, "forger")
    assert memory_seen(cluster, "forger") == [1024]
    assert ",1024,0:" in pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]
    allocation = {"nodeName": "one", "devices": [], "allocatedTime": "2026-01-01T00:00:00Z"}
    made = a_claim("forged", {"memory": "1Gi"})
    create(cluster, {**made, "status": {"allocation": allocation, "state": "Allocated"}})
    claim(cluster, "forged", lambda status: reason(status) == "WaitingForPod")


def test_row_8_each_of_several_containers_gets_its_own(cluster: LocalCluster) -> None:
    """HAMi: positions in a string shift when init and app containers are mixed.

    Here a request has its container's name. An init container's grant ends with the container, and
    the peak of its use counts, not the sum.
    """
    init = a_container("load", slice_of(12288), command=["true"])
    pod = a_pod(
        "mixed",
        a_container("plain"),
        a_container("large", slice_of(8192)),
        a_container("small", slice_of(2048)),
        initContainers=[init],
    )
    create(cluster, pod)
    running(cluster, "mixed")
    assert memory_seen(cluster, "mixed", container="large") == [8192]
    assert memory_seen(cluster, "mixed", container="small") == [2048]
    assert has_no_grant(cluster, "mixed", "plain")
    made = cluster.server.objects("vgpuclaims.vgpu.dev", "default")[0]
    requests = {r["name"]: r.get("phase", "App") for r in made["spec"]["requests"]}
    assert requests == {"load": "Init", "large": "App", "small": "App"}


def test_row_9_an_injected_sidecar_shifts_nothing_and_is_counted(cluster: LocalCluster) -> None:
    """HAMi: an injected sidecar in front shifts positions, and native sidecars are not counted.

    Here a sidecar in front changes nothing, and one that requests devices counts with the app
    containers.
    """
    native = a_container("agent", slice_of(4096), restartPolicy="Always")
    pod = a_pod(
        "meshed", a_container("proxy"), a_container("work", slice_of(8192)), initContainers=[native]
    )
    create(cluster, pod)
    found = running(cluster, "meshed")
    assert memory_seen(cluster, "meshed", container="work") == [8192]
    assert memory_seen(cluster, "meshed", container="agent") == [4096]
    assert has_no_grant(cluster, "meshed", "proxy")
    devices = claim(cluster, claim_name(found), lambda status: status.get("allocation"))
    given = [d["memory"] for d in devices["status"]["allocation"]["devices"]]
    assert sorted(given) == ["4Gi", "8Gi"]


def test_row_19_a_pod_that_waits_goes_on_when_a_device_becomes_free(cluster: LocalCluster) -> None:
    """HAMi: a refused pod waits five minutes, because kube-scheduler does not see GPUs become free.

    Here it runs within seconds after a release, or after a device recovers, which is no pod event.
    """
    for number in range(2):
        create(cluster, a_pod(f"holds-{number}", a_container(limits=WHOLE)))
        running(cluster, f"holds-{number}")
    create(cluster, a_pod("waits", a_container(limits=WHOLE)))
    pod = cluster.wait_for(PODS, "waits", lambda _: True)
    claim(cluster, claim_name(pod), lambda status: reason(status).startswith("Card"))
    delete_pod(cluster, "holds-0")
    began = time.monotonic()
    running(cluster, "waits", limit=60)
    assert time.monotonic() - began < 60


def test_row_19_a_pod_that_waits_goes_on_when_a_device_is_uncordoned(cluster: LocalCluster) -> None:
    """The same, by an event that kube-scheduler cannot see at all."""
    devices = [d["metadata"]["name"] for d in cluster.server.objects("gpudevices.vgpu.dev")]
    for name in devices:
        cordon(cluster, name, True)
    create(cluster, a_pod("waits", a_container(limits=COMES)))
    pod = cluster.wait_for(PODS, "waits", lambda _: True)
    claim(cluster, claim_name(pod), lambda status: reason(status) == "CardCordoned")
    for name in devices:
        cordon(cluster, name, False)
    running(cluster, "waits", limit=60)


def has_no_grant(cluster: LocalCluster, pod: str, container: str) -> bool:
    """True if it has no device; it may still see the simulated driver."""
    return "VGPU_LIMIT_PAGE" not in cluster.exec(pod, ["env"], container=container).stdout


def cordon(cluster: LocalCluster, device: str, wanted: Any) -> None:
    changes = {"spec": {"cordoned": wanted}}
    cluster.run(cluster.api.merge_patch(GPU_DEVICES, device, changes))
