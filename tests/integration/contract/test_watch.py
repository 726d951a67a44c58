from __future__ import annotations

import pytest

from rest import PODS, SECRETS, THINGS, Json, Rest, a_pod, a_thing


def a_secret(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}}


@pytest.mark.parametrize("version", [{}, {"resourceVersion": "0"}])
async def test_a_watch_from_nowhere_begins_with_what_is_there(rest: Rest, version: dict[str, str]):
    await rest.create(SECRETS, a_secret("b"))
    await rest.create(SECRETS, a_secret("a"))
    async with rest.watch(SECRETS, **version) as watch:
        # Version 0 means any version, and a server whose cache is late sends the rest as they were
        # created.
        assert sorted(await watch.take(2)) == [("ADDED", "a"), ("ADDED", "b")]


async def test_the_end_of_the_initial_events_is_marked(rest: Rest):
    await rest.create(SECRETS, a_secret("a"))
    async with rest.watch(
        SECRETS,
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
        for state, node in enumerate(("n1", "n1", "n2")):
            status = {"node": node, "state": str(state)}
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


async def test_a_watch_of_one_namespace_hears_of_no_other(rest: Rest):
    async with rest.watch(SECRETS) as watch:
        await rest.create("/api/v1/namespaces/kube-system/secrets", a_secret("x"))
        await rest.create(SECRETS, a_secret("a"))
        assert await watch.take(1) == [("ADDED", "a")]


async def test_a_watch_from_the_future_hears_nothing_until_then(rest: Rest):
    first = await rest.create(SECRETS, a_secret("a"))
    future = int(first["metadata"]["resourceVersion"]) + 1
    async with rest.watch(SECRETS, resourceVersion=str(future)) as watch:
        later = [await rest.create(SECRETS, a_secret(name)) for name in ("b", "c")]
        # a real control plane writes objects of its own in between, so the version of "b" may be
        # late enough
        heard = [
            each["metadata"]["name"]
            for each in later
            if int(each["metadata"]["resourceVersion"]) > future
        ]
        assert await watch.take(1) == [("ADDED", heard[0])]


async def test_a_watch_can_be_had_as_table_rows(rest: Rest):
    async with rest.session.get(
        rest.url(PODS),
        params={"watch": "1"},
        headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
    ) as answer:
        await rest.create(PODS, a_pod())
        line = await answer.content.readline()
    assert b'"kind":"Table"' in line
    assert b'"0/1"' in line
