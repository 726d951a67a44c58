"""The real pynvml on the simulated driver, plain and inside a slice."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Stage

MIB = 1 << 20
A100 = "GPU-6f3c1c2e-0000-4000-8000-000000000000"
T4 = "GPU-6f3c1c2e-0000-4000-8000-000000000001"

START = """
import pynvml as n
n.nvmlInit()
cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
def failure(call, *arguments):
    try:
        call(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0
"""


def test_pynvml_reads_versions_and_devices(stage: Stage) -> None:
    answer = stage.python(
        START
        + """
answer = {
    "driver": n.nvmlSystemGetDriverVersion(),
    "cuda": n.nvmlSystemGetCudaDriverVersion_v2(),
    "names": [n.nvmlDeviceGetName(c) for c in cards],
    "uuids": [n.nvmlDeviceGetUUID(c) for c in cards],
    "index": [n.nvmlDeviceGetIndex(c) for c in cards],
    "minor": [n.nvmlDeviceGetMinorNumber(c) for c in cards],
    "numa": [list(n.nvmlDeviceGetMemoryAffinity(c, 1, n.NVML_AFFINITY_SCOPE_NODE)) for c in cards],
    "bus": [n.nvmlDeviceGetPciInfo(c).busId for c in cards],
    "capability": [n.nvmlDeviceGetCudaComputeCapability(c) for c in cards],
    "memory": [n.nvmlDeviceGetMemoryInfo(c).total for c in cards],
}
"""
    )
    assert answer == {
        "driver": "570.86.15",
        "cuda": 12080,
        "names": ["NVIDIA A100-SXM4-80GB", "NVIDIA T4"],
        "uuids": [A100, T4],
        "index": [0, 1],
        "minor": [0, 1],
        "numa": [[0b01], [0b10]],
        "bus": ["00000000:07:00.0", "00000000:0B:00.0"],
        "capability": [[8, 0], [7, 5]],
        "memory": [81920 * MIB, 16384 * MIB],
    }


def test_pynvml_finds_devices_by_uuid_and_bus_and_refuses_others(stage: Stage) -> None:
    answer = stage.python(
        START
        + f"""
answer = [
    n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID("{T4}")),
    n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId("0000:0b:00.0")),
    failure(n.nvmlDeviceGetHandleByUUID, "GPU-nobody") == n.NVML_ERROR_NOT_FOUND,
    failure(n.nvmlDeviceGetHandleByIndex, 2) == n.NVML_ERROR_INVALID_ARGUMENT,
]
"""
    )
    assert answer == [1, 1, True, True]


def test_pynvml_reads_topology_and_links(stage: Stage) -> None:
    answer = stage.python(
        START
        + """
answer = [
    n.nvmlDeviceGetTopologyCommonAncestor(cards[0], cards[1]) == n.NVML_TOPOLOGY_SYSTEM,
    [n.nvmlDeviceGetNvLinkState(cards[0], i) for i in range(4)],
    n.nvmlDeviceGetNvLinkRemotePciInfo(cards[0], 1).busId,
    n.nvmlDeviceGetP2PStatus(cards[0], cards[1], n.NVML_P2P_CAPS_INDEX_NVLINK),
]
"""
    )
    assert answer == [True, [1, 1, 0, 0], "00000000:0B:00.0", 0]


def test_mig_is_off_or_not_supported_as_the_machine_says(stage: Stage) -> None:
    answer = stage.python(
        START
        + """
answer = [
    n.nvmlDeviceGetMigMode(cards[0]),
    failure(n.nvmlDeviceGetMigMode, cards[1]) == n.NVML_ERROR_NOT_SUPPORTED,
]
"""
    )
    assert answer == [[0, 0], True]


def test_visible_devices_narrow_what_a_container_sees(stage: Stage) -> None:
    program = START + "answer = [n.nvmlDeviceGetUUID(c) for c in cards]"
    for listed, seen in ((T4, [T4]), ("0", [A100]), ("all", [A100, T4]), ("void", []), ("", [])):
        assert stage.python(program, extra={"NVIDIA_VISIBLE_DEVICES": listed}) == seen


def test_an_xid_error_reaches_a_waiting_event_set(stage: Stage) -> None:
    program = (
        START
        + """
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(cards[1], n.nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
event = n.nvmlEventSetWait_v2(events, 20000)
print(event.eventData, n.nvmlDeviceGetUUID(event.device), flush=True)
"""
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=stage.environment(limited=False),
        stdout=subprocess.PIPE,
        text=True,
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "ready\n"
        stage.control("xid", "0", "31")  # of another device: not for this set
        stage.control("xid", "1", "79")
        assert waiting.stdout.readline() == f"79 {T4}\n"


def test_waiting_for_events_ends_with_a_timeout(stage: Stage) -> None:
    program = START + (
        "answer = failure(n.nvmlEventSetWait_v2, n.nvmlEventSetCreate(), 10)"
        " == n.NVML_ERROR_TIMEOUT"
    )
    assert stage.python(program) is True


def test_a_lost_device_says_so_and_comes_back(stage: Stage) -> None:
    program = START.replace("cards = [", "handles = lambda: [") + (
        "answer = failure(lambda: [n.nvmlDeviceGetName(c) for c in handles()])"
    )
    stage.control("lost", T4, "1")
    assert stage.python(program) == 15  # NVML_ERROR_GPU_IS_LOST
    stage.control("lost", T4, "0")
    assert stage.python(program) == 0


def test_processes_are_listed_with_what_they_hold(stage: Stage) -> None:
    with subprocess.Popen(
        [str(stage.probe_path), "run", "alloc 64M; sleep 30"],
        env=stage.environment(limited=False),
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        program = START + (
            "answer = [(p.pid, p.usedGpuMemory)"
            " for p in n.nvmlDeviceGetComputeRunningProcesses(cards[0])]"
        )
        assert stage.python(program) == [[holder.pid, 64 * MIB]]
        holder.kill()
        holder.wait()
        assert stage.python(program) == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("card model=x", "a card needs a uuid"),
        (f"card uuid={A100}", "a card needs a uuid of its own"),
        (f"card uuid={A100[:-1]}f memory_mib=-1", "bad memory_mib"),
        ("link 0 7 nvlinks=1", "a link joins two different cards"),
        ("speed=9", "unknown or bad setting"),
    ],
)
def test_a_wrong_machine_file_is_named_with_its_line(
    stage: Stage, line: str, complaint: str
) -> None:
    number = len(stage.machine.read_text().splitlines()) + 1
    stage.machine.write_text(stage.machine.read_text() + line + "\n")
    done = subprocess.run(
        [str(stage.probe_path), "info"],
        env=stage.environment(limited=False),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"machine:{number}: {complaint}" in done.stderr


def test_pynvml_inside_a_slice_sees_the_slice(stage: Stage) -> None:
    stage.grant({T4: 4096 * MIB})
    with subprocess.Popen(
        [str(stage.probe_path), "run", "alloc 1000M --device 1; sleep 30"],
        env=stage.environment(limited=True),
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        answer = stage.python(
            START
            + """
answer = []
for card in cards:
    for memory in (n.nvmlDeviceGetMemoryInfo(card),
                   n.nvmlDeviceGetMemoryInfo(card, version=n.nvmlMemory_v2)):
        answer.append([memory.total, memory.used, memory.free])
""",
            limited=True,
        )
        holder.kill()
    slice_of_t4 = [4096 * MIB, 1000 * MIB, 3096 * MIB]
    assert answer == [[0, 0, 0], [0, 0, 0], slice_of_t4, slice_of_t4]


def test_a_slice_is_filled_to_the_exact_byte_and_the_neighbour_does_not_notice(
    stage: Stage,
) -> None:
    stage.grant({T4: 512 * MIB})
    with subprocess.Popen(
        [str(stage.probe_path), "run", "alloc 8192M --device 1; sleep 30"],
        env=stage.environment(limited=False),
        stdout=subprocess.PIPE,
        text=True,
    ) as neighbour:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        filled, refused = stage.probe("fill --device 1 --step 100M; alloc 1 --device 1")
        assert neighbour.poll() is None
        neighbour.kill()
    assert filled == {"filled": 512 * MIB, "device": 1, "result": 2}
    assert refused["result"] == 2


def test_a_denying_page_grants_nothing_and_shows_nothing(stage: Stage) -> None:
    stage.grant({A100: 512 * MIB, T4: 512 * MIB}, state=0)
    refused, info = stage.probe("alloc 512; info")
    assert refused["result"] == 2
    assert [device["cuda_total"] for device in info["devices"]] == [0, 0]


def test_a_page_cut_in_half_grants_nothing(stage: Stage) -> None:
    stage.grant({A100: 512 * MIB})
    page = stage.folder / "limits"
    page.write_bytes(page.read_bytes()[:8192])
    (refused,) = stage.probe("alloc 512")
    assert refused["result"] == 2


def test_a_missing_page_that_was_promised_grants_nothing(stage: Stage) -> None:
    (refused,) = stage.probe("alloc 512")
    assert refused["result"] == 2


def test_stand_alone_settings_hold_only_where_no_page_is(stage: Stage) -> None:
    program = START + ("answer = [n.nvmlDeviceGetMemoryInfo(c).total // (1 << 20) for c in cards]")
    settings = {"CUDA_DEVICE_MEMORY_LIMIT_1": "300m"}
    library = {"LD_PRELOAD": str(stage.library_path)}
    assert stage.python(program, extra=settings | library) == [81920, 300]
    stage.grant({A100: 512 * MIB, T4: 512 * MIB})
    assert stage.python(program, limited=True, extra=settings) == [512, 512]
