"""Pods that share a card share its time as they asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.programs import PROBE
from vgpu_local.steps import a_container, a_pod, create, running

pytestmark = [pytest.mark.xdist_group("local-cluster"), pytest.mark.timeout(120)]


def share(cluster: LocalCluster, pod: str, *, seconds: int) -> float:
    """The part of its card's time that a pod gets, launching all it can for so long."""
    done = cluster.exec(pod, [str(PROBE), "work", str(seconds)])
    assert done.exit_code == 0, done.stderr
    got: float = json.loads(done.stdout.splitlines()[-1])["share"]
    return got


def test_two_pods_on_one_card_get_thirty_and_sixty_percent_of_its_time(
    whole_cluster: Callable[..., LocalCluster],
) -> None:
    with whole_cluster([t4_node("node")]) as cluster:
        for name, cores in (("small", 30), ("large", 60)):
            limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000, "nvidia.com/gpucores": cores}
            create(cluster, a_pod(name, a_container(limits=limits)))
            running(cluster, name)
        with ThreadPoolExecutor() as threads:
            small = threads.submit(share, cluster, "small", seconds=12)
            large = threads.submit(share, cluster, "large", seconds=12)
        # A busy machine may leave both less than their share, and the first seconds count.
        assert 0.05 < small.result() < 0.4
        assert 1.3 * small.result() < large.result() < 0.7
