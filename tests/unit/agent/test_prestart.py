"""PreStart on records made by hand: what it refuses before anything is written."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from agent_node import GPU_0, T4_MIB, ObedientDriver, a_driver_card
from builders import a_claim, a_container, a_pod, a_request, an_allocated_device, an_allocation
from vgpu_api.config import NvidiaConfig
from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_nodeagent.deviceplugin.checkpoint import Checkpoint
from vgpu_nodeagent.deviceplugin.kubelet_checkpoint import KubeletEntry
from vgpu_nodeagent.deviceplugin.pod_resources import ContainerSlots, PodListing, PodResources
from vgpu_nodeagent.deviceplugin.prestart import Node, PreStart
from vgpu_nodeagent.deviceplugin.waiting import WaitingPods
from vgpu_nodeagent.enforcement import cdi
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.library import Library
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.inventory import Inventory
from vgpu_nodeagent.kubelet_api import deviceplugin_pb2 as dp
from vgpu_nodeagent.node_view import NodeView
from vgpu_nodeagent.reports import Reports

SLOT = "nvidia.com/gpu"


class SyncedView(NodeView):
    """A view that a test fills."""

    synced = True

    @property
    def is_synced(self) -> bool:
        return self.synced


@dataclass(slots=True)
class Kubelet:
    """What the kubelet would say: PodResources and its checkpoint."""

    path: Path
    entries: list[KubeletEntry] = field(default_factory=list)
    pods: dict[str, str] = field(default_factory=dict)

    def holds(self, pod: Pod, slot: str, lease: str, container: str = "main") -> None:
        self.entries.append(
            KubeletEntry(pod.metadata.uid, container, SLOT, frozenset({slot}), lease)
        )
        self.pods[slot] = pod.metadata.name
        records = [
            {
                "PodUID": entry.pod_uid,
                "ContainerName": entry.container,
                "ResourceName": SLOT,
                "DeviceIDs": sorted(entry.slot_ids),
                "AllocResp": _answer(entry.lease),
            }
            for entry in self.entries
        ]
        self.path.write_text(json.dumps({"Data": {"PodDeviceEntries": records}}))

    async def list(self) -> PodListing:
        containers = tuple(
            ContainerSlots("default", pod, "main", frozenset({slot}))
            for slot, pod in self.pods.items()
        )
        return PodListing(frozenset(("default", pod) for pod in self.pods.values()), containers)


def _answer(lease: str) -> str:
    device = dp.CDIDevice(name=cdi.device_name(lease))
    answer = dp.ContainerAllocateResponse(cdi_devices=[device])
    return base64.b64encode(answer.SerializeToString()).decode()


class Silent:
    """Reports that nobody reads."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


@dataclass(slots=True)
class Bench:
    """PreStart with everything around it in a folder."""

    node: Node
    kubelet: Kubelet
    view: SyncedView
    prestart: PreStart

    async def start(self, pod: Pod, slot: str, *, wanted: bool = True) -> str:
        """Allocate a slot for a pod and prepare it; returns the lease's name."""
        lease, _ = self.prestart.allocate([slot])
        self.kubelet.holds(pod, slot, lease)
        await self.prestart.prepare([slot], still_wanted=lambda: wanted)
        return lease

    async def refusal(self, pod: Pod, slot: str, *, wanted: bool = True) -> Why:
        with pytest.raises(Refused) as refused:
            await self.start(pod, slot, wanted=wanted)
        return refused.value.reason

    def nothing_is_granted(self) -> bool:
        pages = [self.node.allocations.content(x).state for x in self.node.checkpoint.state.leases]
        return not self.node.checkpoint.state.holdings and PageState.GRANT not in pages


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    view = SyncedView("n1")
    inventory = Inventory(ObedientDriver([a_driver_card()]), NvidiaConfig())
    await inventory.refresh()
    kubelet = Kubelet(tmp_path / "kubelet_internal_checkpoint")
    node = Node(
        name="n1",
        resource=SLOT,
        view=view,
        inventory=inventory,
        checkpoint=Checkpoint(tmp_path / "slots.json"),
        allocations=Allocations(
            tmp_path / "slots",
            SpecFolder(tmp_path / "cdi"),
            library=Library("build", ()),
            driver_mounts=(),
        ),
        pod_resources=cast("PodResources", kubelet),
        kubelet_checkpoint=kubelet.path,
    )

    async def sweep() -> None:
        await asyncio.sleep(0)

    prestart = PreStart(
        node,
        reports=cast("Reports", Silent()),
        waiting=WaitingPods(view, touch=lambda pod: None),
        sweep=sweep,
        patience_s=0,
    )
    return Bench(node, kubelet, view, prestart)


def a_bound_pod(name: str = "pod-1", uid: str | None = None) -> Pod:
    return a_pod(name, uid=uid, node="n1", containers=[a_container(limits={SLOT: "1"})])


def a_claim_for(pod: Pod, *, memory_mib: int = 1024, name: str = "c", uid: str = "") -> VGPUClaim:
    device = an_allocated_device(request="main", uuid=GPU_0, memory_mib=memory_mib)
    status = VGPUClaimStatus(
        allocation=an_allocation(device, node="n1"),
        reserved_for=ReservedFor(pod_name=pod.metadata.name, pod_uid=uid or pod.metadata.uid),
        conditions=[],
    )
    return a_claim(name, uid=f"uid-of-{name}", requests=[a_request(name="main")], status=status)


async def test_a_claim_for_this_very_pod_opens_the_allocation(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    lease = await bench.start(pod, "slot-0")
    assert bench.node.allocations.content(lease).state is PageState.GRANT
    assert bench.node.checkpoint.state.leases[lease].pod_uid == pod.metadata.uid


async def test_a_claim_for_another_uid_under_the_same_name_is_refused(bench: Bench) -> None:
    """Fails without the comparison of UIDs at PreStart."""
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod, uid="uid-of-its-predecessor"))
    assert await bench.refusal(pod, "slot-0") is Why.WRONG_POD
    assert bench.nothing_is_granted()


async def test_the_second_claim_that_overcommits_a_card_is_refused(bench: Bench) -> None:
    """Fails without the sum over the agent's own grants at PreStart."""
    first, second = a_bound_pod("pod-1"), a_bound_pod("pod-2")
    for pod, slot, refused in ((first, "slot-0", False), (second, "slot-1", True)):
        bench.view.pods.added(pod)
        claim = a_claim_for(pod, memory_mib=T4_MIB // 2 + 1, name=f"c-{slot}")
        bench.view.claims.added(claim)
        if refused:
            assert await bench.refusal(pod, slot) is Why.OVER_CAPACITY
        else:
            await bench.start(pod, slot)
    assert list(bench.node.checkpoint.state.holdings) == ["uid-of-c-slot-0"]


async def test_a_call_that_nobody_waits_for_any_more_grants_nothing(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    assert await bench.refusal(pod, "slot-0", wanted=False) is Why.CALL_ENDED
    assert bench.nothing_is_granted()


async def test_an_agent_that_has_not_read_its_node_yet_refuses(bench: Bench) -> None:
    bench.view.synced = False
    assert await bench.refusal(a_bound_pod(), "slot-0") is Why.NOT_SYNCED


async def test_a_kubelet_checkpoint_that_is_cut_refuses(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    lease, _ = bench.prestart.allocate(["slot-0"])
    bench.kubelet.holds(pod, "slot-0", lease)
    text = bench.kubelet.path.read_text()
    bench.kubelet.path.write_text(text[: len(text) // 2])
    with pytest.raises(Refused, match=r"kubelet checkpoint .* is not JSON") as refused:
        await bench.prestart.prepare(["slot-0"], still_wanted=lambda: True)
    assert refused.value.reason is Why.KUBELET_UNAVAILABLE
    assert bench.nothing_is_granted()


async def test_two_claims_for_one_pod_are_not_chosen_between(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod, name="a"))
    bench.view.claims.added(a_claim_for(pod, name="b"))
    assert await bench.refusal(pod, "slot-0") is Why.RECORDS_DISAGREE


async def test_a_lease_that_this_agent_never_gave_is_refused(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    bench.kubelet.holds(pod, "slot-0", "slot-0-unheard")
    with pytest.raises(Refused, match="slot-0-unheard, which this agent does not know"):
        await bench.prestart.prepare(["slot-0"], still_wanted=lambda: True)
    assert not (bench.kubelet.path.parent / "slots").exists()


async def test_an_allocation_that_cannot_be_recorded_is_not_given(bench: Bench) -> None:
    (bench.kubelet.path.parent / ".slots.json.new").mkdir()
    with pytest.raises(Refused) as refused:
        bench.prestart.allocate(["slot-0"])
    assert refused.value.reason is Why.STORAGE_FAILED
    assert bench.node.allocations.on_disk() == frozenset()


async def test_a_grant_that_cannot_be_recorded_is_not_opened(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    lease, _ = bench.prestart.allocate(["slot-0"])
    bench.kubelet.holds(pod, "slot-0", lease)
    (bench.kubelet.path.parent / ".slots.json.new").mkdir()
    with pytest.raises(Refused) as refused:
        await bench.prestart.prepare(["slot-0"], still_wanted=lambda: True)
    assert refused.value.reason is Why.STORAGE_FAILED
    assert bench.nothing_is_granted()
