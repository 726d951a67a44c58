from __future__ import annotations

import pytest

from rest import CONFIGMAPS, PODS, THINGS, Json, Rest, a_pod, a_thing
from vgpu_local.apiserver import ApiServer


def a_map(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}}


async def test_a_watch_from_a_version_gets_what_came_after_it_in_order(rest: Rest):
    first = await rest.create(CONFIGMAPS, a_map("a"))
    await rest.create(CONFIGMAPS, a_map("b"))
    async with rest.watch(
        CONFIGMAPS, resourceVersion=first["metadata"]["resourceVersion"]
    ) as watch:
        await rest.merge(f"{CONFIGMAPS}/a", {"data": {"k": "1"}})
        await rest.delete(f"{CONFIGMAPS}/b")
        assert await watch.take(3) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


@pytest.mark.parametrize("version", [{}, {"resourceVersion": "0"}])
async def test_a_watch_from_nowhere_begins_with_what_is_there(rest: Rest, version: dict[str, str]):
    await rest.create(CONFIGMAPS, a_map("b"))
    await rest.create(CONFIGMAPS, a_map("a"))
    async with rest.watch(CONFIGMAPS, **version) as watch:
        assert await watch.take(2) == [("ADDED", "a"), ("ADDED", "b")]


async def test_the_end_of_the_initial_events_is_marked(rest: Rest):
    await rest.create(CONFIGMAPS, a_map("a"))
    async with rest.watch(
        CONFIGMAPS,
        sendInitialEvents="true",
        allowWatchBookmarks="true",
        resourceVersionMatch="NotOlderThan",
    ) as watch:
        assert (await watch.next())["type"] == "ADDED"
        mark = await watch.next()
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_an_object_that_enters_or_leaves_a_selection_is_added_or_deleted(things: Rest):
    made = await things.create(THINGS, a_thing())
    async with things.watch(
        THINGS,
        fieldSelector="status.node=n1",
        resourceVersion=made["metadata"]["resourceVersion"],
    ) as watch:
        for node in ("n1", "n1", "n2"):
            status = {"node": node, "state": str(len(things.server.history()))}
            await things.merge(f"{THINGS}/t/status", {"status": status})
        await things.delete(f"{THINGS}/t")
        await things.create(THINGS, a_thing("u"))
        await things.merge(f"{THINGS}/u/status", {"status": {"node": "n1"}})
        assert await watch.take(4) == [
            ("ADDED", "t"),
            ("MODIFIED", "t"),
            ("DELETED", "t"),
            ("ADDED", "u"),
        ]
    assert things.server.objects("things.example.dev")[0]["metadata"]["name"] == "u"


async def test_a_watch_of_one_namespace_hears_of_no_other(rest: Rest):
    async with rest.watch(CONFIGMAPS) as watch:
        await rest.create("/api/v1/namespaces/kube-system/configmaps", a_map("x"))
        await rest.create(CONFIGMAPS, a_map("a"))
        assert await watch.take(1) == [("ADDED", "a")]


async def test_bookmarks_carry_the_global_version_in_quiet_times():
    with ApiServer(tls=False, bookmark_every=0.05) as server:
        import aiohttp

        async with aiohttp.ClientSession() as session:
            rest = Rest(server, session)
            async with rest.watch(PODS, allowWatchBookmarks="true") as watch:
                made = await rest.create(CONFIGMAPS, a_map("a"))
                mark = await watch.next()
                while (
                    mark["object"]["metadata"]["resourceVersion"]
                    != (made["metadata"]["resourceVersion"])
                ):
                    mark = await watch.next()
            assert (mark["type"], mark["object"]["kind"]) == ("BOOKMARK", "Pod")


async def test_a_watch_ends_when_its_time_is_up(rest: Rest):
    async with rest.watch(CONFIGMAPS, timeoutSeconds="1") as watch:
        with pytest.raises(EOFError):
            await watch.next()


async def test_a_watch_from_a_forgotten_version_is_told_410(rest: Rest):
    await rest.create(CONFIGMAPS, a_map("a"))
    rest.server.restart()
    assert await rest.names(CONFIGMAPS) == ["a"]
    async with rest.watch(CONFIGMAPS, resourceVersion="1") as watch:
        event = await watch.next()
        with pytest.raises(EOFError):
            await watch.next()
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")


async def test_changes_beyond_the_memory_are_forgotten():
    import aiohttp

    with ApiServer(tls=False, remembered=3) as server:
        async with aiohttp.ClientSession() as session:
            rest = Rest(server, session)
            made = [await rest.create(CONFIGMAPS, a_map(name)) for name in "abcde"]
            versions = [obj["metadata"]["resourceVersion"] for obj in made]
            async with rest.watch(CONFIGMAPS, resourceVersion=versions[0]) as watch:
                assert (await watch.next())["object"]["code"] == 410
            async with rest.watch(CONFIGMAPS, resourceVersion=versions[1]) as watch:
                assert await watch.take(3) == [("ADDED", "c"), ("ADDED", "d"), ("ADDED", "e")]


async def test_a_watch_from_the_future_hears_nothing_until_then(rest: Rest):
    first = await rest.create(CONFIGMAPS, a_map("a"))
    future = int(first["metadata"]["resourceVersion"]) + 1
    async with rest.watch(CONFIGMAPS, resourceVersion=str(future)) as watch:
        await rest.create(CONFIGMAPS, a_map("b"))
        await rest.create(CONFIGMAPS, a_map("c"))
        assert await watch.take(1) == [("ADDED", "c")]


async def test_a_watch_can_be_had_as_table_rows(rest: Rest):
    async with rest.session.get(
        f"{rest.server.url}{PODS}",
        params={"watch": "1"},
        headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
    ) as answer:
        await rest.create(PODS, a_pod())
        line = await answer.content.readline()
    assert b'"kind":"Table"' in line
    assert b'"0/1"' in line


async def test_a_stream_that_its_client_closed_is_forgotten(rest: Rest):
    async with rest.watch(CONFIGMAPS) as watch:
        assert rest.server.watch_count("configmaps") == 1
        watch.answer.close()
    async with rest.watch(PODS):  # by then the first one's end has been seen
        pass
    while rest.server.watch_count("configmaps"):
        await rest.get(CONFIGMAPS)
