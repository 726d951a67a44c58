"""MIG instances for claims, with records made by hand and a simulated driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_bench import Bench, Call, a_bench, a_bound_pod, a_claim_for
from agent_node import GPU_0, ObedientDriver, a_driver_device
from builders import a_pod, allocation_id
from vgpu_api.config import NvidiaConfig
from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.discovery.drivers.base import InstanceProfile, MigInstance, PhysicalDevice
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.lifecycle.rebuild import recovered
from vgpu_nodeagent.reporting.device_status import said_of

NAME = allocation_id()
SLOT_0, SLOT_1 = "slot-0", "slot-1"
HALF = InstanceProfile("3g.20gb", 8000, 42, 3, ((0, 4), (4, 4)))
SMALL = InstanceProfile("1g.5gb", 2000, 14, 1, tuple((start, 1) for start in range(7)))
FOREIGN = MigInstance("3g.20gb", 0, 4, "MIG-foreign", 1)


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await a_cut_bench(tmp_path)


async def a_cut_bench(folder: Path, *instances: MigInstance) -> Bench:
    """Return a node whose only device is in MIG mode with these instances."""
    device = replace(
        a_driver_device(),
        mig_enabled=True,
        mig_profiles=(HALF, SMALL),
        mig_instances=instances,
    )
    return await a_bench(folder, devices=[device])


def there(bench: Bench) -> Sequence[MigInstance]:
    """Return the instances of the device."""
    (device,) = bench.driver.present
    return device.mig_instances


def an_instance_claim(pod: Pod, *, start: int = 4, name: str = "c", **changes: Any) -> VGPUClaim:
    """Return a claim for half of the device from this slice on."""
    claim = a_claim_for(pod, memory_mib=8000, name=name)
    allocation = claim.status.allocation
    assert allocation is not None
    mig = MigAllocation(**{"profile": "3g.20gb", "start": start, "size": 4, **changes})
    devices = [device.model_copy(update={"mig": mig}) for device in allocation.devices]
    status = claim.status.model_copy(
        update={"allocation": allocation.model_copy(update={"devices": devices})}
    )
    return claim.model_copy(update={"status": status})


async def a_started_pod(bench: Bench, **changes: Any) -> Pod:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(an_instance_claim(pod, **changes))
    await bench.start(pod, SLOT_0)
    return pod


async def a_start_that_came_too_late(bench: Bench) -> Why:
    """Prepare the claim, but let the kubelet give up after the instance is made."""
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(an_instance_claim(pod))
    with pytest.raises(Refused) as refused:
        await bench.start(pod, SLOT_0, wanted=False)
    return refused.value.reason


def end(bench: Bench, pod: Pod) -> None:
    bench.view.pods.deleted(ObjectIdentity("default", pod.metadata.name, pod.metadata.uid))
    bench.kubelet.forgets(SLOT_0)


async def test_a_container_gets_its_instance_under_the_instances_own_name(bench: Bench) -> None:
    await a_started_pod(bench)
    (made,) = there(bench)
    assert (made.profile, made.start, made.size) == ("3g.20gb", 4, 4)
    (slot_allocation,) = bench.node.checkpoint.state.slot_allocations
    (limit,) = bench.node.allocations.content(slot_allocation).devices
    assert (limit.uuid, limit.memory_bytes >> 20, limit.cores) == (made.uuid, 8000, 0)
    (spec,) = (bench.kubelet.path.parent / "cdi").glob("*.json")
    assert f"NVIDIA_VISIBLE_DEVICES={made.uuid}" in spec.read_text()
    assert "libvgpu" not in spec.read_text()  # the device keeps it within its instance


async def test_a_container_that_starts_again_keeps_its_instance(bench: Bench) -> None:
    await a_started_pod(bench)
    before = there(bench)
    await bench.prestart.prepare([SLOT_0], call=Call())
    assert there(bench) == before


async def test_an_instance_that_was_lost_with_a_reboot_is_made_anew(bench: Bench) -> None:
    await a_started_pod(bench)
    (before,) = there(bench)
    bench.driver.cut(GPU_0, [])
    await bench.prestart.prepare([SLOT_0], call=Call())
    (after,) = there(bench)
    assert after.uuid != before.uuid
    (slot_allocation,) = bench.node.checkpoint.state.slot_allocations
    (limit,) = bench.node.allocations.content(slot_allocation).devices
    assert limit.uuid == after.uuid


@pytest.mark.parametrize("start", [0, 2])
async def test_an_administrators_instance_is_neither_used_nor_removed(
    tmp_path: Path, start: int
) -> None:
    foreign = replace(FOREIGN, start=start)
    bench = await a_cut_bench(tmp_path, foreign)
    with pytest.raises(Refused, match="is not ours") as refused:
        await a_started_pod(bench, start=0)
    assert refused.value.reason is Why.MIG_PLACE_TAKEN
    assert bench.nothing_is_granted()
    bench.view.pods.deleted(ObjectIdentity("default", "pod-1", a_bound_pod().metadata.uid))
    await bench.releases.sweep()
    assert list(there(bench)) == [foreign]
    assert bench.said.released_claims == [("c", NAME)]


async def test_what_was_put_in_the_place_of_ours_is_left_alone(bench: Bench) -> None:
    """An administrator removed an idle instance of ours and made an equal one."""
    pod = await a_started_pod(bench)
    foreign = replace(FOREIGN, start=4)
    bench.driver.cut(GPU_0, [foreign])
    with pytest.raises(Refused) as refused:
        await bench.prestart.prepare([SLOT_0], call=Call())
    assert refused.value.reason is Why.MIG_PLACE_TAKEN
    end(bench, pod)
    await bench.releases.sweep()
    assert list(there(bench)) == [foreign]
    assert bench.node.checkpoint.state.claim_instances == {}


async def test_places_beside_an_administrators_instance_alone_are_offered(tmp_path: Path) -> None:
    bench = await a_cut_bench(tmp_path, FOREIGN)
    await a_started_pod(bench, start=4)
    await bench.node.inventory.refresh()
    device = bench.node.inventory.devices[GPU_0]
    terms = bench.node.inventory.capacities()[GPU_0]
    mig = said_of(device, terms, vendor="nvidia")["mig"]
    assert mig["enabled"] is True
    assert mig["instances"] == ["MIG-foreign", "MIG-1"]
    # The operator learns of our instances from their claims.
    assert {p["name"]: [x["start"] for x in p["placements"]] for p in mig["profiles"]} == {
        "3g.20gb": [4],
        "1g.5gb": [4, 5, 6],
    }


async def test_an_instance_goes_before_its_claim_is_said_to_be_released(bench: Bench) -> None:
    pod = await a_started_pod(bench)
    (made,) = there(bench)
    end(bench, pod)
    bench.driver.instances_in_use = {made.uuid}
    await bench.releases.sweep()
    assert list(there(bench)) == [made]
    assert bench.said.released_claims == []
    assert bench.node.checkpoint.state.used()
    bench.driver.instances_in_use = set()
    await bench.releases.sweep()
    assert list(there(bench)) == []
    assert bench.said.released_claims == [("c", NAME)]
    assert not bench.node.checkpoint.state.used()


async def test_a_driver_that_does_not_answer_keeps_the_claim(bench: Bench) -> None:
    pod = await a_started_pod(bench)
    end(bench, pod)
    bench.driver.error = "NVML does not answer"
    await bench.releases.sweep()
    assert bench.said.released_claims == []
    bench.driver.error = None
    await bench.releases.sweep()
    assert bench.said.released_claims == [("c", NAME)]


async def test_a_driver_that_does_not_answer_refuses_the_start(bench: Bench) -> None:
    bench.driver.error = "NVML does not answer"
    with pytest.raises(Refused, match="NVML does not answer") as refused:
        await a_started_pod(bench)
    assert refused.value.reason is Why.DRIVER_UNAVAILABLE


async def test_who_follows_in_a_place_waits_until_the_one_before_is_removed(bench: Bench) -> None:
    old = await a_started_pod(bench)
    (made,) = there(bench)
    new = a_bound_pod("pod-2")
    bench.view.pods.added(new)
    bench.view.claims.added(an_instance_claim(new, name="next"))
    with pytest.raises(Refused, match="its release is under way") as refused:
        await bench.start(new, SLOT_1)
    assert refused.value.reason is Why.MIG_PLACE_TAKEN
    end(bench, old)
    await bench.releases.sweep()
    await bench.prestart.prepare([SLOT_1], call=Call())
    (second,) = there(bench)
    assert second.uuid != made.uuid


async def test_an_instance_of_a_pod_that_never_started_goes_with_its_claim(bench: Bench) -> None:
    assert await a_start_that_came_too_late(bench) is Why.CALL_ENDED
    assert len(there(bench)) == 1
    await bench.releases.sweep()
    assert len(there(bench)) == 1  # the kubelet may ask again
    bench.view.pods.modified(a_pod(node="n1", phase="Failed"))
    await bench.releases.sweep()
    assert there(bench) == ()
    assert bench.said.released_claims == [("c", NAME)]


async def test_an_instance_of_a_claim_that_is_gone_is_removed(bench: Bench) -> None:
    await a_start_that_came_too_late(bench)
    bench.view.claims.deleted(ObjectIdentity("default", "c", "uid-of-c"))
    await bench.releases.sweep()
    assert there(bench) == ()
    assert bench.node.checkpoint.state.claim_instances == {}


async def test_a_device_in_mig_mode_is_not_given_without_an_instance(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    with pytest.raises(Refused, match="no instance of it was given") as refused:
        await bench.start(pod, SLOT_0)
    assert refused.value.reason is Why.MIG_PLACE_MISSING


async def test_a_lost_record_is_made_anew_from_the_pages_of_ours(bench: Bench) -> None:
    pod = await a_started_pod(bench)
    (made,) = there(bench)
    bench.driver.cut(GPU_0, [made, FOREIGN])
    await bench.node.inventory.refresh()
    node = bench.node
    before = node.checkpoint.state
    pages = {
        slot_allocation: node.allocations.content(slot_allocation)
        for slot_allocation in before.slot_allocations
    }
    lost = replace(before, claim_instances={})
    assert recovered(lost, pages, node.inventory.devices) == before
    node.checkpoint.commit(recovered(lost, pages, node.inventory.devices))
    end(bench, pod)
    await bench.releases.sweep()
    assert list(there(bench)) == [FOREIGN]


@pytest.mark.parametrize("is_made", [True, False])
async def test_an_instance_made_or_removed_while_the_driver_is_asked_is_ours(
    tmp_path: Path, is_made: bool
) -> None:
    """The answer may be from the time of the question or of the answer."""
    places = {(GPU_0, 4)} if not is_made else set()
    ours = MigInstance("3g.20gb", 4, 4, "MIG-1", 1)
    bench = await a_cut_bench(tmp_path, ours)

    class Meanwhile(ObedientDriver):
        async def devices(self) -> tuple[PhysicalDevice, ...]:
            answer = await super().devices()
            places.symmetric_difference_update({(GPU_0, 4)})
            return answer

    class Own:
        def own_places(self) -> frozenset[tuple[str, int]]:
            return frozenset(places)

    inventory = Inventory(Meanwhile(bench.driver.present), NvidiaConfig(), Own())
    await inventory.refresh()
    assert inventory.devices[GPU_0].mig_profiles == (HALF, SMALL)


async def test_a_claim_that_never_started_is_not_released_before_its_instance_is_gone(
    bench: Bench,
) -> None:
    await a_start_that_came_too_late(bench)
    bench.view.pods.modified(a_pod(node="n1", phase="Failed"))
    bench.driver.error = "NVML does not answer"
    await bench.releases.sweep()
    assert bench.said.released_claims == []


async def test_what_was_made_for_an_earlier_allocation_goes_and_a_later_ones_stays(
    bench: Bench,
) -> None:
    await a_start_that_came_too_late(bench)
    (pod,) = bench.view.pods.objects.values()
    claim = an_instance_claim(pod, start=0)
    assert claim.status.allocation is not None
    later = claim.status.allocation.model_copy(update={"id": allocation_id(2)})
    status = claim.status.model_copy(update={"allocation": later})
    bench.view.claims.modified(claim.model_copy(update={"status": status}))
    await bench.prestart.prepare([SLOT_0], call=Call())
    await bench.releases.sweep()
    assert [made.start for made in there(bench)] == [0]


async def test_a_claim_that_goes_while_its_instance_is_made_is_not_granted(bench: Bench) -> None:
    def gone(step: str) -> None:
        if step == "halfway":
            bench.view.claims.deleted(ObjectIdentity("default", "c", "uid-of-c"))

    bench.driver.fault = gone
    with pytest.raises(Refused) as refused:
        await a_started_pod(bench)
    assert refused.value.reason is Why.NO_CLAIM
    assert bench.nothing_is_granted()
