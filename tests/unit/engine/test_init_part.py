"""Init containers' cards: given back once they have ended, given anew when they run again."""

from __future__ import annotations

from typing import Any

import pytest

from builders import (
    a_claim,
    a_container,
    a_node,
    a_pod,
    a_request,
    an_allocated_device,
    an_allocation,
)
from vgpu_api.core import Pod
from vgpu_api.effective import Use
from vgpu_api.init_part import ENDED, WANTED, init_round
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import Condition, VGPUClaim
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation
from vgpu_operator.engine.writes import init_cards_are_free

CARD_MIB = 16_384
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


async def a_running_pod(replica: Any) -> Pod:
    replica.card(memory_mib=CARD_MIB)
    pod = the_pod(node="node-1")
    replica.api.put(PODS, pod.to_wire())
    replica.engine.intake.pod_changed(pod)
    await replica.settle()
    say(replica, pod, "Prepared", "True", "LimitsInPlace", "limits are in place")
    await replica.settle()
    return pod


def say(replica: Any, pod: Pod, type_: str, status: str, reason: str, message: str) -> None:
    """As the agent does it, by server-side apply: everything else stays."""
    raw = replica.api.claim(replica.claim_of(pod).metadata.name)
    kept = [c for c in raw["status"]["conditions"] if c["type"] != type_]
    said = {"type": type_, "status": status, "reason": reason, "message": message}
    raw["status"]["conditions"] = [*kept, said]
    replica.engine.intake.claim_changed(VGPUClaim.read(replica.api.put(VGPU_CLAIMS, raw)))


def say_of_init(replica: Any, pod: Pod, status: str, round_: str | None = None) -> None:
    named = round_ or init_round(replica.claim_of(pod).status.allocation)
    reason = ENDED if status == "True" else WANTED
    say(replica, pod, "InitReleased", status, reason, named)


async def an_ended_init(replica: Any) -> Pod:
    pod = await a_running_pod(replica)
    say_of_init(replica, pod, "True")
    await replica.settle()
    return pod


def requests_of(replica: Any, pod: Pod) -> list[str]:
    return [device.request for device in replica.claim_of(pod).status.allocation.devices]


async def test_what_ended_init_containers_had_is_free_for_the_next_pod(replica: Any) -> None:
    pod = await a_running_pod(replica)
    assert replica.ledger.use_of("GPU-0") == Use(12_000, 0, 1)
    waiting = replica.pod("pod-2", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10_000})
    await replica.settle()
    assert replica.claim_of(waiting).status.allocation is None
    before = replica.claim_of(pod).status
    say_of_init(replica, pod, "True")
    await replica.settle()
    after = replica.claim_of(pod).status
    assert requests_of(replica, pod) == ["main"]
    assert after.allocation.allocated_time == before.allocation.allocated_time
    assert (after.state, after.reserved_for) == ("InUse", before.reserved_for)
    assert replica.claim_of(waiting).status.allocation is not None
    assert replica.ledger.use_of("GPU-0") == Use(14_000, 0, 2)


async def test_a_word_about_another_round_frees_nothing(replica: Any) -> None:
    pod = await a_running_pod(replica)
    say_of_init(replica, pod, "True", "2026-01-01T00:00:00.000000Z")
    await replica.settle()
    assert requests_of(replica, pod) == ["prepare", "main"]


async def test_a_late_word_about_the_first_round_does_not_free_the_second(replica: Any) -> None:
    pod = await an_ended_init(replica)
    first = init_round(replica.claim_of(pod).status.allocation)
    say_of_init(replica, pod, "False")
    await replica.settle()
    say_of_init(replica, pod, "True", first)
    await replica.settle()
    assert requests_of(replica, pod) == ["prepare", "main"]


async def test_init_containers_that_run_again_are_fitted_again_in_the_same_allocation(
    replica: Any,
) -> None:
    pod = await an_ended_init(replica)
    before = replica.claim_of(pod).status.allocation
    say_of_init(replica, pod, "False")
    await replica.settle()
    after = replica.claim_of(pod).status.allocation
    assert requests_of(replica, pod) == ["prepare", "main"]
    assert after.allocated_time == before.allocated_time
    assert init_round(after) > init_round(before)
    assert replica.ledger.use_of("GPU-0") == Use(12_000, 0, 1)


async def test_init_containers_that_run_again_get_cards_on_a_node_that_takes_no_new_pods(
    replica: Any,
) -> None:
    pod = await an_ended_init(replica)
    replica.engine.intake.node_changed(a_node("node-1", unschedulable=True, resource_version=9))
    say_of_init(replica, pod, "False")
    await replica.settle()
    assert requests_of(replica, pod) == ["prepare", "main"]


async def test_init_containers_that_run_again_wait_for_room_and_take_it(
    replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = await an_ended_init(replica)
    told: list[str] = []
    monkeypatch.setattr(replica.recorder, "say", lambda **said: told.append(said["message"]))
    other = replica.pod("pod-2", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10_000})
    await replica.settle()
    say_of_init(replica, pod, "False")
    await replica.settle()
    assert requests_of(replica, pod) == ["main"]
    assert "its init containers cannot run again: 1/1 CardInsufficientMemory" in told
    replica.api.vanish(PODS, "pod-2")
    replica.engine.intake.pod_gone(other.metadata.uid)
    await replica.settle()
    assert requests_of(replica, pod) == ["prepare", "main"]
    assert replica.ledger.use_of("GPU-0") == Use(12_000, 0, 1)


async def test_what_is_not_given_back_yet_only_gets_a_new_round(replica: Any) -> None:
    """The kubelet runs them again before anybody took their cards out of the allocation."""
    pod = await a_running_pod(replica)
    before = replica.claim_of(pod).status.allocation
    say_of_init(replica, pod, "False")
    await replica.settle()
    after = replica.claim_of(pod).status.allocation
    assert after.devices == before.devices
    assert init_round(after) > init_round(before)


async def test_a_claim_whose_init_containers_ended_is_released_as_any_other(replica: Any) -> None:
    pod = await an_ended_init(replica)
    time = replica.claim_of(pod).status.allocation.allocated_time
    say(replica, pod, "Released", "True", "ContainersGone", time)
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is None
    assert replica.ledger.use_of("GPU-0") == Use()


async def test_a_new_leader_takes_the_cards_of_ended_init_containers_out_too(
    replica: Any,
) -> None:
    pod = await a_running_pod(replica)
    replica.leading = False
    say_of_init(replica, pod, "True")
    successor = type(replica)(replica.api)
    successor.card(memory_mib=CARD_MIB)
    successor.engine.intake.claim_changed(replica.claim_of(pod))
    successor.engine.intake.pod_changed(the_pod(node="node-1", version=500))
    successor.engine.tend_everything()
    await successor.settle()
    assert requests_of(replica, pod) == ["main"]
    assert successor.ledger.use_of("GPU-0") == Use(4_000, 0, 1)


@pytest.mark.parametrize(
    ("mig", "free"), [(None, True), (MigAllocation(profile="1g.5gb", start=6, size=1), False)]
)
def test_an_instance_of_an_init_container_stays_until_the_pod_ends(mig: Any, free: bool) -> None:
    """Its place may be another's when init containers run again, and then nothing would fit."""
    device = an_allocated_device(request="prepare").model_copy(update={"mig": mig})
    allocation = an_allocation(device)
    claim = a_claim(requests=[a_request(name="prepare", phase="Init")], allocation=allocation)
    said = Condition(
        type="InitReleased", status="True", reason=ENDED, message=init_round(allocation)
    )
    status = claim.status.model_copy(update={"conditions": [said]})
    assert init_cards_are_free(claim.model_copy(update={"status": status})) is free
