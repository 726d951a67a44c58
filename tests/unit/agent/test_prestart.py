"""PreStart, with records made by hand, refuses contradictions before it writes anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_bench import GPU_0, SLOT, Bench, Call, CopiesStand, a_bench, a_bound_pod, a_claim_for
from agent_node import T4_MIB
from builders import a_container, a_pod
from vgpu_api.core.pod import Pod
from vgpu_api.names import ANNOTATION_SLOTS_ADDED
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.kubelet.pod_resources import PodListing
from vgpu_nodeagent.state.node_view import nvidias_part


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await a_bench(tmp_path)


async def refusal(bench: Bench, pod: Pod, slot: str, *, wanted: bool = True) -> Why:
    with pytest.raises(Refused) as refused:
        await bench.start(pod, slot, wanted=wanted)
    return refused.value.reason


async def test_a_claim_for_this_very_pod_opens_the_allocation(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    slot_allocation = await bench.start(pod, "slot-0")
    assert bench.node.allocations.content(slot_allocation).state is PageState.GRANT
    assert bench.node.checkpoint.state.slot_allocations[slot_allocation].pod_uid == pod.metadata.uid


async def test_the_kubelet_is_asked_once_and_after_the_claim_was_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PodResources is rate-limited for the whole node, and its answer is stale after an await."""
    asked: list[str] = []
    listing = bench.kubelet.list

    async def read_for(pod: Pod) -> None:
        asked.append(pod.metadata.name)

    async def list_slots() -> PodListing:
        asked.append("kubelet")
        return await listing()

    monkeypatch.setattr(CopiesStand, "read_for", staticmethod(read_for))
    monkeypatch.setattr(type(bench.kubelet), "list", staticmethod(list_slots))
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    await bench.start(pod, "slot-0")
    assert asked == ["pod-1", "kubelet"]


async def test_a_container_that_the_claim_leaves_out_starts_and_sees_no_device(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each container has a slot, because the pod was created before the claim."""
    prepared: list[str] = []

    def report(claim: VGPUClaim, summary: str, **_: float) -> None:
        prepared.append(claim.metadata.name)

    monkeypatch.setattr(bench.said, "prepared", report, raising=False)
    both = [a_container(name, limits={SLOT: "1"}) for name in ("main", "web")]
    recorded = {ANNOTATION_SLOTS_ADDED: "main,web"}
    pod = a_pod(node="n1", containers=both, annotations=recorded)
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    other, _ = bench.prestart.allocate(["slot-1"])
    bench.kubelet.holds(pod, "slot-1", other, "web")
    bench.kubelet.containers["slot-1"] = "web"
    await bench.prestart.prepare(["slot-1"], call=Call())
    assert bench.node.allocations.content(other).devices == ()
    spec = bench.kubelet.path.parent / "cdi" / f"vgpu.dev-slot_{other}.json"
    (device,) = json.loads(spec.read_text())["devices"]
    assert device["containerEdits"] == {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [],
        "mounts": [],
    }
    assert prepared == []
    shown = await bench.start(pod, "slot-0")
    assert [limit.uuid for limit in bench.node.allocations.content(shown).devices] == [GPU_0]
    assert prepared == ["c"]
    bench.view.pods.deleted(ObjectIdentity("default", pod.metadata.name, pod.metadata.uid))
    bench.kubelet.forgets("slot-0")
    bench.kubelet.forgets("slot-1")
    await bench.releases.sweep()
    assert bench.node.allocations.on_disk() == frozenset()


async def test_a_claim_for_another_uid_under_the_same_name_is_refused(bench: Bench) -> None:
    """The test fails without the comparison of UIDs at PreStart."""
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod, uid="uid-of-its-predecessor"))
    assert await refusal(bench, pod, "slot-0") is Why.WRONG_POD
    assert bench.nothing_is_granted()


async def test_a_claim_with_a_value_of_a_later_version_starts_no_container_and_ends_none(
    bench: Bench,
) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    claim = a_claim_for(pod)
    bench.view.claims.added(claim)
    running = await bench.start(pod, "slot-0")
    raw = claim.to_wire()
    raw["spec"]["requests"][0]["corePolicy"] = "Lend"
    bench.view.claims.modified(nvidias_part(VGPUClaim.read(raw)))
    await bench.releases.sweep()
    assert bench.node.allocations.content(running).state is PageState.GRANT
    assert bench.said.released_claims == []
    with pytest.raises(Refused, match=r'spec.requests\[0\].corePolicy: "Lend"') as refused:
        await bench.prestart.prepare(["slot-0"], call=Call())
    assert refused.value.reason is Why.LATER_VERSION


async def test_an_allocation_that_nobody_could_report_as_released_is_not_granted(
    bench: Bench,
) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    claim = a_claim_for(pod)
    assert claim.status.allocation is not None
    nameless = claim.status.allocation.model_copy(update={"id": ""})
    status = claim.status.model_copy(update={"allocation": nameless})
    bench.view.claims.added(claim.model_copy(update={"status": status}))
    assert await refusal(bench, pod, "slot-0") is Why.NO_CLAIM
    bench.view.pods.modified(a_pod(pod.metadata.name, node="n1", phase="Failed"))
    await bench.releases.sweep()
    assert bench.said.released_claims == []


async def test_the_second_claim_that_overcommits_a_device_is_refused(bench: Bench) -> None:
    """The test fails without the sum over the agent's own grants at PreStart."""
    first, second = a_bound_pod("pod-1"), a_bound_pod("pod-2")
    for pod, slot, refused in ((first, "slot-0", False), (second, "slot-1", True)):
        bench.view.pods.added(pod)
        claim = a_claim_for(pod, memory_mib=T4_MIB // 2 + 1, name=f"c-{slot}")
        bench.view.claims.added(claim)
        if refused:
            assert await refusal(bench, pod, slot) is Why.OVER_CAPACITY
        else:
            await bench.start(pod, slot)
    assert list(bench.node.checkpoint.state.claim_allocations) == ["uid-of-c-slot-0"]


async def test_what_still_runs_counts_though_its_claim_was_freed_with_its_node(
    bench: Bench,
) -> None:
    """The node was deleted and registered again, so the operator has reallocated its devices."""
    first, second = a_bound_pod("pod-1"), a_bound_pod("pod-2")
    bench.view.pods.added(first)
    bench.view.claims.added(a_claim_for(first, memory_mib=T4_MIB // 2 + 1, name="c-1"))
    await bench.start(first, "slot-0")
    bench.view.claims.deleted(ObjectIdentity("default", "c-1", "uid-of-c-1"))
    bench.view.pods.deleted(ObjectIdentity("default", "pod-1", first.metadata.uid))
    await bench.releases.sweep()  # the kubelet still has its container
    bench.view.pods.added(second)
    bench.view.claims.added(a_claim_for(second, memory_mib=T4_MIB // 2 + 1, name="c-2"))
    assert await refusal(bench, second, "slot-1") is Why.OVER_CAPACITY
    assert list(bench.node.checkpoint.state.claim_allocations) == ["uid-of-c-1"]


async def test_a_call_that_nobody_waits_for_any_more_grants_nothing(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    assert await refusal(bench, pod, "slot-0", wanted=False) is Why.CALL_ENDED
    assert bench.nothing_is_granted()


async def test_an_agent_that_has_not_read_its_node_yet_refuses(bench: Bench) -> None:
    bench.view.synced = False
    assert await refusal(bench, a_bound_pod(), "slot-0") is Why.NOT_SYNCED


async def test_a_kubelet_checkpoint_that_is_cut_refuses(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    slot_allocation, _ = bench.prestart.allocate(["slot-0"])
    bench.kubelet.holds(pod, "slot-0", slot_allocation)
    text = bench.kubelet.path.read_text()
    bench.kubelet.path.write_text(text[: len(text) // 2])
    with pytest.raises(Refused, match=r"kubelet checkpoint .* is not JSON") as refused:
        await bench.prestart.prepare(["slot-0"], call=Call())
    assert refused.value.reason is Why.KUBELET_UNAVAILABLE
    assert bench.nothing_is_granted()


async def test_two_claims_for_one_pod_are_not_chosen_between(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod, name="a"))
    bench.view.claims.added(a_claim_for(pod, name="b"))
    assert await refusal(bench, pod, "slot-0") is Why.RECORDS_DISAGREE


async def test_a_lease_that_this_agent_never_gave_is_refused(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    bench.kubelet.holds(pod, "slot-0", "slot-0-unheard")
    with pytest.raises(Refused, match="slot-0-unheard, which this agent does not know"):
        await bench.prestart.prepare(["slot-0"], call=Call())
    assert not (bench.kubelet.path.parent / "slots").exists()


async def test_an_allocation_that_cannot_be_recorded_is_not_given(bench: Bench) -> None:
    (bench.kubelet.path.parent / ".slots.json.new").mkdir()
    with pytest.raises(Refused) as refused:
        bench.prestart.allocate(["slot-0"])
    assert refused.value.reason is Why.STORAGE_FAILED
    assert bench.node.allocations.on_disk() == frozenset()


async def test_a_grant_that_cannot_be_recorded_is_not_opened(bench: Bench) -> None:
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    slot_allocation, _ = bench.prestart.allocate(["slot-0"])
    bench.kubelet.holds(pod, "slot-0", slot_allocation)
    (bench.kubelet.path.parent / ".slots.json.new").mkdir()
    with pytest.raises(Refused) as refused:
        await bench.prestart.prepare(["slot-0"], call=Call())
    assert refused.value.reason is Why.STORAGE_FAILED
    assert bench.nothing_is_granted()
