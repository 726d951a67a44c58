"""The agent warns if a container's exclusive CPUs are not on its claim's NUMA node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_bench import a_bench, a_bound_pod, a_claim_for
from agent_node import a_driver_device
from vgpu_api.v1alpha1 import Placement
from vgpu_api.v1alpha1.vgpuclaim import NumaPolicy
from vgpu_local.nodes import write_sysfs
from vgpu_nodeagent.discovery.drivers.numa import HostNuma
from vgpu_nodeagent.kubelet.api import podresources_pb2 as pr
from vgpu_nodeagent.kubelet.pod_resources import _listing

SLOT = "slot-0"
CPUS = {0: "0-3,8-11\n", 1: "4-7,12-15\n"}


def a_host(tree: Path, lists: dict[int, str] = CPUS) -> HostNuma:
    """Return a host with two NUMA nodes of eight CPUs each."""
    write_sysfs(tree, {}, nodes="0-1")
    for node, listed in lists.items():
        folder = tree / "devices" / "system" / "node" / f"node{node}"
        folder.mkdir()
        (folder / "cpulist").write_text(listed)
    return HostNuma(tree)


async def a_start(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    cpus: set[int],
    device_on: int | None = 0,
    numa: NumaPolicy | None = "Require",
) -> list[tuple[Any, ...]]:
    """Return the warnings about a pod whose container starts with these CPUs."""
    device = replace(a_driver_device(), numa_node=device_on)
    bench = await a_bench(folder, devices=[device], host=a_host(folder / "sys"))
    warnings: list[tuple[Any, ...]] = []
    warn = lambda pod, reason, message: warnings.append((reason, message))  # noqa: E731
    monkeypatch.setattr(bench.said, "warning", warn, raising=False)
    pod = a_bound_pod()
    claim = a_claim_for(pod)
    spec = claim.spec.model_copy(update={"placement": Placement(numa=numa)})
    bench.view.pods.added(pod)
    bench.view.claims.added(claim.model_copy(update={"spec": spec}))
    bench.kubelet.cpus = {SLOT: frozenset(cpus)}
    await bench.start(pod, SLOT)
    return warnings


async def test_cpus_of_another_node_than_the_devices_are_reported_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((reason, message),) = await a_start(tmp_path, monkeypatch, cpus={4, 5})
    assert reason == "MisalignedCPUs"
    assert message.startswith("container main has devices of NUMA node 0 and CPUs of 1: ")


async def test_cpus_that_are_of_both_nodes_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, message),) = await a_start(tmp_path, monkeypatch, cpus={3, 4})
    assert "and CPUs of 0, 1" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"cpus": {0, 11}},  # CPUs of the device's node
        {"cpus": set()},  # the CPUs are shared with others
        {"cpus": {4, 5}, "numa": "Prefer"},
        {"cpus": {4, 5}, "numa": None},
        {"cpus": {4, 5}, "device_on": None},  # the device's node is unknown
        {"cpus": {4000}},  # the CPU's node is unknown
    ],
)
async def test_nothing_is_reported_where_nothing_is_wrong_or_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    assert await a_start(tmp_path, monkeypatch, **changes) == []


def test_cpus_stand_in_the_kubelets_listing() -> None:
    devices = [pr.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=[SLOT])]
    container = pr.ContainerResources(name="main", devices=devices, cpu_ids=[2, 3])
    pod = pr.PodResources(name="p", namespace="default", containers=[container])
    answer = pr.ListPodResourcesResponse(pod_resources=[pod])
    (found,) = _listing(answer, "nvidia.com/gpu").containers
    assert found.cpus == {2, 3}


@pytest.mark.parametrize("nonsense", ["two", "5-1", "0-99999999", "-"])
def test_a_list_of_cpus_that_is_none_is_reported_by_its_path_once(
    tmp_path: Path, nonsense: str, caplog: pytest.LogCaptureFixture
) -> None:
    host = a_host(tmp_path, {0: "0-3", 1: nonsense})
    assert [host.nodes_of_cpus({0, 5}) for _ in range(2)] == [frozenset({0})] * 2
    (said,) = [record.message for record in caplog.records]
    assert "node1/cpulist" in said
