"""The simulated driver as containers meet it: device nodes, and pid namespaces of their own."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Stage

GIB = 1 << 30
T4 = "GPU-6f3c1c2e-0000-4000-8000-000000000001"
SEEN = """
import pynvml as n
n.nvmlInit()
answer = [
    n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())
]
"""


def test_where_there_are_device_nodes_they_decide_which_devices_are_visible(stage: Stage) -> None:
    nodes = stage.folder / "dev"
    nodes.mkdir()
    (nodes / "nvidia1").touch()
    stage.machine.write_text(f"device_nodes={nodes}\n{stage.machine.read_text()}")
    assert stage.python(SEEN) == [T4]
    assert stage.python(SEEN, extra={"NVIDIA_VISIBLE_DEVICES": "all"}) == [T4]
    assert [device["uuid"] for device in stage.probe("info", limited=False)[0]["devices"]] == [T4]


def _free_bytes(stage: Stage) -> int:
    return int(stage.probe("info", limited=False)[0]["devices"][1]["cuda_free"])


def test_memory_of_another_pid_namespace_counts_while_its_process_lives(stage: Stage) -> None:
    holder = subprocess.Popen(
        [
            *("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"),
            *(str(stage.probe_path), "run", "alloc 3G --device 1; sleep 600"),
        ],
        env=stage.environment(limited=False),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    with holder.stdout as told:
        assert json.loads(told.readline())["result"] == 0
        assert _free_bytes(stage) == 13 * GIB
        holder.kill()
        holder.wait()
        told.read()  # ends with the last process that has it
    assert _free_bytes(stage) == 16 * GIB
