"""A group does not starve behind small requests: earmarks cover the whole group or nothing."""

from __future__ import annotations

from builders import a_pod_group
from replica import Replica
from vgpu_api.core import Pod
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.scheduling.kept import MOST, MOST_OF_A_NAMESPACE

AFTER_S = 60
WHOLE = {"nvidia.com/gpu": 1}


def part(mib: int) -> dict[str, int]:
    return {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}


def a_group(replica: Replica, name: str, sizes: list[dict[str, int]], **fields: str) -> list[Pod]:
    namespace = fields.get("namespace", "default")
    group = a_pod_group(name, least=len(sizes), namespace=namespace)
    replica.news.pod_group_changed(group)
    return [
        replica.pod(f"{name}-{i}", group=name, limits=limits, **fields)
        for i, limits in enumerate(sizes)
    ]


async def starves(replica: Replica, *groups: list[Pod]) -> None:
    """Let the groups be refused and wait for a minute."""
    for seconds in (0, AFTER_S, 1):
        replica.time += seconds
        for pods in groups:
            for pod in pods:
                replica.offer(pod)
        await replica.settle()
    await replica.settle()


def kept(replica: Replica) -> list[str]:
    """Return the earmarked devices."""
    return sorted(name for each in replica.state.earmarks for name in each.devices)


async def full(replica: Replica, devices: int) -> list[Pod]:
    """Fill half of each node's only device with a pod."""
    holders = []
    for number in range(devices):
        replica.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16384)
        holders.append(replica.offered(f"holder-{number}", limits=part(9000)))
    await replica.settle()
    return holders


async def end(replica: Replica, pod: Pod) -> None:
    claim = replica.claim_of(pod)
    replica.news.pod_gone(pod.metadata.uid)
    replica.api.vanish(VGPU_CLAIMS, claim.metadata.name)
    replica.news.claim_gone(("default", claim.metadata.name), claim.metadata.uid)
    await replica.settle()


async def test_a_starving_group_gets_a_device_for_each_pod_and_starts_as_they_are_freed(
    replica: Replica,
) -> None:
    holders = await full(replica, 2)
    pods = a_group(replica, "a", [WHOLE, WHOLE])
    await starves(replica, pods)
    assert len(kept(replica)) == 2
    await end(replica, holders[0])
    small = replica.pod("small", limits=part(4096))
    replica.offer(small)
    assert replica.reservation(small) is None  # the free device is kept for the group
    await end(replica, holders[1])
    for pod in pods:
        replica.offer(pod)
        held = replica.state.reservations.of_pod(pod.metadata.uid)
        assert held is not None
        assert held.group == GroupKey("default", "a")


async def test_small_pods_of_a_group_share_the_devices_that_are_kept(replica: Replica) -> None:
    await full(replica, 3)
    pods = a_group(replica, "a", [part(8192)] * 4)
    await starves(replica, pods)
    assert len(kept(replica)) == 2


async def test_a_group_that_no_earmarks_can_serve_gets_none(replica: Replica) -> None:
    """It needs three devices of two, so earmarks for a part of the group would be wasted."""
    await full(replica, 2)
    await starves(replica, a_group(replica, "a", [WHOLE] * 3))
    assert kept(replica) == []


async def test_the_earmarks_of_a_group_go_together(replica: Replica) -> None:
    await full(replica, 2)
    pods = a_group(replica, "a", [WHOLE, WHOLE])
    await starves(replica, pods)
    for pod in pods:
        replica.news.pod_gone(pod.metadata.uid)
    replica.time += 3
    await replica.settle()
    assert kept(replica) == []


async def test_a_group_counts_as_one_request(replica: Replica) -> None:
    await full(replica, 2 * MOST_OF_A_NAMESPACE + 2)
    groups = [a_group(replica, f"g{i}", [WHOLE, WHOLE]) for i in range(MOST_OF_A_NAMESPACE + 1)]
    await starves(replica, *groups)
    assert len({each.group for each in replica.state.earmarks}) == MOST_OF_A_NAMESPACE < MOST
    assert len(kept(replica)) == 2 * MOST_OF_A_NAMESPACE
