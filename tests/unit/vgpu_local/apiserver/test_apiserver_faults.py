from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest

from rest import CONFIGMAPS, PODS, Json, Refused, Rest, a_pod
from vgpu_local.apiserver import ApiServer, Fault, WriteEvent
from vgpu_local.apiserver.faults import Faults

CUT = (aiohttp.ClientError, ConnectionError)


def a_map(name: str) -> Json:
    return {"metadata": {"name": name}}


async def test_a_status_fault_refuses_so_many_requests_and_does_nothing(
    rest: Rest, server: ApiServer
):
    fault = server.faults.add(
        Fault(action="status", code=503, verb="create", resource="pods", times=2, seconds=1)
    )
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await rest.create(PODS, a_pod())
        assert (refused.value.status, refused.value.body["reason"]) == (503, "ServiceUnavailable")
    assert server.faults.count(fault) == 2
    assert await rest.names(PODS) == []
    await rest.create(PODS, a_pod())


async def test_a_fault_for_the_object_leaves_its_subresources_alone(rest: Rest, server: ApiServer):
    await rest.create(PODS, a_pod())
    server.faults.add(Fault(action="status", verb="patch", resource="pods/status"))
    await rest.merge(f"{PODS}/p", {"metadata": {"labels": {"a": "1"}}})
    with pytest.raises(Refused):
        await rest.merge(f"{PODS}/p/status", {"status": {"phase": "Running"}})


async def test_a_lost_answer_is_done_but_not_told(rest: Rest, server: ApiServer):
    server.faults.add(Fault(action="lost", verb="create", resource="configmaps"))
    with pytest.raises(CUT):
        await rest.create(CONFIGMAPS, a_map("a"))
    assert await rest.names(CONFIGMAPS) == ["a"]


async def test_a_refused_connection_is_not_done(rest: Rest, server: ApiServer):
    server.faults.add(Fault(action="refuse", verb="create", resource="configmaps"))
    with pytest.raises(CUT):
        await rest.create(CONFIGMAPS, a_map("a"))
    assert await rest.names(CONFIGMAPS) == []


async def test_a_delay_holds_one_request_and_no_other(rest: Rest, server: ApiServer):
    server.faults.add(Fault(action="delay", seconds=0.3, resource="pods", verb="list"))
    began = time.monotonic()
    slow = asyncio.create_task(rest.get(PODS))
    await rest.get(CONFIGMAPS)
    assert time.monotonic() - began < 0.3
    await slow
    assert time.monotonic() - began >= 0.3


async def test_a_watch_is_dropped_after_its_events(rest: Rest, server: ApiServer):
    server.faults.add(Fault(action="drop", verb="watch", resource="configmaps", after=1))
    async with rest.watch(CONFIGMAPS) as watch:
        await rest.create(CONFIGMAPS, a_map("a"))
        assert await watch.take(1) == [("ADDED", "a")]
        await rest.create(CONFIGMAPS, a_map("b"))
        with pytest.raises((EOFError, *CUT)):
            await watch.next()


async def test_a_watch_can_be_told_410_at_once(rest: Rest, server: ApiServer):
    server.faults.add(Fault(action="gone", verb="watch", resource="configmaps"))
    async with rest.watch(CONFIGMAPS) as watch:
        assert (await watch.next())["object"]["code"] == 410


async def test_open_watches_are_frozen_dropped_and_expired_by_resource(
    rest: Rest, server: ApiServer
):
    async with (
        rest.watch(CONFIGMAPS) as frozen,
        rest.watch("/api/v1/namespaces/default/secrets") as dropped,
        rest.watch("/api/v1/nodes") as expired,
        rest.watch(PODS) as well,
    ):
        assert server.break_watches("configmaps", "freeze") == 1
        assert server.break_watches("secrets", "drop") == 1
        assert server.break_watches("nodes", "gone") == 1
        await rest.create(CONFIGMAPS, a_map("a"))
        await rest.create(PODS, a_pod())
        assert await well.take(1) == [("ADDED", "p")]
        with pytest.raises((EOFError, *CUT)):
            await dropped.next()
        assert (await expired.next())["object"]["code"] == 410
        with pytest.raises(TimeoutError):
            await frozen.next(within=0.1)


async def test_a_frozen_watch_that_is_dropped_ends_without_what_it_withheld(
    rest: Rest, server: ApiServer
):
    async with rest.watch(CONFIGMAPS) as frozen:
        server.break_watches("configmaps", "freeze")
        await rest.create(CONFIGMAPS, a_map("a"))
        assert server.break_watches("configmaps", "drop") == 1
        with pytest.raises((EOFError, *CUT)):
            await frozen.next()


async def test_a_restart_cuts_connections_and_keeps_data_and_url(rest: Rest, server: ApiServer):
    url = server.url
    await rest.create(CONFIGMAPS, a_map("a"))
    async with rest.watch(PODS) as watch:
        server.restart()
        with pytest.raises((EOFError, *CUT)):
            await watch.next()
    assert server.url == url
    assert await rest.names(CONFIGMAPS) == ["a"]


async def test_a_restart_without_data_is_a_new_cluster(rest: Rest, server: ApiServer):
    seen: list[WriteEvent] = []
    for name in "abc":
        last = await rest.create(CONFIGMAPS, a_map(name))
    server.subscribe(seen.append)
    server.restart(keep_data=False)
    fresh = await rest.get(CONFIGMAPS)
    assert fresh["items"] == []
    assert int(fresh["metadata"]["resourceVersion"]) < int(last["metadata"]["resourceVersion"])
    await rest.create(CONFIGMAPS, a_map("z"))
    assert seen[-1].object["metadata"]["name"] == "z"


def befallen(seed: int) -> list[bool]:
    faults = Faults(seed=seed)
    faults.add(Fault(action="status", share=0.5, times=None))
    return [bool(faults.take("get", "pods", "p")) for _ in range(50)]


def test_a_share_is_drawn_from_the_seed():
    assert befallen(1) == befallen(1)
    assert befallen(1) != befallen(2)
    assert 10 < sum(befallen(1)) < 40


def test_a_fault_can_be_taken_back():
    faults = Faults()
    fault = faults.add(Fault(action="status", times=None))
    assert faults.take("get", "pods", "p") == [fault]
    faults.remove(fault)
    assert faults.take("get", "pods", "p") == []


async def test_the_history_replays_to_what_is_there(rest: Rest, server: ApiServer):
    for name in "abc":
        await rest.create(CONFIGMAPS, a_map(name))
    await rest.merge(f"{CONFIGMAPS}/b", {"data": {"k": "1"}})
    await rest.delete(f"{CONFIGMAPS}/a")
    replayed: dict[str, Json] = {}
    versions = []
    for event in server.history():
        versions.append(event.resource_version)
        if event.resource == "configmaps":
            replayed[event.object["metadata"]["name"]] = event.object
            if event.type == "DELETED":
                del replayed[event.object["metadata"]["name"]]
    assert versions == list(range(1, len(versions) + 1))
    assert list(replayed.values()) == server.objects("configmaps")


def test_a_port_that_is_taken_is_an_error_and_leaves_no_thread():
    with ApiServer(tls=False) as first:
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(OSError, match="address already in use"):
            ApiServer(tls=False, port=port).start()


def test_a_fault_may_befall_one_user_alone() -> None:
    faults = Faults()
    fault = faults.add(Fault(action="refuse", resource="pods", user="operator-0"))
    assert faults.take("update", "pods", "p", "operator-1") == []
    assert faults.take("update", "pods", "p", "operator-0") == [fault]


async def test_a_restarted_server_forgets_lists_and_versions(rest: Rest, server: ApiServer):
    for name in "ab":
        await rest.create(CONFIGMAPS, a_map(name))
    first = await rest.get(CONFIGMAPS, limit="1")
    server.restart()
    with pytest.raises(Refused) as refused:
        await rest.get(CONFIGMAPS, **{"continue": first["metadata"]["continue"]})
    assert (refused.value.status, refused.value.body["reason"]) == (410, "Expired")
    async with rest.watch(CONFIGMAPS, resourceVersion="1") as watch:
        event = await watch.next()
        with pytest.raises(EOFError):
            await watch.next()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_changes_beyond_the_memory_are_forgotten():
    with ApiServer(tls=False, remembered=3) as server:
        async with aiohttp.ClientSession() as session:
            rest = Rest(server.url, session)
            made = [await rest.create(CONFIGMAPS, a_map(name)) for name in "abcde"]
            versions = [obj["metadata"]["resourceVersion"] for obj in made]
            async with rest.watch(CONFIGMAPS, resourceVersion=versions[0]) as watch:
                assert (await watch.next())["object"]["code"] == 410
            async with rest.watch(CONFIGMAPS, resourceVersion=versions[1]) as watch:
                assert await watch.take(3) == [("ADDED", "c"), ("ADDED", "d"), ("ADDED", "e")]
