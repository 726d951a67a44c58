"""Pages that follow a changed claim: at once where they may, and with both numbers where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agent_bench import Bench, Call, a_bench, a_bound_pod
from agent_node import GPU_0, T4_MIB, a_driver_device
from builders import a_claim, a_container, a_pod, a_request, an_allocated_device, an_allocation
from vgpu_api.core.pod import Pod
from vgpu_api.effective import Use, effective_use
from vgpu_api.init_part import init_round, without_init_part
from vgpu_api.quantity import MIB
from vgpu_api.resize import unmet
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation
from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.backends import DriverBackend
from vgpu_nodeagent.lifecycle.resizing import Resizing
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state import slots


class Spoken:
    """The reports on resizes."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []

    def resized(self, claim: VGPUClaim, message: str) -> None:
        self.lines.append(("True", message))

    def not_resized(self, claim: VGPUClaim, reason: str, message: str) -> None:
        self.lines.append(("False", reason, message))

    def warning(self, pod: Pod, reason: str, message: str) -> None:
        self.lines.append(("event", reason, message))


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await a_bench(tmp_path)


@pytest.fixture
def spoken() -> Spoken:
    return Spoken()


@pytest.fixture
def resizing(bench: Bench, spoken: Spoken) -> Resizing:
    resizing = Resizing(bench.node, reports=cast("Reports", spoken))
    bench.events.observers.append(resizing)
    return resizing


def claim_for(
    pod: Pod,
    *,
    held: Sequence[tuple[int, int]] = ((1024, 0),),
    asked: Sequence[dict[str, Any]] = ({},),
    generation: int = 2,
    name: str = "c",
    of_mib: int = 0,
) -> VGPUClaim:
    """Return a claim of a pod with a request for each of its containers."""
    names = [container.name for container in pod.spec.containers]
    devices = [
        an_allocated_device(
            request=container, uuid=GPU_0, memory_mib=memory, cores=cores, of_mib=of_mib
        )
        for container, (memory, cores) in zip(names, held, strict=True)
    ]
    return a_claim(
        name,
        uid=f"uid-of-{name}",
        generation=generation,
        requests=[
            a_request(name=container, **plans)
            for container, plans in zip(names, asked, strict=True)
        ],
        status=VGPUClaimStatus(
            allocation=an_allocation(*devices, node="n1"),
            reserved_for=ReservedFor(pod_name=pod.metadata.name, pod_uid=pod.metadata.uid),
            conditions=[],
        ),
    )


async def running(bench: Bench, name: str = "pod-1", slot: str = "slot-0", **claim: Any) -> str:
    pod = a_bound_pod(name)
    bench.view.pods.added(pod)
    bench.view.claims.added(claim_for(pod, generation=1, name=f"c-of-{name}", **claim))
    return await bench.start(pod, slot)


def change(bench: Bench, resizing: Resizing, name: str = "pod-1", **claim: Any) -> None:
    pod = next(p for p in bench.view.pods.objects.values() if p.metadata.name == name)
    bench.view.claims.modified(claim_for(pod, name=f"c-of-{name}", **claim))
    resizing.resize_due()


def page(bench: Bench, slot_allocation: str) -> tuple[int, int]:
    (limit,) = bench.node.allocations.content(slot_allocation).devices
    return limit.memory_bytes // MIB, limit.cores


def use_memory(bench: Bench, slot_allocation: str, mib: int) -> None:
    """Write memory use into the region as a process of the container does."""
    region = bytearray(abi.REGION_BYTES)
    abi.REGION_HEADER.pack_into(
        region,
        0,
        *(abi.REGION_MAGIC, abi.ABI_VERSION, abi.REGION_BYTES, abi.REGION_SLOTS),
        *(abi.MAX_DEVICES, abi.REGION_READY, 1),
    )
    abi.REGION_COLUMN.pack_into(
        region, abi.REGION_COLUMNS_OFFSET, 7, GPU_0.encode(), 0, 0, mib * MIB
    )
    used = [mib * MIB] + [0] * (abi.MAX_DEVICES - 1)
    abi.REGION_SLOT_USED.pack_into(
        region, abi.REGION_SLOTS_OFFSET + abi.REGION_SLOT_USED_OFFSET, *used
    )
    bench.node.allocations.region_path(slot_allocation).write_bytes(region)


def counted(bench: Bench, name: str = "pod-1") -> Use:
    return bench.node.checkpoint.state.claim_allocations[f"uid-of-c-of-{name}"].use[GPU_0]


async def test_more_that_the_operator_has_granted_reaches_the_page(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot_allocation = await running(bench)
    epoch = bench.node.allocations.content(slot_allocation).epoch
    change(bench, resizing, held=[(4096, 50)], asked=[{"memory": "4Gi", "cores": 50}])
    assert page(bench, slot_allocation) == (4096, 50)
    assert bench.node.allocations.content(slot_allocation).epoch > epoch
    assert counted(bench) == Use(4096, 50, 1)
    assert spoken.lines == [("True", f"limits are in place: 4Gi and 50 % of GPU {GPU_0}")]


async def test_more_that_is_not_granted_yet_waits_and_names_what_is_free(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot_allocation = await running(bench)
    change(bench, resizing, asked=[{"memory": "16Gi"}])
    assert page(bench, slot_allocation) == (1024, 0)
    ((said, reason, message), event) = spoken.lines
    assert (said, reason) == ("False", "WaitingForRoom")
    assert message == (
        f"GPU {GPU_0}: 16Gi and 0 % asked, 1Gi and 0 % held, 15Gi and 100 % free beside that"
    )
    assert event == ("event", "ResizeNotDone", f"claim c-of-pod-1: {message}")


async def test_less_reaches_the_page_at_once_where_no_more_is_used(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot_allocation = await running(bench, held=[(8192, 50)])
    use_memory(bench, slot_allocation, 2048)
    change(bench, resizing, held=[(8192, 50)], asked=[{"memory": "2Gi", "cores": 20}])
    assert page(bench, slot_allocation) == (2048, 20)
    assert counted(bench) == Use(2048, 20, 1)
    assert [line[0] for line in spoken.lines] == ["True"]


async def test_less_than_is_used_is_refused_with_both_numbers_and_done_once_it_is_not(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot_allocation = await running(bench, held=[(8192, 50)])
    use_memory(bench, slot_allocation, 3000)
    change(bench, resizing, held=[(8192, 50)], asked=[{"memory": "2Gi", "cores": 20}])
    assert page(bench, slot_allocation) == (8192, 20)  # the compute may change
    assert counted(bench) == Use(8192, 20, 1)
    message = f"GPU {GPU_0}: container main has 3000 MiB in use, 2048 MiB asked"
    assert spoken.lines[0] == ("False", "InUse", message)
    resizing.resize_due()
    assert len(spoken.lines) == 2  # once, and its event
    use_memory(bench, slot_allocation, 1000)
    resizing.resize_due()
    assert page(bench, slot_allocation) == (2048, 20)
    assert spoken.lines[-1][0] == "True"


async def test_a_changed_percentage_reaches_the_page_as_the_same_amount_in_bytes(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    share = {"held": [(T4_MIB // 2, 30)], "of_mib": T4_MIB}
    lease = await running(bench, asked=[{"memory_percent": 50}], **share)
    change(bench, resizing, asked=[{"memory_percent": 25}], **share)
    assert page(bench, lease) == (T4_MIB // 4, 30)
    assert counted(bench) == Use(T4_MIB // 4, 30, 1)
    change(bench, resizing, asked=[{"memory_percent": 75}], generation=3, **share)
    assert spoken.lines[-1][:2] == ("event", "ResizeNotDone")
    assert page(bench, lease) == (T4_MIB // 2, 30)  # the amounts that are still held
    grown = {"held": [(T4_MIB * 3 // 4, 30)], "of_mib": T4_MIB}
    change(bench, resizing, asked=[{"memory_percent": 75}], generation=3, **grown)
    assert page(bench, lease) == (T4_MIB * 3 // 4, 30)
    assert [line[0] for line in spoken.lines] == ["True", "False", "event", "True"]


async def test_a_smaller_percentage_than_is_used_has_both_numbers(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    share = {"held": [(8192, 0)], "of_mib": 16_384}
    lease = await running(bench, asked=[{"memory_percent": 50}], **share)
    use_memory(bench, lease, 3000)
    change(bench, resizing, asked=[{"memory_percent": 10}], **share)
    assert page(bench, lease) == (8192, 0)
    message = f"GPU {GPU_0}: container main has 3000 MiB in use, 1638 MiB asked"
    assert spoken.lines[0] == ("False", "InUse", message)


async def test_more_than_the_gpu_has_in_all_is_impossible_and_does_not_wait_for_room(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot_allocation = await running(bench)
    change(bench, resizing, asked=[{"memory": "200Gi"}])
    assert page(bench, slot_allocation) == (1024, 0)
    ((said, reason, message), event) = spoken.lines
    assert (said, reason) == ("False", "Impossible")
    assert "can never hold that" in message
    assert event[1] == "ResizeNotDone"


async def test_a_percentage_that_cannot_be_worked_out_is_named_and_not_tried_again(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    lease = await running(bench)
    change(bench, resizing, asked=[{"memory_percent": 10}])
    assert page(bench, lease) == (1024, 0)
    assert spoken.lines[0][:2] == ("False", "DeviceMemoryUnknown")
    resizing.resize_due()
    assert len(spoken.lines) == 2  # once, and its event


async def test_what_is_in_the_way_is_told_once_however_its_numbers_move(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot_allocation = await running(bench, held=[(8192, 50)])
    asked = [{"memory": "2Gi"}]
    for used in (3000, 3100, 2900):
        use_memory(bench, slot_allocation, used)
        change(bench, resizing, held=[(8192, 50)], asked=asked)
    assert [line[1] for line in spoken.lines] == ["InUse", "ResizeNotDone"]
    change(bench, resizing, held=[(8192, 50)], asked=asked, generation=3)
    change(bench, resizing, held=[(8192, 50)], asked=[{"memory": "16Gi"}], generation=3)
    assert [line[1] for line in spoken.lines[2:]] == [
        *("InUse", "ResizeNotDone"),  # about another version
        *("WaitingForRoom", "ResizeNotDone"),
    ]


async def test_a_whole_device_cannot_shrink_while_its_container_runs(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot_allocation = await running(bench, held=[(T4_MIB, 100)])
    change(bench, resizing, held=[(T4_MIB, 100)], asked=[{"memory": "2Gi"}])
    assert page(bench, slot_allocation) == (T4_MIB, 100)
    assert spoken.lines[0][:2] == ("False", "NotInterposed")


async def test_a_container_without_the_library_is_known_where_its_device_is_not(
    bench: Bench, resizing: Resizing, spoken: Spoken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the driver may not show the device yet."""
    slot_allocation = await running(bench, held=[(T4_MIB, 100)])
    monkeypatch.setattr(bench.node.inventory, "capacities", dict)
    change(bench, resizing, held=[(T4_MIB, 100)], asked=[{"memory": "2Gi"}])
    assert page(bench, slot_allocation) == (T4_MIB, 100)
    assert spoken.lines[0][:2] == ("False", "NotInterposed")


async def test_a_slice_that_grew_to_a_whole_device_shrinks_again(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot_allocation = await running(bench)
    whole = [{"memory": f"{T4_MIB}Mi", "cores": 100}]
    change(bench, resizing, held=[(T4_MIB, 100)], asked=whole)
    assert page(bench, slot_allocation) == (T4_MIB, 100)
    less = [{"memory": "2Gi", "cores": 20}]
    change(bench, resizing, held=[(T4_MIB, 100)], asked=less, generation=3)
    assert page(bench, slot_allocation) == (2048, 20)
    assert [line[0] for line in spoken.lines] == ["True", "True"]


async def test_a_container_that_the_driver_kept_has_no_library_after_a_change_of_backend(
    bench: Bench, resizing: Resizing, spoken: Spoken, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        driver = DriverBackend(bench.driver, bench.kubelet_pods)
        earlier.setattr(bench.node.backends, "shape", driver.shape)
        slot_allocation = await running(bench, held=[(8192, 0)])
    change(bench, resizing, held=[(8192, 0)], asked=[{"memory": "2Gi"}])
    assert page(bench, slot_allocation) == (8192, 0)
    assert spoken.lines[0][:2] == ("False", "NotInterposed")


async def test_a_container_of_which_nobody_recorded_the_library_waits_for_its_next_start(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    """It comes from an earlier agent's checkpoint or from a rebuilt one."""
    slot_allocation = await running(bench)
    state = bench.node.checkpoint.state
    unknown = {name: replace(x, interposed=None) for name, x in state.slot_allocations.items()}
    bench.node.checkpoint.commit(replace(state, slot_allocations=unknown))
    asked = [{"memory": "512Mi"}]
    change(bench, resizing, asked=asked)
    assert page(bench, slot_allocation) == (1024, 0)
    assert "before it was recorded" in spoken.lines[0][2]
    await bench.prestart.prepare(["slot-0"], call=Call())
    resizing.resize_due()
    assert page(bench, slot_allocation) == (512, 0)
    assert spoken.lines[-1][0] == "True"


async def test_more_than_this_node_has_room_for_is_not_written_whoever_granted_it(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    """Fails without the sum over the agent's own grants."""
    slot_allocation = await running(bench)
    await running(bench, "pod-2", "slot-1", held=[(T4_MIB - 1024, 0)])
    change(bench, resizing, held=[(4096, 0)], asked=[{"memory": "4Gi"}])
    assert page(bench, slot_allocation) == (1024, 0)
    assert counted(bench) == Use(1024, 0, 1)
    assert spoken.lines[0][:2] == ("False", "NoRoom")


async def test_a_claim_that_was_not_changed_is_left_alone(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot_allocation = await running(bench)
    change(bench, resizing, held=[(4096, 0)], asked=[{"memory": "4Gi"}], generation=1)
    assert page(bench, slot_allocation) == (1024, 0)
    assert spoken.lines == []


async def test_a_container_that_starts_later_has_the_smaller_amount_from_the_start(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(claim_for(pod, held=[(8192, 0)], asked=[{"memory": "2Gi"}], name="c"))
    slot_allocation = await bench.start(pod, "slot-0")
    assert page(bench, slot_allocation) == (2048, 0)
    bench.view.claims.modified(
        claim_for(pod, held=[(8192, 0)], asked=[{"memory": "2Gi"}], name="c")
    )
    resizing.resize_due()
    assert bench.node.checkpoint.state.claim_allocations["uid-of-c"].use[GPU_0] == Use(2048, 0, 1)
    assert spoken.lines == [("True", f"limits are in place: 2Gi and 0 % of GPU {GPU_0}")]


async def test_each_container_of_a_claim_has_its_own_limits(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot = {"nvidia.com/gpu": "1"}
    pod = a_pod(
        "pod-1",
        node="n1",
        containers=[a_container("one", limits=slot), a_container("two", limits=slot)],
    )
    bench.view.pods.added(pod)
    name, held = "c-of-pod-1", [(4096, 0), (2048, 0)]
    bench.view.claims.added(claim_for(pod, held=held, asked=[{}, {}], generation=1, name=name))
    slot_allocations = {}
    for container, slot_id in (("one", "slot-0"), ("two", "slot-1")):
        slot_allocations[container], _ = bench.prestart.allocate([slot_id])
        bench.kubelet.holds(pod, slot_id, slot_allocations[container], container)
    bench.kubelet.containers = {"slot-0": "one", "slot-1": "two"}
    await bench.prestart.prepare(["slot-0"], call=Call())
    asked = [{"memory": "1Gi"}, {"memory": "1Gi"}]
    change(bench, resizing, held=held, asked=asked)
    assert page(bench, slot_allocations["one"]) == (1024, 0)
    assert counted(bench) == Use(1024 + 2048, 0, 2)
    assert spoken.lines == []  # the other has not started
    await bench.prestart.prepare(["slot-1"], call=Call())
    resizing.resize_due()
    assert page(bench, slot_allocations["two"]) == (1024, 0)
    assert counted(bench) == Use(2048, 0, 2)
    assert [line[0] for line in spoken.lines] == ["True"]


async def test_what_is_in_the_way_names_the_container_and_the_others_change(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    slot = {"nvidia.com/gpu": "1"}
    containers = [a_container("one", limits=slot), a_container("two", limits=slot)]
    pod = a_pod("pod-1", node="n1", containers=containers)
    bench.view.pods.added(pod)
    name, held = "c-of-pod-1", [(4096, 0), (2048, 0)]
    bench.view.claims.added(claim_for(pod, held=held, asked=[{}, {}], generation=1, name=name))
    slot_allocations = {}
    for container, slot_id in (("one", "slot-0"), ("two", "slot-1")):
        slot_allocations[container], _ = bench.prestart.allocate([slot_id])
        bench.kubelet.holds(pod, slot_id, slot_allocations[container], container)
    bench.kubelet.containers = {"slot-0": "one", "slot-1": "two"}
    await bench.prestart.prepare(["slot-0"], call=Call())
    await bench.prestart.prepare(["slot-1"], call=Call())
    use_memory(bench, slot_allocations["one"], 3000)
    change(bench, resizing, held=held, asked=[{"memory": "1Gi"}, {"memory": "1Gi"}])
    assert page(bench, slot_allocations["one"]) == (4096, 0)
    assert page(bench, slot_allocations["two"]) == (1024, 0)
    assert counted(bench) == Use(4096 + 1024, 0, 2)
    message = f"GPU {GPU_0}: container one has 3000 MiB in use, 1024 MiB asked"
    assert spoken.lines[0] == ("False", "InUse", message)


def a_pod_that_prepares() -> Pod:
    slot = {"nvidia.com/gpu": "1"}
    return a_pod(
        "pod-1",
        node="n1",
        init_containers=[a_container("prepare", limits=slot)],
        containers=[a_container("main", limits=slot)],
    )


def prepares(pod: Pod, held: int, *, asked: str | None = None, generation: int = 2) -> VGPUClaim:
    """Return a claim whose init container holds this many MiB and now requests another amount."""
    set_spec = {} if asked is None else {"memory": asked}
    devices = [
        an_allocated_device(request="prepare", uuid=GPU_0, memory_mib=held),
        an_allocated_device(request="main", uuid=GPU_0, memory_mib=2048),
    ]
    return a_claim(
        "c-of-pod-1",
        uid="uid-of-c-of-pod-1",
        generation=generation,
        requests=[a_request(name="prepare", phase="Init", **set_spec), a_request(name="main")],
        status=VGPUClaimStatus(
            allocation=an_allocation(*devices, node="n1"),
            reserved_for=ReservedFor(pod_name=pod.metadata.name, pod_uid=pod.metadata.uid),
            conditions=[],
        ),
    )


async def preparing(bench: Bench) -> tuple[Pod, str]:
    """Return a pod whose init container runs with 4,096 MiB, and its lease."""
    pod = a_pod_that_prepares()
    bench.view.pods.added(pod)
    bench.view.claims.added(prepares(pod, 4096, generation=1))
    slot_allocation, _ = bench.prestart.allocate(["slot-0"])
    bench.kubelet.holds(pod, "slot-0", slot_allocation, "prepare")
    bench.kubelet.containers = {"slot-0": "prepare"}
    await bench.prestart.prepare(["slot-0"], call=Call())
    return pod, slot_allocation


async def test_an_init_container_that_runs_is_resized_as_any_other(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    pod, slot_allocation = await preparing(bench)
    assert counted(bench) == Use(4096, 0, 1)
    bench.view.claims.modified(prepares(pod, 8192, asked="8Gi"))
    resizing.resize_due()
    assert page(bench, slot_allocation) == (8192, 0)
    assert counted(bench) == Use(8192, 0, 1)
    bench.view.claims.modified(prepares(pod, 8192, asked="1Gi", generation=3))
    resizing.resize_due()
    assert page(bench, slot_allocation) == (1024, 0)
    assert counted(bench) == Use(2048, 0, 1)  # what the app container will have
    assert [line[0] for line in spoken.lines] == ["True", "True"]


async def test_a_change_for_an_init_container_that_has_ended_is_settled(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    """Its part may stay in the allocation for long; it runs again with the new amount."""
    pod, slot_allocation = await preparing(bench)
    bench.node.allocations.shut(slot_allocation)
    bench.view.claims.modified(prepares(pod, 4096, asked="1Gi"))
    resizing.resize_due()
    assert [line[0] for line in spoken.lines] == ["True"]


@pytest.mark.parametrize(
    ("mig", "mode", "asked", "reason", "numbers"),
    [
        (True, "MIG", {"memory": "9000Mi"}, "MigInstance", ("9000Mi and 14 %", "4864Mi and 14 %")),
        (True, "MIG", {"cores": 50}, "MigInstance", ("4864Mi and 50 %", "4864Mi and 14 %")),
        (False, "Exclusive", {"memory": "24Gi"}, "WholeDevice", ("24Gi and 14 %", "4864Mi and 14")),
    ],
)
def test_what_cannot_change_is_refused_with_both_numbers(
    mig: bool, mode: Any, asked: dict[str, Any], reason: str, numbers: tuple[str, str]
) -> None:
    device = an_allocated_device(request="main", uuid=GPU_0, memory_mib=4864, cores=14)
    instance = MigAllocation(profile="1g.5gb", start=0, size=1) if mig else None
    allocation = an_allocation(device.model_copy(update={"mig": instance}), node="n1")
    spec = a_claim(requests=[a_request(name="main", mode=mode, **asked)]).spec
    ((found, message),) = unmet(spec, allocation)
    assert found == reason
    assert all(number in message for number in numbers)
    less = a_claim(requests=[a_request(name="main", mode=mode, memory="1Gi")]).spec
    assert unmet(less, allocation) == []


async def test_an_instance_that_is_unmet_is_told_once_and_not_tried_again(
    tmp_path: Path, spoken: Spoken
) -> None:
    device = replace(a_driver_device(), mig_enabled=True)
    bench = await a_bench(tmp_path, devices=[device])
    resizing = Resizing(bench.node, reports=cast("Reports", spoken))
    bench.events.observers.append(resizing)
    pod = a_bound_pod()
    bench.view.pods.added(pod)

    def claim(**changes: Any) -> VGPUClaim:
        made = claim_for(pod, held=[(4864, 14)], **changes)
        allocation = made.status.allocation
        assert allocation is not None
        mig = MigAllocation(profile="1g.5gb", start=0, size=1)
        devices = [device.model_copy(update={"mig": mig}) for device in allocation.devices]
        status = made.status.model_copy(
            update={"allocation": allocation.model_copy(update={"devices": devices})}
        )
        return made.model_copy(update={"status": status})

    bench.view.claims.added(claim(generation=1))
    await bench.start(pod, "slot-0")
    bench.view.claims.modified(claim(asked=[{"memory": "9000Mi"}]))
    resizing.resize_due()
    resizing.resize_due()
    assert [line[:2] for line in spoken.lines] == [
        ("False", "MigInstance"),
        ("event", "ResizeNotDone"),
    ]
    bench.view.claims.modified(claim(asked=[{"memory": "4000Mi"}], generation=3))
    resizing.resize_due()
    assert spoken.lines[-1][0] == "True"


async def test_what_ended_init_containers_had_is_not_counted_again_by_a_resize(
    bench: Bench, resizing: Resizing, spoken: Spoken
) -> None:
    """The operator has not taken their part out of the allocation yet."""
    slot = {"nvidia.com/gpu": "1"}
    pod = a_pod(
        "pod-1",
        node="n1",
        init_containers=[a_container("prepare", limits=slot)],
        containers=[a_container("main", limits=slot)],
    )
    bench.view.pods.added(pod)
    devices = [
        an_allocated_device(request="main", uuid=GPU_0, memory_mib=2048),
        an_allocated_device(request="prepare", uuid=GPU_0, memory_mib=8192),
    ]
    allocation = an_allocation(*devices, node="n1")
    status = VGPUClaimStatus(
        allocation=allocation,
        reserved_for=ReservedFor(pod_name=pod.metadata.name, pod_uid=pod.metadata.uid),
        conditions=[],
    )
    claim, smaller = (
        a_claim(
            "c",
            uid="uid-of-c",
            generation=generation,
            requests=[a_request(name="prepare", phase="Init"), a_request(name="main", **set_spec)],
            status=status,
        )
        for generation, set_spec in ((1, {}), (2, {"memory": "1Gi"}))
    )
    bench.view.claims.added(claim)
    slot_allocation = await bench.start(pod, "slot-0")
    state = bench.node.checkpoint.state
    rest = without_init_part(claim.spec, allocation)
    bench.node.checkpoint.commit(
        slots.end_init(
            state,
            "uid-of-c",
            init_round=init_round(rest),
            init_ids=["run-1"],
            use=effective_use(claim.spec, rest.devices),
        )
    )
    bench.view.claims.modified(smaller)
    resizing.resize_due()
    assert page(bench, slot_allocation) == (1024, 0)
    assert bench.node.checkpoint.state.claim_allocations["uid-of-c"].use[GPU_0] == Use(1024, 0, 1)
    assert [line[0] for line in spoken.lines] == ["True"]
