"""`kubectl inspect cgpu` prints the same table as Alibaba's guide for the same cluster."""

from __future__ import annotations

from typing import Any

from vgpu_api.v1alpha1 import GPUDevice
from vgpu_operator.cli.inspect_cgpu import table

GUIDE = """\
NAME                        IPADDRESS       GPU0(Allocated/Total)  GPU Memory(GiB)
cn-hangzhou.10.207.173.253  10.207.173.253  3/15                   3/15
------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
3/15 (20%)
"""
"""The sample of the guide, to the byte."""


def a_node(name: str, address: str | None) -> dict[str, Any]:
    addresses = [{"type": "Hostname", "address": name}]
    if address is not None:
        addresses.append({"type": "InternalIP", "address": address})
    return {"metadata": {"name": name}, "status": {"addresses": addresses}}


def a_device(node: str, index: int, has: str, used: str | None = None) -> GPUDevice:
    amount = {"cores": 100, "slots": 10}
    status: dict[str, Any] = {"index": index, "allocatable": {**amount, "memory": has}}
    if used is not None:
        status["allocated"] = {"cores": 0, "slots": 1, "memory": used}
    document = {
        "metadata": {"name": f"{node}-{index}"},
        "spec": {"nodeName": node},
        "status": status,
    }
    return GPUDevice.model_validate(document)


def test_the_guides_cluster_gives_the_guides_table() -> None:
    """One T4 of 15360 MiB, as its driver reports it, of which a pod has 3 GiB."""
    name = "cn-hangzhou.10.207.173.253"
    nodes = [a_node(name, "10.207.173.253"), a_node("without-a-gpu", "10.0.0.1")]
    assert table(nodes, [a_device(name, 0, "15360Mi", "3Gi")]) == GUIDE


def test_nodes_are_sorted_and_those_with_fewer_devices_filled_up() -> None:
    nodes = [a_node("b", None), a_node("a", "10.0.0.1")]
    devices = [
        a_device("b", 0, "16Gi", "1025Mi"),
        a_device("a", 1, "16Gi", "16Gi"),
        a_device("a", 0, "16Gi"),
    ]
    assert table(nodes, devices) == (
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n"
        "a     10.0.0.1   0/16                   16/16                  16/32\n"
        "b     N/A        2/16                   0/0                    2/16\n"
        "------------------------------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "18/48 (37%)\n"
    )


def test_a_device_without_a_size_and_a_cluster_without_devices_are_no_error() -> None:
    bare = GPUDevice.model_validate({"metadata": {"name": "d"}, "spec": {"nodeName": "a"}})
    assert table([a_node("a", None)], [bare]).endswith("\n0/0 (0%)\n")
