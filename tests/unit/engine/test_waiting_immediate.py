"""Immediate claims have a queue of their own: priority, then age; a change ends every back-off."""

from __future__ import annotations

from typing import Any

from builders import a_claim, a_device, a_request
from vgpu_operator.engine.immediate import FIRST_BACKOFF_S, LAST_BACKOFF_S, ImmediateQueue

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")


def a_queue() -> ImmediateQueue:
    queue = ImmediateQueue()
    queue.put(A, priority=0, created="2026-01-01T00:00:02Z", generation=1)
    queue.put(B, priority=0, created="2026-01-01T00:00:01Z", generation=1)
    queue.put(C, priority=5, created="2026-01-01T00:00:03Z", generation=1)
    return queue


def test_the_most_important_is_first_then_the_oldest() -> None:
    assert a_queue().ready(0.0, changed=False) == [C, B, A]


def test_who_was_refused_waits_longer_each_time() -> None:
    queue = a_queue()
    now, waits = 0.0, []
    for _ in range(9):
        queue.refused(C, now)
        began = now
        while C not in queue.ready(now, changed=False):
            now += FIRST_BACKOFF_S / 2
        waits.append(now - began)
    assert waits[:3] == [FIRST_BACKOFF_S, 2 * FIRST_BACKOFF_S, 4 * FIRST_BACKOFF_S]
    assert waits[-1] == LAST_BACKOFF_S


def test_a_change_cuts_every_back_off_short() -> None:
    queue = a_queue()
    queue.refused(C, 0.0)
    assert queue.ready(0.0, changed=False) == [B, A]
    assert queue.ready(0.0, changed=True) == [C, B, A]


def test_a_claim_seen_again_keeps_its_back_off_and_a_new_spec_ends_it() -> None:
    queue = a_queue()
    queue.refused(C, 0.0)
    queue.put(C, priority=5, created="2026-01-01T00:00:03Z", generation=1)
    assert C not in queue.ready(0.0, changed=False)
    queue.put(C, priority=5, created="2026-01-01T00:00:03Z", generation=2)
    assert C in queue.ready(0.0, changed=False)


def test_who_was_served_is_not_asked_again() -> None:
    queue = a_queue()
    queue.drop(C)
    queue.refused(C, 0.0)
    assert queue.ready(100.0, changed=True) == [B, A]


async def test_a_recovered_card_serves_the_most_important_claim_at_once(replica: Any) -> None:
    replica.card(memory_mib=16384, healthy=False)
    for name, priority in (("low", 0), ("high", 9)):
        replica.claim(
            a_claim(
                name,
                requests=[a_request(memory="16Gi")],
                binding_mode="Immediate",
                scheduling_priority=priority,
            )
        )
    await replica.settle()
    replica.engine.intake.device_changed(a_device(memory_mib=16384, resource_version=2))
    await replica.settle()  # the time has not moved: no back-off is over
    assert "allocation" in replica.api.claim("high")["status"]
    assert "allocation" not in replica.api.claim("low")["status"]


async def test_a_claim_that_asks_for_less_is_decided_at_once(replica: Any) -> None:
    replica.card(memory_mib=16384)
    claim = a_claim("now", requests=[a_request(memory="20Gi")], binding_mode="Immediate")
    replica.claim(claim)
    await replica.settle()
    assert "allocation" not in replica.api.claim("now").get("status", {})
    smaller = replica.api.claim("now")
    smaller["spec"]["requests"][0]["memory"] = "8Gi"
    smaller["metadata"]["generation"] = 2
    replica.claim(type(claim).read(smaller))
    await replica.settle()
    assert "allocation" in replica.api.claim("now")["status"]
