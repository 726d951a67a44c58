"""Device nodes have the kernel's numbers, even if the driver made no nodes on the host."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest

from set_clock import SetClock
from vgpu_nodeagent.discovery.drivers.device_nodes import DeviceNode, nodes_of_device
from vgpu_nodeagent.enforcement import host_nodes
from vgpu_nodeagent.enforcement.allocations import Allocations, HostFolders
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.grants import ContainerGrant
from vgpu_nodeagent.enforcement.host_nodes import UnifiedMemory, copy_device_nodes, numbered
from vgpu_nodeagent.enforcement.library import Library
from vgpu_nodeagent.enforcement.page import DeviceLimit

UUID = "GPU-00000000-0000-0000-0000-000000000000"
NODES = [DeviceNode(name) for name in ("nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-fs1")]


def kernel(proc: Path, *devices: str) -> Path:
    listed = "".join(f"{device}\n" for device in devices)
    proc.mkdir(exist_ok=True)
    (proc / "devices").write_text(
        f"Character devices:\n  1 mem\n{listed}\nBlock devices:\n  8 nvidia\n"
    )
    return proc


@pytest.mark.parametrize("frontend", ["nvidia", "nvidia-frontend"])
def test_nodes_have_the_numbers_that_the_kernel_lists(tmp_path: Path, frontend: str) -> None:
    proc = kernel(tmp_path / "proc", f"195 {frontend}", "510 nvidia-uvm")
    assert numbered(NODES, proc=proc) == [
        DeviceNode("nvidia3", 195, 3),
        DeviceNode("nvidiactl", 195, 255),
        DeviceNode("nvidia-uvm", 510, 0),
        DeviceNode("nvidia-fs1"),
    ]


def test_without_the_driver_there_are_no_numbers(tmp_path: Path) -> None:
    assert numbered(NODES, proc=kernel(tmp_path / "proc")) == NODES
    assert numbered(NODES, proc=tmp_path / "none") == NODES


def test_a_node_with_numbers_keeps_them(tmp_path: Path) -> None:
    node = DeviceNode("nvidia-caps/nvidia-cap48", 237, 48)
    proc = kernel(tmp_path / "proc", "195 nvidia")
    assert numbered([node], proc=proc) == [node]


def test_a_container_gets_nodes_that_are_nowhere_on_the_host(tmp_path: Path) -> None:
    """A driver container, for example, has the nodes in its own /dev."""
    proc = kernel(tmp_path / "proc", "195 nvidia", "510 nvidia-uvm")
    made = Allocations(
        tmp_path / "slots",
        SpecFolder(tmp_path / "cdi"),
        library=Library("build", ()),
        host=HostFolders(dev=tmp_path / "none", proc=proc),
    )
    made.create("slot-1")
    grant = ContainerGrant((DeviceLimit(UUID, 1 << 30, 0),), interposed=False)
    made.open("slot-1", grant, nodes={UUID: nodes_of_device(2)})
    (path,) = (tmp_path / "cdi").glob("*.json")
    (device,) = json.loads(path.read_text())["devices"]
    assert device["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidia2", "type": "c", "major": 195, "minor": 2},
        {"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255},
        {"path": "/dev/nvidia-uvm", "type": "c", "major": 510, "minor": 0},
    ]


def test_nodes_that_came_after_the_agent_are_made_here_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, container, dev = (tmp_path / name for name in ("host", "container", "dev"))
    (host / "nvidia-caps").mkdir(parents=True)
    container.mkdir()
    dev.mkdir()
    for name in ("nvidiactl", "nvidia-caps/nvidia-cap1"):
        (host / name).symlink_to("/dev/null")
    for name in ("nvidia0", "nvidia-uvm"):
        (container / name).symlink_to("/dev/null")
    (host / "nvidia1").write_text("no device")
    (host / "sda").symlink_to("/dev/null")
    (dev / "nvidiactl").touch()
    made: dict[str, int] = {}

    def mknod(path: Path, mode: int, device: int) -> None:
        assert stat.S_ISCHR(mode)
        made[str(path.relative_to(dev))] = device

    monkeypatch.setattr(host_nodes.os, "mknod", mknod)
    copy_device_nodes([host, container, tmp_path / "none"], dev)
    assert set(made) == {"nvidia0", "nvidia-uvm", "nvidia-caps/nvidia-cap1"}
    assert set(made.values()) == {os.makedev(1, 3)}


class Host:
    """A host with a driver in a driver container's root, and the commands that ran there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "run/nvidia/driver"
        (self.root / "usr/bin").mkdir(parents=True)
        (self.root / "usr/bin/nvidia-modprobe").touch()
        self.proc = folder / "proc"
        self.ran: list[tuple[Path, tuple[str, ...]]] = []
        self.error: Exception | None = None
        self.clock = SetClock()
        self.memory = UnifiedMemory(
            [PurePosixPath("/"), PurePosixPath("/run/nvidia/driver")],
            host=folder,
            proc=self.proc,
            run=self.run,
            clock=self.clock,
        )

    def run(self, root: Path, command: Sequence[str]) -> None:
        self.ran.append((root, tuple(command)))
        if self.error is not None:
            raise self.error


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_unified_memory_is_loaded_by_the_drivers_own_tool_in_its_root(host: Host) -> None:
    kernel(host.proc, "195 nvidia")
    host.memory.load()
    assert host.ran == [(host.root, ("/usr/bin/nvidia-modprobe", "-u", "-c", "0"))]


@pytest.mark.parametrize("devices", [(), ("195 nvidia", "510 nvidia-uvm")])
def test_it_is_left_alone_without_a_driver_and_where_it_is_there(
    host: Host, devices: tuple[str, ...]
) -> None:
    kernel(host.proc, *devices)
    host.memory.load()
    assert host.ran == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(1, "Operation not permitted"),
        subprocess.CalledProcessError(1, ["chroot"]),
        subprocess.TimeoutExpired(["chroot"], 30),
    ],
)
def test_a_failure_is_tried_again_after_a_minute_and_harms_nothing(
    host: Host, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    kernel(host.proc, "195 nvidia")
    host.error = error
    for host.clock.time in (0.0, 1.0, 59.0):
        host.memory.load()
    assert len(host.ran) == 1
    assert "cannot load unified memory" in caplog.text
    host.clock.time = 60.0
    host.memory.load()
    assert len(host.ran) == 2


def test_without_the_tool_it_is_said_which_one_is_missing(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    kernel(host.proc, "195 nvidia")
    (host.root / "usr/bin/nvidia-modprobe").unlink()
    host.memory.load()
    assert "no usr/bin/nvidia-modprobe to load it" in caplog.text
    assert host.ran == []
