"""The use of containers by their ledgers and by the driver, with processes made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent_node import GPU_0, GPU_1, ObedientDriver, a_driver_device
from vgpu_api.effective import Use
from vgpu_api.quantity import MIB
from vgpu_nodeagent.discovery.drivers.base import DeviceUsage, PhysicalDevice
from vgpu_nodeagent.enforcement.abi import UNLIMITED, PageState
from vgpu_nodeagent.enforcement.page import DeviceLimit, PageContent
from vgpu_nodeagent.enforcement.region import DeviceUse
from vgpu_nodeagent.errors import PageDamaged
from vgpu_nodeagent.reporting.exposition import HAMI_CONTAINER, HAMI_DEVICE, UsageCollector
from vgpu_nodeagent.reporting.usage import ContainerUse, Usage, UsageReader
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotAllocation, SlotState, close

HAMI_NAMES = {row.name for _, row in HAMI_CONTAINER} | {row.name for _, row in HAMI_DEVICE}

POD, OTHER = (f"{n}0000000-1111-2222-3333-444444444444" for n in (1, 2))
LIMITS = {
    "slot-1": [DeviceLimit(GPU_0, 4000 * MIB, 30)],
    "slot-2": [DeviceLimit(GPU_0, 2000 * MIB, 20)],
    "slot-3": [DeviceLimit(GPU_1, UNLIMITED, 0)],
}


def a_holding(claim: str, pod: str) -> ClaimAllocation:
    return ClaimAllocation(
        f"uid-{claim}", "ns", claim, "a", pod, f"pod-{claim}", {GPU_0: Use(1, 0, 1)}
    )


STATE = SlotState(
    slot_allocations={
        "slot-1": SlotAllocation("slot-1", ("1",), 0.0, POD, "main", "uid-one"),
        "slot-2": SlotAllocation("slot-2", ("2",), 0.0, POD, "side", "uid-one"),
        "slot-3": SlotAllocation("slot-3", ("3",), 0.0, OTHER, "main", "uid-two"),
    },
    claim_allocations={"uid-one": a_holding("one", POD), "uid-two": a_holding("two", OTHER)},
)


class World:
    """Allocations, processes and a driver that a test sets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = STATE
        self.ledgers: dict[str, tuple[DeviceUse, ...]] = {}
        self.damaged: set[str] = set()
        self.driver = ObedientDriver([a_driver_device(), a_driver_device(GPU_1, 1)])
        self.driver.compute = {GPU_0: {}, GPU_1: {}}
        for name in LIMITS:
            (root / name).mkdir()
            (root / name / "region").touch()
        self.proc = root / "proc"
        self.proc.mkdir()
        self.reader = UsageReader(
            self.driver,
            self,
            self,  # type: ignore[arg-type]
        )

    def content(self, slot_allocation: str) -> PageContent:
        if slot_allocation in self.damaged:
            raise PageDamaged(self.root / slot_allocation, "is cut")
        return PageContent(PageState.GRANT, 1, slot_allocation, tuple(LIMITS[slot_allocation]))

    def usage(self, slot_allocation: str) -> tuple[DeviceUse, ...]:
        return self.ledgers.get(slot_allocation, ())

    def region_path(self, slot_allocation: str) -> Path:
        return self.root / slot_allocation / "region"

    def add(self, pid: int, pod: str = "", slot_allocation: str = "", start: int = 5) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (a (b) c) S {'0 ' * 18}{start} 0\n")
        (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{pod}/0123abcd\n" if pod else "")
        inode = self.region_path(slot_allocation).stat().st_ino if slot_allocation else 0
        line = f"7f00-7f01 rw-s 0 00:01 {inode}  /usr/local/vgpu/usage/region\n"
        (folder / "maps").write_text(line if slot_allocation else "")

    async def read(self) -> Mapping[tuple[str, str], ContainerUse]:
        usage = await self.reader.read()
        return {(use.claim, use.container): use for use in usage.containers}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_memory_is_the_ledger_where_the_library_keeps_one(world: World) -> None:
    world.ledgers["slot-1"] = (DeviceUse(GPU_0, 300 * MIB, 900 * MIB, 4, 2_500_000_000),)
    world.add(10, POD, "slot-1")
    world.driver.processes = {GPU_0: {10: 777 * MIB}}
    use = (await world.read())["one", "main"]
    assert (use.memory_limit, use.memory_used, use.memory_peak) == (
        4000 * MIB,
        300 * MIB,
        900 * MIB,
    )
    assert (use.denied, use.throttled_s) == (4, 2.5)


async def test_memory_is_the_drivers_word_where_it_does_not(world: World) -> None:
    world.add(20, OTHER)
    world.add(21, OTHER)
    world.driver.processes = {GPU_1: {20: 100 * MIB, 21: 50 * MIB}}
    use = (await world.read())["two", "main"]
    assert (use.memory_limit, use.memory_used, use.memory_peak) == (None, 150 * MIB, None)


async def test_compute_of_two_containers_of_a_pod_is_told_apart_by_their_regions(
    world: World,
) -> None:
    world.add(10, POD, "slot-1")
    world.add(11, POD, "slot-1")
    world.add(12, POD, "slot-2")
    world.add(13, OTHER)
    world.driver.compute = {GPU_0: {10: 20.0, 11: 5.0, 12: 40.0}, GPU_1: {13: 90.0}}
    uses = await world.read()
    assert uses["one", "main"].cores_used == 0.25
    assert uses["one", "side"].cores_used == 0.4
    assert uses["two", "main"].cores_used == 0.9
    assert (uses["one", "main"].cores_limit, uses["two", "main"].cores_limit) == (0.3, None)


async def test_a_process_of_no_claim_is_nobodys_use(world: World) -> None:
    world.add(30, "90000000-1111-2222-3333-444444444444", "slot-1")  # mapped from another pod
    world.driver.compute = {GPU_0: {30: 50.0, 31: 50.0}}
    assert (await world.read())["one", "main"].cores_used == 0.0


async def test_without_cgroups_of_pods_the_mapped_region_decides(world: World) -> None:
    world.add(10, slot_allocation="slot-2")
    world.driver.compute = {GPU_0: {10: 10.0}}
    assert (await world.read())["one", "side"].cores_used == 0.1


async def test_a_pid_that_is_used_again_is_another_process(world: World) -> None:
    world.add(10, POD, "slot-1")
    world.driver.compute = {GPU_0: {10: 10.0}}
    assert (await world.read())["one", "main"].cores_used == 0.1
    world.add(10, POD, "slot-2", start=6)
    uses = await world.read()
    assert (uses["one", "main"].cores_used, uses["one", "side"].cores_used) == (0.0, 0.1)


async def test_a_device_that_cannot_tell_leaves_compute_out(world: World) -> None:
    world.driver.compute = {GPU_0: {}}
    uses = await world.read()
    assert (uses["one", "main"].cores_used, uses["two", "main"].cores_used) == (0.0, None)


async def test_while_the_driver_is_away_the_ledgers_are_read(world: World) -> None:
    world.ledgers["slot-1"] = (DeviceUse(GPU_0, MIB, MIB, 0),)
    world.driver.error = "NVML does not answer"
    usage = await world.reader.read()
    assert usage.devices == {}
    assert usage.containers[0].memory_used == MIB
    assert usage.containers[0].cores_used is None


async def test_a_claim_that_ended_and_a_damaged_page_have_no_use(world: World) -> None:
    world.damaged.add("slot-1")
    world.state = close(STATE, "uid-two")
    assert list(await world.read()) == [("one", "side")]


USE = ContainerUse(
    namespace="ns",
    pod="p",
    container="main",
    claim="c",
    number=1,
    uuid=GPU_0,
    memory_limit=4000 * MIB,
    memory_used=1000 * MIB,
    memory_peak=2000 * MIB,
    cores_limit=0.3,
    cores_used=0.25,
    denied=4,
    throttled_s=2.5,
)


@dataclass
class Known:
    devices: Mapping[str, PhysicalDevice]


def shown(*containers: ContainerUse, hami: bool = True) -> dict[str, list[tuple[Any, float]]]:
    """Return all samples by name, in the form that Prometheus reads."""
    collector = UsageCollector("n1", Known({GPU_0: a_driver_device()}), hami=hami)
    collector.usage = Usage({GPU_0: DeviceUsage(3000, 60), GPU_1: DeviceUsage(1, 1)}, containers)
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    found: dict[str, list[tuple[Any, float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vgpu_claim_memory_limit_bytes", 4000 * MIB),
        ("vgpu_claim_memory_used_bytes", 1000 * MIB),
        ("vgpu_claim_memory_peak_bytes", 2000 * MIB),
        ("vgpu_claim_cores_limit_ratio", 0.3),
        ("vgpu_claim_cores_used_ratio", 0.25),
        ("vgpu_claim_oom_rejections_total", 4),
        ("vgpu_claim_throttled_seconds_total", 2.5),
    ],
)
def test_our_series_name_node_device_claim_pod_and_container(name: str, value: float) -> None:
    labels = {"node": "n1", "device_uuid": GPU_0, "namespace": "ns", "claim": "c"}
    assert shown(USE)[name] == [({**labels, "pod": "p", "container": "main"}, value)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hami_vgpu_memory_used_bytes", 1000 * MIB),
        ("hami_vgpu_memory_limit_bytes", 4000 * MIB),
        ("hami_container_device_memory_bytes", 1000 * MIB),
        ("hami_container_device_utilization_ratio", 25),
    ],
)
def test_hamis_series_of_containers_have_its_labels(name: str, value: float) -> None:
    labels = {"namespace": "ns", "pod": "p", "container": "main", "vdevice_index": "1"}
    assert shown(USE)[name] == [({**labels, "device_uuid": GPU_0}, value)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vGPU_device_memory_usage_in_bytes", 1000 * MIB),
        ("vGPU_device_memory_limit_in_bytes", 4000 * MIB),
        ("Device_utilization_desc_of_container", 25),
    ],
)
def test_hamis_old_series_of_containers_have_its_old_labels(name: str, value: float) -> None:
    labels = {"podnamespace": "ns", "podname": "p", "ctrname": "main", "vdeviceid": "1"}
    assert shown(USE)[name] == [({**labels, "deviceuuid": GPU_0}, value)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hami_host_gpu_memory_used_bytes", 3000 * MIB),
        ("hami_host_gpu_utilization_ratio", 60),
        ("device_memory_usage_bytes", 3000 * MIB),
        ("device_memory_limit_bytes", 16384 * MIB),
        ("device_utilization_percent", 60),
        ("device_core_usage", 60),
    ],
)
def test_series_of_devices_have_hamis_labels(name: str, value: float) -> None:
    labels = {"node": "n1", "device_index": "0", "device_uuid": GPU_0}
    assert shown(USE, USE)[name] == [({**labels, "device_type": "NVIDIA-Tesla T4"}, value)]


@pytest.mark.parametrize(
    ("name", "value"), [("HostGPUMemoryUsage", 3000 * MIB), ("HostCoreUtilization", 60)]
)
def test_the_seeds_names_of_devices_have_their_old_labels(name: str, value: float) -> None:
    labels = {"nodeid": "n1", "deviceidx": "0", "deviceuuid": GPU_0}
    assert shown()[name] == [({**labels, "devicetype": "NVIDIA-Tesla T4"}, value)]


def test_what_is_not_known_has_no_series() -> None:
    unknown = replace(USE, memory_limit=None, memory_peak=None, cores_limit=None, cores_used=None)
    names = shown(unknown)
    assert "vgpu_claim_memory_limit_bytes" not in names
    assert "vgpu_claim_cores_used_ratio" not in names
    assert "Device_utilization_desc_of_container" not in names
    assert "vgpu_claim_memory_used_bytes" in names


def test_hamis_names_can_be_left_out() -> None:
    assert set(shown(USE, hami=False)).isdisjoint(HAMI_NAMES)
