"""A container sees its slice, regardless of the order and the names of its devices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Stage

MIB = 1 << 20
FIRST = "GPU-6f3c1c2e-0000-4000-8000-000000000000"
SECOND = "GPU-6f3c1c2e-0000-4000-8000-000000000001"
LIMITS = {FIRST: 1000 * MIB, SECOND: 300 * MIB}
INSTANCES = (
    "MIG-0a000000-0000-4000-8000-000000000001",
    "MIG-0a000000-0000-4000-8000-000000000002",
)
MIG_MACHINE = f"""
card uuid={FIRST} model="NVIDIA A100-SXM4-80GB" memory_mib=81920 mig=on
mig 0 uuid={INSTANCES[0]} memory_mib=10240 sms=14 gi=7
mig 0 uuid={INSTANCES[1]} memory_mib=20480 sms=28 gi=3
card uuid={SECOND} memory_mib=16384
"""


def probe(stage: Stage, *words: str, visible: str = "", limited: bool = True) -> Any:
    """Return standard output and error of vgpu-probe, as one text."""
    command = [str(stage.probe_path), *words]
    program = f"""
import subprocess
done = subprocess.run({command!r}, capture_output=True, text=True)
answer = done.stdout + done.stderr
"""
    extra = {"CUDA_VISIBLE_DEVICES": visible} if visible else None
    return stage.python(program, limited=limited, extra=extra)


def devices(stage: Stage, visible: str) -> list[dict[str, Any]]:
    """Return vgpu-probe's output for each CUDA device."""
    answer = json.loads(probe(stage, "info", visible=visible))["devices"]
    assert isinstance(answer, list)
    return answer


def results(stage: Stage, visible: str, script: str) -> list[int]:
    """Return the driver's answers to some allocations."""
    lines = probe(stage, "run", script, visible=visible).splitlines()
    return [int(json.loads(line)["result"]) for line in lines]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", [FIRST, SECOND]),
        ("1,0", [SECOND, FIRST]),
        ("1", [SECOND]),
        (SECOND, [SECOND]),
        (f"{SECOND},{FIRST}", [SECOND, FIRST]),
        (f"{SECOND},0", [SECOND, FIRST]),
        ("1,7,0", [SECOND]),
    ],
)
def test_each_device_shows_its_own_slice_in_whatever_order_it_comes(
    stage: Stage, visible: str, expected: list[str]
) -> None:
    stage.grant(LIMITS)
    seen = devices(stage, visible)
    assert [device["uuid"] for device in seen] == expected
    for device in seen:
        limit = LIMITS[device["uuid"]]
        assert (device["cuda_total"], device["cuda_free"]) == (limit, limit)
        assert device["device_total"] == limit
        assert (device["nvml_total"], device["nvml_used"], device["nvml_free"]) == (limit, 0, limit)


@pytest.mark.parametrize("visible", ["1,0", f"{SECOND},{FIRST}"])
def test_memory_is_charged_to_the_device_it_lies_on_in_whatever_order_they_come(
    stage: Stage, visible: str
) -> None:
    stage.grant(LIMITS)
    script = "alloc 300M --device 0; alloc 1 --device 0; alloc 1000M --device 1; alloc 1 --device 1"
    assert results(stage, visible, script) == [0, 2, 0, 2]


@pytest.mark.parametrize(
    ("visible", "instance"),
    [(INSTANCES[0], 0), (INSTANCES[1], 1), (f"{INSTANCES[1]},{INSTANCES[0]}", 1), ("0", 0)],
)
def test_a_mig_instance_shows_its_slice_under_its_own_name(
    stage: Stage, visible: str, instance: int
) -> None:
    stage.machine.write_text(MIG_MACHINE)
    stage.grant({INSTANCES[0]: 500 * MIB, INSTANCES[1]: 700 * MIB})
    limit = (500, 700)[instance] * MIB
    (device,) = devices(stage, visible)
    assert device["uuid"] == INSTANCES[instance]
    assert (device["cuda_total"], device["device_total"]) == (limit, limit)
    assert (device["nvml_result"], device["nvml_total"]) == (0, limit)


def test_the_limit_of_a_mig_instance_holds_to_the_byte(stage: Stage) -> None:
    stage.machine.write_text(MIG_MACHINE)
    stage.grant({INSTANCES[1]: 700 * MIB})
    assert results(stage, INSTANCES[1], "alloc 700M; alloc 1") == [0, 2]
    # An instance that was not granted is denied, although it is on the same device.
    assert results(stage, INSTANCES[0], "alloc 1") == [2]


def test_nvml_shows_instances_under_their_device(stage: Stage) -> None:
    stage.machine.write_text(MIG_MACHINE)
    told = stage.python(
        """
import pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
instances = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, i) for i in range(2)]
answer = {
    "cards": pynvml.nvmlDeviceGetCount(),
    "uuids": [pynvml.nvmlDeviceGetUUID(i) for i in instances],
    "are": [pynvml.nvmlDeviceIsMigDeviceHandle(h).value for h in (card, *instances)],
    "memory": [pynvml.nvmlDeviceGetMemoryInfo(i).total >> 20 for i in instances],
    "gi": [pynvml.nvmlDeviceGetGpuInstanceId(i) for i in instances],
    "of": pynvml.nvmlDeviceGetUUID(
        pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instances[1])
    ),
}
"""
    )
    assert told == {
        "cards": 2,
        "uuids": list(INSTANCES),
        "are": [0, 1, 1],
        "memory": [10240, 20480],
        "gi": [7, 3],
        "of": FIRST,
    }


def test_an_instance_needs_a_device_in_mig_mode_before_it(stage: Stage) -> None:
    stage.machine.write_text(f"card uuid={FIRST}\nmig 0 uuid={INSTANCES[0]} memory_mib=1\n")
    assert "part of a card with mig=on" in probe(stage, "info", limited=False)


def test_a_slow_nvml_delays_who_asks_it_and_no_allocation(stage: Stage) -> None:
    stage.grant(LIMITS)
    control = [str(stage.probe_path.parent / "vgpu-fake-ctl"), str(stage.machine)]
    program = f"""
import ctypes, subprocess, time
import pynvml
pynvml.nvmlInit()
driver = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
def took(call):
    began = time.monotonic()
    call()
    return time.monotonic() - began
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
subprocess.run([*{control!r}, "slow", "0", "2000"], check=True)
answer = {{
    "allocation": took(lambda: driver.cuMemAlloc_v2(ctypes.byref(address), 4096)),
    "question": took(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle)),
}}
"""
    took = stage.python(program, limited=True)
    assert took["question"] >= 2.0
    assert took["allocation"] < 1.0
