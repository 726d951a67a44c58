"""Rows of our survey of HAMi's issues whose moment only a test of the engine can hit."""

from __future__ import annotations

from typing import Any

from builders import a_container, a_pod
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_client.errors import ServerError
from vgpu_operator.engine.reservations import NEVER_ASKED_S
from vgpu_operator.extender.wire import BindRequest

QUARTER = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}
WHOLE = {"nvidia.com/gpu": 1}


def binding(pod: Any) -> BindRequest:
    return BindRequest("default", pod.metadata.name, pod.metadata.uid, "node-1")


async def test_row_1_a_node_is_not_locked_between_bind_and_allocate(replica: Any) -> None:
    """There: a pod that is bound and never allocated locks its node for five minutes.

    Here no agent ever says a word, and every pod that fits is bound all the same, at once.
    """
    replica.card()
    pods = [replica.pod(f"pod-{number}", limits=QUARTER) for number in range(4)]
    for pod in pods:
        assert await replica.binder.bind(binding(pod)) == ""
    assert replica.ledger.use_of("GPU-0").memory_mib == 4 * 4096


async def test_row_1_a_failed_bind_leaves_its_node_free_for_others(replica: Any) -> None:
    replica.card()
    stuck, other = replica.pod("stuck", limits=QUARTER), replica.pod("other", limits=QUARTER)
    replica.api.before = lambda verb, name: (
        ServerError("no", status=500) if (verb, name) == ("bind", "stuck") else None
    )
    assert await replica.binder.bind(binding(stuck)) != ""
    assert await replica.binder.bind(binding(other)) == ""


async def test_row_5_a_bind_that_failed_leaves_no_ghost(replica: Any) -> None:
    """There: the reservation in memory outlives a failed bind, and the cards stay idle.

    Here it expires, whatever becomes of its pod.
    """
    replica.card()
    pod = replica.pod(limits=WHOLE)
    replica.api.before = lambda verb, _: ServerError("no", status=500) if verb == "bind" else None
    assert await replica.binder.bind(binding(pod)) != ""
    replica.time += NEVER_ASKED_S
    await replica.settle()
    assert replica.ledger.use_of("GPU-0").memory_mib == 0
    next_one = replica.pod("next", limits=WHOLE)
    await replica.settle()
    assert replica.claim_of(next_one).status.allocation is not None


async def test_row_6_an_unreadable_record_frees_no_card(replica: Any) -> None:
    """There: a pod whose annotation cannot be parsed counts as using nothing.

    Here its cards count as full, to the operator that saw it and to one that starts on it.
    """
    replica.card()
    pod = replica.pod(limits=QUARTER)
    await replica.settle()
    raw = replica.api.claim(replica.claim_of(pod).metadata.name)
    raw["status"]["allocation"]["devices"][0]["memory"] = "some"
    ruined = replica.api.put(VGPU_CLAIMS, raw)
    replica.engine.intake.claim_unreadable(ruined["metadata"]["uid"], ruined)
    successor = type(replica)()
    successor.card()
    successor.engine.intake.claim_unreadable(ruined["metadata"]["uid"], ruined)
    for operator in (replica, successor):
        other = a_pod("other", containers=[a_container(limits=QUARTER)])
        operator.api.put(PODS, other.to_wire())
        consumer = operator.engine.intake.pod_changed(other)
        refusal = operator.engine.scheduler.reserve(consumer)
        assert "CardTimeSlicingExhausted" in refusal.message
