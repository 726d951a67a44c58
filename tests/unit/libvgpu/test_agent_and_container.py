"""The agent on the host and a program in a PID namespace, on a driver that hides things from it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

pytestmark = pytest.mark.programs

if TYPE_CHECKING:
    from conftest import Stage

MIB = 1 << 20
A100 = "GPU-6f3c1c2e-0000-4000-8000-000000000000"
CONTEXT = 300 * MIB

AGENT = """
import asyncio, os
from dataclasses import dataclass
from pathlib import Path
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver
from vgpu_nodeagent.enforcement import abi, host_view, page, region
from vgpu_nodeagent.enforcement.processes import index_of, mapped_by

folder = Path(os.environ["FOLDER"])

class Files:
    proc = Path("/proc")
    context_bytes = {}
    def region_path(self, name): return folder / "region"
    def set_context_bytes(self, found): self.context_bytes = dict(found)
    def vouch(self, name, until): page.vouch(folder / "limits", until)

@dataclass
class Home:
    slot_allocations: frozenset

async def look(view, driver, homes):
    view.before(homes)
    held = await driver.process_memory()
    index = index_of([folder / "region"])
    homes = {
        pid: Home(frozenset({"slot"} if mapped_by(pid, index) else ()))
        for by_pid in held.values() for pid in by_pid
    }
    view.name_processes(homes)
    view.show(held, {}, homes, 1e9)
    return homes, held

async def main():
    files, driver, homes = Files(), NvidiaDriver(), {}
    view = host_view.HostView(files)
    for _ in range(4):
        homes, held = await look(view, driver, homes)
    content = (folder / "region").read_bytes()
    start = abi.REGION_SLOTS_OFFSET
    return {
        "held": [held[uuid] for uuid in held],
        "host_pid": abi.SLOT_HOST_PID.unpack_from(content, start + abi.SLOT_HOST_PID_OFFSET)[0],
        "seen": abi.SLOT_SEEN.unpack_from(content, start + abi.SLOT_SEEN_OFFSET)[0] * 65536,
        "context_bytes": files.context_bytes,
        "alone_until": abi.PAGE_ALONE.unpack_from(
            (folder / "limits").read_bytes(), abi.PAGE_DEVICES_OFFSET + abi.PAGE_ALONE_OFFSET
        )[0],
    }

answer = asyncio.run(main())
"""


@contextmanager
def holding_in_a_container(stage: Stage, size: str) -> Iterator[int]:
    """Hold memory in a PID namespace of its own; return the CUresult of the allocation."""
    program = subprocess.Popen(
        [
            *("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"),
            *("--mount-proc", "sh", "-c", '"$0" run "$1"; exit $?'),
            *(str(stage.probe_path), f"alloc {size}; sleep 600"),
        ],
        env=stage.environment(limited=True),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    with program.stdout as told:
        yield json.loads(told.readline())["result"]
        program.kill()
        program.wait()
        told.read()


@pytest.mark.parametrize("world", ["pids=host", "pids=own", "pids=mixed\nbytes=zero"])
def test_the_agent_finds_the_process_and_what_its_context_takes(stage: Stage, world: str) -> None:
    stage.machine.write_text(f"{world}\ncontext_mib=300\n{stage.machine.read_text()}")
    stage.control("status")  # the first to use the machine is the host
    stage.grant({A100: 4096 * MIB})
    with holding_in_a_container(stage, "100M") as result:
        assert result == 0
        found = stage.python(AGENT, extra={"FOLDER": str(stage.folder)})
    (pid,) = found["held"][0]
    assert found["held"][0][pid] == 400 * MIB
    assert str(found["host_pid"]) == pid
    assert found["seen"] == CONTEXT
    assert found["context_bytes"] == {A100: CONTEXT}
    assert found["alone_until"] > 0
