"""After the init containers end, their pages deny and only the app containers count."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from agent_bench import SLOT, Bench, Call, a_bench, a_bound_pod, a_claim_for
from agent_node import GPU_0, T4_MIB
from builders import (
    a_claim,
    a_container,
    a_pod,
    a_request,
    allocation_id,
    an_allocated_device,
    an_allocation,
)
from vgpu_api.core.pod import ContainerStatus, Pod, PodStatus
from vgpu_api.effective import Use
from vgpu_api.init_part import InitRound, without_init_part
from vgpu_api.v1alpha1 import InitReleased, ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.lifecycle.rebuild import rebuild
from vgpu_nodeagent.state.checkpoint import Checkpoint
from vgpu_nodeagent.state.slots import close

FIRST_ROUND = InitRound(allocation_id(), 0)
SECOND_ROUND = InitRound(allocation_id(), 1)
INIT_MIB, APP_MIB = T4_MIB - 1024, 1024


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await a_bench(tmp_path)


def exited(name: str, run: str, code: int = 0) -> ContainerStatus:
    return ContainerStatus(name=name, container_id=run, state={"terminated": {"exitCode": code}})


def the_pod(*inits: ContainerStatus, app: str = "") -> Pod:
    """Return a pod whose init container and app container both request a device."""
    limits = {SLOT: "1"}
    pod = a_pod(
        node="n1",
        containers=[a_container(limits=limits)],
        init_containers=[a_container("prepare", limits=limits)],
    )
    status = PodStatus(
        phase="Pending",
        init_container_statuses=list(inits),
        container_statuses=[ContainerStatus(name="main", container_id=app)],
    )
    return pod.model_copy(update={"status": status})


def its_claim(pod: Pod) -> VGPUClaim:
    devices = [
        an_allocated_device(request="prepare", uuid=GPU_0, memory_mib=INIT_MIB),
        an_allocated_device(request="main", uuid=GPU_0, memory_mib=APP_MIB),
    ]
    status = VGPUClaimStatus(
        allocation=an_allocation(*devices, node="n1"),
        reserved_for=ReservedFor(pod_name=pod.metadata.name, pod_uid=pod.metadata.uid),
        conditions=[],
    )
    requests = [a_request(name="prepare", phase="Init"), a_request(name="main")]
    return a_claim("c", uid="uid-of-c", requests=requests, status=status)


def shrunk(claim: VGPUClaim) -> VGPUClaim:
    assert claim.status.allocation is not None
    rest = without_init_part(claim.spec, claim.status.allocation)
    return claim.model_copy(update={"status": claim.status.model_copy(update={"allocation": rest})})


def fitted_again(claim: VGPUClaim) -> VGPUClaim:
    assert claim.status.allocation is not None
    again = claim.status.allocation.model_copy(update={"init_round": 1})
    return claim.model_copy(
        update={"status": claim.status.model_copy(update={"allocation": again})}
    )


async def started(bench: Bench, *, app_slot: str = "slot-0") -> tuple[str, str]:
    """Start the pod's init container, and return the leases of both containers."""
    pod = the_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(its_claim(pod))
    init, _ = bench.prestart.allocate(["slot-0"])
    bench.kubelet.holds(pod, "slot-0", init, "prepare")
    app, _ = bench.prestart.allocate([app_slot])
    bench.kubelet.holds(pod, app_slot, app)
    if app_slot != "slot-0":  # PodResources never lists ordinary init containers
        del bench.kubelet.pods["slot-0"]
    await prepare(bench)
    return init, app


async def prepare(bench: Bench, slot: str = "slot-0") -> None:
    await bench.prestart.prepare([slot], call=Call())


def state(bench: Bench, slot_allocation: str) -> PageState:
    return bench.node.allocations.content(slot_allocation).state


def has_spec(bench: Bench, slot_allocation: str) -> bool:
    return any(
        slot_allocation in path.name for path in bench.kubelet.path.parent.glob("cdi/*.json")
    )


def used(bench: Bench) -> Use:
    return bench.node.checkpoint.state.used()[GPU_0]


async def ended(bench: Bench, *, app_slot: str = "slot-0") -> tuple[str, str]:
    """End the init container with status 0, and let the agent notice."""
    slot_allocations = await started(bench, app_slot=app_slot)
    bench.view.pods.modified(the_pod(exited("prepare", "run-1")))
    await bench.releases.sweep()
    return slot_allocations


async def test_the_page_of_an_ended_init_container_denies_and_only_the_app_counts(
    bench: Bench,
) -> None:
    init, app = await started(bench)
    assert used(bench) == Use(INIT_MIB, 0, 1)
    assert (state(bench, init), state(bench, app)) == (PageState.GRANT, PageState.GRANT)
    bench.view.pods.modified(the_pod(exited("prepare", "run-1")))
    await bench.releases.sweep()
    assert (state(bench, init), state(bench, app)) == (PageState.CLOSED, PageState.GRANT)
    assert (has_spec(bench, init), has_spec(bench, app)) == (False, True)
    assert used(bench) == Use(APP_MIB, 0, 1)
    assert bench.said.init == [("ended", FIRST_ROUND)]


@pytest.mark.parametrize(
    "status",
    [
        ContainerStatus(name="prepare", container_id="run-1", state={"running": {}}),
        exited("prepare", "run-1", code=1),
        exited("another", "run-1"),
    ],
)
async def test_an_init_container_that_has_not_exited_0_keeps_its_page(
    bench: Bench, status: ContainerStatus
) -> None:
    init, _ = await started(bench)
    bench.view.pods.modified(the_pod(status))
    await bench.releases.sweep()
    assert state(bench, init) is PageState.GRANT
    assert used(bench) == Use(INIT_MIB, 0, 1)
    assert bench.said.init == []


async def test_a_process_that_still_maps_the_region_of_an_ended_init_container_keeps_it_counted(
    bench: Bench,
) -> None:
    init, _ = await started(bench)
    bench.view.pods.modified(the_pod(exited("prepare", "run-1")))
    region = bench.kubelet.path.parent / "slots" / init / "usage" / "region"
    with region.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        await bench.releases.sweep()
        assert used(bench) == Use(INIT_MIB, 0, 1)
    await bench.releases.sweep()
    assert used(bench) == Use(APP_MIB, 0, 1)


async def test_a_sidecar_does_not_end_with_the_init_containers(bench: Bench) -> None:
    limits = {SLOT: "1"}
    pod = a_pod(
        node="n1",
        containers=[a_container(limits=limits)],
        init_containers=[a_container("prepare", limits=limits, restart_policy="Always")],
    )
    bench.view.pods.added(pod)
    claim = its_claim(pod)
    requests = [a_request(name="prepare"), a_request(name="main")]
    spec = claim.spec.model_copy(update={"requests": requests})
    bench.view.claims.added(claim.model_copy(update={"spec": spec}))
    slot_allocation, _ = bench.prestart.allocate(["slot-0"])
    bench.kubelet.holds(pod, "slot-0", slot_allocation)
    await prepare(bench)
    await bench.releases.sweep()
    assert used(bench) == Use(INIT_MIB + APP_MIB, 0, 2)
    assert bench.said.init == []


async def test_what_init_containers_gave_back_goes_to_another_claim(bench: Bench) -> None:
    await started(bench)
    other = a_bound_pod("pod-2")
    bench.view.pods.added(other)
    bench.view.claims.added(a_claim_for(other, memory_mib=T4_MIB - APP_MIB, name="d"))
    with pytest.raises(Refused) as refused:
        await bench.start(other, "slot-1")
    assert refused.value.reason is Why.OVER_CAPACITY
    bench.view.pods.modified(the_pod(exited("prepare", "run-1")))
    await bench.releases.sweep()
    await prepare(bench, "slot-1")
    assert used(bench) == Use(T4_MIB, 0, 2)


async def test_on_a_shared_slot_only_the_app_container_starts_after_the_end(bench: Bench) -> None:
    init, app = await ended(bench)
    await prepare(bench)  # the agent has not seen the smaller claim yet
    assert (state(bench, init), state(bench, app)) == (PageState.CLOSED, PageState.GRANT)
    assert used(bench) == Use(APP_MIB, 0, 1)
    bench.view.claims.modified(shrunk(its_claim(the_pod())))
    bench.view.pods.modified(the_pod(exited("prepare", "run-1"), app="app-1"))
    await prepare(bench)
    assert state(bench, init) is PageState.CLOSED
    assert bench.said.init[-1] == ("ended", FIRST_ROUND)


async def test_an_init_container_that_runs_again_on_a_slot_of_its_own_is_refused(
    bench: Bench,
) -> None:
    init, _ = await ended(bench, app_slot="slot-1")
    with pytest.raises(Refused, match="once there is room") as refused:
        await prepare(bench, "slot-0")
    assert refused.value.reason is Why.INIT_ENDED
    assert state(bench, init) is PageState.CLOSED
    assert bench.said.init[-1] == ("wanted", FIRST_ROUND)


async def test_an_init_container_that_the_kubelet_shows_anew_is_refused_on_a_shared_slot(
    bench: Bench,
) -> None:
    init, _ = await ended(bench)
    bench.view.pods.modified(the_pod())
    with pytest.raises(Refused) as refused:
        await prepare(bench)
    assert refused.value.reason is Why.INIT_ENDED
    assert state(bench, init) is PageState.CLOSED
    await bench.releases.sweep()
    assert bench.said.init[-1] == ("wanted", FIRST_ROUND)


async def test_a_prestart_that_no_start_followed_means_that_init_containers_run_again(
    bench: Bench,
) -> None:
    """The kubelet shows the end of the old init container until the new one starts."""
    await ended(bench)
    await prepare(bench)
    assert ("wanted", FIRST_ROUND) not in bench.said.init
    await prepare(bench)
    assert bench.said.init[-1] == ("wanted", FIRST_ROUND)


async def test_fitted_again_it_starts_and_the_round_ends_only_with_the_new_container(
    bench: Bench,
) -> None:
    init, _ = await ended(bench)
    bench.view.claims.modified(fitted_again(its_claim(the_pod())))
    await prepare(bench)
    assert state(bench, init) is PageState.GRANT
    assert has_spec(bench, init)
    assert used(bench) == Use(INIT_MIB, 0, 1)
    await bench.releases.sweep()  # the kubelet still shows the end of the first round's container
    assert state(bench, init) is PageState.GRANT
    bench.view.pods.modified(the_pod(exited("prepare", "run-2")))
    await bench.releases.sweep()
    assert state(bench, init) is PageState.CLOSED
    assert bench.said.init[-1] == ("ended", SECOND_ROUND)


async def test_a_prestart_of_the_round_before_repeats_nothing(bench: Bench) -> None:
    """The new init container started on the app container's slot and ended meanwhile."""
    await ended(bench)
    await prepare(bench)
    bench.view.pods.modified(the_pod(exited("prepare", "run-1"), app="app-1"))
    await prepare(bench)
    bench.view.pods.modified(the_pod(app="app-1"))
    await bench.releases.sweep()
    assert bench.said.init[-1] == ("wanted", FIRST_ROUND)
    bench.view.claims.modified(fitted_again(its_claim(the_pod())))
    bench.view.pods.modified(the_pod(exited("prepare", "run-2"), app="app-1"))
    await bench.releases.sweep()
    await prepare(bench)
    assert bench.said.init[-1] == ("ended", SECOND_ROUND)


async def test_a_round_that_ended_in_an_earlier_allocation_ends_nothing_of_the_next(
    bench: Bench,
) -> None:
    """Both are the first rounds of their allocations."""
    await ended(bench)
    checkpoint, claim, pod = bench.node.checkpoint, its_claim(the_pod()), the_pod()
    checkpoint.commit(close(checkpoint.state, "uid-of-c"))
    assert claim.status.allocation is not None
    later = claim.status.allocation.model_copy(update={"id": allocation_id(7)})
    status = claim.status.model_copy(update={"allocation": later})
    bench.view.claims.modified(claim.model_copy(update={"status": status}))
    bench.view.pods.modified(pod)
    bench.kubelet.pods.clear()
    init, _ = bench.prestart.allocate(["slot-1"])
    bench.kubelet.holds(pod, "slot-1", init, "prepare")
    app, _ = bench.prestart.allocate(["slot-1"])
    bench.kubelet.holds(pod, "slot-1", app)
    await prepare(bench, "slot-1")
    assert state(bench, init) is PageState.GRANT
    assert used(bench) == Use(INIT_MIB, 0, 1)


async def test_an_agent_that_lost_its_state_does_not_open_what_was_closed(bench: Bench) -> None:
    init, app = await ended(bench)
    claim = its_claim(the_pod())
    lost = rebuild(
        entries=bench.kubelet.entries,
        claims=[claim],
        pages={name: bench.node.allocations.content(name) for name in (init, app)},
        capacities=bench.node.inventory.capacities(),
        now=1.0,
    )
    assert lost.used()[GPU_0] == Use(APP_MIB, 0, 1)
    bench.node.checkpoint.commit(lost)
    await prepare(bench)
    assert state(bench, init) is PageState.CLOSED


async def test_what_the_claim_says_has_ended_is_not_opened_though_nothing_is_on_disk(
    bench: Bench,
) -> None:
    init, _ = await started(bench)
    bench.node.allocations.shut(init)
    ended = InitReleased(allocation_id=allocation_id(), round=0)
    claim = its_claim(the_pod())
    status = claim.status.model_copy(update={"init_released": ended})
    bench.view.claims.modified(claim.model_copy(update={"status": status}))
    bench.view.pods.modified(the_pod(exited("prepare", "run-1")))
    await prepare(bench)
    assert state(bench, init) is PageState.CLOSED


async def test_the_end_of_init_containers_outlives_the_agent(bench: Bench) -> None:
    await ended(bench)
    successor = Checkpoint(bench.kubelet.path.parent / "slots.json")
    assert successor.load()
    claim_allocation = successor.state.claim_allocations["uid-of-c"]
    assert (claim_allocation.init_ended, claim_allocation.init_ids) == (FIRST_ROUND, ("run-1",))
    assert claim_allocation.use[GPU_0] == Use(APP_MIB, 0, 1)
