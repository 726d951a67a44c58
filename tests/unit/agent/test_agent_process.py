"""The agent's process with its arguments, and the real pynvml on the simulated driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vgpu_local.nodes import write_sysfs
from vgpu_nodeagent.__main__ import parse
from vgpu_nodeagent.config import Mount

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "libvgpu" / "build"
MACHINE = """
driver=570.86.15
cuda=12.8
card uuid=GPU-00000000-0000-4000-8000-000000000000 model="NVIDIA A100-SXM4-80GB" \
memory_mib=81920 numa=1 bus=0000:07:00.0 cc=8.0 mig=off minor=3
card uuid=GPU-00000000-0000-4000-8000-000000000001 memory_mib=16384
card uuid=GPU-00000000-0000-4000-8000-000000000002 memory_mib=16384
link 0 1 nvlinks=4
link 0 2 level=PIX
"""
ASK = """
import asyncio, dataclasses, json, subprocess, sys
from pathlib import Path
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver
from vgpu_nodeagent.errors import DriverUnavailable

async def main():
    driver = NvidiaDriver(sysfs=Path(sys.argv[3]))
    try:
        cards = [dataclasses.asdict(card) for card in await driver.devices()]
        usage = {uuid: dataclasses.asdict(use) for uuid, use in (await driver.usage()).items()}
        waiting = asyncio.ensure_future(driver.next_event())
        await asyncio.sleep(0)
        event = None
        for attempt in range(20):  # until the thread has registered for events
            subprocess.run([sys.argv[1], sys.argv[2], "xid", "1", "79"], check=True)
            done, _ = await asyncio.wait({waiting}, timeout=0.5)
            if done:
                event = dataclasses.asdict(waiting.result())
                break
        print(json.dumps({"cards": cards, "usage": usage, "event": event}))
    except DriverUnavailable as error:
        print(json.dumps({"error": str(error)}))
    driver.close()

asyncio.run(main())
"""

WATCH = """
import asyncio, json, subprocess, sys
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver

async def computing(driver, marks):
    found = await driver.compute_since(marks)
    busy = {uuid: sorted(pid for pid, used in on.items() if used) for uuid, on in found.items()}
    return {uuid: pids for uuid, pids in busy.items() if pids}

async def until(driver, marks, holds):
    while not holds(seen := await computing(driver, marks)):
        await asyncio.sleep(0.05)
    return seen

async def main():
    driver = NvidiaDriver()
    marks = {}
    idle = await computing(driver, marks)
    program = subprocess.Popen([sys.argv[1], "work", "60", "--device", "1"])
    seen = await until(driver, marks, lambda seen: any(seen.values()))
    shares = await driver.compute_since({})
    program.kill()
    program.wait()
    ended = await until(driver, marks, lambda seen: not any(seen.values()))
    print(json.dumps({"idle": idle, "pid": program.pid, "seen": seen, "ended": ended,
                      "shares": shares}))
    driver.close()

asyncio.run(main())
"""


def ask(program: str = ASK, tool: str = "vgpu-fake-ctl", **environment: str) -> dict[str, object]:
    command = [sys.executable, "-c", program, str(BUILD / tool)]
    machine = environment.get("VGPU_FAKE_MACHINE", "")
    command += [machine, str(Path(machine).parent / "sys")]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("VGPU_", "NVIDIA_", "CUDA_"))}
    done = subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_nvml_tells_devices_links_use_and_events(tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    machine.write_text(MACHINE)
    write_sysfs(tmp_path / "sys", {"0000:07:00.0": 1}, nodes="0-1")
    told = ask(VGPU_FAKE_MACHINE=str(machine), LD_LIBRARY_PATH=str(BUILD / "fake"))
    uuids = [f"GPU-00000000-0000-4000-8000-00000000000{n}" for n in range(3)]
    assert isinstance(told["cards"], list)
    first = told["cards"][0]
    assert first == {
        "index": 0,
        "uuid": uuids[0],
        "model": "NVIDIA A100-SXM4-80GB",
        "memory_mib": 81920,
        "minor": 3,
        "architecture": "Ampere",
        "compute_capability": "8.0",
        "driver_version": "570.86.15",
        "runtime_version": "12.8",
        "pci_bus_id": "00000000:07:00.0",
        "numa_node": 1,
        "repair": None,
        "mig_enabled": False,
        "mig_profiles": [],
        "mig_instances": [],
        "links": [
            {"peer": uuids[1], "type": "NV4", "score": 400},
            {"peer": uuids[2], "type": "PIX", "score": 50},
        ],
    }
    assert told["cards"][1]["numa_node"] is None
    assert told["usage"] == {uuid: {"memory_mib": 0, "cores": 0} for uuid in uuids}
    assert isinstance(told["event"], dict)
    assert (told["event"]["uuid"], told["event"]["reason"]) == (uuids[1], "XID79")


def test_nvml_tells_who_computes_on_which_device_while_it_does(tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    machine.write_text(MACHINE)
    told = ask(
        WATCH,
        "vgpu-probe",
        VGPU_FAKE_MACHINE=str(machine),
        LD_LIBRARY_PATH=str(BUILD / "fake"),
    )
    working = "GPU-00000000-0000-4000-8000-000000000001"
    shares = told.pop("shares")
    assert isinstance(shares, dict)
    assert {uuid: list(by_pid) for uuid, by_pid in shares.items() if by_pid} == {
        working: [str(told["pid"])]
    }
    assert 0 < shares[working][str(told["pid"])] <= 100
    assert told == {
        "idle": {},
        "pid": told["pid"],
        "seen": {working: [told["pid"]]},
        "ended": {},
    }


def test_a_machine_without_a_driver_is_an_answer_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()  # found before a real driver, and not a library
    told = ask(LD_LIBRARY_PATH=str(tmp_path))
    assert told == {"error": "NVML: NVML Shared Library Not Found"}


def test_a_driver_that_is_not_loaded_is_an_answer_not_a_crash() -> None:
    assert ask(LD_LIBRARY_PATH=str(BUILD / "fake")) == {"error": "NVML: Driver Not Loaded"}


def test_arguments_become_the_configuration(tmp_path: Path) -> None:
    library, config = tmp_path / "libvgpu.so", tmp_path / "config.yaml"
    library.touch()
    config.write_text("nvidia: {resourceCountName: ex.dev/gpu}")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).touch()
    made = parse(
        [
            "--node-name=n1",
            f"--library={library}",
            f"--config={config}",
            f"--state-dir={tmp_path}/state",
            "--kubelet-dir=/k",
            f"--driver-file={tmp_path}/lib*.so.1",
            "--driver-file=/a:/b",
            "--driver-file=/state:/inside:rw",
            "--metrics-port=0",
        ]
    )
    assert (made.node_name, made.resource, made.metrics_port) == ("n1", "ex.dev/gpu", 0)
    # A kubelet with --root-dir=/k: its plugins register where they always do (DevicePluginPath).
    assert made.kubelet_socket == Path("/var/lib/kubelet/device-plugins/kubelet.sock")
    assert made.pod_resources_socket == Path("/k/pod-resources/kubelet.sock")
    assert made.kubelet_pods == Path("/k/pods")
    driver = [f"{tmp_path}/{name}" for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    assert made.driver_files == (
        *(Mount(path, path) for path in driver),
        Mount("/a", "/b"),
        Mount("/state", "/inside", read_only=False),
    )


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        ([], 2, "give --node-name, or set NODE_NAME"),
        (["--node-name=n1", "--library=/none"], 2, "/none is not a file"),
        (
            ["--node-name=n1", "--library=/proc/self/exe", "--config=CONFIG"],
            1,
            "nvidia.deviceSplitCount: Invalid value: 0",
        ),
        (
            ["--node-name=n1", "--library=/proc/self/exe", "--kubeconfig=/none"],
            1,
            "kubeconfig /none does not exist",
        ),
    ],
)
def test_a_wrong_argument_ends_the_process_with_a_sentence(
    tmp_path: Path, arguments: list[str], status: int, sentence: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("nvidia: {deviceSplitCount: 0}")
    environment = {k: v for k, v in os.environ.items() if k != "NODE_NAME"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "vgpu_nodeagent",
            *(argument.replace("CONFIG", str(config)) for argument in arguments),
        ],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == status
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
