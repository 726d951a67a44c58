"""Devices of init containers are released when they end and allocated again when they rerun."""

from __future__ import annotations

from typing import Any

import pytest

from builders import (
    a_claim,
    a_container,
    a_node,
    a_pod,
    a_request,
    allocation_id,
    an_allocated_device,
    an_allocation,
    use_of,
)
from replica import Replica
from vgpu_api.conditions import PREPARED, is_true
from vgpu_api.core import Pod
from vgpu_api.effective import Use
from vgpu_api.init_part import ENDED, InitRound, init_round
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import InitReleased, VGPUClaim
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation
from vgpu_operator.engine.claims.lifecycle import REFIT_S, init_devices_are_free
from vgpu_operator.engine.scheduling.refusal import Refusal

DEVICE_MIB = 16_384
INIT = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 12_000}
APP = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4_000}


def the_pod(name: str = "pod-1", *, node: str = "", version: int = 1) -> Pod:
    return a_pod(
        name,
        node=node,
        resource_version=version,
        init_containers=[a_container("prepare", limits=INIT)],
        containers=[a_container(limits=APP)],
    )


async def a_running_pod(replica: Replica) -> Pod:
    replica.device(memory_mib=DEVICE_MIB)
    pod = the_pod(node="node-1")
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    await replica.settle()
    prepared = {"type": "Prepared", "status": "True", "reason": "LimitsInPlace", "message": ""}
    kept = replica.api.claim(replica.claim_of(pod).metadata.name)["status"]["conditions"]
    report(replica, pod, conditions=[*kept, prepared])
    await replica.settle()
    return pod


def report(replica: Replica, pod: Pod, **fields: Any) -> None:
    """Report like the agent, by server-side apply, which keeps all other fields."""
    raw = replica.api.claim(replica.claim_of(pod).metadata.name)
    raw["status"].update(fields)
    replica.news.claim_changed(VGPUClaim.read(replica.api.put(VGPU_CLAIMS, raw)))


def ended(replica: Replica, pod: Pod, round_: InitRound | None = None) -> None:
    report(replica, pod, initReleased=named(replica, pod, round_), initWanted=None)


def wanted(replica: Replica, pod: Pod, round_: InitRound | None = None) -> None:
    report(replica, pod, initReleased=None, initWanted=named(replica, pod, round_))


def named(replica: Replica, pod: Pod, round_: InitRound | None) -> dict[str, Any]:
    it = round_ or init_round(replica.claim_of(pod).status.allocation)
    return {"allocationID": it.allocation_id, "round": it.number}


async def an_ended_init(replica: Replica) -> Pod:
    pod = await a_running_pod(replica)
    ended(replica, pod)
    await replica.settle()
    return pod


def requests_of(replica: Replica, pod: Pod) -> list[str]:
    return [device.request for device in replica.claim_of(pod).status.allocation.devices]


async def test_what_ended_init_containers_had_is_free_for_the_next_pod(replica: Replica) -> None:
    pod = await a_running_pod(replica)
    assert use_of(replica.ledger, "GPU-0") == Use(12_000, 0, 1)
    waiting = replica.offered("pod-2", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10_000})
    await replica.told()
    assert replica.claim_of(waiting).status.allocation is None
    before = replica.claim_of(pod).status
    ended(replica, pod)
    await replica.settle()
    after = replica.claim_of(pod).status
    assert requests_of(replica, pod) == ["main"]
    assert after.allocation.id == before.allocation.id
    assert (after.state, after.reserved_for) == ("Allocated", before.reserved_for)
    assert is_true(after.conditions, PREPARED)
    replica.offer(waiting)
    await replica.settle()
    assert replica.claim_of(waiting).status.allocation is not None
    assert use_of(replica.ledger, "GPU-0") == Use(14_000, 0, 2)


def a_meshed_pod(name: str, *, side: int, prepare: int, main: int) -> Pod:
    """Return a sidecar, an init container that runs beside it, and an app container."""

    def asking(mib: int) -> dict[str, int]:
        return {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}

    return a_pod(
        name,
        init_containers=[
            a_container("side", limits=asking(side), restart_policy="Always"),
            a_container("prepare", limits=asking(prepare)),
        ],
        containers=[a_container(limits=asking(main))],
    )


async def test_an_init_container_is_never_given_what_a_sidecar_before_it_uses(
    replica: Replica,
) -> None:
    """They need 12,000 MiB together, which do not fit a device of 10,000 MiB."""
    replica.device(memory_mib=10_000)
    pod = a_meshed_pod("pod-1", side=3_000, prepare=9_000, main=1_000)
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    refused = replica.offer(pod)
    assert isinstance(refused, Refusal)
    assert "CardInsufficientMemory" in refused.message


async def test_what_is_left_beside_a_sidecar_and_its_init_container_is_anothers(
    replica: Replica,
) -> None:
    """Of 10,000 MiB they use 3,000 + 6,000 at first and 3,000 + 1,000 afterwards."""
    replica.device(memory_mib=10_000)
    pod = a_meshed_pod("pod-1", side=3_000, prepare=6_000, main=1_000)
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    replica.offer(pod)
    await replica.settle()
    assert use_of(replica.ledger, "GPU-0") == Use(9_000, 0, 2)
    large, small = (
        replica.pod(f"{mib}", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib})
        for mib in (1_001, 1_000)
    )
    assert isinstance(replica.offer(large), Refusal)
    assert not isinstance(replica.offer(small), Refusal)
    ended(replica, pod)
    await replica.settle()
    assert use_of(replica.ledger, "GPU-0") == Use(5_000, 0, 3)


async def test_an_init_container_that_runs_again_needs_room_beside_its_sidecar(
    replica: Replica,
) -> None:
    replica.device(memory_mib=10_000)
    pod = a_meshed_pod("pod-1", side=3_000, prepare=6_000, main=1_000)
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    replica.offer(pod)
    await replica.settle()
    ended(replica, pod)
    await replica.settle()
    beside = replica.pod("pod-2", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2_000})
    assert not isinstance(replica.offer(beside), Refusal)
    await replica.settle()
    wanted(replica, pod)
    await replica.settle()
    assert requests_of(replica, pod) == ["side", "main"]
    assert use_of(replica.ledger, "GPU-0") == Use(6_000, 0, 3)


async def test_a_word_about_another_round_frees_nothing(replica: Replica) -> None:
    pod = await a_running_pod(replica)
    for other in (InitRound(allocation_id(99), 0), InitRound(allocation_id(1), 1)):
        ended(replica, pod, other)
        await replica.settle()
        assert requests_of(replica, pod) == ["prepare", "main"]
    assert replica.claim_of(pod).status.allocation.id == allocation_id(1)


async def test_a_condition_frees_nothing_whatever_its_message_says(replica: Replica) -> None:
    pod = await a_running_pod(replica)
    name = replica.claim_of(pod).status.allocation.id
    said = [
        {"type": type_, "status": "True", "reason": ENDED, "message": name}
        for type_ in ("InitReleased", "Released")
    ]
    report(replica, pod, conditions=said)
    await replica.settle()
    assert requests_of(replica, pod) == ["prepare", "main"]


async def test_what_is_wanted_again_after_its_round_is_not_taken_out_first(
    replica: Replica,
) -> None:
    pod = await a_running_pod(replica)
    report(
        replica,
        pod,
        initReleased=named(replica, pod, None),
        initWanted=named(replica, pod, None),
    )
    before = replica.claim_of(pod).status.allocation
    await replica.settle()
    after = replica.claim_of(pod).status.allocation
    assert after == before.model_copy(update={"init_round": 1})


async def test_a_late_word_about_the_first_round_does_not_free_the_second(replica: Replica) -> None:
    pod = await an_ended_init(replica)
    first = init_round(replica.claim_of(pod).status.allocation)
    wanted(replica, pod)
    await replica.settle()
    ended(replica, pod, first)
    await replica.settle()
    assert requests_of(replica, pod) == ["prepare", "main"]


async def test_init_containers_that_run_again_are_fitted_again_in_the_same_allocation(
    replica: Replica,
) -> None:
    pod = await an_ended_init(replica)
    before = replica.claim_of(pod).status.allocation
    wanted(replica, pod)
    await replica.settle()
    after = replica.claim_of(pod).status.allocation
    assert requests_of(replica, pod) == ["prepare", "main"]
    assert after.id == before.id
    assert after.init_round == before.init_round + 1
    assert use_of(replica.ledger, "GPU-0") == Use(12_000, 0, 1)


async def test_init_containers_that_run_again_get_devices_on_a_node_that_takes_no_new_pods(
    replica: Replica,
) -> None:
    pod = await an_ended_init(replica)
    replica.news.node_changed(a_node("node-1", unschedulable=True, resource_version=9))
    wanted(replica, pod)
    await replica.settle()
    assert requests_of(replica, pod) == ["prepare", "main"]


async def test_init_containers_that_run_again_wait_for_room_and_take_it(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = await an_ended_init(replica)
    told: list[str] = []
    monkeypatch.setattr(replica.recorder, "record", lambda _, **said: told.append(said["note"]))
    other = replica.offered("pod-2", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10_000})
    await replica.settle()
    wanted(replica, pod)
    await replica.told()
    assert requests_of(replica, pod) == ["main"]
    assert "its init containers cannot run again: 1/1 CardInsufficientMemory" in told
    replica.api.vanish(PODS, "pod-2")
    replica.news.pod_gone(other.metadata.uid)
    await replica.settle()
    replica.time += REFIT_S
    await replica.settle()
    assert requests_of(replica, pod) == ["prepare", "main"]
    assert use_of(replica.ledger, "GPU-0") == Use(12_000, 0, 1)


async def test_what_is_not_given_back_yet_only_gets_a_new_round(replica: Replica) -> None:
    """The kubelet reruns init containers whose devices are still in the allocation."""
    pod = await a_running_pod(replica)
    before = replica.claim_of(pod).status.allocation
    wanted(replica, pod)
    await replica.settle()
    after = replica.claim_of(pod).status.allocation
    assert after.devices == before.devices
    assert after.init_round == before.init_round + 1


async def test_a_claim_whose_init_containers_ended_is_released_as_any_other(
    replica: Replica,
) -> None:
    pod = await an_ended_init(replica)
    name = replica.claim_of(pod).status.allocation.id
    report(replica, pod, released={"allocationID": name})
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is None
    assert use_of(replica.ledger, "GPU-0") == Use()


async def test_a_new_leader_takes_the_devices_of_ended_init_containers_out_too(
    replica: Replica,
) -> None:
    pod = await a_running_pod(replica)
    replica.leading = False
    ended(replica, pod)
    successor = type(replica)(replica.api)
    successor.device(memory_mib=DEVICE_MIB)
    successor.news.claim_changed(replica.claim_of(pod))
    successor.news.pod_changed(the_pod(node="node-1", version=500))
    successor.engine.lead()
    await successor.settle()
    assert requests_of(replica, pod) == ["main"]
    assert use_of(successor.ledger, "GPU-0") == Use(4_000, 0, 1)


@pytest.mark.parametrize(
    ("mig", "free"), [(None, True), (MigAllocation(profile="1g.5gb", start=6, size=1), False)]
)
def test_an_instance_of_an_init_container_stays_until_the_pod_ends(mig: Any, free: bool) -> None:
    """Another claim could take its place, and rerun init containers would not fit."""
    device = an_allocated_device(request="prepare").model_copy(update={"mig": mig})
    allocation = an_allocation(device)
    claim = a_claim(requests=[a_request(name="prepare", phase="Init")], allocation=allocation)
    said = InitReleased(allocation_id=allocation.id, round=0)
    status = claim.status.model_copy(update={"init_released": said})
    assert init_devices_are_free(claim.model_copy(update={"status": status})) is free
