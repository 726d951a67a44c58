"""The status writer against an API that is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from vgpu_api.resources import VGPU_CLAIMS
from vgpu_client.errors import (
    ClientError,
    Conflict,
    Invalid,
    ServerError,
    TooManyRequests,
    Unknown,
    Unreachable,
)
from vgpu_client.status_writer import (
    Conflicted,
    Outcome,
    Rejected,
    StatusWrite,
    StatusWriter,
    Unresolved,
    Unsent,
    Written,
)


class ScriptedApi:
    """Raises what it is told to, and otherwise writes; remembers what was asked of it."""

    def __init__(self, *errors: ClientError) -> None:
        self.errors = list(errors)
        self.patches: list[tuple[str, str | None, list[dict[str, Any]]]] = []
        self.timeouts: list[float] = []
        self.at_once = 0
        self.most_at_once = 0
        self.gate: asyncio.Event | None = None

    async def json_patch(
        self,
        resource: object,
        name: str,
        operations: list[dict[str, Any]],
        *,
        namespace: str | None,
        subresource: str | None,
        timeout_s: float,
    ) -> dict[str, Any]:
        self.patches.append((name, subresource, operations))
        self.timeouts.append(timeout_s)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.errors:
            raise self.errors.pop(0)
        version = int(operations[0]["value"]) + 1
        return {"metadata": {"name": name, "resourceVersion": str(version)}}


def a_write(name: str = "c", **more: Any) -> StatusWrite:
    operations = [{"op": "add", "path": "/status/state", "value": "InUse"}]
    return StatusWrite(
        namespace="ns", name=name, resource_version="7", **{"status": operations, **more}
    )


async def no_wait(seconds: float) -> None:
    pass


async def outcome_of(*errors: ClientError) -> Outcome:
    return await StatusWriter(ScriptedApi(*errors), VGPU_CLAIMS, sleep=no_wait).submit(a_write())


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Conflict("changed", status=409), Conflicted),
        (Invalid("bad", status=422), Rejected),
        (ServerError("broken", status=500), Unresolved),
        (Unknown("no answer"), Unresolved),
        (Unreachable("nobody"), Unsent),
    ],
)
async def test_every_failure_has_its_outcome(error: ClientError, outcome: type[Outcome]) -> None:
    assert isinstance(await outcome_of(error), outcome)


async def test_a_busy_server_is_asked_again() -> None:
    busy = [TooManyRequests("later", status=429) for _ in range(3)]
    assert isinstance(await outcome_of(*busy), Written)


async def test_a_server_that_stays_busy_has_not_written() -> None:
    busy = [TooManyRequests("later", status=429) for _ in range(9)]
    assert isinstance(await outcome_of(*busy), Rejected)


async def test_every_part_tests_the_version_that_the_part_before_made() -> None:
    api = ScriptedApi()
    step = [{"op": "add", "path": "/metadata/labels/a", "value": "b"}]
    outcome = await StatusWriter(api, VGPU_CLAIMS).submit(a_write(before=step, after=step))
    assert isinstance(outcome, Written)
    assert [(subresource, patch[0]["value"]) for _, subresource, patch in api.patches] == [
        (None, "7"),
        ("status", "8"),
        (None, "9"),
    ]
    assert all(
        (patch[0]["op"], patch[0]["path"]) == ("test", "/metadata/resourceVersion")
        for _, _, patch in api.patches
    )


async def test_a_status_is_not_written_when_what_must_come_before_was_not() -> None:
    api = ScriptedApi(Conflict("changed", status=409))
    step = [{"op": "add", "path": "/metadata/labels/a", "value": "b"}]
    outcome = await StatusWriter(api, VGPU_CLAIMS).submit(a_write(before=step))
    assert isinstance(outcome, Conflicted)
    assert len(api.patches) == 1


async def test_no_more_requests_are_under_way_than_allowed() -> None:
    api = ScriptedApi()
    writer = StatusWriter(api, VGPU_CLAIMS, in_flight=3)
    for number in range(20):
        writer.submit(a_write(f"c{number}"))
    await writer.close()
    assert len(api.patches) == 20
    assert api.most_at_once == 3


async def test_writes_to_one_object_go_one_after_the_other() -> None:
    api = ScriptedApi()
    writer = StatusWriter(api, VGPU_CLAIMS)
    outcomes = await asyncio.gather(*(writer.submit(a_write()) for _ in range(4)))
    assert all(isinstance(outcome, Written) for outcome in outcomes)
    assert api.most_at_once == 1


async def test_nothing_is_sent_that_could_outlive_the_lease() -> None:
    api = ScriptedApi()
    budget: list[float] = [3.0, 0.1, -1.0]
    writer = StatusWriter(api, VGPU_CLAIMS, timeout_s=10, budget_s=lambda: budget.pop(0))
    outcomes: Sequence[Outcome] = [await writer.submit(a_write()) for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [Written, Unsent, Unsent]
    assert api.timeouts == [3.0]


async def test_closing_waits_for_what_is_under_way_and_takes_nothing_more() -> None:
    api = ScriptedApi()
    api.gate = asyncio.Event()
    writer = StatusWriter(api, VGPU_CLAIMS)
    writing = writer.submit(a_write())
    closing = asyncio.ensure_future(writer.close())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="closed"):
        writer.submit(a_write("other"))
    assert not closing.done()
    api.gate.set()
    await closing
    assert isinstance(writing.result(), Written)
