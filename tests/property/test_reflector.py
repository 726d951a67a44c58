"""The reflector is correct with a model of an API server whose streams have every known fault."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Awaitable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from set_clock import SetClock
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_client.errors import ApiError, DataRestored, Gone, ServerError, StreamBroken, Unreachable
from vgpu_client.reads import Each, Listing
from vgpu_client.reflector import ObjectIdentity, Reflector, ReflectorTimes, Scope

NAMES = "abc"
LAST = "last"


class ModelApi:
    """The true objects, their history, and one fault for each of the next lists and streams."""

    def __init__(self) -> None:
        self.version = 100
        self.truth: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.compacted = 0
        self.list_faults: list[str] = []
        self.stream_faults: list[
            tuple[str, int]
        ] = []  # the number of events after which a new stream fails
        self.cut = ""  # happens to the open stream before its next event
        self.changed = asyncio.Event()
        self.uids = 0
        self.lag = 0  # how many versions the server's cache may lag behind
        self.quorum_reads = 0
        self.backup: tuple[int, dict[str, dict[str, Any]]] = (self.version, {})
        self.restores = 0

    def write(self, verb: str, name: str, *, readable: bool = True) -> None:
        if (verb == "create") == (name in self.truth):
            return
        self.version += 1
        if verb == "delete":
            obj = self._at(self.truth.pop(name), self.version)
            self._log("DELETED", obj)
            return
        if verb == "create":
            self.uids += 1
        uid = str(self.uids) if verb == "create" else self.truth[name]["metadata"]["uid"]
        self.truth[name] = {
            "metadata": {"namespace": "ns", "name": name, "uid": uid},
            "readable": readable,
        }
        self.truth[name] = self._at(self.truth[name], self.version)
        self._log("ADDED" if verb == "create" else "MODIFIED", self.truth[name])

    def _at(self, obj: dict[str, Any], version: int) -> dict[str, Any]:
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}

    def _log(self, kind: str, obj: dict[str, Any]) -> None:
        self.history.append((self.version, kind, obj))
        self.changed.set()

    def forget_history(self) -> None:
        self.compacted = self.version

    def back_up(self) -> None:
        self.backup = self.version, dict(self.truth)

    def restore(self, bump: int) -> None:
        """`etcdutl snapshot restore --bump-revision BUMP --mark-compacted`, by its guide: the
        objects of the backup with their versions, the server's version raised beyond all that
        clients have seen, and no history."""
        version, truth = self.backup
        self.version = max(self.version, version) + bump
        self.truth = dict(truth)
        self.history = [
            (int(obj["metadata"]["resourceVersion"]), "ADDED", obj) for obj in truth.values()
        ]
        self.forget_history()
        self.restores += 1
        self.cut = "gone"
        self.changed.set()

    async def list(
        self,
        resource: object,
        *,
        each: Each,
        not_older_than: str | None = None,
        **selection: object,
    ) -> Listing:
        answer = await self._answer(not_older_than)
        return Listing(
            [each(copy.deepcopy(item)) for item in answer.items], answer.resource_version
        )

    async def _answer(self, not_older_than: str | None) -> Listing:
        await asyncio.sleep(0)
        if not_older_than is not None:
            return self._cached(int(not_older_than))
        self.quorum_reads += 1
        if self.list_faults:
            match self.list_faults.pop():
                case "unreachable":
                    raise Unreachable("model")
                case "busy":
                    raise ServerError("model", status=503)
                case "slow":
                    answer = Listing(list(self.truth.values()), str(self.version))
                    for _ in range(20):  # the answer does not have later changes
                        await asyncio.sleep(0)
                    return answer
        return Listing(list(self.truth.values()), str(self.version))

    def _cached(self, least: int) -> Listing:
        """Return the list from the server's cache, which may be behind."""
        if self.list_faults and self.list_faults[-1] in ("unreachable", "busy"):
            self.list_faults.pop()
            raise ServerError("model: too large resource version", status=504)
        version = max(self.version - self.lag, least, 100)
        if version > self.version:
            raise ServerError("model: too large resource version", status=504)
        if version < self.compacted and self.restores:
            version = self.version  # the server's cache starts with the restored objects
        known: dict[str, dict[str, Any]] = {}
        for at, kind, obj in sorted(self.history, key=lambda each: each[0]):
            if at > version:
                break
            name = obj["metadata"]["name"]
            if kind == "DELETED":
                known.pop(name, None)
            else:
                known[name] = obj
        return Listing(list(known.values()), str(version))

    async def watch(
        self, resource: object, *, resource_version: str, **selection: object
    ) -> AsyncGenerator[dict[str, Any], None]:
        fault, after = self.stream_faults.pop() if self.stream_faults else ("", 0)
        position = int(resource_version)
        if position < self.compacted:
            raise Gone("model", status=410)
        if fault == "refuse":
            raise ApiError("model", status=500)
        sent: list[dict[str, Any]] = []
        while True:
            self.changed.clear()
            if self.cut:
                cut, self.cut = self.cut, ""
                self._fail(cut)
                return
            for version, kind, obj in list(self.history):
                if version <= position:
                    continue
                if fault and len(sent) >= after:
                    self._fail(fault)
                    if fault == "end":
                        return
                    for event in sent:  # "repeat"
                        yield event
                    fault = ""
                position = version
                sent.append({"type": kind, "object": obj})
                yield sent[-1]
            bookmark = {"metadata": {"resourceVersion": str(position)}}
            yield {"type": "BOOKMARK", "object": bookmark}
            if fault and len(sent) >= after:
                self._fail(fault)
                if fault == "end":
                    return
            await self.changed.wait()

    def _fail(self, fault: str) -> None:
        if fault in ("break", "freeze"):  # both lose the next events, the second one silently
            raise StreamBroken("model")
        if fault == "gone":
            raise Gone("model", status=410)


class View:
    """The state of a handler that accepts every event, but refuses impossible ones."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.ends: list[bool] = []  # for each deletion, True if the stream delivered it

    def added(self, obj: dict[str, Any]) -> None:
        assert obj["metadata"]["name"] not in self.objects
        self._keep(obj, "readable")

    def modified(self, obj: dict[str, Any]) -> None:
        known = self.objects[obj["metadata"]["name"]]
        assert known.startswith(f"{obj['metadata']['uid']}/")
        assert int(obj["metadata"]["resourceVersion"]) > self.versions[obj["metadata"]["name"]]
        self._keep(obj, "readable")

    def deleted(self, identity: ObjectIdentity) -> None:
        assert self.objects.pop(identity.name).startswith(f"{identity.uid}/")
        self.ends.append(identity.was_seen)

    def unreadable(self, identity: ObjectIdentity, raw: dict[str, Any], error: Exception) -> None:
        assert isinstance(error, ValueError)
        assert identity.uid == raw["metadata"]["uid"]
        self._keep(raw, "unreadable")

    def _keep(self, obj: dict[str, Any], how: str) -> None:
        metadata = obj["metadata"]
        self.objects[metadata["name"]] = f"{metadata['uid']}/{metadata['resourceVersion']} {how}"
        self.versions[metadata["name"]] = int(metadata["resourceVersion"])


def the_truth(api: ModelApi) -> dict[str, str]:
    return {
        name: f"{obj['metadata']['uid']}/{obj['metadata']['resourceVersion']} "
        + ("readable" if obj["readable"] else "unreadable")
        for name, obj in api.truth.items()
    }


def decode(raw: dict[str, Any]) -> dict[str, Any]:
    if not raw["readable"]:
        raise ValueError("not readable")
    return raw


steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["create", "modify", "delete"]),
            st.sampled_from(NAMES),
            st.sampled_from([True, True, True, False]),
        ),
        st.tuples(
            st.just("stream"),
            st.sampled_from(["break", "freeze", "gone", "end", "repeat", "refuse"]),
            st.integers(0, 3),
        ),
        st.tuples(st.just("cut"), st.sampled_from(["break", "gone", "end"])),
        st.tuples(st.just("list"), st.sampled_from(["unreachable", "busy", "slow"])),
        st.tuples(st.just("forget")),
        st.tuples(st.just("lag"), st.integers(0, 5)),
        st.tuples(st.just("relist")),
        st.tuples(st.just("reach")),
        st.tuples(st.just("run"), st.integers(1, 30)),
        st.tuples(st.just("back up")),
        st.tuples(st.just("restore"), st.integers(1, 1_000)),
    ),
    max_size=40,
)


def reached(reaching: Awaitable[None], api: ModelApi, view: View) -> Awaitable[None]:
    """Check that the view has every earlier write once the reflector has reached that version."""
    version = api.version
    there = {name: int(obj["metadata"]["resourceVersion"]) for name, obj in api.truth.items()}
    restores = api.restores

    async def look() -> None:
        await reaching
        if api.restores > restores:
            return  # earlier writes may be undone
        later = [(kind, obj) for at, kind, obj in api.history if at > version]
        deleted = {obj["metadata"]["name"] for kind, obj in later if kind == "DELETED"}
        for name in NAMES:
            if name in there:
                assert view.versions.get(name, 0) >= there[name] or name in deleted
                assert name in view.objects or name in deleted
            else:
                assert name not in view.objects or view.versions[name] > version

    return look()


async def watched_through(
    script: list[tuple[Any, ...]], *, from_cache: bool = False
) -> tuple[ModelApi, View]:
    api, view = ModelApi(), View()
    reflector = Reflector(
        api,
        VGPU_CLAIMS,
        view,
        decode=decode,
        scope=Scope(from_cache=from_cache),
        times=ReflectorTimes(clock=SetClock()),
    )
    running = asyncio.ensure_future(reflector.run())
    relists = []
    for step in script:
        match step:
            case ("stream", fault, after):
                api.stream_faults.append((fault, after))
            case ("cut", fault):
                api.cut = fault
            case ("list", fault):
                api.list_faults.append(fault)
            case ("forget",):
                api.forget_history()
            case ("lag", behind):
                api.lag = behind
            case ("relist",):
                relists.append(asyncio.ensure_future(reflector.relist()))
            case ("back up",):
                api.back_up()
            case ("restore", bump):
                api.restore(bump)
            case ("reach",):
                reaching = reflector.reach(api.version)
                relists.append(asyncio.ensure_future(reached(reaching, api, view)))
            case ("run", turns):
                for _ in range(turns):
                    await asyncio.sleep(0)
            case (verb, name, readable):
                api.write(verb, name, readable=readable)
    api.write("create", LAST)
    for _ in range(300):
        if LAST in view.objects and not (api.stream_faults or api.list_faults or api.cut):
            break
        if running.done():
            break
        api.write("modify", LAST)  # some faults wait for the next event
        await asyncio.sleep(0)
    if relists:
        async with asyncio.timeout(5):
            await asyncio.wait({running, asyncio.gather(*relists)}, return_when="FIRST_COMPLETED")
    if running.done():
        for each in relists:
            each.cancel()
        await running  # raises
    await asyncio.gather(*relists)
    api.write("modify", LAST, readable=False)
    for _ in range(300):
        if view.objects.get(LAST, "").endswith("unreadable") or running.done():
            break
        await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return api, view


@pytest.mark.parametrize("fault", ["break", "gone"])
def test_an_object_deleted_in_a_gap_is_told_as_deleted(fault: str) -> None:
    script = [("create", "a", True), ("run", 30), ("cut", fault), ("delete", "a", True)]
    api, view = asyncio.run(watched_through(script))
    assert view.objects == the_truth(api)
    assert "a" not in view.objects
    assert view.ends == [False]  # other changes of the object in the gap are unknown


def test_an_object_whose_deletion_the_stream_tells_was_seen_to_the_end() -> None:
    script = [("create", "a", True), ("run", 30), ("delete", "a", True), ("run", 30)]
    _, view = asyncio.run(watched_through(script))
    assert view.ends == [True]


def test_an_object_replaced_in_a_gap_is_told_as_deleted_and_added() -> None:
    script = [
        ("create", "a", True),
        ("run", 30),
        ("cut", "break"),
        ("delete", "a", True),
        ("create", "a", True),
    ]
    api, view = asyncio.run(watched_through(script))
    assert view.objects == the_truth(api)
    assert view.objects["a"].startswith("2/")
    assert view.ends == [False]


def test_a_reflector_that_lists_from_the_cache_reads_etcd_only_after_the_cache_failed_it() -> None:
    changes = [("create", "a", True), ("run", 30), ("modify", "a", True), ("run", 30)]
    api, view = asyncio.run(
        watched_through([*changes, ("cut", "break"), *changes], from_cache=True)
    )
    assert view.objects == the_truth(api)
    assert api.quorum_reads == 0
    api, view = asyncio.run(watched_through([*changes, ("cut", "gone"), *changes], from_cache=True))
    assert view.objects == the_truth(api)
    assert api.quorum_reads == 1


def test_who_wants_a_list_now_gets_it_from_etcd() -> None:
    script = [("lag", 5), ("create", "a", True), ("run", 30), ("relist",), ("run", 30)]
    api, view = asyncio.run(watched_through(script, from_cache=True))
    assert view.objects == the_truth(api)
    assert api.quorum_reads == 1


@pytest.mark.parametrize("from_cache", [False, True])
@pytest.mark.parametrize(
    "later",
    [
        pytest.param(("modify", "a", True), id="a known object has an earlier version"),
        pytest.param(("delete", "a", True), id="a deleted object is there again"),
    ],
)
def test_a_restore_whose_versions_were_raised_ends_it_where_the_objects_contradict_it(
    later: tuple[Any, ...], from_cache: bool
) -> None:
    script = [("create", "a", True), ("back up",), later, ("run", 30), ("restore", 1_000)]
    with pytest.raises(DataRestored, match="ns/a is at version 101, and was"):
        asyncio.run(watched_through(script, from_cache=from_cache))


def test_what_a_restore_lost_is_told_as_deleted() -> None:
    """A list cannot tell a lost object from a deleted one, and neither exists any more."""
    script = [("back up",), ("create", "a", True), ("run", 30), ("restore", 1_000), ("run", 30)]
    api, view = asyncio.run(watched_through(script))
    assert view.objects == the_truth(api)
    assert view.ends == [False]


@given(script=steps, from_cache=st.booleans())
def test_once_faults_stop_the_view_equals_the_truth(
    script: list[tuple[Any, ...]], from_cache: bool
) -> None:
    """Whatever streams and lists do: no object lost, none too many, nothing delivered that makes no
    sense (an addition of what is known, a deletion of what is not, a version that goes back). Only
    a restore may end the reflector."""
    try:
        api, view = asyncio.run(watched_through(script, from_cache=from_cache))
    except DataRestored:
        assert any(verb == "restore" for verb, *_ in script)
    else:
        assert view.objects == the_truth(api)
