"""MIG instances get the device nodes that driver and kernel name, with the right owner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vgpu_nodeagent.discovery.drivers.base import MigInstance
from vgpu_nodeagent.discovery.drivers.device_nodes import (
    DeviceNode,
    may_partition,
    nodes_of_instance,
)
from vgpu_nodeagent.enforcement.cdi import Edits, SpecFolder

INSTANCE = MigInstance("1g.5gb", 0, 1, "MIG-x", 5, 0)
NO_ADMIN, ADMIN = "CapEff:\t0000000000080000\n", "CapEff:\t0000000000280000\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return the /proc files of a driver with capabilities, and of a process without them."""
    for folder in ("driver/nvidia", "driver/nvidia-caps", "self"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "driver" / "nvidia-caps" / "mig-minors").write_text(
        "config 1\nmonitor 2\ngpu2/gi5/access 48\ngpu2/gi5/ci0/access 49\ngpu2/gi5/ci1/access 50\n"
    )
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n237 nvidia-caps\n")
    (tmp_path / "self" / "status").write_text("Name:\tagent\n" + NO_ADMIN)
    return tmp_path


def test_an_instance_needs_its_device_and_the_rights_to_both_of_its_halves(proc: Path) -> None:
    assert nodes_of_instance(2, INSTANCE, proc=proc) == (
        DeviceNode("nvidia2"),
        DeviceNode("nvidia-caps/nvidia-cap48", 237, 48),
        DeviceNode("nvidia-caps/nvidia-cap49", 237, 49),
    )


def test_a_driver_that_tells_of_no_rights_asks_for_none(tmp_path: Path) -> None:
    assert nodes_of_instance(2, INSTANCE, proc=tmp_path) == (DeviceNode("nvidia2"),)


def test_a_right_is_made_by_the_runtime_whether_or_not_the_host_has_its_node(
    tmp_path: Path,
) -> None:
    nodes = [DeviceNode("/dev/nvidia2"), DeviceNode("/dev/nvidia-caps/nvidia-cap48", 237, 48)]
    SpecFolder(tmp_path).write("slot-0-x", Edits({}, (), nodes))
    (file,) = tmp_path.glob("*.json")
    edits = json.loads(file.read_text())["devices"][0]["containerEdits"]
    assert edits["deviceNodes"] == [
        {"path": "/dev/nvidia2"},
        {"path": "/dev/nvidia-caps/nvidia-cap48", "type": "c", "major": 237, "minor": 48},
    ]


def test_who_has_not_the_right_may_not_cut_devices(proc: Path) -> None:
    dev = proc / "dev" / "nvidia-caps"
    dev.mkdir(parents=True)
    assert not may_partition(proc=proc, dev=proc / "dev")
    (dev / "nvidia-cap1").touch()
    assert may_partition(proc=proc, dev=proc / "dev")


def test_who_has_cap_sys_admin_may_cut_devices(proc: Path) -> None:
    (proc / "self" / "status").write_text("Name:\tagent\n" + ADMIN)
    assert may_partition(proc=proc, dev=proc)


def test_a_driver_whose_rights_cannot_be_seen_is_taken_to_give_none(proc: Path) -> None:
    (proc / "driver" / "nvidia-caps" / "mig-minors").unlink()
    assert not may_partition(proc=proc, dev=proc)
    (proc / "driver" / "nvidia").rmdir()
    assert may_partition(proc=proc, dev=proc)
