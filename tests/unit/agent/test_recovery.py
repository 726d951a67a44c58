"""NVML's recovery action of a device, read with pynvml on the simulated driver."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from simulated_driver import machine_environment, returned

BUILD = Path(__file__).parents[3] / "libvgpu" / "build"
UUID = "GPU-00000000-0000-4000-8000-000000000000"
ASK = """
import asyncio, dataclasses, json
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver

async def main():
    driver = NvidiaDriver()
    devices = await driver.devices()
    driver.close()
    return [dataclasses.asdict(device) for device in devices]
"""


def repair_of(
    folder: Path, *faults: tuple[str, int], cc: str = "9.0", driver: str = "570.86"
) -> Any:
    machine = folder / "machine"
    machine.write_text(f"driver={driver}\ncard uuid={UUID} cc={cc}\n")
    for verb, value in faults:
        subprocess.run([BUILD / "vgpu-fake-ctl", machine, verb, "0", str(value)], check=True)
    return returned(ASK, machine_environment(machine))[0]["repair"]


def test_a_device_without_a_fault_needs_nothing(tmp_path: Path) -> None:
    assert repair_of(tmp_path) is None


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (1, "GPUResetRequired"),
        (2, "NodeRebootRequired"),
        (3, "DrainP2PRequired"),
        (4, "DrainAndResetRequired"),
        (5, "IMEXDomainRecoveryRequired"),
        (6, "BusResetRequired"),
        (7, "SystemRebootRequired"),
        (99, "RecoveryRequired"),
    ],
)
def test_the_recovery_action_is_named(tmp_path: Path, action: int, reason: str) -> None:
    assert repair_of(tmp_path, ("recovery", action))["reason"] == reason


def test_an_action_that_is_not_known_is_named_by_its_number(tmp_path: Path) -> None:
    assert "recovery action 99" in repair_of(tmp_path, ("recovery", 99))["message"]


@pytest.mark.parametrize("driver", ["570.86", "535.161"])
@pytest.mark.parametrize(
    ("fault", "reason"), [("remap", "RowRemapFailed"), ("remap-pending", "RowRemapPending")]
)
def test_rows_that_are_not_remapped_keep_a_device_out(
    tmp_path: Path, fault: str, reason: str, driver: str
) -> None:
    assert repair_of(tmp_path, (fault, 1), driver=driver)["reason"] == reason


def test_pages_that_are_not_retired_yet_keep_an_older_device_out(tmp_path: Path) -> None:
    found = repair_of(tmp_path, ("pages-pending", 1), cc="7.5", driver="535.161")
    assert found["reason"] == "PageRetirementPending"


def test_a_driver_that_reports_no_actions_asks_for_none(tmp_path: Path) -> None:
    assert repair_of(tmp_path, ("recovery", 1), driver="535.161") is None
