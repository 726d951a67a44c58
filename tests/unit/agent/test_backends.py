"""One interface for the limits of the library, of a MIG instance and of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent_node import GPU_0, GPU_1, ObedientDriver, a_driver_device
from vgpu_api.config import NvidiaConfig
from vgpu_api.quantity import MIB
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_nodeagent.config import LimitBackendName
from vgpu_nodeagent.discovery.drivers.base import MigInstance
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.enforcement.abi import CorePolicy
from vgpu_nodeagent.enforcement.backends import Backends, backends
from vgpu_nodeagent.enforcement.grants import ContainerGrant
from vgpu_nodeagent.enforcement.page import DeviceLimit
from vgpu_nodeagent.errors import DriverUnavailable, LimitsUnsupported
from vgpu_nodeagent.state.checkpoint import Checkpoint
from vgpu_nodeagent.state.instances import Instances

POD = "10000000-1111-2222-3333-444444444444"
SYSTEMD_POD = POD.replace("-", "_")
PLACES = (
    f"kubepods/pod{POD}",
    f"kubepods/burstable/pod{POD}",
    f"kubepods.slice/kubepods-pod{SYSTEMD_POD}.slice",
    f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SYSTEMD_POD}.slice",
    f"kubelet/kubepods/burstable/pod{POD}",
    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
    f"kubelet-kubepods-burstable-pod{SYSTEMD_POD}.slice",
)
CLAIM = VGPUClaim.read(
    {
        "metadata": {"name": "c", "namespace": "ns", "uid": "c1"},
        "spec": {"requests": [{"name": "a"}, {"name": "b"}]},
    }
)


def a_device(request: str, uuid: str, memory: str, **rest: object) -> dict[str, object]:
    return {"request": request, "uuid": uuid, "memory": memory, "cores": 0, "index": 0, **rest}


def an_allocation(*devices: dict[str, object]) -> Allocation:
    return Allocation.model_validate(
        {"nodeName": "n1", "id": f"{0:08}-0000-0000-0000-{1:012}", "devices": list(devices)}
    )


class World:
    def __init__(self, root: Path) -> None:
        self.cgroups = root / "sys" / "fs" / "cgroup"
        self.cgroups.mkdir(parents=True)
        (self.cgroups / "cgroup.controllers").touch()
        self.root = root
        self.driver = ObedientDriver([a_driver_device(), a_driver_device(GPU_1, 1)])
        self.driver.memory_limits = {}
        self.instances = Instances(
            self.driver, Checkpoint(root / "slots.json"), Inventory(self.driver, NvidiaConfig())
        )

    def backends(self, name: LimitBackendName) -> Backends:
        return backends(name, self.driver, self.instances, self.root)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("place", PLACES)
async def test_the_driver_limits_the_pods_cgroup_to_what_all_its_containers_were_given(
    world: World, place: str
) -> None:
    (world.cgroups / place / "container").mkdir(parents=True)
    allocation = an_allocation(
        a_device("a", GPU_0, "2Gi"), a_device("b", GPU_0, "1Gi"), a_device("b", GPU_1, "4Gi")
    )
    assert await world.backends(LimitBackendName.DRIVER).limit(POD, CLAIM, allocation)
    assert world.driver.memory_limits == {
        world.cgroups / place: {GPU_0: 3072 * MIB, GPU_1: 4096 * MIB}
    }


async def test_the_library_waits_for_nobody(world: World) -> None:
    allocation = an_allocation(a_device("a", GPU_0, "2Gi"))
    assert not await world.backends(LimitBackendName.LIBRARY).limit(POD, CLAIM, allocation)
    assert world.driver.memory_limits == {}


@pytest.mark.parametrize("name", LimitBackendName)
async def test_of_a_device_in_mig_mode_an_instance_is_made_and_no_other_limit(
    world: World, name: LimitBackendName
) -> None:
    world.driver.cut(GPU_0, [])
    mig = {"profile": "1g.5gb", "start": 0, "size": 1}
    allocation = an_allocation(a_device("a", GPU_0, "5Gi", mig=mig))
    assert await world.backends(name).limit(POD, CLAIM, allocation)
    (made,) = world.driver.present[0].mig_instances
    assert made == MigInstance("1g.5gb", 0, 1, "MIG-1", 1)
    assert world.driver.memory_limits == {}


async def test_without_what_the_driver_needs_there_is_no_limit_and_no_start(world: World) -> None:
    allocation = an_allocation(a_device("a", GPU_0, "2Gi"))
    chosen = world.backends(LimitBackendName.DRIVER)
    with pytest.raises(LimitsUnsupported, match="has no cgroup below"):
        await chosen.limit(POD, CLAIM, allocation)
    (world.cgroups / PLACES[0]).mkdir(parents=True)
    world.driver.memory_limits = None
    with pytest.raises(LimitsUnsupported, match="limits no memory by cgroup"):
        await chosen.limit(POD, CLAIM, allocation)
    (world.cgroups / "cgroup.controllers").unlink()
    with pytest.raises(LimitsUnsupported, match="use --limit-backend=Library"):
        await chosen.limit(POD, CLAIM, allocation)


@pytest.mark.parametrize(
    ("limit", "interposed"),
    [
        (DeviceLimit(GPU_0, 1 << 30, 0), False),
        (DeviceLimit(GPU_0, 1 << 30, 100), False),
        (DeviceLimit(GPU_0, 1 << 30, 30, CorePolicy.DISABLE), False),
        (DeviceLimit(GPU_0, 1 << 30, 30), True),
        (DeviceLimit(GPU_0, 1 << 30, 0, priority=1), True),
        (DeviceLimit(GPU_0, 1 << 30, 0, physical_bytes=1 << 29), True),
    ],
)
def test_beside_the_drivers_limit_the_library_keeps_what_the_driver_does_not(
    world: World, limit: DeviceLimit, interposed: bool
) -> None:
    grant = ContainerGrant((limit,), interposed=True)
    assert world.backends(LimitBackendName.DRIVER).shape(grant).interposed is interposed
    assert world.backends(LimitBackendName.LIBRARY).shape(grant).interposed
    whole = ContainerGrant((limit,), interposed=False)
    assert not world.backends(LimitBackendName.DRIVER).shape(whole).interposed


def test_only_what_the_page_says_can_change_while_a_container_runs(world: World) -> None:
    assert world.backends(LimitBackendName.LIBRARY).resizes
    assert not world.backends(LimitBackendName.DRIVER).resizes


class Nvml:
    """NVML of r615 as in its reference, with limits by device and cgroup."""

    def __init__(self) -> None:
        self.limits: dict[tuple[bytes, str], tuple[int, int]] = {}
        self.error = 0
        self.forgets = False

    def set(self, device: bytes, wanted: Any) -> None:
        if self.error:
            raise pynvml.NVMLError(self.error)
        if not self.forgets:
            self.limits[device, wanted.nameSpace] = wanted.softLimit, wanted.hardLimit

    def get(self, device: bytes, said: Any) -> None:
        none = 0, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
        said.softLimit, said.hardLimit = self.limits.get((device, said.nameSpace), none)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    fake = Nvml()
    for name, function in {
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "570.86.15",
        "nvmlDeviceGetHandleByUUID": bytes,
        "nvmlDeviceSetMemoryLimits_v1": fake.set,
        "nvmlDeviceGetMemoryLimits_v1": fake.get,
    }.items():
        monkeypatch.setattr(pynvml, name, function)
    return fake


@pytest.fixture
def driver() -> Iterator[NvidiaDriver]:
    made = NvidiaDriver()
    yield made
    made.close()


async def test_nvml_is_given_the_cgroups_path_and_a_hard_limit(
    nvml: Nvml, driver: NvidiaDriver
) -> None:
    await driver.limit_memory(Path("/sys/fs/cgroup/kubepods/pod1"), {GPU_0: 5 << 30})
    assert nvml.limits == {(GPU_0.encode(), "/sys/fs/cgroup/kubepods/pod1"): (0, 5 << 30)}


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
    ],
)
async def test_a_driver_without_such_limits_says_its_version_and_what_to_do(
    nvml: Nvml, driver: NvidiaDriver, error: int
) -> None:
    nvml.error = error
    with pytest.raises(LimitsUnsupported, match=r"driver 570\.86\.15 .* --limit-backend=Library"):
        await driver.limit_memory(Path("/cgroup"), {GPU_0: 1})


async def test_a_limit_that_the_driver_does_not_have_afterwards_is_none(
    nvml: Nvml, driver: NvidiaDriver
) -> None:
    nvml.forgets = True
    with pytest.raises(DriverUnavailable, match="set a limit of 1 bytes"):
        await driver.limit_memory(Path("/cgroup"), {GPU_0: 1})
