"""The agent's decisions on hand-made records, in one folder, without kubelet and API server."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from agent_node import GPU_0, ObedientDriver, a_driver_device
from builders import a_claim, a_container, a_pod, a_request, an_allocated_device, an_allocation
from set_clock import SetClock
from vgpu_api.config import NvidiaConfig
from vgpu_api.core.pod import Pod
from vgpu_api.init_part import InitRound
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_nodeagent.discovery.drivers.base import PhysicalDevice
from vgpu_nodeagent.discovery.drivers.numa import HostNuma
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.enforcement.allocations import Allocations, HostFolders
from vgpu_nodeagent.enforcement.backends import Backends, InstanceBackend, LibraryBackend
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.library import Library
from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.events import Event, EventObserver, Events
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry
from vgpu_nodeagent.kubelet.pod_resources import ContainerSlots, PodListing, PodResources
from vgpu_nodeagent.kubelet.records import KubeletRecords
from vgpu_nodeagent.kubelet.waiting import WaitingPods
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.lifecycle.prestart import PreStart
from vgpu_nodeagent.lifecycle.releases import Releases
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state.cdi_device import device_name
from vgpu_nodeagent.state.checkpoint import Checkpoint
from vgpu_nodeagent.state.claim_reads import ClaimReads
from vgpu_nodeagent.state.instances import Instances
from vgpu_nodeagent.state.node_view import NodeView

SLOT = "nvidia.com/gpu"


class AtOnce(Events):
    """Events that are applied as soon as they are observed."""

    def __init__(self) -> None:
        super().__init__()
        self.observers: list[EventObserver] = []

    def put(self, event: Event) -> None:
        for observer in self.observers:
            observer.observe(event)


class SyncedView(NodeView):
    """A view that a test fills."""

    synced = True

    def __init__(self, node: str, events: Events) -> None:
        super().__init__(node, events)

    @property
    def is_synced(self) -> bool:
        return self.synced

    async def wait_synced(self) -> None:
        return


@dataclass(slots=True)
class Kubelet:
    """PodResources and the checkpoint, as the kubelet would report them."""

    path: Path
    entries: list[KubeletEntry] = field(default_factory=list)
    pods: dict[str, str] = field(default_factory=dict)
    containers: dict[str, str] = field(default_factory=dict)
    cpus: dict[str, frozenset[int]] = field(default_factory=dict)
    error: str = ""

    def forgets(self, slot: str) -> None:
        """Forget a pod as after its end: it is neither listed nor on record."""
        self.entries = [entry for entry in self.entries if slot not in entry.slot_ids]
        self.pods.pop(slot, None)
        self._write()

    def holds(self, pod: Pod, slot: str, slot_allocation: str, container: str = "main") -> None:
        self.entries.append(
            KubeletEntry(pod.metadata.uid, container, SLOT, frozenset({slot}), slot_allocation)
        )
        self.pods[slot] = pod.metadata.name
        self._write()

    def _write(self) -> None:
        records = [
            {
                "PodUID": entry.pod_uid,
                "ContainerName": entry.container,
                "ResourceName": SLOT,
                "DeviceIDs": sorted(entry.slot_ids),
                "AllocResp": _answer(entry.slot_allocation),
            }
            for entry in self.entries
        ]
        self.path.write_text(json.dumps({"Data": {"PodDeviceEntries": records}}))

    async def list(self) -> PodListing:
        if self.error:
            raise KubeletUnavailable(self.error)
        containers = tuple(
            ContainerSlots(
                "default",
                pod,
                self.containers.get(slot, "main"),
                frozenset({slot}),
                self.cpus.get(slot, frozenset()),
            )
            for slot, pod in self.pods.items()
        )
        return PodListing(frozenset(("default", pod) for pod in self.pods.values()), containers)


def _answer(slot_allocation: str) -> str:
    device = dp.CDIDevice(name=device_name(slot_allocation))
    answer = dp.ContainerAllocateResponse(cdi_devices=[device])
    return base64.b64encode(answer.SerializeToString()).decode()


class Said:
    """Remembers reports: for each released claim, the allocation that was named."""

    def __init__(self) -> None:
        self.released_claims: list[tuple[str, str]] = []
        self.init: list[tuple[str, InitRound]] = []
        self.kept: list[tuple[str, str, str]] = []

    def released(self, claim: VGPUClaim, allocation_id: str) -> None:
        self.released_claims.append((claim.metadata.name, allocation_id))

    def not_released(self, claim: VGPUClaim, reason: str, message: str) -> None:
        self.kept.append((claim.metadata.name, reason, message))

    def init_ended(self, claim: VGPUClaim, init_round: InitRound) -> None:
        self.init.append(("ended", init_round))

    def init_wanted(self, claim: VGPUClaim, init_round: InitRound) -> None:
        self.init.append(("wanted", init_round))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **named: None


class CopiesStand:
    """Reads no claims, because a test puts them into the view itself."""

    async def read_for(self, pod: Pod) -> None:
        await asyncio.sleep(0)


class NothingEnds:
    """Releases nothing."""

    async def sweep(self) -> None:
        await asyncio.sleep(0)


@dataclass(slots=True)
class Call:
    """Calls the agent as the kubelet does, and may wait for the answer."""

    waiting: bool = True

    def is_waiting(self) -> bool:
        return self.waiting


@dataclass(slots=True)
class Bench:
    """PreStart with all its dependencies in one folder."""

    events: AtOnce
    node: LocalNode
    kubelet: Kubelet
    view: SyncedView
    prestart: PreStart
    said: Said
    driver: ObedientDriver
    bound_unseen: set[str] = field(default_factory=set)
    clock: SetClock = field(default_factory=SetClock)
    releases: Releases = field(init=False)

    async def start(self, pod: Pod, slot: str, *, wanted: bool = True) -> str:
        """Allocate a slot for a pod and prepare it; returns the lease's name."""
        slot_allocation, _ = self.prestart.allocate([slot])
        self.kubelet.holds(pod, slot, slot_allocation)
        await self.prestart.prepare([slot], call=Call(wanted))
        return slot_allocation

    async def is_bound(self, namespace: str, name: str, uid: str) -> bool:
        await asyncio.sleep(0)
        return uid in self.bound_unseen

    @property
    def kubelet_pods(self) -> Path:
        return self.node.kubelet.pods

    def nothing_is_granted(self) -> bool:
        pages = [
            self.node.allocations.content(x).state
            for x in self.node.checkpoint.state.slot_allocations
        ]
        return not self.node.checkpoint.state.claim_allocations and PageState.GRANT not in pages


async def a_bench(
    folder: Path,
    *,
    proc: Path = Path("/proc"),
    devices: Sequence[PhysicalDevice] | None = None,
    host: HostNuma | None = None,
) -> Bench:
    """Return a node with one 16 GiB device, or with the given ones, and nothing granted."""
    events = AtOnce()
    view = SyncedView("n1", events)
    driver = ObedientDriver(devices or [a_driver_device()])
    checkpoint = Checkpoint(folder / "slots.json")
    inventory = Inventory(driver, NvidiaConfig(), checkpoint, events)
    await inventory.refresh()
    kubelet = Kubelet(folder / "kubelet_internal_checkpoint")
    instances = Instances(driver, checkpoint, inventory)
    node = LocalNode(
        name="n1",
        view=view,
        inventory=inventory,
        checkpoint=checkpoint,
        backends=Backends(LibraryBackend(), InstanceBackend(instances)),
        instances=instances,
        allocations=Allocations(
            folder / "slots",
            SpecFolder(folder / "cdi"),
            library=Library("build", ()),
            host=HostFolders(proc=proc),
        ),
        kubelet=KubeletRecords(
            SLOT, cast("PodResources", kubelet), checkpoint=kubelet.path, pods=folder / "pods"
        ),
        claims=cast("ClaimReads", CopiesStand()),
        host_numa=host or HostNuma(),
        events=events,
    )

    said = Said()
    waiting = WaitingPods(view, cast("Reports", said))
    prestart = PreStart(
        node,
        reports=cast("Reports", said),
        waiting=waiting,
        releases=NothingEnds(),
        patience_s=0,
        clock=SetClock(),
    )
    bench = Bench(events, node, kubelet, view, prestart, said, driver)

    bench.releases = Releases(
        node,
        reports=cast("Reports", said),
        bound=bench,
        clock=bench.clock,
    )
    events.observers += [waiting, bench.releases]
    return bench


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
