"""The agent's driver makes and removes instances, with the real pynvml on the simulated driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulated_driver import machine_environment, returned

DEVICE = "GPU-00000000-0000-4000-8000-000000000000"
MACHINE = f"""
card uuid={DEVICE} model="NVIDIA A100-SXM4-40GB" memory_mib=40960 mig=on
card uuid=GPU-00000000-0000-4000-8000-000000000001 model="NVIDIA A100-SXM4-40GB" mig=off
"""
PRELUDE = f"""
import asyncio, ctypes, dataclasses, json, os, subprocess, sys
import pynvml as n
from vgpu_nodeagent.discovery.drivers.base import MigInstance
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver
from vgpu_nodeagent.errors import InstanceInUse, InstanceLost, PlaceTaken

CARD = {DEVICE!r}
SMALL, HALF = MigInstance("1g.5gb", 6, 1), MigInstance("3g.20gb", 0, 4)
driver = NvidiaDriver()

async def there():
    return [(i.profile, i.start, i.size, i.uuid) for i in (await driver.devices())[0].mig_instances]

async def taken(work):
    try:
        await work
    except PlaceTaken as error:
        return str(error)

def administrator(id, start, size):
    n.nvmlInit()
    card = n.nvmlDeviceGetHandleByUUID(CARD)
    place = n.c_nvmlGpuInstancePlacement_t(start, size)
    return n.nvmlDeviceCreateGpuInstanceWithPlacement(card, id, ctypes.byref(place))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "machine"
    path.write_text(MACHINE)
    return path


def told(machine: Path, program: str) -> Any:
    """Return the result of a coroutine `main`, run in a process on this machine."""
    return returned(f"{PRELUDE}{program}", machine_environment(machine))


def test_a_device_in_mig_mode_says_what_it_can_be_cut_into(machine: Path) -> None:
    claim_instance, whole = told(
        machine,
        """
async def main():
    return [dataclasses.asdict(card) for card in await driver.devices()]
""",
    )
    assert {
        p["name"]: (p["memory_mib"], p["cores"], p["slices"])
        for p in claim_instance["mig_profiles"]
    } == {
        "1g.5gb": (4864, 14, 1),
        "1g.10gb": (9984, 14, 1),
        "2g.10gb": (9984, 28, 2),
        "3g.20gb": (20096, 42, 3),
        "4g.20gb": (20096, 57, 4),
        "7g.40gb": (40320, 100, 7),
        "1g.5gb+me": (
            4864,
            14,
            1,
        ),  # a device has one of these, which is given only if it exists already
    }
    places = {p["name"]: p["places"] for p in claim_instance["mig_profiles"]}
    assert places["3g.20gb"] == [[0, 4], [4, 4]]
    assert (whole["mig_enabled"], whole["mig_profiles"], whole["mig_instances"]) == (False, [], [])


def test_an_instance_is_made_once_and_removed(machine: Path) -> None:
    made, again, both, left = told(
        machine,
        """
async def main():
    made = await driver.make_instance(CARD, SMALL, known=None)
    again = await driver.make_instance(CARD, SMALL, known=made.uuid)
    await driver.make_instance(CARD, HALF, known=None)
    both = await there()
    await driver.remove_instance(CARD, made)
    await driver.remove_instance(CARD, made)
    return [dataclasses.asdict(made), dataclasses.asdict(again), both, await there()]
""",
    )
    assert made == again
    assert made["uuid"].startswith("MIG-")
    assert sorted(each[:3] for each in both) == [["1g.5gb", 6, 1], ["3g.20gb", 0, 4]]
    assert [each[:3] for each in left] == [["3g.20gb", 0, 4]]


def test_what_somebody_else_made_is_in_the_way_and_stays(machine: Path) -> None:
    alike, checked, across, replaced, left = told(
        machine,
        """
async def main():
    mine = await driver.make_instance(CARD, SMALL, known=None)
    await driver.remove_instance(CARD, mine)
    gpu = administrator(19, 6, 1)
    n.nvmlGpuInstanceCreateComputeInstance(gpu, 0)
    alike = await taken(driver.make_instance(CARD, SMALL, known=None))
    checked = await taken(driver.check_place(CARD, MigInstance("3g.20gb", 4, 4)))
    await driver.check_place(CARD, MigInstance("3g.20gb", 0, 4))
    across = await taken(driver.make_instance(CARD, MigInstance("3g.20gb", 4, 4), known=None))
    replaced = await taken(driver.make_instance(CARD, SMALL, known=mine.uuid))
    await driver.remove_instance(CARD, mine)
    return [alike, checked, across, replaced, len(await there())]
""",
    )
    assert alike == replaced == f"1g.5gb at slice 6 on GPU {DEVICE} is not ours"
    there = "there is 1g.5gb at slice 6, which is not ours"
    assert across == checked == f"no room for 3g.20gb at slice 4 on GPU {DEVICE}: {there}"
    assert left == 1


def test_what_was_left_half_done_is_finished(machine: Path) -> None:
    half, made, gone = told(
        machine,
        """
async def main():
    administrator(19, 6, 1)
    half = await there()
    made = await driver.make_instance(CARD, SMALL, known="")
    await driver.remove_instance(CARD, made)
    administrator(19, 6, 1)
    await driver.remove_instance(CARD, made)
    return [half, dataclasses.asdict(made), await there()]
""",
    )
    assert half == [["1g.5gb", 6, 1, ""]]
    assert made["uuid"]
    assert gone == []


def test_an_instance_that_is_lost_is_not_made_before_that_is_recorded(machine: Path) -> None:
    lost, again, halved = told(
        machine,
        """
async def lost(work):
    try:
        await work
    except InstanceLost as error:
        return str(error)

async def main():
    made = await driver.make_instance(CARD, SMALL, known=None)
    await driver.remove_instance(CARD, made)
    gone = await lost(driver.make_instance(CARD, SMALL, known=made.uuid))
    again = await driver.make_instance(CARD, SMALL, known="")
    await driver.remove_instance(CARD, again)
    administrator(19, 6, 1)
    half = await lost(driver.make_instance(CARD, SMALL, known=again.uuid))
    return [gone, again.uuid != made.uuid, half]
""",
    )
    assert lost == halved == f"1g.5gb at slice 6 on GPU {DEVICE} does not exist any more"
    assert again


def test_an_instance_with_a_program_on_it_is_removed_when_that_has_ended(machine: Path) -> None:
    refused, left = told(
        machine,
        """
CHILD = '''
import ctypes, sys
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print("ready", flush=True)
sys.stdin.read()
'''

async def main():
    made = await driver.make_instance(CARD, SMALL, known=None)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env=dict(os.environ, NVIDIA_VISIBLE_DEVICES=made.uuid),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child.stdout.readline()
    try:
        await driver.remove_instance(CARD, made)
    except InstanceInUse as error:
        refused = str(error)
    child.kill()
    child.wait()
    await driver.remove_instance(CARD, made)
    return [refused, await there()]
""",
    )
    assert refused == f"1g.5gb at slice 6 on GPU {DEVICE} is in use"
    assert left == []


def test_a_device_that_is_not_in_mig_mode_is_not_cut(machine: Path) -> None:
    said, _ = told(
        machine,
        """
async def main():
    other = CARD[:-1] + "1"
    await driver.remove_instance(other, SMALL)
    return [await taken(driver.make_instance(other, SMALL, known=None)), None]
""",
    )
    assert said.endswith("has no profile 1g.5gb, or is not in MIG mode")


def test_an_instance_of_a_device_that_was_taken_out_is_gone(machine: Path) -> None:
    assert told(
        machine,
        """
async def main():
    await driver.remove_instance(CARD[:-1] + "9", SMALL)
    return True
""",
    )
