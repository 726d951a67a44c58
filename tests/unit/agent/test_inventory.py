"""The agent reads each device separately, and refuses impossible values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_node import GPU_0, GPU_1, T4_MIB, ObedientDriver, a_driver_device
from vgpu_api.config import NodeSettings, NvidiaConfig
from vgpu_nodeagent.discovery.drivers.base import InstanceProfile, MigInstance
from vgpu_nodeagent.discovery.inventory import Inventory

BUILD = Path(__file__).parents[3] / "libvgpu" / "build"
UUIDS = [f"GPU-00000000-0000-4000-8000-00000000000{n}" for n in range(3)]
ASK = """
import asyncio, json
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver

async def main():
    driver = NvidiaDriver()
    cards = [(card.index, card.uuid, len(card.links)) for card in await driver.devices()]
    print(json.dumps({
        "cards": cards,
        "usage": sorted(await driver.usage()),
        "memory": sorted(await driver.process_memory()),
        "compute": sorted(await driver.compute_since({})),
    }))
    driver.close()

asyncio.run(main())
"""


async def an_inventory(*devices: Any) -> tuple[Inventory, ObedientDriver]:
    driver = ObedientDriver(devices)
    inventory = Inventory(driver, NvidiaConfig())
    await inventory.refresh()
    return inventory, driver


def test_a_device_that_fell_off_the_bus_hides_no_other(tmp_path: Path) -> None:
    """The test fails if an error of one device counts for the whole driver."""
    machine = tmp_path / "machine"
    machine.write_text("".join(f"card uuid={uuid}\n" for uuid in UUIDS) + "link 0 2 nvlinks=4\n")
    subprocess.run([BUILD / "vgpu-fake-ctl", machine, "lost", "1", "1"], check=True)
    env = dict(os.environ, VGPU_FAKE_MACHINE=str(machine), LD_LIBRARY_PATH=str(BUILD / "fake"))
    env.pop("NVIDIA_VISIBLE_DEVICES", None)
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    told = json.loads(done.stdout)
    assert told["cards"] == [[0, UUIDS[0], 1], [2, UUIDS[2], 1]]
    assert told["usage"] == told["memory"] == told["compute"] == [UUIDS[0], UUIDS[2]]


async def test_a_device_that_the_driver_no_longer_shows_is_known_and_absent() -> None:
    inventory, driver = await an_inventory(a_driver_device(), a_driver_device(GPU_1, 1))
    driver.present = driver.present[:1]
    await inventory.refresh()
    assert set(inventory.devices) == {GPU_0, GPU_1}
    assert [inventory.is_present(uuid) for uuid in (GPU_0, GPU_1)] == [True, False]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"memory_mib": 1 << 40}, f"its memory cannot be {1 << 40} MiB"),
        ({"memory_mib": -1}, "its memory cannot be -1 MiB"),
        ({"minor": -1}, "its numbers cannot be 0 and -1"),
        ({"model": "T" * 129}, f"its model cannot be {'T' * 40!r}"),
        ({"model": "Tesla\x00T4"}, "its model cannot be 'Tesla\\x00T4'"),
        ({"driver_version": "\x1b[2J"}, "its driver's version cannot be '\\x1b[2J'"),
        (
            {"mig_profiles": (InstanceProfile("1g.5gb", 4864, 14, 1, ((200, 1),)),)},
            "its MIG profile '1g.5gb' cannot lie at slice 200, 1 long",
        ),
        (
            {"mig_instances": (MigInstance("1g.5gb", 0, 1 << 31),)},
            f"its MIG profile '1g.5gb' cannot lie at slice 0, {1 << 31} long",
        ),
        (
            {"mig_profiles": (InstanceProfile("1g.5gb", 1 << 40, 14, 1, ((0, 1),)),)},
            f"its MIG profile '1g.5gb' cannot have {1 << 40} MiB and 14 % of compute",
        ),
        (
            {"mig_profiles": (InstanceProfile("1g.5gb", 4864, 400, 1, ((0, 1),)),)},
            "its MIG profile '1g.5gb' cannot have 4864 MiB and 400 % of compute",
        ),
    ],
)
async def test_nonsense_of_a_device_is_reported_by_name_and_its_old_state_kept(
    fields: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    inventory, driver = await an_inventory(a_driver_device(), a_driver_device(GPU_1, 1))
    driver.present = (replace(driver.present[0], **fields), driver.present[1])
    await inventory.refresh()
    await inventory.refresh()
    assert inventory.devices[GPU_0] == a_driver_device()
    assert inventory.is_present(GPU_0)
    assert inventory.is_present(GPU_1)
    said = [r.message for r in caplog.records if r.levelname == "ERROR"]
    assert said == [f"GPU 0 ({GPU_0}): {why}; it is ignored"]


@pytest.mark.parametrize("uuid", ["", "GPU-\x00", "x" * 129])
async def test_a_device_without_a_name_that_can_be_one_is_none(uuid: str) -> None:
    inventory, _ = await an_inventory(
        a_driver_device(), replace(a_driver_device(GPU_1, 1), uuid=uuid)
    )
    assert set(inventory.devices) == {GPU_0}


async def test_the_second_device_of_a_uuid_is_ignored() -> None:
    twin = replace(a_driver_device(index=1), memory_mib=T4_MIB // 2)
    inventory, _ = await an_inventory(a_driver_device(), twin)
    assert inventory.devices[GPU_0].memory_mib == T4_MIB


async def test_a_device_that_the_configuration_leaves_out_is_not_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    driver = ObedientDriver(
        [a_driver_device(), a_driver_device(GPU_1, 1), a_driver_device(UUIDS[2], 2)]
    )
    inventory = Inventory(driver, NvidiaConfig())
    terms = NodeSettings(NvidiaConfig(), uuids=frozenset({GPU_0}), indices=frozenset({2}))
    inventory.configure(terms)
    await inventory.refresh()
    await inventory.refresh()
    assert set(inventory.devices) == {GPU_1}
    said = [r.message for r in caplog.records if "left out" in r.message]
    assert said == [
        f"GPU 0 ({GPU_0}) is left out: filterDevices",
        f"GPU 2 ({UUIDS[2]}) is left out: filterDevices",
    ]


async def test_mig_profiles_outside_the_configured_list_are_not_shown() -> None:
    profiles = tuple(
        InstanceProfile(name=name, memory_mib=1, cores=14, slices=1, places=((0, 1),))
        for name in ("1g.5gb", "1g.10gb", "2g.10gb")
    )
    device = replace(a_driver_device(), model="NVIDIA A100-PCIE-40GB", mig_profiles=profiles)
    allowed = [{"models": ["A100-PCIE-40GB"], "profiles": ["1g.5gb", "2g.10gb"]}]
    inventory = Inventory(
        ObedientDriver([device, a_driver_device(GPU_1, 1)]),
        NvidiaConfig.model_validate({"migProfileAllowlist": allowed}),
    )
    await inventory.refresh()
    shown = [profile.name for profile in inventory.devices[GPU_0].mig_profiles]
    assert shown == ["1g.5gb", "2g.10gb"]
    assert inventory.devices[GPU_1] == a_driver_device(GPU_1, 1)
