"""In virtual time: pods that cannot run delay no others, and DaemonSets run everywhere at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from virtual_cluster import FILTER_TAKES_S, VirtualCluster, played
from wait_observer import LAST_BACKOFF_S

MIB = 16_384


def devices_of(nodes: int, each: int) -> dict[str, tuple[str, int]]:
    return {
        f"GPU-{node}-{number}": (f"node-{node:03}", MIB)
        for node in range(nodes)
        for number in range(each)
    }


@pytest.mark.parametrize("nodes", [6, 100])
def test_a_daemonset_runs_on_every_node_within_ten_seconds(nodes: int) -> None:
    """For each of its pods, kube-scheduler offers only the node that the affinity names."""
    devices = devices_of(nodes, 1)
    pods: list[str] = []

    async def play(cluster: VirtualCluster) -> None:
        for node in sorted({node for node, _ in devices.values()}):
            only = frozenset({node})
            pods.append(cluster.create(1, 1024, 0, 1e6, nodes=only, is_pinned=True))
        await asyncio.sleep(12)

    cluster, _ = played(devices, play)
    assert max(cluster.served_after.get(pod, float("inf")) for pod in pods) <= 10.0


def test_a_daemonset_gets_its_part_of_a_full_node_when_somebody_goes() -> None:
    pods: list[str] = []
    devices = devices_of(6, 1)

    async def play(cluster: VirtualCluster) -> None:
        for _ in range(12):
            cluster.create(1, 8192, 0, 8.0)
        await asyncio.sleep(3)
        for node in sorted({node for node, _ in devices.values()}):
            only = frozenset({node})
            pods.append(cluster.create(1, 8192, 0, 1e6, nodes=only, is_pinned=True))
        await asyncio.sleep(20)

    cluster, wait_observer = played(devices, play)
    assert all(pod in cluster.served_after for pod in pods)
    assert wait_observer.longest_s <= 5.0


FULL = "node-full"
UNSCHEDULABLE: dict[str, dict[str, Any]] = {
    "CPU that no node has": {"nodes": frozenset()},
    "a scheduler that is not there": {"foreign": True},
    "a volume that nobody provisions": {"vetoed": True, "volume": True},
    "affinity to a full pool": {"nodes": frozenset({FULL}), "is_pinned": True},
}


@pytest.mark.parametrize("why", UNSCHEDULABLE)
@pytest.mark.parametrize("first", [True, False])
def test_a_thousand_pods_that_cannot_run_delay_nobody(why: str, first: bool) -> None:
    """This holds for pods that come later and for pods that already wait."""
    devices = devices_of(4, 2) | {"GPU-full": (FULL, MIB)}
    pods: list[str] = []

    async def the_odd(cluster: VirtualCluster) -> None:
        """Create the unschedulable pods as fast as kube-scheduler handles them among others."""
        for _ in range(1000):
            cluster.create(1, MIB, 0, 1.0, **UNSCHEDULABLE[why])
            await asyncio.sleep(2 * FILTER_TAKES_S)

    async def play(cluster: VirtualCluster) -> None:
        cluster.create(1, MIB, 0, 1e6, nodes=frozenset({FULL}), is_pinned=True)
        await asyncio.sleep(2)
        if first:
            await the_odd(cluster)
            await asyncio.sleep(60)
        pods.extend(cluster.create(1, MIB, 0, 2.0) for _ in range(24))
        if not first:
            await the_odd(cluster)
        await asyncio.sleep(60)

    cluster, wait_observer = played(devices, play)
    assert len([pod for pod in pods if pod in cluster.served_after]) == len(pods)
    assert wait_observer.longest_s <= 5.0
    assert wait_observer.longest_in_all_s <= 5.0 + LAST_BACKOFF_S
