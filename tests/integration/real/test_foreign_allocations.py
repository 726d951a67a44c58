"""ResourceClaims that somebody other than kube-scheduler allocates, on each version of Kubernetes.

Claims mode rests on these facts. Comments in Kubernetes say that only kube-scheduler allocates, so
these tests warn us of a version that enforces it. The scheduler is stock, there is no
ResourceSlice, and none of our programs runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from vgpu_api.dra import share_id
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.resources import NODES, PODS, RESOURCE_CLAIMS, Resource
from vgpu_client.api import Api
from vgpu_client.clock import rfc3339
from vgpu_client.errors import ApiError, NotFound
from vgpu_client.transport import Object
from vgpu_local.control_plane import ControlPlane, MinorVersion, Options
from vgpu_local.steps import a_container, a_pod

TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True
)
HERE, THERE = "node-1", "node-2"
SPEC = {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": "vgpu.dev"}}]}}
ALLOCATION = "00000000-0000-0000-0000-000000000001"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
async def api(kubernetes_version: MinorVersion) -> AsyncIterator[Api]:
    options = Options(version=kubernetes_version, controllers=True, scheduler=True)
    with ControlPlane(options) as plane:
        async with Api.connect(str(plane.kubeconfig)) as connected:
            for name in (HERE, THERE):
                await add_node(connected, name)
            await connected.create(TEMPLATES, a_template("small"))
            yield connected


async def add_node(api: Api, name: str) -> None:
    room = {"cpu": "4", "memory": "8Gi", "pods": "100"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    labels = {"kubernetes.io/hostname": name}
    await api.create(NODES, {"metadata": {"name": name, "labels": labels}, "status": status})
    while True:  # the controller taints a node that has no kubelet
        node = await api.get(NODES, name)
        if not node["spec"].get("taints"):
            return
        await api.merge_patch(NODES, name, {"spec": {"taints": None}})


def a_template(name: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"spec": SPEC}}


def a_resource_claim(name: str, **metadata: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "default", **metadata}, "spec": SPEC}


def a_pod_using(name: str, claim: str = "", *, template: str = "", cpu: str = "10m") -> Object:
    container = a_container()
    container["resources"] = {"requests": {"cpu": cpu}, "claims": [{"name": "vgpu"}]}
    named = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    return a_pod(name, container, resourceClaims=[{"name": "vgpu", **named}])


def allocation(
    node: str, *, memory: str = "8Gi", timestamp: bool = True, share: bool = True
) -> Object:
    result: Object = {"request": "main", "driver": "vgpu.dev", "pool": node, "device": "gpu-0"}
    if share:
        consumed = {"memory": memory, "cores": "10"}
        result |= {"shareID": share_id(ALLOCATION, "main"), "consumedCapacity": consumed}
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    found: Object = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [named]}]},
    }
    return {**found, "allocationTimestamp": rfc3339(time.time())} if timestamp else found


async def allocate(api: Api, name: str, value: Object) -> None:
    """Allocate a claim as the operator does: test its version, and replace the status."""
    found = await api.get(RESOURCE_CLAIMS, name, namespace="default")
    version = {
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": found["metadata"]["resourceVersion"],
    }
    write = {"op": "add", "path": "/status", "value": {"allocation": value}}
    await api.json_patch(
        RESOURCE_CLAIMS, name, [version, write], namespace="default", subresource="status"
    )


async def made(api: Api, name: str, value: Object) -> None:
    await api.create(RESOURCE_CLAIMS, a_resource_claim(name, finalizers=[FINALIZER_IN_USE]))
    await allocate(api, name, value)


async def node_of(api: Api, name: str, *, within_s: float = 10.0) -> str:
    """Return the node that a pod is bound to within the time, or an empty string if it is not."""
    for _ in range(int(within_s / 0.05)):
        pod = await api.get(PODS, name, namespace="default")
        if pod["spec"].get("nodeName"):
            return str(pod["spec"]["nodeName"])
        await asyncio.sleep(0.05)
    return ""


async def is_allocated(api: Api, name: str) -> bool:
    found = await api.get(RESOURCE_CLAIMS, name, namespace="default")
    return found.get("status", {}).get("allocation") is not None


async def delete(api: Api, *pods: str) -> None:
    for name in pods:
        await api.delete(PODS, name, namespace="default", grace_s=0)


async def test_1_a_pod_is_bound_to_the_node_of_an_allocation(api: Api) -> None:
    await api.create(RESOURCE_CLAIMS, a_resource_claim("one", finalizers=[FINALIZER_IN_USE]))
    await api.create(PODS, a_pod_using("one", "one"))
    assert await node_of(api, "one", within_s=0.5) == ""
    await allocate(api, "one", allocation(THERE))
    assert await node_of(api, "one") == THERE
    found = await api.get(RESOURCE_CLAIMS, "one", namespace="default")
    assert [each["name"] for each in found["status"]["reservedFor"]] == ["one"]
    assert found["metadata"]["finalizers"] == [FINALIZER_IN_USE]


async def test_2_so_is_the_pod_of_a_template(api: Api) -> None:
    await api.create(PODS, a_pod_using("two", template="small"))
    claim = ""
    while not claim:
        pod = await api.get(PODS, "two", namespace="default")
        entries = pod["status"].get("resourceClaimStatuses", [])
        claim = next((each["resourceClaimName"] for each in entries), "")
    await allocate(api, claim, allocation(HERE))
    assert await node_of(api, "two") == HERE
    await delete(api, "two")


async def test_3_without_the_time_of_the_allocation_a_pod_is_never_bound(api: Api) -> None:
    await made(api, "three", allocation(HERE, timestamp=False))
    await api.create(PODS, a_pod_using("three", "three"))
    assert await node_of(api, "three", within_s=2.0) == ""
    await delete(api, "three")


async def test_4_nobody_looks_at_amounts_again(api: Api) -> None:
    """The agent's own sum is the only check, so the agent must make it."""
    await made(api, "four", allocation(HERE, memory="999Gi"))
    await api.create(PODS, a_pod_using("four", "four"))
    assert await node_of(api, "four") == HERE
    await delete(api, "four")


async def test_5_an_allocation_on_a_node_without_room_is_taken_away_and_may_be_given_elsewhere(
    api: Api,
) -> None:
    await api.create(PODS, a_pod("filler", a_filling_container(), nodeName=HERE))
    await made(api, "five", allocation(HERE))
    await api.create(PODS, a_pod_using("five", "five", cpu="2"))
    for _ in range(3):  # kube-scheduler removes the allocation again at once
        await taken_away(api, "five")
        await allocate(api, "five", allocation(HERE))
    await taken_away(api, "five")
    await allocate(api, "five", allocation(THERE))
    assert await node_of(api, "five") == THERE
    await delete(api, "five", "filler")


async def taken_away(api: Api, name: str) -> None:
    """Wait until kube-scheduler has taken a claim's allocation away."""
    for _ in range(500):
        if not await is_allocated(api, name):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} keeps its allocation")


def a_filling_container() -> Object:
    container = a_container()
    container["resources"] = {"requests": {"cpu": "3500m"}}
    return container


async def test_6_the_allocation_of_a_pod_that_is_gone_stays_until_it_is_let_go(api: Api) -> None:
    await delete(api, "one")
    for _ in range(200):
        found = await api.get(RESOURCE_CLAIMS, "one", namespace="default")
        if not found["status"].get("reservedFor"):
            break
        await asyncio.sleep(0.05)
    assert not found["status"].get("reservedFor")
    assert found["status"]["allocation"]
    await api.delete(RESOURCE_CLAIMS, "one", namespace="default")
    await asyncio.sleep(0.5)
    assert await is_allocated(api, "one"), "our finalizer keeps it"
    remove = {"op": "remove", "path": "/metadata/finalizers/0"}
    await api.json_patch(RESOURCE_CLAIMS, "one", [remove], namespace="default")
    with pytest.raises(NotFound):
        await api.get(RESOURCE_CLAIMS, "one", namespace="default")


async def test_7_a_claim_that_is_made_after_its_pod_binds_it_and_goes_with_it(api: Api) -> None:
    """If kube-scheduler sees it before its allocation, it fails once, and tries again soon."""
    await api.create(PODS, a_pod_using("seven", "seven"))
    await asyncio.sleep(0.7)
    pod = await api.get(PODS, "seven", namespace="default")
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "seven",
        "uid": pod["metadata"]["uid"],
        "controller": True,
    }
    claim = a_resource_claim("seven", ownerReferences=[owner], finalizers=[FINALIZER_IN_USE])
    await api.create(RESOURCE_CLAIMS, claim)
    await allocate(api, "seven", allocation(THERE))
    assert await node_of(api, "seven") == THERE
    await delete(api, "seven")
    for _ in range(200):
        found = await api.get(RESOURCE_CLAIMS, "seven", namespace="default")
        if found["metadata"].get("deletionTimestamp"):
            break
        await asyncio.sleep(0.05)
    assert found["metadata"]["deletionTimestamp"], "it goes with its pod"


async def test_8_no_share_is_needed_where_its_feature_is_off(api: Api) -> None:
    await made(api, "eight", allocation(HERE, share=False))
    await api.create(PODS, a_pod_using("eight", "eight"))
    assert await node_of(api, "eight") == HERE


async def test_9_an_allocation_that_is_reserved_cannot_be_taken_away(api: Api) -> None:
    assert await node_of(api, "eight") == HERE
    remove = {"op": "remove", "path": "/status/allocation"}
    with pytest.raises(ApiError) as refused:
        await api.json_patch(
            RESOURCE_CLAIMS, "eight", [remove], namespace="default", subresource="status"
        )
    assert refused.value.status == 422
    await delete(api, "eight")
