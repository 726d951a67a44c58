"""A drain cordons first, respects budgets, waits for the release, and names what is left."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from builders import a_claim, a_device, a_node, a_pod, an_allocated_device, an_allocation
from memory_api import MemoryApi
from set_clock import SetClock
from vgpu_api.resources import GPU_DEVICES, NODES, PODS, VGPU_CLAIMS, Resource
from vgpu_api.v1alpha1 import ReservedFor
from vgpu_client.errors import TooManyRequests
from vgpu_operator.cli.drain import Drain
from vgpu_operator.cli.listing import CannotAnswer


class Cluster(MemoryApi):
    """Evicts, unless a budget refuses; the operator releases a claim after its pod."""

    def __init__(self) -> None:
        super().__init__()
        self.budget_refuses = 0
        self.events: list[str] = []

    async def list(self, resource: Resource, **_: Any) -> Any:
        found = [
            copy.deepcopy(obj)
            for (plural, _, _), obj in self.objects.items()
            if plural == resource.plural
        ]
        return SimpleNamespace(items=found)

    async def create(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        *,
        subresource: str | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        assert (resource, subresource) == (PODS, "eviction")
        name = obj["metadata"]["name"]
        self.events.append(f"evict {name}")
        if self.budget_refuses:
            self.budget_refuses -= 1
            raise TooManyRequests("the disruption budget web needs 2 healthy pods", status=429)
        pod = self.objects["pods", "default", name]
        assert obj["deleteOptions"]["preconditions"] == {"uid": pod["metadata"]["uid"]}
        self.vanish(PODS, name)
        claim = self.objects["vgpuclaims", "default", f"claim-of-{name}"]
        claim["status"].pop("allocation")
        return {}

    async def merge_patch(
        self, resource: Resource, name: str, changes: Mapping[str, Any], **_: Any
    ) -> dict[str, Any]:
        cordoned = changes["spec"]["cordoned"]
        self.events.append(f"cordon {name} {cordoned}")
        self.objects[resource.plural, "", name]["spec"]["cordoned"] = cordoned
        return {}


@pytest.fixture
def cluster() -> Cluster:
    """Devices gpu-0 on node-1, with pods a and b, and gpu-1 on node-2, with pod c."""
    api = Cluster()
    for number, pods in ((0, "ab"), (1, "c")):
        uuid, node = f"GPU-{number}", f"node-{number + 1}"
        api.put(NODES, a_node(node).to_wire())
        api.put(GPU_DEVICES, a_device(uuid=uuid, node=node).to_wire())
        for name in pods:
            api.put(PODS, a_pod(name, node=node, phase="Running").to_wire())
            claim = a_claim(
                f"claim-of-{name}",
                allocation=an_allocation(an_allocated_device(uuid=uuid), node=node),
            ).to_wire()
            uid = api.objects["pods", "default", name]["metadata"]["uid"]
            claim["status"]["reservedFor"] = ReservedFor(pod_name=name, pod_uid=uid).to_wire()
            api.put(VGPU_CLAIMS, claim)
    return api


def drain(cluster: Cluster, subject: str) -> Drain:
    return Drain(cluster, subject, lambda line: None, clock=SetClock())  # type: ignore[arg-type]


@pytest.mark.parametrize("subject", ["GPU-0", "gpu-0", "device/gpu-0", "node-1", "node/node-1"])
async def test_pods_of_the_device_are_evicted_after_it_is_cordoned(cluster: Cluster, subject: str):
    work = drain(cluster, subject)
    plan = await work.plan()
    assert await work.carry_out(plan, limit_s=10) == []
    assert cluster.events == ["cordon gpu-0 True", "evict a", "evict b"]
    assert ("pods", "default", "c") in cluster.objects


async def test_a_budget_that_refuses_is_asked_again_and_in_time(cluster: Cluster):
    cluster.budget_refuses = 3
    work = drain(cluster, "node-2")
    assert await work.carry_out(await work.plan(), limit_s=60) == []
    assert cluster.events.count("evict c") == 4


async def test_what_a_budget_keeps_is_left_with_its_words(cluster: Cluster):
    cluster.budget_refuses = 1000
    work = drain(cluster, "node-2")
    (line,) = await work.carry_out(await work.plan(), limit_s=20)
    assert line.startswith("claim default/claim-of-c still holds devices")
    assert "needs 2 healthy pods" in line
    assert cluster.events.count("evict c") == 5  # at 0, 5, 10, 15 and 20 s


async def test_a_claim_without_a_pod_is_named_and_not_touched(cluster: Cluster):
    cluster.vanish(PODS, "c")
    work = drain(cluster, "node-2")
    plan = await work.plan()
    assert "claim default/claim-of-c holds devices without a pod: it is not changed" in plan.lines()
    assert await work.carry_out(plan, limit_s=10) == [
        "claim default/claim-of-c holds devices without a pod"
    ]


async def test_progress_counts_the_claims_that_have_gone(cluster: Cluster):
    seen: list[tuple[int, int]] = []
    work = drain(cluster, "node-1")
    plan = await work.plan()
    await work.carry_out(plan, limit_s=10, progress=lambda gone, of: seen.append((gone, of)))
    assert seen[-1] == (2, 2)


async def test_uncordon_gives_back_only_what_was_cordoned(cluster: Cluster):
    work = drain(cluster, "node-1")
    assert await work.uncordon() == []
    await work.carry_out(await work.plan(), limit_s=10)
    assert await work.uncordon() == ["gpu-0"]
    assert cluster.events[-1] == "cordon gpu-0 False"


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        ("none", "no node and no device none"),
        ("node/none", "no node none"),
        ("device/node-1", "no device node-1"),
        ("pod/a", "use NAME, node/NAME or device/NAME"),
    ],
)
async def test_what_is_not_there_is_named(cluster: Cluster, subject: str, says: str):
    with pytest.raises(CannotAnswer, match=says):
        await drain(cluster, subject).plan()


async def test_a_node_without_devices_is_said(cluster: Cluster):
    cluster.put(NODES, a_node("plain").to_wire())
    with pytest.raises(CannotAnswer, match="node plain has no devices"):
        await drain(cluster, "plain").plan()


@pytest.mark.parametrize("subject", ["GPU-0", "node-1"])
async def test_a_cordon_evicts_nobody_and_is_made_once(cluster: Cluster, subject: str):
    assert await drain(cluster, subject).cordon() == ["gpu-0"]
    assert await drain(cluster, subject).cordon() == []
    assert cluster.events == ["cordon gpu-0 True"]
    assert await drain(cluster, subject).uncordon() == ["gpu-0"]
