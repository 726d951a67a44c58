"""What the agent says of a claim's init containers: that they are wanted again is never unsaid."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from builders import a_claim, an_allocated_device, an_allocation
from vgpu_api.init_part import ENDED, WANTED
from vgpu_api.v1alpha1 import Condition, VGPUClaim, VGPUClaimStatus
from vgpu_nodeagent.node_view import NodeView
from vgpu_nodeagent.reports import Reports

FIRST, SECOND = "2026-01-01T00:00:00.000000Z", "2026-01-01T00:01:00.000000Z"


class Written:
    """An API server that remembers the last conditions that were applied."""

    def __init__(self) -> None:
        self.conditions: list[dict[str, Any]] = []
        self.one = asyncio.Event()

    async def apply(self, _: Any, obj: dict[str, Any], **__: Any) -> dict[str, Any]:
        self.conditions = obj["status"]["conditions"]
        self.one.set()
        return obj


def the_claim(*said: Condition) -> VGPUClaim:
    allocation = an_allocation(an_allocated_device(request="main"), allocated_time=FIRST)
    return a_claim("c", status=VGPUClaimStatus(allocation=allocation, conditions=list(said)))


async def last_word(claim: VGPUClaim, speak: Callable[[Reports], None]) -> tuple[str, str, str]:
    """Status, reason and round of the condition after all that was said."""
    view, api = NodeView("node-1"), Written()
    view.claims.added(claim)
    into: Any = api
    reports = Reports(into, view)
    speak(reports)
    reports.prepared(claim, "limits are in place")  # so that something is written in any case
    task = asyncio.create_task(reports.run())
    await api.one.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    (found,) = [c for c in api.conditions if c["type"] == "InitReleased"]
    return found["status"], found["reason"], found["message"]


async def test_an_end_is_said_of_its_round() -> None:
    claim = the_claim()
    said = await last_word(claim, lambda reports: reports.init_ended(claim, FIRST))
    assert said == ("True", ENDED, FIRST)


async def test_an_end_does_not_unsay_that_they_are_wanted_again_after_the_same_round() -> None:
    claim = the_claim()

    def speak(reports: Reports) -> None:
        reports.init_ended(claim, FIRST)
        reports.init_wanted(claim, FIRST)
        reports.init_ended(claim, FIRST)

    assert await last_word(claim, speak) == ("False", WANTED, FIRST)


async def test_the_end_of_the_next_round_is_said() -> None:
    claim = the_claim()

    def speak(reports: Reports) -> None:
        reports.init_wanted(claim, FIRST)
        reports.init_ended(claim, SECOND)

    assert await last_word(claim, speak) == ("True", ENDED, SECOND)


async def test_an_agent_that_was_restarted_does_not_unsay_it_either() -> None:
    wanted = Condition(type="InitReleased", status="False", reason=WANTED, message=FIRST)
    claim = the_claim(wanted)
    said = await last_word(claim, lambda reports: reports.init_ended(claim, FIRST))
    assert said == ("False", WANTED, FIRST)
