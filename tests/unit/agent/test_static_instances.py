"""MIG instances that an administrator created are allocated to claims as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_bench import Bench, Call, a_bench, a_bound_pod, a_claim_for
from agent_node import GPU_0, GPU_1, ObedientDriver, a_driver_device
from builders import allocation_id
from vgpu_api.config import NodeSettings, NvidiaConfig
from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import GPUDeviceSpec, VGPUClaim
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.discovery.drivers.base import InstanceProfile, MigInstance, PhysicalDevice
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.lifecycle.rebuild import recovered
from vgpu_nodeagent.reporting.device_status import said_of

SLOT_0, SLOT_1 = "slot-0", "slot-1"
HALF = InstanceProfile("3g.20gb", 8000, 42, 3, ((0, 4), (4, 4)))
SMALL = InstanceProfile("1g.5gb", 2000, 14, 1, tuple((start, 1) for start in range(7)))
WITH_MEDIA = InstanceProfile("1g.5gb+me", 2000, 14, 1, tuple((start, 1) for start in range(7)))
HALF_0 = MigInstance("3g.20gb", 0, 4, "MIG-half", 1)
SMALL_5 = MigInstance("1g.5gb", 5, 1, "MIG-small", 2)
MEDIA_6 = MigInstance("1g.5gb+me", 6, 1, "MIG-media", 3)
STATIC = GPUDeviceSpec(node_name="n1", mig_instances="Static")


def a_divided_device(*instances: MigInstance, uuid: str = GPU_0, index: int = 0) -> PhysicalDevice:
    return replace(
        a_driver_device(uuid, index),
        mig_enabled=True,
        mig_profiles=(HALF, SMALL, WITH_MEDIA),
        mig_instances=instances,
    )


async def a_static_bench(folder: Path, *instances: MigInstance) -> Bench:
    """Return a node whose only device is for static use and has these instances."""
    bench = await a_bench(folder, devices=[a_divided_device(*instances)])
    bench.node.inventory.set_spec(GPU_0, STATIC)
    await bench.node.inventory.refresh()
    return bench


async def an_inventory(strategy: str, *devices: PhysicalDevice) -> Inventory:
    inventory = Inventory(
        ObedientDriver(devices), NvidiaConfig.model_validate({"migStrategy": strategy})
    )
    await inventory.refresh()
    return inventory


def there(bench: Bench) -> Sequence[MigInstance]:
    (device,) = bench.driver.present
    return device.mig_instances


def offered(inventory: Inventory, uuid: str = GPU_0) -> dict[str, list[tuple[int, int]]]:
    """Return, by profile, the places for instances in the device's status."""
    mig = said_of(inventory.devices[uuid], inventory.capacities()[uuid], vendor="nvidia")["mig"]
    return {
        profile["name"]: [(p.get("start", 0), p["size"]) for p in profile.get("placements", [])]
        for profile in mig.get("profiles", [])
    }


def a_claim_on(pod: Pod, instance: MigInstance, *, name: str = "c", number: int = 0) -> VGPUClaim:
    """Return a claim with an allocation at the instance's place."""
    claim = a_claim_for(pod, memory_mib=2000, name=name)
    allocation = claim.status.allocation
    assert allocation is not None
    mig = MigAllocation(profile=instance.profile, start=instance.start, size=instance.size)
    changed = allocation.model_copy(
        update={
            "id": allocation_id(number),
            "devices": [d.model_copy(update={"mig": mig}) for d in allocation.devices],
        }
    )
    status = claim.status.model_copy(update={"allocation": changed})
    return claim.model_copy(update={"status": status})


async def a_started_pod(bench: Bench, instance: MigInstance, **changes: Any) -> Pod:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_on(pod, instance, **changes))
    await bench.start(pod, SLOT_0)
    return pod


async def end(bench: Bench, pod: Pod) -> None:
    bench.view.pods.deleted(ObjectIdentity("default", pod.metadata.name, pod.metadata.uid))
    bench.kubelet.forgets(SLOT_0)
    await bench.releases.sweep()


async def test_places_where_instances_lie_are_offered_and_no_others(tmp_path: Path) -> None:
    bench = await a_static_bench(tmp_path, HALF_0, SMALL_5, MEDIA_6)
    assert offered(bench.node.inventory) == {
        "3g.20gb": [(0, 4)],
        "1g.5gb": [(5, 1)],
        "1g.5gb+me": [(6, 1)],
    }
    mig = said_of(
        bench.node.inventory.devices[GPU_0],
        bench.node.inventory.capacities()[GPU_0],
        vendor="nvidia",
    )["mig"]
    assert mig["static"] is True


async def test_an_instance_that_no_program_can_use_is_not_offered(tmp_path: Path) -> None:
    bench = await a_static_bench(tmp_path, replace(HALF_0, uuid=""), SMALL_5)
    assert offered(bench.node.inventory) == {"1g.5gb": [(5, 1)]}


async def test_an_administrators_instance_is_given_and_outlives_its_claim(tmp_path: Path) -> None:
    bench = await a_static_bench(tmp_path, HALF_0, SMALL_5)
    steps: list[str] = []
    bench.driver.fault = steps.append
    pod = await a_started_pod(bench, SMALL_5)
    (slot_allocation,) = bench.node.checkpoint.state.slot_allocations
    (limit,) = bench.node.allocations.content(slot_allocation).devices
    assert limit.uuid == "MIG-small"
    (spec,) = (bench.kubelet.path.parent / "cdi").glob("*.json")
    assert "NVIDIA_VISIBLE_DEVICES=MIG-small" in spec.read_text()
    await end(bench, pod)
    assert bench.node.checkpoint.state.claim_instances == {}
    assert bench.said.released_claims == [("c", allocation_id())]
    assert list(there(bench)) == [HALF_0, SMALL_5]
    assert steps == []  # nothing was made or removed
    assert offered(bench.node.inventory) == {"3g.20gb": [(0, 4)], "1g.5gb": [(5, 1)]}


async def test_an_instance_that_is_not_there_refuses_the_start_and_is_not_made(
    tmp_path: Path,
) -> None:
    bench = await a_static_bench(tmp_path, HALF_0)
    with pytest.raises(Refused, match="are made by its administrator") as refused:
        await a_started_pod(bench, SMALL_5)
    assert refused.value.reason is Why.MIG_PLACE_MISSING
    assert list(there(bench)) == [HALF_0]
    assert bench.nothing_is_granted()


async def test_an_instance_that_was_made_anew_serves_the_next_start(tmp_path: Path) -> None:
    """After a reboot the administrator's tool divides the device again, under new UUIDs."""
    bench = await a_static_bench(tmp_path, SMALL_5)
    await a_started_pod(bench, SMALL_5)
    bench.driver.cut(GPU_0, [replace(SMALL_5, uuid="MIG-after")])
    await bench.prestart.prepare([SLOT_0], call=Call())
    (slot_allocation,) = bench.node.checkpoint.state.slot_allocations
    (limit,) = bench.node.allocations.content(slot_allocation).devices
    assert limit.uuid == "MIG-after"


async def test_an_instance_of_a_claim_is_no_others(tmp_path: Path) -> None:
    bench = await a_static_bench(tmp_path, SMALL_5)
    await a_started_pod(bench, SMALL_5)
    second = a_bound_pod("pod-2")
    bench.view.pods.added(second)
    bench.view.claims.added(a_claim_on(second, SMALL_5, name="next", number=2))
    with pytest.raises(Refused, match="its release is under way") as refused:
        await bench.start(second, SLOT_1)
    assert refused.value.reason is Why.MIG_PLACE_TAKEN


async def test_a_lost_record_leaves_an_administrators_instance_where_it_is(tmp_path: Path) -> None:
    bench = await a_static_bench(tmp_path, SMALL_5)
    pod = await a_started_pod(bench, SMALL_5)
    node = bench.node
    before = node.checkpoint.state
    pages = {
        slot_allocation: node.allocations.content(slot_allocation)
        for slot_allocation in before.slot_allocations
    }
    again = recovered(
        replace(before, claim_instances={}),
        pages,
        node.inventory.devices,
        static=frozenset({GPU_0}),
    )
    assert again == before
    node.checkpoint.commit(again)
    await end(bench, pod)
    assert list(there(bench)) == [SMALL_5]


async def test_a_claims_instance_outlives_the_change_to_on_demand(tmp_path: Path) -> None:
    bench = await a_static_bench(tmp_path, SMALL_5)
    pod = await a_started_pod(bench, SMALL_5)
    bench.node.inventory.set_spec(GPU_0, GPUDeviceSpec(node_name="n1", mig_instances="OnDemand"))
    await bench.node.inventory.refresh()
    await end(bench, pod)
    assert list(there(bench)) == [SMALL_5]


async def test_an_instance_that_was_made_for_a_claim_is_not_offered_as_an_administrators(
    tmp_path: Path,
) -> None:
    bench = await a_bench(tmp_path, devices=[a_divided_device(SMALL_5)])
    pod = await a_started_pod(bench, replace(HALF_0, uuid=""))
    bench.node.inventory.set_spec(GPU_0, STATIC)
    await bench.node.inventory.refresh()
    assert offered(bench.node.inventory) == {"1g.5gb": [(5, 1)]}
    await end(bench, pod)
    assert list(there(bench)) == [SMALL_5]


@pytest.mark.parametrize("strategy", ["single", "mixed"])
async def test_the_configuration_makes_every_device_in_mig_mode_static(strategy: str) -> None:
    inventory = await an_inventory(strategy, a_divided_device(SMALL_5), a_driver_device(GPU_1, 1))
    assert inventory.is_static(GPU_0)
    assert not inventory.is_static(GPU_1)
    assert offered(inventory) == {"1g.5gb": [(5, 1)]}


async def test_without_a_strategy_an_administrators_instance_is_in_the_way() -> None:
    inventory = await an_inventory("none", a_divided_device(HALF_0))
    assert not inventory.is_static(GPU_0)
    assert offered(inventory) == {"3g.20gb": [(4, 4)], "1g.5gb": [(4, 1), (5, 1), (6, 1)]}


async def test_a_devices_own_word_goes_before_the_configurations() -> None:
    inventory = await an_inventory("mixed", a_divided_device(HALF_0))
    inventory.set_spec(GPU_0, GPUDeviceSpec(node_name="n1", mig_instances="OnDemand"))
    await inventory.refresh()
    assert offered(inventory)["3g.20gb"] == [(4, 4)]


async def test_one_node_has_a_strategy_of_its_own() -> None:
    inventory = await an_inventory("none", a_divided_device(SMALL_5))
    inventory.configure(NodeSettings(NvidiaConfig.model_validate({"migStrategy": "mixed"})))
    await inventory.refresh()
    assert offered(inventory) == {"1g.5gb": [(5, 1)]}


async def test_the_allowlist_holds_for_instances_that_are_there() -> None:
    config = NvidiaConfig.model_validate(
        {
            "migStrategy": "mixed",
            "migProfileAllowlist": [{"models": ["T4"], "profiles": ["1g.5gb"]}],
        }
    )
    inventory = Inventory(ObedientDriver([a_divided_device(HALF_0, SMALL_5)]), config)
    await inventory.refresh()
    assert offered(inventory) == {"1g.5gb": [(5, 1)]}


async def test_single_offers_instances_of_one_profile_only() -> None:
    other = replace(SMALL_5, uuid="MIG-other")
    alike = await an_inventory(
        "single", a_divided_device(SMALL_5), a_divided_device(other, uuid=GPU_1, index=1)
    )
    assert offered(alike) == offered(alike, GPU_1) == {"1g.5gb": [(5, 1)]}
    assert alike.fault(GPU_0) == ""
    differ = await an_inventory(
        "single", a_divided_device(SMALL_5), a_divided_device(HALF_0, uuid=GPU_1, index=1)
    )
    assert offered(differ) == offered(differ, GPU_1) == {}
    assert differ.fault(GPU_1) == (
        "migStrategy single needs MIG instances of one profile on the node, and there are "
        "1g.5gb, 3g.20gb: none is offered"
    )
