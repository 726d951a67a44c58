"""A reflector's requests to the server, its waits, and its other notifications."""

from __future__ import annotations

import asyncio
import copy
import gc
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from set_clock import SetClock
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_client.errors import DataRestored, Gone, ServerError, Unreachable
from vgpu_client.reads import Listing
from vgpu_client.reflector import ObjectIdentity, Reflector, ReflectorTimes, Scope

TIMES = ReflectorTimes(watch_s=100.0, inactivity_s=7.0, first_retry_s=1.0, last_retry_s=6.0)


class Script:
    """A server that follows a script; at its end, streams stay open and silent."""

    def __init__(self, lists: list[Any], streams: list[list[Any]] = ()) -> None:
        self.lists, self.streams = list(lists), list(streams)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.at_its_end = asyncio.Event()

    async def list(self, resource: Any, **selection: Any) -> Listing:
        each = selection.pop("each")
        self.asked.append((f"list {resource.plural}", selection))
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return Listing(
            [each(copy.deepcopy(item)) for item in answer.items], answer.resource_version
        )

    async def watch(self, resource: Any, **selection: Any) -> AsyncGenerator[dict[str, Any], None]:
        self.asked.append((f"watch {resource.plural}", selection))
        if not self.streams:
            self.at_its_end.set()
            await asyncio.Event().wait()
        for event in self.streams.pop(0):
            if isinstance(event, Exception):
                raise event
            if callable(event):
                event()
            else:
                yield event


class Told:
    """A sink that records what is delivered."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def added(self, obj: Any) -> None:
        self.lines.append(f"added {obj}")

    def modified(self, obj: Any) -> None:
        self.lines.append(f"modified {obj}")

    def deleted(self, identity: ObjectIdentity) -> None:
        how = "seen" if identity.was_seen else "missed"
        self.lines.append(f"deleted {identity.namespace}/{identity.name} {identity.uid} {how}")

    def unreadable(self, identity: ObjectIdentity, raw: Any, error: Exception) -> None:
        place = f"{identity.namespace}/{identity.name}"
        self.lines.append(f"unreadable {place} {identity.uid}: {error} ({raw['spec']})")


def an_object(
    name: str, version: int, uid: str = "u", spec: str = "", namespace: str | None = "ns"
):
    metadata = {"name": name, "uid": uid, "resourceVersion": str(version)}
    if namespace is not None:
        metadata["namespace"] = namespace
    return {"metadata": metadata, "spec": spec}


def a_list(*objects: dict[str, Any], version: int = 10) -> Listing:
    return Listing(list(objects), str(version))


def an_event(kind: str, *args: Any, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "object": an_object(*args, **fields)}


def decode(raw: dict[str, Any]) -> str:
    if raw["spec"] == "bad":
        raise ValueError("cannot be read")
    return f"{raw['metadata']['name']} at {raw['metadata']['resourceVersion']}"


class Noting(Reflector[str]):
    """A reflector that records its lists and its reasons for listing again."""

    def __init__(self, run: Run, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self._run = run

    def restarted(self, reason: str) -> None:
        self._run.restarts.append(reason)

    def listed(self, version: int, uids: Iterable[str]) -> None:
        self._run.lists.append((version, sorted(uids), len(self._run.told.lines)))


class Run:
    """A reflector that has followed a script to its end."""

    def __init__(self, script: Script, *, spread: float = 1.0, **fields: Any) -> None:
        self.script, self.told = script, Told()
        clock = SetClock(spread=spread)
        self.waits = clock.slept
        self.restarts: list[str] = []
        self.lists: list[tuple[int, list[str], int]] = []  # version, UIDs, lines before it
        self.reflector = Noting(
            self,
            script,  # type: ignore[arg-type]
            VGPU_CLAIMS,
            self.told,
            **{"decode": decode, "times": replace(TIMES, clock=clock), **fields},
        )

    async def to_the_end(self, then: Callable[[], Any] | None = None) -> Run:
        running = asyncio.ensure_future(self.reflector.run())
        at_its_end = asyncio.ensure_future(self.script.at_its_end.wait())
        await asyncio.wait({running, at_its_end}, return_when=asyncio.FIRST_COMPLETED)
        if then is not None:
            async with asyncio.timeout(5):
                await then()
        at_its_end.cancel()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return self


async def test_list_and_stream_are_of_the_same_kind_namespace_and_selectors() -> None:
    scope = Scope(namespace="ns", label_selector="a=b", field_selector="c=d")
    run = await Run(Script([a_list(version=41)]), scope=scope, spread=0.5).to_the_end()
    selection = {"namespace": "ns", "label_selector": "a=b", "field_selector": "c=d"}
    assert run.script.asked == [
        ("list vgpuclaims", selection),
        (
            "watch vgpuclaims",
            {**selection, "resource_version": "41", "timeout_s": 90.0, "inactivity_s": 7.0},
        ),
    ]


async def test_a_stream_that_ended_properly_is_taken_up_where_it_was_without_waiting() -> None:
    streams = [[an_event("ADDED", "a", 12)], [an_event("BOOKMARK", "", 15)]]
    run = await Run(Script([a_list()], streams)).to_the_end()
    asked = [(verb, selection.get("resource_version")) for verb, selection in run.script.asked]
    assert asked == [
        ("list vgpuclaims", None),
        ("watch vgpuclaims", "10"),
        ("watch vgpuclaims", "12"),
        ("watch vgpuclaims", "15"),
    ]
    assert run.told.lines == ["added a at 12"]
    assert (run.waits, run.restarts) == ([], [])


async def test_streams_that_end_without_a_word_are_opened_ever_more_slowly_up_to_a_limit() -> None:
    run = await Run(Script([a_list()], [[]] * 5)).to_the_end()
    assert run.waits == [1.0, 2.0, 4.0, 6.0, 6.0]
    assert run.restarts == []


async def test_waits_are_spread_over_their_second_half() -> None:
    run = await Run(Script([a_list()], [[]] * 3), spread=0.0).to_the_end()
    assert run.waits == [0.5, 1.0, 2.0]


async def test_waits_never_grow_beyond_the_limit_however_often_it_fails() -> None:
    run = await Run(Script([a_list()], [[]] * 1_100)).to_the_end()
    assert run.waits[-1] == 6.0


async def test_a_word_from_the_server_ends_the_row_of_failures() -> None:
    streams = [[], [], [an_event("BOOKMARK", "", 11)], []]
    run = await Run(Script([a_list()], streams)).to_the_end()
    assert run.waits == [1.0, 2.0, 1.0]


async def test_lists_that_fail_are_tried_again_and_told_as_a_broken_stream() -> None:
    refused = ServerError("busy", status=503)
    run = await Run(Script([refused, refused, a_list(an_object("a", 3))])).to_the_end()
    assert run.waits == [1.0, 2.0]
    assert run.restarts == ["broken", "broken"]
    assert run.told.lines == ["added a at 3"]


async def test_a_history_that_is_gone_is_told_as_such() -> None:
    gone = Gone("too old", status=410)
    run = await Run(
        Script([a_list(), a_list(an_object("a", 20), version=20)], [[gone]])
    ).to_the_end()
    assert run.restarts == ["gone"]
    assert run.told.lines == ["added a at 20"]
    assert run.script.asked[-1][1]["resource_version"] == "20"


async def test_a_version_before_the_streams_beginning_ends_it_for_data_were_restored() -> None:
    streams = [[an_event("ADDED", "a", 12), an_event("MODIFIED", "a", 9)]]
    run = Run(Script([a_list()], streams))
    with pytest.raises(DataRestored, match="vgpuclaims: the API server is at version 9, and was"):
        await run.reflector.run()
    assert run.told.lines == ["added a at 12"]


async def test_a_list_of_an_earlier_version_ends_it_for_data_were_restored() -> None:
    lists = [a_list(an_object("a", 8)), a_list(version=9)]
    run = Run(Script(lists, [[Gone("", status=410)]]))
    with pytest.raises(DataRestored, match="is at version 9, and was at 10: a backup"):
        await run.reflector.run()
    assert run.told.lines == ["added a at 8"]


@pytest.mark.parametrize(
    ("restored", "found"),
    [
        pytest.param(
            an_object("a", 6), "ns/a is at version 6, and was at 8", id="an earlier version"
        ),
        pytest.param(
            an_object("b", 9, uid="v"), "ns/b is at version 9, and was deleted", id="a deleted one"
        ),
        pytest.param(
            an_object("a", 7, uid="former"), "ns/a is at version 7, and was", id="a former namesake"
        ),
    ],
)
async def test_an_object_older_than_what_was_delivered_ends_it_though_the_list_is_newer(
    restored: dict[str, Any], found: str
) -> None:
    """`etcdutl snapshot restore --bump-revision`: lists work, objects have their old versions."""
    lists = [a_list(an_object("a", 8)), a_list(restored, version=1_000_000_006)]
    run = Run(Script(lists, [[an_event("DELETED", "b", 10, uid="v"), Gone("", status=410)]]))
    with pytest.raises(DataRestored, match=f"vgpuclaims: {found}.*: a backup"):
        async with asyncio.timeout(5):
            await run.reflector.run()
    assert run.told.lines == ["added a at 8"]


async def test_objects_written_after_the_last_event_are_no_sign_of_a_restore() -> None:
    after = a_list(an_object("a", 11), an_object("b", 12, uid="v"), version=1_000_000_006)
    run = await Run(
        Script([a_list(an_object("a", 8)), after], [[Gone("", status=410)]])
    ).to_the_end()
    assert run.told.lines == ["added a at 8", "modified a at 11", "added b at 12"]


async def test_old_versions_in_the_list_of_a_cache_that_is_behind_are_no_sign_of_a_restore() -> (
    None
):
    behind, now = a_list(an_object("a", 5), version=9), a_list(an_object("a", 10), version=10)
    streams = [[an_event("MODIFIED", "a", 10), Unreachable("")]]
    script = Script([a_list(an_object("a", 5), version=9), behind, now], streams)
    run = await Run(script, scope=Scope(from_cache=True)).to_the_end()
    assert run.told.lines == ["added a at 5", "modified a at 10"]


async def test_of_a_list_only_what_is_new_is_decoded() -> None:
    decoded: list[str] = []

    def noted(raw: dict[str, Any]) -> str:
        decoded.append(raw["metadata"]["name"])
        return decode(raw)

    before = a_list(an_object("a", 1), an_object("b", 2))
    after = a_list(an_object("a", 1), an_object("b", 12), version=12)
    await Run(Script([before, after], [[Gone("", status=410)]]), decode=noted).to_the_end()
    assert decoded == ["a", "b", "b"]


async def test_an_event_that_comes_twice_is_told_once() -> None:
    event = an_event("ADDED", "a", 12)
    earlier, at_the_lists_version = an_event("ADDED", "b", 11), an_event("ADDED", "c", 10)
    streams = [[event, event, earlier, at_the_lists_version]]
    run = await Run(Script([a_list()], streams)).to_the_end()
    assert run.told.lines == ["added a at 12"]
    assert run.restarts == []


async def test_a_list_tells_what_is_gone_first_and_of_the_rest_only_what_changed() -> None:
    before = a_list(an_object("a", 1), an_object("b", 2), an_object("c", 3, uid="old"))
    after = a_list(an_object("b", 2), an_object("c", 13, uid="new"), an_object("d", 14), version=15)
    run = await Run(Script([before, after], [[Gone("", status=410)]])).to_the_end()
    assert run.told.lines[3:] == [
        "deleted ns/a u missed",
        "deleted ns/c old missed",
        "added c at 13",
        "added d at 14",
    ]


async def test_a_deletion_that_the_stream_tells_was_seen_and_one_of_a_stranger_is_not_told() -> (
    None
):
    streams = [[an_event("DELETED", "a", 12), an_event("DELETED", "b", 13)]]
    run = await Run(Script([a_list(an_object("a", 1))], streams)).to_the_end()
    assert run.told.lines == ["added a at 1", "deleted ns/a u seen"]


async def test_another_object_under_the_same_name_is_a_deletion_and_an_addition() -> None:
    streams = [[an_event("MODIFIED", "a", 12, uid="new")]]
    run = await Run(Script([a_list(an_object("a", 1, uid="old"))], streams)).to_the_end()
    assert run.told.lines == ["added a at 1", "deleted ns/a old missed", "added a at 12"]


async def test_what_cannot_be_read_is_told_with_its_cause_and_so_is_its_end() -> None:
    streams = [[an_event("MODIFIED", "a", 12, spec="good"), an_event("DELETED", "a", 13)]]
    run = await Run(Script([a_list(an_object("a", 1, spec="bad"))], streams)).to_the_end()
    assert run.told.lines == [
        "unreadable ns/a u: cannot be read (bad)",
        "modified a at 12",
        "deleted ns/a u seen",
    ]


async def test_an_object_of_a_kind_without_namespaces_has_an_empty_one() -> None:
    streams = [[an_event("DELETED", "a", 12, namespace=None)]]
    run = await Run(Script([a_list(an_object("a", 1, namespace=None))], streams)).to_the_end()
    assert run.told.lines == ["added a at 1", "deleted /a u seen"]


async def test_the_garbage_collector_does_not_look_at_all_that_is_known_with_each_event() -> None:
    def set_aside() -> None:
        gc.collect()
        gc.freeze()

    streams = [[set_aside, an_event("MODIFIED", "a", 12)]]
    run = await Run(Script([a_list(an_object("a", 1), an_object("b", 2))], streams)).to_the_end()
    is_looked_at = any(each is run.reflector._known for each in gc.get_objects())
    gc.unfreeze()
    assert run.told.lines[-1] == "modified a at 12"
    assert not is_looked_at


async def test_it_counts_as_synced_once_the_first_list_has_been_told() -> None:
    run = Run(Script([a_list(an_object("a", 1))]))
    told_when_synced: list[list[str]] = []

    async def watch_for_it() -> None:
        await run.reflector.synced.wait()
        told_when_synced.append(list(run.told.lines))

    assert not run.reflector.synced.is_set()
    watcher = asyncio.ensure_future(watch_for_it())
    await run.to_the_end()
    async with asyncio.timeout(5):
        await watcher
    assert told_when_synced == [["added a at 1"]]


async def test_a_list_that_is_wanted_interrupts_a_silent_stream_and_is_told_before_it_returns() -> (
    None
):
    run = Run(Script([a_list(), a_list(an_object("a", 20), version=20)]))
    await run.to_the_end(then=run.reflector.relist)
    assert run.told.lines == ["added a at 20"]
    assert [verb for verb, _ in run.script.asked].count("list vgpuclaims") == 2
    assert (run.waits, run.restarts) == ([], [])


async def test_a_list_that_had_begun_before_it_was_wanted_does_not_do() -> None:
    """The list may have been read before the change that the caller wants to see."""
    run = Run(Script([a_list(), a_list(an_object("a", 20), version=20)]))
    wanted: list[asyncio.Future[None]] = []

    async def want_one_while_the_first_is_read(resource: Any, **selection: Any) -> Listing:
        if not wanted:
            wanted.append(asyncio.ensure_future(run.reflector.relist()))
            await asyncio.sleep(0)
        return await Script.list(run.script, resource, **selection)

    run.script.list = want_one_while_the_first_is_read  # type: ignore[method-assign]
    await run.to_the_end(then=lambda: wanted[0])
    assert run.told.lines == ["added a at 20"]


async def test_a_long_list_lets_others_have_their_turn() -> None:
    many = a_list(*(an_object(f"o-{number}", number + 11) for number in range(1000)), version=1010)
    run = Run(Script([a_list(), many], [[Gone("", status=410)]]))
    progress: list[int] = []

    async def renew_the_lease() -> None:
        while len(run.told.lines) < 1000:
            progress.append(len(run.told.lines))
            await asyncio.sleep(0)

    other = asyncio.ensure_future(renew_the_lease())
    await run.to_the_end()
    async with asyncio.timeout(5):
        await other
    assert len({told for told in progress if 0 < told < 1000}) >= 3


async def test_a_first_list_is_told_as_it_comes_and_goes_on_where_it_broke_off() -> None:
    class BreaksOff(Script):
        async def list(self, resource: Any, **selection: Any) -> Listing:
            if not self.asked:
                selection["each"](an_object("a", 1))
                selection["each"](an_object("b", 2))
                lines.append(list(run.told.lines))
                self.asked.append(("list", {}))
                raise ServerError("going", status=503)
            return await super().list(resource, **selection)

    lines: list[list[str]] = []
    run = Run(BreaksOff([a_list(an_object("b", 2), an_object("c", 3))]))
    await run.to_the_end()
    assert lines == [["added a at 1", "added b at 2"]]
    assert run.told.lines[2:] == ["deleted ns/a u missed", "added c at 3"]


async def test_a_list_of_a_cache_that_is_behind_tells_nothing_though_nothing_is_known() -> None:
    behind, now = a_list(an_object("a", 5), version=9), a_list(version=10)
    script = Script([a_list(), behind, now], [[an_event("BOOKMARK", "", 10)], [Unreachable("")]])
    run = await Run(script, scope=Scope(from_cache=True)).to_the_end()
    assert run.told.lines == []
    assert [kind for kind, _ in script.asked].count("list vgpuclaims") == 3


async def test_a_sink_that_raises_ends_it() -> None:
    """Going on would leave the sink with a view that nothing can repair."""
    run = Run(Script([a_list(an_object("a", 1))]))

    def refuse(obj: Any) -> None:
        raise RuntimeError("the sink is broken")

    run.told.added = refuse  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the sink is broken"):
        async with asyncio.timeout(5):
            await run.reflector.run()


async def test_a_list_is_told_of_as_a_whole_when_all_of_it_has_been_told() -> None:
    lists = [
        a_list(an_object("a", 3, uid="u-a"), an_object("b", 4, uid="u-b")),
        a_list(an_object("b", 4, uid="u-b"), version=20),
    ]
    run = await Run(Script(lists, [[Gone("too old", status=410)]])).to_the_end()
    assert run.lists == [(10, ["u-a", "u-b"], 2), (20, ["u-b"], 3)]
