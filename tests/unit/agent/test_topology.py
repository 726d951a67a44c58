"""NUMA nodes and links of published machines, with the real pynvml on the simulated driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulated_driver import machine_environment, returned
from topologies import MACHINES, Machine
from vgpu_local.nodes import write_sysfs
from vgpu_nodeagent.discovery.drivers.numa import HostNuma

ASK = """
import asyncio, dataclasses, json, sys
from pathlib import Path
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver

async def main():
    driver = NvidiaDriver(sysfs=Path(sys.argv[1]))
    devices = await driver.devices()
    driver.close()
    return [dataclasses.asdict(device) for device in devices]
"""
BUS = "00000000:17:00.0"
ADDRESS = "0000:17:00.0"


def devices_of(paths: Mapping[str, str]) -> list[dict[str, Any]]:
    machine = machine_environment(Path(paths["machine"]))
    return list(returned(ASK, machine, paths["sysfs"]))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_links_and_numa_nodes_are_those_that_were_published(
    machine: Machine, tmp_path: Path
) -> None:
    devices = devices_of(machine.write(tmp_path))
    words = [
        " ".join(
            "X"
            if at == other
            else {x["peer"]: x["type"] for x in device["links"]}[machine.uuid(other)]
            for other in range(len(devices))
        )
        for at, device in enumerate(devices)
    ]
    assert words == list(machine.words)
    assert [device["numa_node"] for device in devices] == list(machine.numa)


@pytest.mark.parametrize("name", ["dgx_a100", "gb200_compute_tray"])
def test_where_the_kernel_shows_no_device_the_drivers_affinity_is_asked(
    name: str, tmp_path: Path
) -> None:
    machine = next(machine for machine in MACHINES if machine.name == name)
    devices = devices_of(machine.write(tmp_path, sysfs=False))
    assert [device["numa_node"] for device in devices] == list(machine.numa)


def test_a_pair_has_the_bandwidth_of_the_device_with_fewer_links_to_switches(
    tmp_path: Path,
) -> None:
    h100 = next(machine for machine in MACHINES if machine.name == "dgx_h100")
    degraded = Machine(
        "x", "", h100.model, h100.words, h100.numa, h100.nodes, (18, 6, 18, *[18] * 5)
    )
    devices = devices_of(degraded.write(tmp_path))
    to_second = {device["index"]: device["links"] for device in devices if device["index"] != 1}
    assert {
        (x["type"], x["score"])
        for links in to_second.values()
        for x in links
        if x["peer"] == degraded.uuid(1)
    } == {("NV6", 600)}
    assert {(x["type"], x["score"]) for x in devices[1]["links"]} == {("NV6", 600)}
    assert ("NV18", 1800) in {(x["type"], x["score"]) for x in devices[0]["links"]}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "sys"


@pytest.mark.parametrize(
    ("nodes", "of_device", "affinity", "expected"),
    [
        ("0-1", 1, (), 1),
        ("0-1", 1, (0b01,), 1),  # the kernel comes first
        ("0-1", -1, (0b10,), 1),
        ("0-1", -1, (), None),  # one of several nodes, unknown which
        ("0-1", -1, (0b11,), None),  # near both is near neither
        ("0", -1, (), 0),  # the only node
        ("0", -1, (0b11,), 0),
        ("0-1", 7, (), None),  # no such node
        ("0-1", 7, (0b01,), 0),
        ("0,64", -1, (0, 1), 64),  # the second word of the mask
        ("", -1, (), 0),  # a kernel without NUMA
    ],
)
def test_where_a_device_is(
    tree: Path, nodes: str, of_device: int, affinity: tuple[int, ...], expected: int | None
) -> None:
    write_sysfs(tree, {ADDRESS: of_device}, nodes=nodes)
    assert HostNuma(tree).node_of(BUS, affinity) == expected


def test_a_host_without_the_list_of_nodes_with_cpus_lists_those_online(tree: Path) -> None:
    write_sysfs(tree, {ADDRESS: -1}, nodes="0-1")
    host = tree / "devices" / "system" / "node"
    (host / "has_cpu").rename(host / "online")
    assert HostNuma(tree).node_of(BUS, ()) is None


@pytest.mark.parametrize("nonsense", ["", "two", "1 2", "9" * 40])
def test_nonsense_of_a_device_is_reported_once_by_name_and_counts_as_unknown(
    tree: Path, nonsense: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_sysfs(tree, {ADDRESS: 0}, nodes="0-1")
    (tree / "bus/pci/devices" / ADDRESS / "numa_node").write_text(nonsense)
    host = HostNuma(tree)
    assert [host.node_of(BUS, ()) for _ in range(3)] == [None] * 3
    named = [record.message for record in caplog.records if ADDRESS in record.message]
    assert len(named) == len(set(named)) == 2


@given(st.text(max_size=20))
def test_any_list_of_nodes_is_read_or_reported(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    """For any list from the kernel, parsing never crashes and never invents a node."""
    tree = tmp_path_factory.mktemp("sys")
    write_sysfs(tree, {}, nodes="0")
    (tree / "devices/system/node/has_cpu").write_bytes(text.encode("utf-8", "surrogatepass"))
    nodes = HostNuma(tree).nodes()
    assert all(0 <= node <= 1023 for node in nodes)
