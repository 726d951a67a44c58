"""A GPU whose NVML calls fail hides no other GPU, for each call and each error.

The errors are those that nvml.h lists for queries of a device: a value that it does not have, a
device that has fallen off the bus, a process without the right, and "an internal driver error".
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vgpu_nodeagent.discovery.drivers
from agent_node import GPU_0, GPU_1, ObedientDriver, a_driver_device
from vgpu_api.config import NodeSettings, NvidiaConfig
from vgpu_api.v1alpha1 import GPUDeviceSpec
from vgpu_nodeagent.discovery.drivers.base import PhysicalDevice, Repair
from vgpu_nodeagent.discovery.health import Health
from vgpu_nodeagent.discovery.inventory import Inventory

DRIVERS = Path(vgpu_nodeagent.discovery.drivers.__file__).parent
BUILD = Path(__file__).parents[3] / "libvgpu" / "build"
UUIDS = [f"GPU-00000000-0000-4000-8000-00000000000{n}" for n in range(3)]
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, UNKNOWN = 3, 4, 15, 999
CALLS = sorted(
    {
        name
        for file in DRIVERS.glob("*.py")
        for name in re.findall(r"\bnvmlDeviceGet\w+|\bnvmlDeviceRegisterEvents", file.read_text())
    }
    - {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByUUID"}
)
ASK = """
import asyncio, json, subprocess, sys
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver

CTL, MACHINE, UUIDS, *CASES = json.loads(sys.argv[1])

def ctl(*words):
    subprocess.run([CTL, MACHINE, *map(str, words)], check=True)

async def event(driver):
    found = asyncio.ensure_future(driver.next_event())
    while not found.done():
        ctl("xid", 2, 79)
        await asyncio.wait({found}, timeout=0.05)
    return found.result().uuid

async def main():
    for function, code in CASES:
        ctl("error", 1, function, code)
        driver = NvidiaDriver()
        cards = {
            card.uuid: [card.memory_mib, card.repair.reason if card.repair else ""]
            for card in await driver.devices()
        }
        readings = [
            sorted(await driver.usage()),
            sorted(await driver.process_memory()),
            sorted(await driver.compute_since({})),
        ]
        await driver.process_peaks()
        heard = await event(driver) if "Event" in function or "UUID" in function else UUIDS[2]
        driver.close()
        ctl("error", 1, function, 0)
        print(json.dumps([function, code, cards, readings, heard]))

asyncio.run(main())
"""


def answers(tmp_path: Path, *cases: tuple[str, int]) -> list[Any]:
    """Return the driver's reading of three GPUs while a call on the second fails."""
    machine = tmp_path / "machine"
    machine.write_text("".join(f"card uuid={uuid}\n" for uuid in UUIDS) + "link 0 2 nvlinks=4\n")
    env = dict(os.environ, VGPU_FAKE_MACHINE=str(machine), LD_LIBRARY_PATH=str(BUILD / "fake"))
    env.pop("NVIDIA_VISIBLE_DEVICES", None)
    given = json.dumps([str(BUILD / "vgpu-fake-ctl"), str(machine), UUIDS, *cases])
    done = subprocess.run(
        [sys.executable, "-c", ASK, given], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_list_of_calls_is_that_of_the_drivers_source() -> None:
    assert {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName", "nvmlDeviceGetNvLinkState"} < set(CALLS)
    assert len(CALLS) > 20


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, UNKNOWN])
def test_a_call_that_fails_for_one_gpu_hides_no_other(tmp_path: Path, code: int) -> None:
    found = answers(tmp_path, *((call, code) for call in CALLS))
    assert [function for function, *_ in found] == CALLS
    for function, _, cards, readings, heard in found:
        others = [UUIDS[0], UUIDS[2]]
        assert [cards.get(uuid) for uuid in others] == [[16384, ""]] * 2, function
        for reading in readings:
            assert set(others) <= set(reading), function
        assert heard == UUIDS[2], function


@pytest.mark.parametrize(
    ("call", "code", "seen"),
    [
        ("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED, [0, ""]),
        ("nvmlDeviceGetMemoryInfo", UNKNOWN, [0, "DriverCallFailed"]),
        ("nvmlDeviceGetMemoryInfo", GPU_IS_LOST, None),
        ("nvmlDeviceGetName", UNKNOWN, [0, "DriverCallFailed"]),
        ("nvmlDeviceGetUUID", UNKNOWN, None),
        ("nvmlDeviceGetNvLinkState", UNKNOWN, [16384, ""]),
        ("nvmlDeviceGetUtilizationRates", UNKNOWN, [16384, ""]),
        ("nvmlDeviceGetArchitecture", NOT_SUPPORTED, [16384, ""]),
    ],
)
def test_the_gpu_itself_is_shown_with_what_is_wrong_or_as_gone(
    tmp_path: Path, call: str, code: int, seen: list[Any] | None
) -> None:
    ((*_, cards, _, _),) = answers(tmp_path, (call, code))
    assert cards.get(UUIDS[1]) == seen


async def an_inventory(
    device: PhysicalDevice, config: NvidiaConfig | None = None
) -> tuple[Inventory, ObedientDriver]:
    driver = ObedientDriver([device, a_driver_device(GPU_1, 1)])
    inventory = Inventory(driver, config or NvidiaConfig())
    await inventory.refresh()
    return inventory, driver


def problem(inventory: Inventory, uuid: str = GPU_0) -> str:
    health = Health()
    health.review(inventory.present, now=0)
    found = health.problem(uuid)
    return found.reason if found is not None else ""


WITHOUT_MEMORY = a_driver_device(memory_mib=0)


async def test_a_gpu_whose_memory_nobody_knows_is_there_and_not_healthy() -> None:
    inventory, _ = await an_inventory(WITHOUT_MEMORY)
    assert inventory.is_present(GPU_0)
    assert (problem(inventory), problem(inventory, GPU_1)) == ("MemoryUnknown", "")


async def test_a_gpu_that_no_longer_reports_its_memory_keeps_it_and_is_not_healthy() -> None:
    inventory, driver = await an_inventory(a_driver_device())
    driver.present = (WITHOUT_MEMORY, driver.present[1])
    await inventory.refresh()
    assert inventory.capacities()[GPU_0].capacity.memory_mib == 16_384
    assert problem(inventory) == "MemoryUnknown"


async def test_hamis_key_gives_the_memory_of_gpus_that_report_none_and_of_no_other() -> None:
    inventory, _ = await an_inventory(
        WITHOUT_MEMORY, NvidiaConfig(pre_configured_device_memory=122_880)
    )
    capacities = inventory.capacities()
    assert [capacities[uuid].capacity.memory_mib for uuid in (GPU_0, GPU_1)] == [122_880, 16_384]
    assert problem(inventory) == ""


async def test_a_nodes_own_key_is_for_its_gpus() -> None:
    inventory, _ = await an_inventory(WITHOUT_MEMORY)
    inventory.configure(NodeSettings(NvidiaConfig(pre_configured_device_memory=1000)))
    await inventory.refresh()
    assert inventory.capacities()[GPU_0].capacity.memory_mib == 1000


async def test_the_devices_spec_gives_its_memory_before_the_configuration() -> None:
    inventory, _ = await an_inventory(
        WITHOUT_MEMORY, NvidiaConfig(pre_configured_device_memory=1000)
    )
    spec = GPUDeviceSpec(node_name="n1", memory="120Gi", memory_scaling="0.5")
    inventory.set_spec(GPU_0, spec)
    await inventory.look_again()
    capacity = inventory.capacities()[GPU_0]
    assert (capacity.capacity.memory_mib, capacity.allocatable.memory_mib) == (122_880, 61_440)


async def test_a_gpu_whose_call_fails_later_keeps_what_was_known_of_it() -> None:
    """Running containers keep counting; only the device's health changes."""
    inventory, driver = await an_inventory(a_driver_device())
    fault = Repair("DriverCallFailed", "NVML fails for this GPU: Unknown Error")
    failed = PhysicalDevice(0, GPU_0, "", 0, minor=0, repair=fault)
    driver.present = (failed, driver.present[1])
    await inventory.refresh()
    assert inventory.capacities()[GPU_0].capacity.memory_mib == 16_384
    assert inventory.devices[GPU_0].model == "Tesla T4"
    assert problem(inventory) == "DriverCallFailed"


EVENTS = """
import asyncio, json, subprocess, sys
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver

CTL, MACHINE, THIRD = sys.argv[1:]

def ctl(*words):
    subprocess.run([CTL, MACHINE, *map(str, words)], check=True)

async def main():
    driver = NvidiaDriver()
    await driver.devices()
    found = asyncio.ensure_future(driver.next_event())
    while not found.done():
        ctl("xid", 0, 31)
        await asyncio.wait({found}, timeout=0.05)
    ctl("lost", 1, 1)
    heard = ""
    while heard != THIRD:  # those of the first GPU come before
        found = asyncio.ensure_future(driver.next_event())
        while not found.done():
            ctl("xid", 2, 48)
            await asyncio.wait({found}, timeout=0.05)
        heard = found.result().uuid
    driver.close()

asyncio.run(asyncio.wait_for(main(), 20))
"""


def test_events_of_the_others_are_heard_within_seconds_after_one_gpu_was_lost(
    tmp_path: Path,
) -> None:
    """If one GPU of the set is lost, NVML fails the wait for all of them (nvmlEventSetWait)."""
    machine = tmp_path / "machine"
    machine.write_text("".join(f"card uuid={uuid}\n" for uuid in UUIDS))
    env = dict(os.environ, VGPU_FAKE_MACHINE=str(machine), LD_LIBRARY_PATH=str(BUILD / "fake"))
    env.pop("NVIDIA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-c", EVENTS, BUILD / "vgpu-fake-ctl", machine, UUIDS[2]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
