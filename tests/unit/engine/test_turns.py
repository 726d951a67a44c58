"""Refusals are told some a second, in turn; those that wait for their turn cost nothing."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_container
from replica import Replica
from vgpu_operator.engine import engine as engine_module
from vgpu_operator.engine.state import RefusalLimiter
from vgpu_operator.ledger import ClaimKey

KEYS = [ClaimKey("default", f"claim-{number:03}") for number in range(200)]


def test_turns_come_in_order_and_at_their_rate() -> None:
    turns = RefusalLimiter()
    taken = [key for key in KEYS if turns.take(key)]
    assert taken == KEYS[:8]
    told, now = list(taken), 1.0
    turns.next(now)
    while turns:
        now += 0.1
        told += [key for key in turns.next(now) if turns.take(key)]
    assert told[8:] == [key for key in KEYS if key not in told[:8] and key in told][:200]
    assert len(told) <= 8 + 8 + (now - 1.0) * 50 + 1


def test_a_turn_that_is_not_taken_keeps_nobody_waiting() -> None:
    turns = RefusalLimiter()
    for key in KEYS:
        turns.take(key)
    (first, *_) = turns.next(10.0)
    again = turns.next(20.0)
    assert again
    assert first not in again
    assert not turns.take(first)
    assert len(turns) == len(KEYS) - 8 - 2 * 8 + 1


def test_one_namespace_with_many_keeps_no_other_waiting() -> None:
    turns = RefusalLimiter()
    for key in KEYS:
        turns.take(key)
    late = ClaimKey("another", "claim")
    assert not turns.take(late)
    assert late in turns.next(10.0)


def test_who_leaves_takes_nobodys_turn() -> None:
    turns = RefusalLimiter()
    for key in KEYS[:20]:
        turns.take(key)
    for key in KEYS[8:19]:
        turns.leave(key)
    assert turns.next(10.0) == [KEYS[19]]
    assert not turns


async def test_a_thousand_that_wait_are_looked_at_only_when_they_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Replica()
    replica.device(memory_mib=1024)
    looked_at: list[Any] = []
    reconcile = engine_module.reconcile

    def counted(key: ClaimKey, state: Any) -> Any:
        looked_at.append(key)
        return reconcile(key, state)

    for number in range(1_000):
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048 + number}
        replica.offered(f"pod-{number}", containers=[a_container(limits=limits)])
    await replica.settle()
    replica.time += 2
    await replica.settle()  # from now on all of them want to be told
    monkeypatch.setattr(engine_module, "reconcile", counted)
    for _ in range(10):
        replica.time += 0.1
        await replica.settle()
    told = len([verb for verb, _ in replica.api.log if verb.startswith("create")])
    assert told >= 50
    assert len(looked_at) <= 6 * told
