"""A more important request gets the devices that are earmarked for another."""

from __future__ import annotations

import pytest

from builders import a_claim, a_request
from preemption_town import MIB, Town
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation

AFTER_S = 60


def limits(mib: int) -> dict[str, int]:
    return {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}


async def starving(replica: Replica, name: str, priority: int) -> Pod:
    """Return a pod that was refused a whole device for so long that one is earmarked for it."""
    pod = replica.offered(name, limits=limits(MIB), priority=priority)
    await replica.scheduled()
    replica.time += AFTER_S
    await replica.scheduled()
    return pod


async def kept_device(replica: Replica) -> Pod:
    """Return a pod of priority 5 with an earmark on a half-full device."""
    replica.device(memory_mib=MIB)
    replica.offered("small", limits=limits(MIB // 2))
    await replica.bound()
    return await starving(replica, "starving", 5)


def kept(replica: Replica) -> list[str]:
    return [earmark.pod_uid.removeprefix("uid-of-") for earmark in replica.state.earmarks]


@pytest.mark.parametrize(("priority", "gets_it"), [(4, False), (5, False), (6, True)])
async def test_only_a_more_important_pod_gets_what_is_kept(
    replica: Replica, priority: int, gets_it: bool
) -> None:
    await kept_device(replica)
    assert kept(replica) == ["starving"]
    outcome = replica.offer(replica.pod("late", limits=limits(1024), priority=priority))
    assert isinstance(outcome, Reservation) == gets_it
    assert kept(replica) == ([] if gets_it else ["starving"])


async def test_a_pod_that_lost_its_earmark_gets_another_when_it_starves_again(
    replica: Replica,
) -> None:
    await kept_device(replica)
    replica.offer(replica.pod("late", limits=limits(1024), priority=6))
    assert kept(replica) == []
    replica.time += AFTER_S
    await replica.scheduled()
    assert kept(replica) == ["starving"]


async def test_an_immediate_claim_is_as_important_as_it_may_be() -> None:
    for most, gets_it in ((5, False), (6, True)):
        config = ClusterConfig.model_validate({"scheduling": {"maxClaimPriority": most}})
        replica = Replica(config=config)
        await kept_device(replica)
        claim = a_claim(
            "mine", requests=[a_request(memory="1Gi")], binding_mode="Immediate",
            scheduling_priority=9,
        )  # fmt: skip
        replica.claim(claim)
        await replica.scheduled()
        allocation = VGPUClaim.read(replica.api.claim("mine")).status.allocation
        assert (allocation is not None) == gets_it
        assert kept(replica) == ([] if gets_it else ["starving"])


async def test_a_more_important_pod_that_starves_gets_the_devices_kept_for_another(
    replica: Replica,
) -> None:
    await kept_device(replica)
    await starving(replica, "important", 10)
    assert kept(replica) == ["important"]
    outcome = replica.offer(replica.pod("late", limits=limits(1024), priority=7))
    assert isinstance(outcome, Refusal)


# Devices for which others were evicted.


async def half_way(town: Town) -> Pod:
    """Return a pod of priority 100 after the end of one of its two victims on a device."""
    town.replica.device(uuid="GPU-9", node="node-9", memory_mib=MIB, slots=4)
    first = await town.runs("low-0", MIB // 2, node="node-1")
    await town.runs("low-1", MIB // 2, 1, node="node-1")
    await town.runs("low-2", MIB, 5, node="node-9")
    pod = town.waits("waits", MIB, 100)
    assert await town.evicted(1) == ["low-0"]
    await town.ends(first)
    return pod


async def test_a_preemption_ends_when_a_more_important_pod_takes_its_place() -> None:
    town = Town(perMinute=1)
    await half_way(town)
    await town.runs("important", MIB // 2, 1000)
    assert await town.evicted(62) == ["low-2"]
    assert town.results() == {"overtaken": 1}
    assert ("waits", "Overtaken") in [(name, reason) for name, reason, _ in town.told]


async def test_an_equal_pod_takes_no_place_that_others_made_way_for() -> None:
    town = Town(perMinute=1)
    await half_way(town)
    town.waits("equal", MIB // 2, 100)
    assert await town.evicted(65) == ["low-1"]
    assert town.results() == {}


async def test_a_preemption_goes_on_beside_a_more_important_pod_that_leaves_enough() -> None:
    """Two victims of 4,096 MiB leave 2,192 more than the pod needs."""
    for mib, results in ((2192, {}), (2193, {"overtaken": 1})):
        town = Town(perMinute=1)
        lows = [await town.runs(f"low-{number}", 4096) for number in range(3)]
        await town.runs("equal", 4096, 100)
        town.waits("waits", 6000, 100)
        (first,) = await town.evicted(1)
        await town.ends(*(pod for pod in lows if pod.metadata.name == first))
        await town.runs("important", mib, 1000)
        assert len(await town.evicted(62)) == 1
        assert town.results() == results


async def test_an_immediate_claim_that_is_being_taken_back_counts_as_free() -> None:
    """A more important pod takes 6,000 MiB before the claim of 8,192 has been written."""
    for mib, results in ((10_384, {}), (10_385, {"overtaken": 1})):
        town = Town()
        request = a_request(memory="8Gi")
        town.replica.claim(a_claim("kept", requests=[request], binding_mode="Immediate"))
        await town.replica.settle()
        town.waits("waits", mib, 100)
        town.replica.time += 1.0
        town.replica.submit()
        assert len(town.replica.state.preemptions.open) == 1
        important = town.replica.pod("important", limits=limits(6000), priority=1000)
        assert isinstance(town.replica.offer(important), Reservation)
        town.replica.submit()
        assert town.results() == results
        await town.replica.settle()


async def test_a_more_important_preemption_takes_over_the_devices_of_another() -> None:
    town = Town()
    await town.runs("low", MIB // 2)
    await town.runs("middle", MIB // 2, 500)
    town.waits("waits", MIB // 2, 100)
    assert await town.evicted() == ["low"]
    town.waits("important", MIB, 1000)
    assert await town.evicted() == ["middle"]
    assert town.results() == {"overtaken": 1}
    assert [each.pod_uid for each in town.replica.state.earmarks] == ["uid-of-important"]


async def test_a_pod_that_starves_does_not_get_the_devices_that_others_were_evicted_for() -> None:
    town = Town()
    await town.runs("equal", MIB // 2, 1000)
    low = await town.runs("low", MIB // 2)
    town.waits("starves", MIB, 1000)
    assert await town.evicted(AFTER_S - 5) == []
    town.waits("waits", MIB // 2, 100)
    assert await town.evicted(10) == ["low"]
    assert kept(town.replica) == ["waits"]
    await town.ends(low)
    assert town.replica.cache.pod("uid-of-waits").pod.is_bound


async def test_a_gang_is_overtaken_as_a_whole() -> None:
    town = Town(devices=2)
    lows = [await town.runs(f"low-{number}", MIB) for number in range(2)]
    town.gang_waits("gang", [MIB, MIB], priority=100)
    assert len(await town.evicted()) == 2
    await town.ends(lows[0])
    await town.runs("important", MIB, 1000)
    await town.evicted()
    assert town.results() == {"overtaken": 1}
    assert len(town.replica.state.earmarks) == 0
