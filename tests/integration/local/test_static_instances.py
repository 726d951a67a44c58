"""A device that an administrator has partitioned is allocated as is and never changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import A100_CUT, gpu_node
from vgpu_local.options import ClusterOptions
from vgpu_local.programs import driver_environment
from vgpu_local.steps import (
    a_container,
    a_pod,
    claim,
    claim_name,
    create,
    delete_pod,
    is_allocated,
    memory_seen,
    reason,
    running,
    until,
)

pytestmark = pytest.mark.timeout(180)

SMALL, HALF = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
MAKE = """
import ctypes, sys
import pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)
for profile, start, size, compute in ((9, 0, 4, 2), (19, 4, 1, 0), (19, 6, 1, 0)):
    place = n.c_nvmlGpuInstancePlacement_t(start, size)
    made = n.nvmlDeviceCreateGpuInstanceWithPlacement(card, profile, ctypes.byref(place))
    n.nvmlGpuInstanceCreateComputeInstance(made, compute)
"""
"""The instances that `nvidia-smi mig -cgi 3g.20gb:0,1g.5gb:4,1g.5gb:6 -C` creates."""


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    options = ClusterOptions(lease_s=4, config={"nvidia": {"migStrategy": "mixed"}})
    with whole_cluster([gpu_node("divided", [A100_CUT])], options) as cluster:
        environment = {**os.environ, **driver_environment(cluster.folder / "divided" / "machine")}
        subprocess.run([sys.executable, "-c", MAKE], env=environment, check=True, timeout=60)
        until(cluster, lambda: len(instances(cluster)) == 3)
        yield cluster
        assert excesses(cluster.server.history()) == []


def the_device(cluster: LocalCluster) -> dict[str, Any]:
    (device,) = cluster.server.objects("gpudevices.vgpu.dev")
    found: dict[str, Any] = device["status"]["mig"]
    return found


def instances(cluster: LocalCluster) -> list[str]:
    found = the_device(cluster).get("instances", [])
    assert isinstance(found, list)
    return found


def a_user(name: str, word: str, number: int = 1) -> dict[str, Any]:
    return a_pod(name, a_container(limits={word: number}))


def test_pods_get_the_instances_that_they_name_and_the_device_stays_as_it_was(
    cluster: LocalCluster,
) -> None:
    before = set(instances(cluster))
    assert the_device(cluster)["static"] is True
    create(cluster, a_user("half", HALF))
    create(cluster, a_user("small", SMALL))
    for name, mib, profile in (("half", 20096, "3g.20gb"), ("small", 4864, "1g.5gb")):
        pod = running(cluster, name)
        assert memory_seen(cluster, name) == [mib]
        held = claim(cluster, claim_name(pod), is_allocated)
        (device,) = held["status"]["allocation"]["devices"]
        assert device["mig"]["profile"] == profile
    waits = create(cluster, a_user("waits", HALF))
    claim(cluster, claim_name(waits), lambda status: reason(status).startswith("Card"))
    delete_pod(cluster, "half")
    running(cluster, "waits")
    delete_pod(cluster, "small")
    delete_pod(cluster, "waits")
    until(cluster, lambda: not cluster.server.objects("pods", "default"))
    assert set(instances(cluster)) == before


def test_one_container_gets_two_instances_of_one_device(cluster: LocalCluster) -> None:
    before = set(instances(cluster))
    pod = create(cluster, a_user("two", SMALL, 2))
    running(cluster, "two")
    held = claim(cluster, claim_name(pod), is_allocated)
    starts = [device["mig"].get("start", 0) for device in held["status"]["allocation"]["devices"]]
    assert sorted(starts) == [4, 6]
    delete_pod(cluster, "two")
    until(cluster, lambda: not cluster.server.objects("pods", "default"))
    assert set(instances(cluster)) == before
