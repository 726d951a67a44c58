"""Pods that share a device get the shares of its time that they asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.programs import PROBE
from vgpu_local.steps import a_container, a_pod, create, delete_pod, running

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([t4_node("node")]) as cluster:
        yield cluster


def share(cluster: LocalCluster, pod: str, *, seconds: int) -> float:
    """Return the share of its device's time that a pod gets while it launches as much as it can."""
    done = cluster.exec(pod, [str(PROBE), "work", str(seconds)])
    assert done.exit_code == 0, done.stderr
    got: float = json.loads(done.stdout.splitlines()[-1])["share"]
    return got


def test_two_pods_on_one_device_get_thirty_and_sixty_percent_of_its_time(
    cluster: LocalCluster,
) -> None:
    for name, cores in (("small", 30), ("large", 60)):
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000, "nvidia.com/gpucores": cores}
        create(cluster, a_pod(name, a_container(limits=limits)))
        running(cluster, name)
    with ThreadPoolExecutor() as threads:
        small = threads.submit(share, cluster, "small", seconds=12)
        large = threads.submit(share, cluster, "large", seconds=12)
    # On a busy machine both may get less than their share, and the first seconds count too.
    assert 0.05 < small.result() < 0.4
    assert 1.3 * small.result() < large.result() < 0.7


# The value of the first device on the page that the container sees: `cores_ceiling`.
CEILING = ["sh", "-c", 'od -An -tu4 -j360 -N4 "$VGPU_LIMIT_PAGE"']


def wait_for_ceiling(cluster: LocalCluster, pod: str, percent: int, *, limit: float) -> None:
    deadline = time.monotonic() + limit
    while (seen := int(cluster.exec(pod, CEILING).stdout)) != percent:
        assert time.monotonic() < deadline, f"held to {seen} %, not to {percent}"


def test_a_pod_of_low_priority_makes_way_while_an_urgent_one_works(
    cluster: LocalCluster,
) -> None:
    works = [str(PROBE), "work", "600"]
    for name, priority, command in (("patient", 1, ["sleep", "600"]), ("urgent", 0, works)):
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000}
        limits["nvidia.com/priority"] = priority
        create(cluster, a_pod(name, a_container(limits=limits, command=command)))
        running(cluster, name)
    wait_for_ceiling(cluster, "patient", 5, limit=30)
    # Without priorities each would have half of the device's time.
    assert share(cluster, "patient", seconds=2) < 0.3
    delete_pod(cluster, "urgent")
    wait_for_ceiling(cluster, "patient", 0, limit=30)
