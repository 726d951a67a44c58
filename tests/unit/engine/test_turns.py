"""Refusals are reported in turn at a limited rate; those that wait for their turn cost nothing."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_container
from replica import Replica
from vgpu_operator.engine import engine as engine_module
from vgpu_operator.engine.claims.refusal_limiter import RefusalLimiter
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


def test_a_few_reasons_are_found_out_in_a_round_and_who_came_first_goes_first() -> None:
    turns = RefusalLimiter()
    found_out = [key for key in KEYS[:50] if turns.take(key) and turns.may_find_out(key)]
    now = 1.0
    while turns:
        now += 0.05
        found = [key for key in turns.next(now) if turns.take(key) and turns.may_find_out(key)]
        assert 0 < len(found) <= 2
        found_out += found
    assert found_out == KEYS[:50]


def test_a_turn_that_was_given_back_keeps_only_those_who_have_to_look_themselves() -> None:
    """Pods of a class whose reasons are known continue in the meantime."""
    turns = RefusalLimiter()
    for key in KEYS:
        turns.take(key)
    for key in turns.next(10.0):
        assert turns.take(key)
        turns.may_find_out(key)
    again = turns.next(20.0)
    assert again[:6] == KEYS[10:16]
    assert len(again) == 8
    assert len(turns) == len(KEYS) - 8 - 2 - 8


def test_who_leaves_has_no_turn_that_was_given_back() -> None:
    turns = RefusalLimiter()
    for key in KEYS[:3]:
        turns.take(key)
        turns.may_find_out(key)
    assert len(turns) == 1
    turns.leave(KEYS[2])
    assert not turns
    assert turns.next(10.0) == []


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
    await replica.settle()  # from now on all of them wait to be reported
    monkeypatch.setattr(engine_module, "reconcile", counted)
    for _ in range(10):
        replica.time += 0.1
        await replica.settle()
    told = len([verb for verb, _ in replica.api.log if verb.startswith("create")])
    assert told >= 50
    assert len(looked_at) <= 6 * told
