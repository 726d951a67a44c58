"""The audit names each ResourceClaim that disagrees with its VGPUClaim, and no other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from claims_world import admitted, bind, replica
from memory_api import MemoryApi
from scheduler_world import a_world, allocated, asking
from vgpu_api.resources import PODS, RESOURCE_CLAIMS, VGPU_CLAIMS, Resource
from vgpu_client.errors import NotFound
from vgpu_operator.cli.audit_resource_claims import compare

Raw = dict[str, Any]
ANOTHER = "00000000-0000-0000-0000-00000000000f"


class Listed:
    """Lists what is in memory, and can change it between two looks."""

    def __init__(self, api: MemoryApi) -> None:
        self.api = api
        self.waited: Callable[[], None] = lambda: None

    async def list(self, resource: Resource, *, namespace: str | None = None) -> Any:
        places = self.api.objects.items()
        found = [
            copy.deepcopy(obj)
            for (plural, space, _), obj in places
            if plural == resource.plural and namespace in (None, space)
        ]
        return SimpleNamespace(items=found)

    async def sleep(self, seconds: float) -> None:
        self.waited()

    async def audited(self, node: str | None = None) -> Sequence[tuple[str, str]]:
        found = await compare(self, node=node, clock=self)  # type: ignore[arg-type]
        assert found is not None
        return [(each["reason"], each["message"]) for each in found["findings"]]

    def only(self, resource: Resource) -> Raw:
        """Return the only object of a kind, to be changed in place."""
        (found,) = (obj for place, obj in self.api.objects.items() if place[0] == resource.plural)
        return found

    def result(self) -> Raw:
        """Return the only result of the only ResourceClaim."""
        (result,) = self.only(RESOURCE_CLAIMS)["status"]["allocation"]["devices"]["results"]
        assert isinstance(result, dict)
        return result


async def handed_over() -> Listed:
    """Return a cluster with a pod that runs by its ResourceClaim, as the operator leaves it."""
    world = replica()
    pod = admitted(world)
    await world.settle()
    bind(world, pod)
    await world.settle()
    return Listed(world.api)


async def test_nothing_is_said_about_what_the_operator_wrote() -> None:
    cluster = await handed_over()
    assert await cluster.audited() == []


async def test_an_allocation_without_a_vgpuclaim_is_named() -> None:
    cluster = await handed_over()
    del cluster.only(VGPU_CLAIMS)["status"]["allocation"]
    assert await cluster.audited() == [
        ("AllocationUnbacked", "it shows gpu-0, and no VGPUClaim has an allocation for it")
    ]


def another_device(cluster: Listed) -> str:
    cluster.result()["device"] = "gpu-7"
    return "it shows gpu-7 on node-1, and VGPUClaim"


def another_node(cluster: Listed) -> str:
    cluster.result()["pool"] = "node-7"
    return "it shows gpu-0 on node-7, and VGPUClaim"


def another_share(cluster: Listed) -> str:
    cluster.result()["shareID"] = ANOTHER
    return "it shows gpu-0 on node-1, and VGPUClaim"


def other_memory(cluster: Listed) -> str:
    cluster.result()["consumedCapacity"]["memory"] = "9Gi"
    return "it shows other amounts of gpu-0 on node-1 than VGPUClaim"


def other_cores(cluster: Listed) -> str:
    cluster.result()["consumedCapacity"]["cores"] = "31"
    return "it shows other amounts of gpu-0 on node-1 than VGPUClaim"


def another_uid(cluster: Listed) -> str:
    cluster.only(RESOURCE_CLAIMS)["metadata"]["uid"] = ANOTHER
    return "names the ResourceClaim with UID"


@pytest.mark.parametrize(
    "change",
    [another_device, another_node, another_share, other_memory, other_cores, another_uid],
)
async def test_a_difference_is_named(change: Callable[[Listed], str]) -> None:
    cluster = await handed_over()
    words = change(cluster)
    said = dict(await cluster.audited())
    assert words in said["ResourceClaimDiffers"]


async def test_the_same_amount_in_other_digits_is_no_difference() -> None:
    cluster = await handed_over()
    cluster.result()["consumedCapacity"] = {"memory": "8192Mi", "cores": "30"}
    assert await cluster.audited() == []


async def test_amounts_may_differ_after_a_resize_which_changes_the_vgpuclaim_only() -> None:
    cluster = await handed_over()
    claim = cluster.only(VGPU_CLAIMS)
    claim["metadata"]["generation"] = 2
    claim["status"]["allocation"]["devices"][0]["memory"] = "4Gi"
    assert await cluster.audited() == []


async def test_devices_are_compared_where_the_api_server_drops_shares() -> None:
    cluster = await handed_over()
    result = cluster.result()
    del result["shareID"], result["consumedCapacity"]
    assert await cluster.audited() == []
    result["device"] = "gpu-7"
    assert [reason for reason, _ in await cluster.audited()] == ["ResourceClaimDiffers"]


async def test_the_only_request_of_a_vgpuclaim_may_have_no_name() -> None:
    cluster = await handed_over()
    claim = cluster.only(VGPU_CLAIMS)
    for request in (claim["spec"]["requests"][0], claim["status"]["allocation"]["devices"][0]):
        request["name" if "count" in request else "request"] = ""
    assert await cluster.audited() == []


async def test_init_containers_may_have_given_their_devices_back() -> None:
    cluster = await handed_over()
    claim = cluster.only(VGPU_CLAIMS)
    claim["spec"]["requests"][0]["phase"] = "Init"
    claim["status"]["allocation"]["devices"] = []
    assert await cluster.audited() == []


async def test_a_finalizer_without_devices_is_left_unless_a_pod_waits_for_them() -> None:
    cluster = await handed_over()
    del cluster.only(VGPU_CLAIMS)["status"]["allocation"]
    cluster.only(RESOURCE_CLAIMS)["status"] = {}
    assert await cluster.audited() == []
    cluster.only(PODS)["status"]["phase"] = "Succeeded"
    assert [reason for reason, _ in await cluster.audited()] == ["FinalizerLeft"]
    cluster.only(PODS)["status"]["phase"] = "Pending"
    cluster.only(RESOURCE_CLAIMS)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert [reason for reason, _ in await cluster.audited()] == ["FinalizerLeft"]


async def test_a_reservation_for_another_pod_is_named() -> None:
    cluster = await handed_over()
    thief = {"resource": "pods", "name": "thief", "uid": ANOTHER}
    cluster.only(RESOURCE_CLAIMS)["status"]["reservedFor"].append(thief)
    ((reason, message),) = await cluster.audited()
    assert reason == "ReservedForAnother"
    assert message.startswith("it is reserved for thief, and serves the pod with UID uid-")


async def test_a_vgpuclaim_whose_resource_claim_is_gone_is_named() -> None:
    cluster = await handed_over()
    name = cluster.only(RESOURCE_CLAIMS)["metadata"]["name"]
    cluster.api.vanish(RESOURCE_CLAIMS, name)
    assert [reason for reason, _ in await cluster.audited()] == ["ResourceClaimMissing"]


async def test_one_node_alone_may_be_compared() -> None:
    cluster = await handed_over()
    another_share(cluster)
    assert await cluster.audited(node="node-2") == []
    assert [reason for reason, _ in await cluster.audited(node="node-1")] == [
        "ResourceClaimDiffers"
    ]


async def test_what_is_gone_at_the_second_look_was_a_write_under_way() -> None:
    cluster = await handed_over()
    right = cluster.result()["shareID"]
    another_share(cluster)
    cluster.waited = lambda: cluster.result().update(shareID=right)
    assert await cluster.audited() == []


async def test_claims_of_other_drivers_are_not_ours() -> None:
    cluster = await handed_over()
    foreign = copy.deepcopy(cluster.only(RESOURCE_CLAIMS))
    foreign["metadata"] |= {"name": "foreign", "uid": ANOTHER, "finalizers": ["other"]}
    foreign["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.nvidia.com"
    cluster.api.put(RESOURCE_CLAIMS, foreign)
    assert await cluster.audited() == []


async def test_a_cluster_that_does_not_serve_the_kind_has_none() -> None:
    class Older:
        async def list(self, *_: Any, **__: Any) -> Any:
            raise NotFound("not served", status=404, reason="NotFound")

    assert await compare(Older()) is None  # type: ignore[arg-type]


async def by_kube_scheduler() -> Listed:
    """Return a cluster with a pod that is bound by a ResourceClaim of kube-scheduler's."""
    world = a_world()
    allocated(world, asking(world, memory="8Gi", cores=50))
    await world.settle()
    return Listed(world.api)


async def test_nothing_is_said_about_what_kube_scheduler_allocated_and_the_operator_repeats() -> (
    None
):
    cluster = await by_kube_scheduler()
    assert await cluster.audited() == []


async def test_what_kube_scheduler_allocated_and_no_vgpuclaim_repeats_is_named() -> None:
    cluster = await by_kube_scheduler()
    cluster.result()["device"] = "gpu-7"
    assert [reason for reason, _ in await cluster.audited()] == ["ResourceClaimDiffers"]
    del cluster.only(VGPU_CLAIMS)["status"]["allocation"]
    assert [reason for reason, _ in await cluster.audited()] == ["AllocationUnbacked"]
