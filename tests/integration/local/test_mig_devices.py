"""A device in MIG mode on a whole cluster is partitioned for pods, and whole again after them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import A100_CUT, gpu_node
from vgpu_local.options import ClusterOptions
from vgpu_local.programs import NVIDIA_SMI
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

MODE = {"nvidia.com/vgpu-mode": "mig"}


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([gpu_node("cut", [A100_CUT])], ClusterOptions(lease_s=4)) as cluster:
        yield cluster
        assert excesses(cluster.server.history()) == []


def a_user(name: str, mib: int) -> dict[str, Any]:
    """Return a pod that requests an instance with this much memory."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    return a_pod(name, a_container(limits=limits), annotations=MODE)


def instances(cluster: LocalCluster) -> list[str]:
    """Return the UUIDs of the device's MIG instances, as its object lists them."""
    (device,) = cluster.server.objects("gpudevices.vgpu.dev")
    found = device["status"]["mig"].get("instances", [])
    assert isinstance(found, list)
    return found


def parts_listed(cluster: LocalCluster, pod: str) -> list[str]:
    """Return the instances that nvidia-smi lists below the device in a container."""
    done = cluster.exec(pod, [sys.executable, str(NVIDIA_SMI), "-L"])
    assert done.exit_code == 0, done.stderr
    device, *parts = done.stdout.splitlines()
    assert device.startswith("GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-")
    return parts


def test_pods_get_instances_of_their_own_that_are_gone_after_them(cluster: LocalCluster) -> None:
    create(cluster, a_user("small", 8000))
    create(cluster, a_user("half", 15000))
    seen = set()
    for name, mib, profile in (("small", 9984, "1g.10gb"), ("half", 20096, "3g.20gb")):
        pod = running(cluster, name)
        assert memory_seen(cluster, name) == [mib]
        (part,) = parts_listed(cluster, name)
        assert part.startswith(f"  MIG {profile} ")
        seen.add(part.partition("UUID: ")[2].rstrip(")"))
        held = claim(cluster, claim_name(pod), is_allocated)
        (device,) = held["status"]["allocation"]["devices"]
        assert device["mig"]["profile"] == profile
    assert len(seen) == 2
    until(cluster, lambda: set(instances(cluster)) == seen)
    delete_pod(cluster, "small")
    delete_pod(cluster, "half")
    until(cluster, lambda: instances(cluster) == [])


def test_who_finds_no_place_runs_once_an_instance_has_been_removed(cluster: LocalCluster) -> None:
    create(cluster, a_user("all", 40000))
    running(cluster, "all")
    waits = create(cluster, a_user("waits", 4000))
    name = claim_name(waits)
    claim(cluster, name, lambda status: reason(status).startswith("Card"))
    delete_pod(cluster, "all")
    running(cluster, "waits")
    assert memory_seen(cluster, "waits") == [4864]


def test_a_restarted_agent_knows_what_it_made_and_removes_what_has_ended_meanwhile(
    cluster: LocalCluster,
) -> None:
    create(cluster, a_user("stays", 4000))
    running(cluster, "stays")
    (before,) = parts_listed(cluster, "stays")
    until(cluster, lambda: len(instances(cluster)) == 1)
    agent = cluster.agents["cut"]
    agent.kill()
    agent.start()
    cluster.wait_ready()
    assert parts_listed(cluster, "stays") == [before]
    agent.kill()
    delete_pod(cluster, "stays")
    until(cluster, lambda: not cluster.server.objects("pods", "default"))
    assert len(instances(cluster)) == 1
    agent.start()
    until(cluster, lambda: instances(cluster) == [])
