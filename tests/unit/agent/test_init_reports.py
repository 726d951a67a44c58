"""The agent reports that init containers need their devices again, until it is recorded.

Programs read fields and people read conditions; each write applies all of both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from builders import a_claim, allocation_id, an_allocated_device, an_allocation
from set_clock import SetClock
from vgpu_api.init_part import ENDED, WANTED, InitRound
from vgpu_api.v1alpha1 import (
    Condition,
    InitReleased,
    InitWanted,
    Released,
    VGPUClaim,
    VGPUClaimStatus,
)
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state.node_view import NodeView

FIRST, SECOND = InitRound(allocation_id(), 0), InitRound(allocation_id(), 1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
STAMP = "2026-01-01T00:00:00.000000Z"


class Written:
    """An API server that keeps the last applied status."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}
        self.one = asyncio.Event()

    async def apply(self, _: Any, obj: dict[str, Any], **__: Any) -> dict[str, Any]:
        self.status = obj["status"]
        self.one.set()
        return obj


def the_claim(**status: Any) -> VGPUClaim:
    allocation = an_allocation(an_allocated_device(request="main"))
    status.setdefault("conditions", [])
    return a_claim("c", status=VGPUClaimStatus(allocation=allocation, **status))


async def applied(claim: VGPUClaim, speak: Callable[[Reports], None]) -> dict[str, Any]:
    """Return the status that the agent applies after all reports."""
    view, api = NodeView("node-1"), Written()
    view.claims.added(claim)
    into: Any = api
    reports = Reports(into, view, clock=SetClock(NOW.timestamp()))
    speak(reports)
    # This makes a write necessary.
    reports.prepared(claim, "limits are in place", took_s=0.1)
    task = asyncio.create_task(reports.run())
    await api.one.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return api.status


def condition(status: dict[str, Any], type_: str = "InitReleased") -> tuple[str, str]:
    (found,) = [c for c in status["conditions"] if c["type"] == type_]
    return found["status"], found["reason"]


def fields(status: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in status.items() if name != "conditions"}


def ended(round_: InitRound) -> dict[str, Any]:
    named = {"allocationID": round_.allocation_id, "round": round_.number, "time": STAMP}
    return {"initReleased": named}


def wanted(round_: InitRound) -> dict[str, Any]:
    return {"initWanted": {"allocationID": round_.allocation_id, "round": round_.number}}


async def test_an_end_is_reported_of_its_round() -> None:
    claim = the_claim()
    status = await applied(claim, lambda reports: reports.init_ended(claim, FIRST))
    assert fields(status) == ended(FIRST)
    assert condition(status) == ("True", ENDED)


async def test_an_end_does_not_withdraw_that_they_are_wanted_again_after_the_same_round() -> None:
    claim = the_claim()

    def speak(reports: Reports) -> None:
        reports.init_ended(claim, FIRST)
        reports.init_wanted(claim, FIRST)
        reports.init_ended(claim, FIRST)

    status = await applied(claim, speak)
    assert fields(status) == wanted(FIRST)
    assert condition(status) == ("False", WANTED)


async def test_the_end_of_the_next_round_is_reported() -> None:
    claim = the_claim()

    def speak(reports: Reports) -> None:
        reports.init_wanted(claim, FIRST)
        reports.init_ended(claim, SECOND)

    status = await applied(claim, speak)
    assert fields(status) == ended(SECOND)
    assert condition(status) == ("True", ENDED)


async def test_an_agent_that_was_restarted_does_not_withdraw_it_either() -> None:
    again = InitWanted(allocation_id=FIRST.allocation_id, round=0)
    said = Condition(type="InitReleased", status="False", reason=WANTED)
    claim = the_claim(init_wanted=again, conditions=[said])
    status = await applied(claim, lambda reports: reports.init_ended(claim, FIRST))
    assert fields(status) == wanted(FIRST)
    assert condition(status) == ("False", WANTED)


async def test_a_release_is_withdrawn_when_the_claim_is_granted_anew() -> None:
    said = Condition(type="Released", status="True", reason="ContainersGone")
    claim = the_claim(released=Released(allocation_id=allocation_id(7)), conditions=[said])
    status = await applied(claim, lambda reports: None)
    assert fields(status) == {}
    assert [c["type"] for c in status["conditions"]] == ["Prepared"]


async def test_the_set_of_the_agents_own_is_applied_in_full_and_nobody_elses() -> None:
    theirs = Condition(type="Allocated", status="True", reason="Allocated")
    early = InitReleased(allocation_id=FIRST.allocation_id, round=0, time="2025-12-31T00:00:00Z")
    claim = the_claim(init_released=early, conditions=[theirs])
    status = await applied(claim, lambda reports: reports.init_ended(claim, FIRST))
    assert status.keys() == {"conditions", "initReleased"}
    assert (
        status["initReleased"]["time"] == "2025-12-31T00:00:00Z"
    )  # the start of the condition, not its end
    assert {c["type"] for c in status["conditions"]} == {"InitReleased", "Prepared"}
