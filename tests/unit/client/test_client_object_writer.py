"""The object writer against a scripted API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from set_budget import Budget
from set_clock import SetClock
from vgpu_api.resources import GPU_DEVICES, PODS, VGPU_CLAIMS
from vgpu_client.errors import (
    AlreadyExists,
    ClientError,
    Conflict,
    Invalid,
    LoginError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unknown,
    Unreachable,
)
from vgpu_client.object_writer import (
    Apply,
    Bind,
    Conflicted,
    Create,
    Delete,
    Merge,
    ObjectWriter,
    Outcome,
    Patch,
    Rejected,
    Request,
    Target,
    Unresolved,
    Unsent,
    Write,
    Written,
)

OPERATIONS = [{"op": "add", "path": "/status/state", "value": "InUse"}]


class ScriptedApi:
    """Raises the error that the test sets, and otherwise writes; remembers all requests."""

    def __init__(self, *errors: ClientError) -> None:
        self.errors = list(errors)
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.gate: asyncio.Event | None = None
        self.version = 7

    async def json_patch(
        self, _: object, name: str, operations: Sequence[Mapping[str, Any]], **how: Any
    ) -> dict[str, Any]:
        return await self._done("patch", name, operations=operations, **how)

    async def merge_patch(
        self, _: object, name: str, changes: Mapping[str, Any], **how: Any
    ) -> dict[str, Any]:
        return await self._done("merge", name, changes=changes, **how)

    async def create(self, _: object, obj: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        return await self._done("create", obj["metadata"]["name"], obj=obj, **how)

    async def apply(self, _: object, obj: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        return await self._done("apply", obj["metadata"]["name"], obj=obj, **how)

    async def delete(self, _: object, name: str, **how: Any) -> dict[str, Any]:
        return await self._done("delete", name, **how)

    async def bind_pod(self, *, name: str, **how: Any) -> None:
        await self._done("bind", name, **how)

    async def _done(self, verb: str, name: str, **what: Any) -> dict[str, Any]:
        self.calls.append((verb, name, what))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.errors:
            raise self.errors.pop(0)
        self.version += 1
        return {"metadata": {"name": name, "resourceVersion": str(self.version)}}


def a_write(name: str = "c", *requests: Request, version: str = "7") -> Write:
    target = Target(VGPU_CLAIMS, "ns", name)
    return Write(target, requests or (Patch(OPERATIONS, "status"),), version)


async def outcome_of(*errors: ClientError) -> Outcome:
    return await ObjectWriter(ScriptedApi(*errors), clock=SetClock()).submit(a_write())


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Conflict("changed", status=409), Conflicted),
        (AlreadyExists("there", status=409), Conflicted),
        (NotFound("gone", status=404), Rejected),
        (Invalid("bad", status=422), Rejected),
        (ServerError("broken", status=500), Unresolved),
        (Unknown("no answer"), Unresolved),
        (Unreachable("nobody"), Unsent),
        (LoginError("no credentials"), Unsent),
    ],
)
async def test_every_failure_has_its_outcome(error: ClientError, outcome: type[Outcome]) -> None:
    assert isinstance(await outcome_of(error), outcome)


async def test_a_busy_server_is_asked_again() -> None:
    busy = [TooManyRequests("later", status=429) for _ in range(3)]
    assert isinstance(await outcome_of(*busy), Written)


async def test_a_server_that_stays_busy_has_not_written_and_may_write_later() -> None:
    busy = [TooManyRequests("later", status=429) for _ in range(9)]
    assert isinstance(await outcome_of(*busy), Unsent)


async def test_every_request_tests_the_version_that_the_one_before_made() -> None:
    api = ScriptedApi()
    step = Patch([{"op": "add", "path": "/metadata/labels/a", "value": "b"}])
    status = Patch(OPERATIONS, "status")
    assert isinstance(await ObjectWriter(api).submit(a_write("c", step, status, step)), Written)
    assert [(what["subresource"], what["operations"][0]["value"]) for _, _, what in api.calls] == [
        (None, "7"),
        ("status", "8"),
        (None, "9"),
    ]
    assert all(
        (what["operations"][0]["op"], what["operations"][0]["path"])
        == ("test", "/metadata/resourceVersion")
        for _, _, what in api.calls
    )


async def test_what_was_just_created_is_patched_at_the_version_that_it_got() -> None:
    api = ScriptedApi()
    create = Create({"metadata": {"name": "c", "namespace": "ns"}})
    write = a_write("c", create, Patch(OPERATIONS, "status"), version="")
    assert isinstance(await ObjectWriter(api).submit(write), Written)
    assert [verb for verb, _, _ in api.calls] == ["create", "patch"]
    assert api.calls[1][2]["operations"][0]["value"] == "8"


async def test_the_first_request_that_fails_ends_a_write() -> None:
    api = ScriptedApi(Conflict("changed", status=409))
    step = Patch([{"op": "add", "path": "/metadata/labels/a", "value": "b"}])
    outcome = await ObjectWriter(api).submit(a_write("c", step, Patch(OPERATIONS, "status")))
    assert isinstance(outcome, Conflicted)
    assert len(api.calls) == 1


async def test_every_kind_of_request_says_what_it_must() -> None:
    api = ScriptedApi()
    writer = ObjectWriter(api, timeout_s=4)
    pod = Target(PODS, "ns", "p")
    device = Target(GPU_DEVICES, None, "gpu-0")
    obj = {"metadata": {"name": "gpu-0"}}
    for write in (
        Write(pod, (Merge({"metadata": {"uid": "u"}}, "status"),)),
        Write(pod, (Bind("u", "node-1", {"a": "b"}),)),
        Write(device, (Apply(obj, "operator", "status"),)),
        a_write("c", Delete("uid-of-c"), version="9"),
    ):
        assert isinstance(await writer.submit(write), Written)
    merge, bind, apply, delete = api.calls
    assert merge == ("merge", "p", {"changes": {"metadata": {"uid": "u"}}, "namespace": "ns",
                                    "subresource": "status", "timeout_s": 4})  # fmt: skip
    assert bind == ("bind", "p", {"namespace": "ns", "uid": "u", "node": "node-1",
                                  "annotations": {"a": "b"}, "timeout_s": 4})  # fmt: skip
    assert apply == ("apply", "gpu-0", {"obj": obj, "field_manager": "operator", "force": True,
                                        "subresource": "status", "timeout_s": 4})  # fmt: skip
    assert delete == ("delete", "c", {"namespace": "ns", "uid": "uid-of-c",
                                      "resource_version": "9", "timeout_s": 4})  # fmt: skip


async def test_no_more_requests_are_under_way_than_allowed() -> None:
    api = ScriptedApi()
    writer = ObjectWriter(api, in_flight=3)
    for number in range(20):
        writer.submit(a_write(f"c{number}"))
    await writer.drain()
    assert len(api.calls) == 20
    assert api.most_at_once == 3


async def test_writes_to_one_object_go_one_after_the_other() -> None:
    api = ScriptedApi()
    writer = ObjectWriter(api)
    outcomes = await asyncio.gather(*(writer.submit(a_write()) for _ in range(4)))
    assert all(isinstance(outcome, Written) for outcome in outcomes)
    assert api.most_at_once == 1


async def test_nothing_is_sent_that_could_outlive_the_lease() -> None:
    api = ScriptedApi()
    writer = ObjectWriter(api, timeout_s=10, budget=Budget(3.0, 0.1, -1.0))
    outcomes: Sequence[Outcome] = [await writer.submit(a_write()) for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [Written, Unsent, Unsent]
    assert [what["timeout_s"] for _, _, what in api.calls] == [3.0]


async def test_draining_waits_for_what_is_under_way() -> None:
    api = ScriptedApi()
    api.gate = asyncio.Event()
    writer = ObjectWriter(api)
    writing = writer.submit(a_write())
    draining = asyncio.ensure_future(writer.drain())
    await asyncio.sleep(0)
    assert writer.pending == 1
    assert not draining.done()
    api.gate.set()
    await draining
    assert isinstance(writing.result(), Written)
    assert writer.pending == 0
