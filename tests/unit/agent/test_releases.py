"""Nothing is released while any record shows it in use; the records are made by hand."""

from __future__ import annotations

import asyncio
import mmap
from dataclasses import replace
from pathlib import Path

import pytest

from agent_bench import Bench, Kubelet, a_bench, a_bound_pod, a_claim_for
from builders import a_pod, allocation_id
from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import Condition, VGPUClaim
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.config import UNUSED_ALLOCATION_S
from vgpu_nodeagent.kubelet.pod_resources import PodListing
from vgpu_nodeagent.lifecycle.releases import LOST_AFTER_S

SLOT_0 = "slot-0"
NAME = allocation_id()
PINNED_S = 60.0
"""The time for which the operator keeps devices for a Binding without an answer."""


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await a_bench(tmp_path)


async def a_granted_pod(bench: Bench, name: str = "pod-1") -> Pod:
    pod = a_bound_pod(name)
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    await bench.start(pod, SLOT_0)
    return pod


def delete(bench: Bench, pod: Pod) -> None:
    bench.view.pods.deleted(ObjectIdentity("default", pod.metadata.name, pod.metadata.uid))


def deleted(claim: VGPUClaim) -> VGPUClaim:
    going = claim.metadata.model_copy(update={"deletion_timestamp": "2026-01-01T00:00:00Z"})
    return claim.model_copy(update={"metadata": going})


def is_in_use(bench: Bench) -> bool:
    return bool(bench.node.checkpoint.state.used())


async def sweep(bench: Bench) -> None:
    await bench.releases.sweep()


async def test_a_pod_that_runs_keeps_what_it_has(bench: Bench) -> None:
    await a_granted_pod(bench)
    await sweep(bench)
    assert is_in_use(bench)
    assert bench.said.released_claims == []


async def test_a_pod_of_which_nothing_is_left_is_released(bench: Bench) -> None:
    delete(bench, await a_granted_pod(bench))
    bench.kubelet.forgets(SLOT_0)
    await sweep(bench)
    assert not is_in_use(bench)
    assert bench.said.released_claims == [("c", NAME)]
    assert bench.node.allocations.on_disk() == frozenset()


async def test_a_terminal_pod_is_released_though_its_object_stays(bench: Bench) -> None:
    pod = await a_granted_pod(bench)
    bench.view.pods.modified(a_pod(pod.metadata.name, node="n1", phase="Succeeded"))
    bench.kubelet.forgets(SLOT_0)
    await sweep(bench)
    assert bench.said.released_claims == [("c", NAME)]


async def test_a_container_that_the_kubelet_still_lists_is_in_use(bench: Bench) -> None:
    delete(bench, await a_granted_pod(bench))
    await sweep(bench)
    assert is_in_use(bench)


async def test_a_vanished_pod_that_the_kubelet_still_cleans_up_is_in_use(bench: Bench) -> None:
    pod = await a_granted_pod(bench)
    delete(bench, pod)
    bench.kubelet.forgets(SLOT_0)
    folder = bench.kubelet_pods / pod.metadata.uid
    folder.mkdir(parents=True)
    await sweep(bench)
    assert is_in_use(bench)
    folder.rmdir()
    await sweep(bench)
    assert not is_in_use(bench)


async def test_a_process_that_still_maps_the_region_keeps_it_in_use(bench: Bench) -> None:
    """Kubelet and API server forget a force-deleted pod while its containers are still ending."""
    delete(bench, await a_granted_pod(bench))
    bench.kubelet.forgets(SLOT_0)
    (region,) = bench.kubelet.path.parent.glob("slots/*/usage/region")
    with region.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        await sweep(bench)
        assert is_in_use(bench)
    await sweep(bench)
    assert not is_in_use(bench)


async def test_a_new_pod_of_the_same_name_on_the_same_slot_does_not_keep_the_old_one(
    bench: Bench,
) -> None:
    old = await a_granted_pod(bench)
    delete(bench, old)
    bench.kubelet.forgets(SLOT_0)
    new = a_bound_pod(uid="a-newer-one")
    bench.view.pods.added(new)
    slot_allocation, _ = bench.prestart.allocate([SLOT_0])
    bench.kubelet.holds(new, SLOT_0, slot_allocation)
    await sweep(bench)
    assert not is_in_use(bench)
    assert list(bench.node.checkpoint.state.slot_allocations) == [slot_allocation]


async def test_a_kubelet_that_does_not_answer_frees_nothing(bench: Bench) -> None:
    delete(bench, await a_granted_pod(bench))
    bench.kubelet.forgets(SLOT_0)
    bench.kubelet.error = "PodResources: UNAVAILABLE"
    await sweep(bench)
    assert is_in_use(bench)


async def test_who_closes_it_has_seen_the_end_of_the_sweep_under_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep is shared, so it outlives its first caller; the next agent's state is not its own.

    Without `close`, the kubelet's late answer would free the slot after the agent's turn.
    """
    delete(bench, await a_granted_pod(bench))
    bench.kubelet.forgets(SLOT_0)
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def late(kubelet: Kubelet) -> PodListing:
        asked.set()
        await may_answer.wait()
        return PodListing(frozenset(), ())

    monkeypatch.setattr(Kubelet, "list", late)
    running = asyncio.ensure_future(bench.releases.run())
    await asked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    before = bench.node.checkpoint.state
    await bench.releases.close()
    may_answer.set()
    await asyncio.sleep(0.05)
    assert bench.node.checkpoint.state is before
    assert is_in_use(bench)


async def test_there_may_be_no_sweep_to_end(bench: Bench) -> None:
    await bench.releases.close()
    await sweep(bench)
    await bench.releases.close()


async def test_a_released_holding_is_forgotten_once_its_allocation_is_gone(bench: Bench) -> None:
    pod = await a_granted_pod(bench)
    delete(bench, pod)
    bench.kubelet.forgets(SLOT_0)
    await sweep(bench)
    assert bench.node.checkpoint.state.claim_allocations["uid-of-c"].closed
    bench.view.claims.deleted(ObjectIdentity("default", "c", "uid-of-c"))
    await sweep(bench)
    assert bench.node.checkpoint.state.claim_allocations == {}


async def test_an_end_that_cannot_be_recorded_is_recorded_later_and_holds_up_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    delete(bench, await a_granted_pod(bench))
    bench.kubelet.forgets(SLOT_0)
    await sweep(bench)
    bench.view.claims.deleted(ObjectIdentity("default", "c", "uid-of-c"))
    other = a_bound_pod("pod-2")
    bench.view.pods.added(other)
    bench.view.claims.added(a_claim_for(other, name="d"))
    delete(bench, other)
    full = bench.kubelet.path.with_name(".slots.json.new")
    full.mkdir()  # the temporary file cannot be opened
    await sweep(bench)
    assert bench.said.released_claims[-1] == ("d", NAME)
    assert "cannot record the end of claim default/c" in caplog.text
    assert bench.node.checkpoint.state.claim_allocations["uid-of-c"].closed
    full.rmdir()
    await sweep(bench)
    assert bench.node.checkpoint.state.claim_allocations == {}


async def test_a_pod_that_failed_before_any_container_started_is_released(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.claims.added(a_claim_for(pod))
    bench.view.pods.added(a_pod(node="n1", phase="Failed"))
    await sweep(bench)
    assert bench.said.released_claims == [("c", NAME)]


async def test_a_pod_that_went_before_its_claim_was_read_is_released_once_it_is(
    bench: Bench,
) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    await sweep(bench)
    delete(bench, pod)
    await sweep(bench)
    bench.view.claims.added(a_claim_for(pod))
    await sweep(bench)
    assert bench.said.released_claims == [("c", NAME)]


@pytest.mark.parametrize("is_bound", [True, False])
async def test_a_claim_deleted_with_a_pod_never_seen_is_released_unless_that_is_bound_here(
    bench: Bench, is_bound: bool
) -> None:
    pod = a_bound_pod()
    bench.view.claims.added(deleted(a_claim_for(pod)))
    if is_bound:
        bench.bound_unseen.add(pod.metadata.uid)
    await sweep(bench)
    assert bench.said.released_claims == []
    await bench.releases.look_for_lost_pods()
    await sweep(bench)
    assert bench.said.released_claims == ([] if is_bound else [("c", NAME)])


async def test_a_users_claim_of_a_pod_never_seen_is_released_when_its_binding_can_not_be_late(
    bench: Bench,
) -> None:
    """Until then the pod may be one without a node, which the agent cannot read."""
    bench.view.claims.added(a_claim_for(a_bound_pod()))
    for at in (0.0, PINNED_S, LOST_AFTER_S - 1):
        bench.clock.time = at
        await bench.releases.look_for_lost_pods()
        await sweep(bench)
        assert bench.said.released_claims == []
    bench.clock.time = LOST_AFTER_S
    await bench.releases.look_for_lost_pods()
    await sweep(bench)
    assert bench.said.released_claims == [("c", NAME)]


@pytest.mark.parametrize("left", ["nothing", "a folder of the kubelet", "a pod bound here"])
async def test_a_pod_that_was_prepared_and_went_unseen_is_released_at_once(
    bench: Bench, left: str
) -> None:
    """This happens after a loss of records, when the agent knows only the claim."""
    pod = a_bound_pod()
    claim = a_claim_for(pod)
    claim.status.conditions.append(Condition(type="Prepared", status="True"))
    bench.view.claims.added(claim)
    if left == "a folder of the kubelet":
        (bench.kubelet_pods / pod.metadata.uid).mkdir(parents=True)
    elif left == "a pod bound here":
        bench.bound_unseen.add(pod.metadata.uid)
    await bench.releases.look_for_lost_pods()
    await sweep(bench)
    assert bench.said.released_claims == ([("c", NAME)] if left == "nothing" else [])


async def test_a_claim_whose_container_was_refused_is_not_known_to_have_lost_its_pod(
    bench: Bench,
) -> None:
    claim = a_claim_for(a_bound_pod())
    claim.status.conditions.append(Condition(type="Prepared", status="False"))
    bench.view.claims.added(claim)
    await bench.releases.look_for_lost_pods()
    await sweep(bench)
    assert bench.said.released_claims == []


async def test_the_time_of_a_pod_never_seen_begins_anew_with_another_pod(bench: Bench) -> None:
    bench.view.claims.added(a_claim_for(a_bound_pod()))
    await bench.releases.look_for_lost_pods()
    bench.clock.time = LOST_AFTER_S
    bench.view.claims.modified(a_claim_for(a_bound_pod("pod-2", uid="another")))
    await bench.releases.look_for_lost_pods()
    await sweep(bench)
    assert bench.said.released_claims == []


async def test_a_lease_that_the_kubelet_never_recorded_is_dropped_after_a_while(
    bench: Bench,
) -> None:
    bench.prestart.allocate([SLOT_0])
    await sweep(bench)
    bench.clock.time = UNUSED_ALLOCATION_S - 1
    await sweep(bench)
    assert len(bench.node.checkpoint.state.slot_allocations) == 1
    bench.clock.time = UNUSED_ALLOCATION_S + 1
    await sweep(bench)
    assert bench.node.checkpoint.state.slot_allocations == {}
    assert bench.node.allocations.on_disk() == frozenset()


async def test_a_lease_of_a_time_that_is_yet_to_come_is_dropped_as_soon_as_any_other(
    bench: Bench,
) -> None:
    """The node's clock has gone back: the record has a time an hour from now."""
    bench.prestart.allocate([SLOT_0])
    checkpoint = bench.node.checkpoint
    ahead = {
        name: replace(x, allocated_at=3600.0)
        for name, x in checkpoint.state.slot_allocations.items()
    }
    checkpoint.commit(replace(checkpoint.state, slot_allocations=ahead))
    await sweep(bench)
    bench.clock.time = UNUSED_ALLOCATION_S + 1
    await sweep(bench)
    assert checkpoint.state.slot_allocations == {}


async def test_the_next_look_comes_as_soon_as_an_unused_lease_may_go(bench: Bench) -> None:
    nothing_due = bench.releases.rest_s()
    bench.prestart.allocate([SLOT_0])
    assert bench.releases.rest_s() <= nothing_due  # the lease is known from here on
    bench.clock.time = UNUSED_ALLOCATION_S - 3
    assert bench.releases.rest_s() == 3 < nothing_due
    bench.clock.time = UNUSED_ALLOCATION_S + 3  # it is kept because its pod waits for its image
    assert bench.releases.rest_s() == nothing_due


async def test_a_lease_that_waits_for_its_image_is_kept_however_long(bench: Bench) -> None:
    slot_allocation, _ = bench.prestart.allocate([SLOT_0])
    pod = a_bound_pod()
    bench.kubelet.holds(pod, SLOT_0, slot_allocation)
    (bench.kubelet_pods / pod.metadata.uid).mkdir(parents=True)
    await sweep(bench)
    bench.clock.time = 100 * UNUSED_ALLOCATION_S
    await sweep(bench)
    assert list(bench.node.checkpoint.state.slot_allocations) == [slot_allocation]


async def test_a_lease_of_a_pod_that_went_before_it_started_is_dropped_though_recorded(
    bench: Bench,
) -> None:
    slot_allocation, _ = bench.prestart.allocate([SLOT_0])
    bench.kubelet.holds(a_bound_pod(), SLOT_0, slot_allocation)
    await sweep(bench)
    bench.clock.time = UNUSED_ALLOCATION_S + 1
    await sweep(bench)
    assert bench.node.checkpoint.state.slot_allocations == {}
    assert bench.node.allocations.on_disk() == frozenset()


UUID = "0f5a3c1e-1111-4222-8333-444455556666"


async def a_vanished_pod(folder: Path, *, maps: str | None) -> tuple[Bench, Path]:
    """Delete a pod by force, leave one of its processes, and return the node and the process."""
    bench = await a_bench(folder, proc=folder / "proc")
    pod = a_bound_pod(uid=UUID)
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    await bench.start(pod, SLOT_0)
    delete(bench, pod)
    bench.kubelet.forgets(SLOT_0)
    process = folder / "proc" / "10"
    process.mkdir(parents=True)
    (process / "cgroup").write_text("0::/kubepods/burstable/odd/c\n")
    if maps is None:
        (process / "maps").mkdir()  # reading the process fails
    else:
        (process / "maps").write_text(maps)
    return bench, process


async def test_a_process_that_the_agent_may_not_look_into_keeps_the_devices_and_the_claim_says_why(
    tmp_path: Path,
) -> None:
    bench, process = await a_vanished_pod(tmp_path, maps=None)
    await sweep(bench)
    await sweep(bench)
    assert is_in_use(bench)
    assert bench.said.released_claims == []
    ((claim, reason, message),) = bench.said.kept  # reported once
    assert (claim, reason) == ("c", "ProcessesUnreadable")
    assert "PID 10" in message
    assert "CAP_SYS_PTRACE" in message
    (process / "maps").rmdir()
    await sweep(bench)
    assert bench.said.released_claims == [("c", NAME)]


async def test_a_process_in_the_pods_cgroup_keeps_the_devices_though_it_maps_nothing(
    tmp_path: Path,
) -> None:
    """A container with a whole device runs without the library, so it maps no page."""
    bench, process = await a_vanished_pod(tmp_path, maps="")
    (process / "cgroup").write_text(f"0::/kubepods/burstable/pod{UUID}/c\n")
    await sweep(bench)
    assert is_in_use(bench)
    assert bench.said.kept == []
    (process / "cgroup").unlink()
    await sweep(bench)
    assert not is_in_use(bench)


async def test_a_claim_that_was_made_again_is_not_released_while_what_it_replaced_is_in_use(
    bench: Bench,
) -> None:
    """Its pod's containers were granted on the former claim's account, and still end."""
    pod = await a_granted_pod(bench)
    (former,) = bench.view.claims.objects.values()
    metadata = former.metadata
    bench.view.claims.deleted(ObjectIdentity("default", metadata.name, metadata.uid))
    again = metadata.model_copy(update={"uid": "made-again"})
    bench.view.claims.added(former.model_copy(update={"metadata": again}))
    delete(bench, pod)
    await sweep(bench)
    assert bench.said.released_claims == []
    bench.kubelet.forgets(SLOT_0)
    await sweep(bench)
    assert not is_in_use(bench)
    assert bench.said.released_claims == [("c", NAME)]
