"""Pods that ran under HAMi when their node was taken over: they keep what its plugin gave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_bench import SLOT, Bench, Call, a_bench, a_bound_pod, a_claim_for
from builders import a_container, a_pod, allocation_id
from vgpu_api.core.pod import Pod
from vgpu_api.names import HAMI, LABEL_HELD_FOR
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.errors import Refused, Why

OF_HAMI = "GPU-0-3"
"""A device id as HAMi's plugin offers them."""
NOT_OURS = "container main was allocated by another device plugin"


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await a_bench(tmp_path)


def a_hamis_pod(phase: str = "Running", uid: str | None = None) -> Pod:
    containers = [a_container(limits={SLOT: "1"})]
    return a_pod(uid=uid, node="n1", containers=containers, phase=phase, admitted=False)


def a_held_claim(pod: Pod) -> VGPUClaim:
    claim = a_claim_for(pod)
    metadata = claim.metadata.model_copy(update={"labels": {LABEL_HELD_FOR: HAMI}})
    return claim.model_copy(update={"metadata": metadata})


def put(bench: Bench, pod: Pod, claim: VGPUClaim | None = None) -> None:
    """Show a pod whose container HAMi's device plugin gave its device."""
    bench.view.pods.added(pod)
    bench.kubelet.holds(pod, OF_HAMI, "")
    if claim is not None:
        bench.view.claims.added(claim)


async def refusal(bench: Bench) -> tuple[Why, str]:
    with pytest.raises(Refused) as refused:
        await bench.prestart.prepare([OF_HAMI], call=Call())
    return refused.value.reason, str(refused.value)


async def test_a_container_of_a_held_pod_starts_again_with_nothing_of_ours(bench: Bench) -> None:
    pod = a_hamis_pod()
    put(bench, pod, a_held_claim(pod))
    await bench.prestart.prepare([OF_HAMI], call=Call())
    assert bench.nothing_is_granted()
    assert bench.node.allocations.on_disk() == frozenset()


async def test_a_container_of_another_plugin_without_a_claim_is_refused(bench: Bench) -> None:
    put(bench, a_hamis_pod())
    assert await refusal(bench) == (Why.UNKNOWN_ALLOCATION, NOT_OURS)


async def test_a_claim_of_ours_lets_no_container_of_another_plugin_start(bench: Bench) -> None:
    """Another plugin would have given it a whole GPU, without a limit."""
    pod = a_hamis_pod()
    put(bench, pod, a_claim_for(pod))
    assert await refusal(bench) == (Why.UNKNOWN_ALLOCATION, NOT_OURS)


async def test_nor_does_the_label_of_a_held_claim_on_the_claim_of_an_admitted_pod(
    bench: Bench,
) -> None:
    """Whoever may edit claims may write the label; admission marks each pod that we serve."""
    pod = a_bound_pod()
    put(bench, pod, a_held_claim(pod))
    assert await refusal(bench) == (Why.UNKNOWN_ALLOCATION, NOT_OURS)


async def test_a_held_claim_for_another_pod_of_that_name_is_refused(bench: Bench) -> None:
    pod = a_hamis_pod()
    put(bench, pod, a_held_claim(a_hamis_pod(uid="its-predecessor")))
    assert await refusal(bench) == (Why.UNKNOWN_ALLOCATION, NOT_OURS)


async def test_it_is_released_when_it_has_ended(bench: Bench) -> None:
    pod = a_hamis_pod()
    put(bench, pod, a_held_claim(pod))
    await bench.releases.sweep()
    assert bench.said.released_claims == []
    bench.view.pods.modified(a_hamis_pod("Succeeded"))
    await bench.releases.sweep()
    assert bench.said.released_claims == [("c", allocation_id())]


async def test_one_that_was_force_deleted_is_released_once_the_kubelet_has_ended_it(
    bench: Bench,
) -> None:
    pod = a_hamis_pod()
    put(bench, pod, a_held_claim(pod))
    folder = bench.kubelet_pods / pod.metadata.uid
    folder.mkdir(parents=True)
    bench.view.pods.deleted(ObjectIdentity("default", pod.metadata.name, pod.metadata.uid))
    await bench.releases.sweep()
    assert bench.said.released_claims == []
    folder.rmdir()
    await bench.releases.sweep()
    assert bench.said.released_claims == [("c", allocation_id())]
