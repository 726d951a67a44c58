"""The driver keeps limits by cgroup: the agent sets them by the real pynvml, simulated.

A cgroup is a folder with the file `cgroup.procs` here, and programs run without the library.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulated_driver import machine_environment, returned

BUILD = Path(__file__).parents[3] / "libvgpu" / "build"
GPU_0 = "GPU-00000000-0000-4000-8000-000000000000"
GPU_1 = "GPU-00000000-0000-4000-8000-000000000001"
GIB = 1 << 30
OUT_OF_MEMORY = 2

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NVML limits cgroups for root alone")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with two devices of 16 GiB, and a folder for cgroups."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which programs find this machine's driver."""
        return machine_environment(self.folder / "machine")

    def cgroup(self, name: str) -> Path:
        """Return a cgroup without processes."""
        made = self.folder / name
        made.mkdir(parents=True)
        (made / "cgroup.procs").touch()
        return made

    def agent(self, program: str) -> Any:
        """Return the result of a coroutine `main` that uses the agent's `driver`."""
        prelude = (
            "import asyncio, json\nfrom pathlib import Path\nimport pynvml as n\n"
            "from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver\n"
            "from vgpu_nodeagent.errors import LimitsUnsupported\ndriver = NvidiaDriver()\n"
        )
        return returned(f"{prelude}{program}", self.environment)

    def limit(self, cgroup: Path, limits: dict[str, int]) -> None:
        """Set the limits like the agent before a container of the pod starts."""
        self.agent(
            f"async def main():\n    await driver.limit_memory(Path({str(cgroup)!r}), {limits})"
        )

    def probe(self, script: str, cgroup: Path | None = None) -> list[dict[str, Any]]:
        """Run vgpu-probe as a process of a cgroup."""
        enter = f"echo $$ >> {cgroup}/cgroup.procs; " if cgroup else ""
        done = subprocess.run(
            ["sh", "-c", f'{enter}exec {BUILD / "vgpu-probe"} run "$0"', script],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "machine").write_text(
        "driver=615.10.01\nmemory_limits=1\n"
        f"card uuid={GPU_0} memory_mib=16384\ncard uuid={GPU_1} memory_mib=16384\n"
    )
    return Node(tmp_path)


def test_a_pods_processes_get_their_limit_to_the_byte_and_others_the_rest(node: Node) -> None:
    pod = node.cgroup("kubepods/pod1")
    container = node.cgroup("kubepods/pod1/container")
    node.limit(pod, {GPU_0: 5 * GIB})
    (filled,) = node.probe("fill", container)
    assert filled["filled"] == 5 * GIB
    assert [said["result"] for said in node.probe("alloc 5G; alloc 512", container)] == [
        0,
        OUT_OF_MEMORY,
    ]
    assert node.probe("alloc 12G")[0]["result"] == 0
    assert node.probe("alloc 12G --device 1", container)[0]["result"] == 0


def test_all_processes_of_a_pod_have_one_limit_together(node: Node) -> None:
    pod = node.cgroup("pod")
    node.limit(pod, {GPU_0: 5 * GIB})
    script = f'echo $$ >> {pod}/cgroup.procs; exec {BUILD / "vgpu-probe"} run "alloc 4G; sleep 20"'
    with subprocess.Popen(
        ["sh", "-c", script], env=node.environment, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert json.loads(first.stdout.readline())["result"] == 0
        assert [s["result"] for s in node.probe("alloc 2G; alloc 1G", pod)] == [OUT_OF_MEMORY, 0]
        first.kill()
    assert node.probe("alloc 5G", pod)[0]["result"] == 0


def test_a_limit_is_shown_with_what_is_used_and_goes_with_its_cgroup(node: Node) -> None:
    pod = node.cgroup("pod")
    device = f"n.nvmlDeviceGetHandleByUUID({GPU_0!r})"
    shown = node.agent(f"""
def shown():
    said = n.c_nvmlGetMemoryLimits_v1_t({str(pod).encode()!r})
    n.nvmlDeviceGetMemoryLimits_v1({device}, said)
    return [said.softLimit, said.hardLimit, said.currentUsed]

async def main():
    n.nvmlInit()
    answers = [shown()]
    await driver.limit_memory(Path({str(pod)!r}), {{{GPU_0!r}: 7}})
    answers.append(shown())
    (Path({str(pod)!r}) / "cgroup.procs").unlink()
    Path({str(pod)!r}).rmdir()
    wanted = n.c_nvmlSetMemoryLimits_v1_t({str(node.folder).encode()!r}, 0, 8)
    n.nvmlDeviceSetMemoryLimits_v1({device}, wanted)
    Path({str(pod)!r}).mkdir()
    answers.append(shown())
    return answers
""")
    none = [0, 2**64 - 1, 0]
    assert shown == [none, [0, 7, 0], none]


def test_a_process_sees_as_free_what_its_limit_leaves_it(node: Node) -> None:
    pod = node.cgroup("pod")
    node.limit(pod, {GPU_0: 5 * GIB})
    before, _, after = node.probe("info; alloc 2G; info", pod)
    assert before["devices"][0]["cuda_free"] == 5 * GIB
    seen = after["devices"][0]
    assert (seen["cuda_free"], seen["nvml_free"], seen["nvml_total"]) == (
        3 * GIB,
        3 * GIB,
        16 * GIB,
    )


def test_a_driver_before_r615_is_named_with_what_to_do(node: Node) -> None:
    machine = node.folder / "machine"
    machine.write_text(machine.read_text().replace("memory_limits=1", "memory_limits=0"))
    pod = node.cgroup("pod")
    said = node.agent(f"""
async def main():
    try:
        await driver.limit_memory(Path({str(pod)!r}), {{{GPU_0!r}: 7}})
    except LimitsUnsupported as error:
        return str(error)
""")
    assert "driver 615.10.01 limits no memory by cgroup" in said
    assert "--limit-backend=Library" in said
