"""The proxy makes the chosen requests fail, and forwards everything else unchanged."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vgpu_api.resources import CONFIG_MAPS, PODS
from vgpu_client.api import Api
from vgpu_client.errors import (
    AlreadyExists,
    ClientError,
    Gone,
    NotFound,
    ServerError,
    StreamBroken,
    Unknown,
)
from vgpu_client.reflector import ObjectIdentity, Reflector
from vgpu_local.apiserver import ApiServer, Fault
from vgpu_local.fault_proxy import FaultProxy
from vgpu_local.pki import Authority
from vgpu_local.request_words import Words, words_of

MAPS = "configmaps"


@pytest.fixture(autouse=True)
def cut_connections_end_here() -> Iterator[None]:
    """asyncio leaves the transport of a TLS connection that was cut to the garbage collector.

    It is collected here, where connections are cut on purpose, and not in some later test.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@dataclass(frozen=True, slots=True)
class Proxied:
    """A client that connects through the proxy, and one that connects to the server directly."""

    proxy: FaultProxy
    through: Api
    straight: Api

    async def create(self, name: str) -> Any:
        obj = {"metadata": {"name": name, "namespace": "default"}}
        return await self.through.create(CONFIG_MAPS, obj)

    async def names(self) -> list[str]:
        listing = await self.straight.list(CONFIG_MAPS, namespace="default")
        return [item["metadata"]["name"] for item in listing.items]

    async def version(self) -> str:
        return (await self.straight.list(CONFIG_MAPS)).resource_version

    def watch(self, version: str, **options: Any) -> Any:
        watch = self.through.watch(CONFIG_MAPS, resource_version=version, **options)
        return aclosing(watch)


async def only_bookmarks(events: Any) -> None:
    """Read until the stream ends, for any reason."""
    async for event in events:
        assert event["type"] == "BOOKMARK"
    raise EOFError


@pytest.fixture
async def proxied(tmp_path: Path) -> AsyncIterator[Proxied]:
    with ApiServer(bookmark_every=0.2) as server:
        assert server.authority is not None
        trust = server.authority.client_context()
        straight = server.kubeconfig(tmp_path / "straight")
        with FaultProxy(server.url, trust=trust, seed=1) as proxy:
            through = proxy.kubeconfig(straight, tmp_path / "through", user="tester")
            async with Api.connect(str(through)) as one, Api.connect(str(straight)) as two:
                yield Proxied(proxy, one, two)


@pytest.mark.parametrize(
    ("method", "url", "words"),
    [
        ("GET", "/api/v1/pods", Words("list", "pods", "")),
        ("GET", "/api/v1/namespaces/a", Words("get", "namespaces", "a")),
        ("PUT", "/api/v1/namespaces/a/status", Words("update", "namespaces/status", "a")),
        ("POST", "/api/v1/namespaces/a/pods", Words("create", "pods", "")),
        ("POST", "/api/v1/namespaces/a/pods/p/binding", Words("create", "pods/binding", "p")),
        ("DELETE", "/api/v1/namespaces/a/pods", Words("deletecollection", "pods", "")),
        ("DELETE", "/api/v1/namespaces/a/pods/p", Words("delete", "pods", "p")),
        (
            "PATCH",
            "/apis/vgpu.dev/v1alpha1/namespaces/a/vgpuclaims/c/status",
            Words("patch", "vgpuclaims.vgpu.dev/status", "c"),
        ),
        (
            "GET",
            "/apis/vgpu.dev/v1alpha1/gpudevices/g",
            Words("get", "gpudevices.vgpu.dev", "g"),
        ),
        ("GET", "/api/v1", None),
        ("GET", "/apis/vgpu.dev/v1alpha1", None),
        ("GET", "/readyz", None),
    ],
)
def test_a_request_is_told_from_its_method_and_path(
    method: str, url: str, words: Words | None
) -> None:
    assert words_of(method, url, {}) == words


def test_a_list_with_the_watch_parameter_is_a_watch() -> None:
    assert words_of("GET", "/api/v1/pods", {"watch": "true"}) == Words("watch", "pods", "")


async def test_without_faults_everything_passes_as_it_is(proxied: Proxied) -> None:
    made = await proxied.create("a")
    assert await proxied.straight.get(CONFIG_MAPS, "a", namespace="default") == made
    with pytest.raises(AlreadyExists):
        await proxied.create("a")
    with pytest.raises(NotFound):
        await proxied.through.get(CONFIG_MAPS, "b", namespace="default")


async def test_a_status_fault_refuses_so_many_requests_and_does_nothing(proxied: Proxied) -> None:
    fault = proxied.proxy.faults.add(
        Fault(action="status", code=503, verb="create", resource=MAPS, times=2)
    )
    for _ in range(2):
        with pytest.raises(ServerError) as refused:
            await proxied.create("a")
        assert (refused.value.status, refused.value.reason) == (503, "ServiceUnavailable")
    assert proxied.proxy.faults.count(fault) == 2
    assert await proxied.names() == []
    await proxied.create("a")


async def test_a_lost_answer_is_done_but_not_told(proxied: Proxied) -> None:
    proxied.proxy.faults.add(Fault(action="lost", verb="create", resource=MAPS))
    with pytest.raises(Unknown):
        await proxied.create("a")
    assert await proxied.names() == ["a"]


async def test_an_answer_of_500_may_come_after_the_write(proxied: Proxied) -> None:
    proxied.proxy.faults.add(Fault(action="answered", verb="create", resource=MAPS))
    with pytest.raises(ServerError):
        await proxied.create("a")
    assert await proxied.names() == ["a"]


async def test_a_delayed_write_lands_although_its_client_has_gone(proxied: Proxied) -> None:
    faults = proxied.proxy.faults
    fault = faults.add(Fault(action="delay", verb="create", resource=MAPS, seconds=0.5))
    version = await proxied.version()
    writing = asyncio.create_task(proxied.create("a"))
    async with asyncio.timeout(20):
        for _ in range(1000):
            if faults.count(fault):
                break
            await asyncio.sleep(0.02)
        writing.cancel()  # which closes its connection
        watch = proxied.straight.watch(CONFIG_MAPS, resource_version=version)
        async with aclosing(watch) as events:
            async for event in events:
                if event["type"] == "ADDED":
                    break
    assert await proxied.names() == ["a"]
    assert faults.landed_late == 1


async def test_a_refused_connection_is_not_done(proxied: Proxied) -> None:
    proxied.proxy.faults.add(Fault(action="refuse", verb="create", resource=MAPS))
    with pytest.raises(ClientError):
        await proxied.create("a")
    assert await proxied.names() == []


async def test_a_fault_may_befall_one_user(proxied: Proxied) -> None:
    proxied.proxy.faults.add(Fault(action="status", user="another", times=None))
    await proxied.create("a")
    proxied.proxy.faults.add(Fault(action="status", user="tester", verb="create"))
    with pytest.raises(ServerError):
        await proxied.create("b")


async def test_a_delay_holds_one_request_and_no_other(proxied: Proxied) -> None:
    proxied.proxy.faults.add(Fault(action="delay", seconds=0.3, verb="list", resource="pods"))
    began = time.monotonic()
    slow = asyncio.create_task(proxied.through.list(PODS))
    await proxied.through.list(CONFIG_MAPS)
    assert not slow.done()
    await slow
    assert time.monotonic() - began >= 0.3


async def test_a_watch_passes_events_and_bookmarks_as_they_come(proxied: Proxied) -> None:
    async with proxied.watch(await proxied.version()) as events:
        await proxied.create("a")
        first = await anext(events)
        assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
        assert (await anext(events))["type"] == "BOOKMARK"


@pytest.mark.parametrize(("action", "error"), [("drop", StreamBroken), ("gone", Gone)])
async def test_a_watch_ends_in_place_of_the_event_after_so_many(
    proxied: Proxied, action: Any, error: type[Exception]
) -> None:
    proxied.proxy.faults.add(Fault(action=action, verb="watch", resource=MAPS, after=1))
    async with proxied.watch(await proxied.version()) as events:
        await proxied.create("a")
        await proxied.create("b")
        assert (await anext(events))["object"]["metadata"]["name"] == "a"
        with pytest.raises(error):
            await only_bookmarks(events)


async def test_a_frozen_watch_sends_nothing_any_more_bookmarks_neither(proxied: Proxied) -> None:
    proxied.proxy.faults.add(Fault(action="freeze", verb="watch", resource=MAPS))
    async with proxied.watch(await proxied.version(), inactivity_s=0.6) as events:
        await proxied.create("a")
        with pytest.raises(StreamBroken):
            await anext(events)


async def test_open_watches_are_broken_by_resource(proxied: Proxied) -> None:
    async with proxied.watch(await proxied.version()) as events:
        assert (await anext(events))["type"] == "BOOKMARK"
        assert proxied.proxy.break_watches("pods") == 0
        assert proxied.proxy.break_watches(MAPS, "gone") == 1
        with pytest.raises(Gone):
            await only_bookmarks(events)


async def test_a_restart_cuts_streams_and_serves_again_at_the_same_url(proxied: Proxied) -> None:
    url = proxied.proxy.url
    async with proxied.watch(await proxied.version()) as events:
        assert (await anext(events))["type"] == "BOOKMARK"
        await asyncio.to_thread(proxied.proxy.restart)
        with pytest.raises((StreamBroken, EOFError)):
            await only_bookmarks(events)
    assert proxied.proxy.url == url
    await proxied.create("a")


async def test_an_upstream_that_is_away_looks_like_a_server_that_is_away() -> None:
    authority = Authority()
    nowhere = authority.client_context()
    with FaultProxy("https://127.0.0.1:1", trust=nowhere) as proxy:
        trust: ssl.SSLContext = proxy.authority.client_context()
        reader_writer = await asyncio.open_connection(
            "127.0.0.1", int(proxy.url.rpartition(":")[2]), ssl=trust
        )
        reader, writer = reader_writer
        writer.write(b"GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.read() == b""
        writer.close()


async def test_a_reflector_sees_the_truth_however_its_requests_fare(proxied: Proxied) -> None:
    """A share of all requests fails while objects come and go.

    In the end the view equals the truth.
    """
    view = View()
    reflector = Reflector(proxied.through, CONFIG_MAPS, view, decode=lambda raw: raw)
    for action in ("status", "lost", "refuse", "drop", "gone"):
        proxied.proxy.faults.add(
            Fault(action=action, resource=MAPS, times=None, share=0.2, after=1)  # type: ignore[arg-type]
        )
    running = asyncio.create_task(reflector.run())
    try:
        for number in range(20):
            obj = {"metadata": {"name": f"m-{number}", "namespace": "default"}}
            await proxied.straight.create(CONFIG_MAPS, obj)
            if number % 3 == 0:
                await proxied.straight.delete(CONFIG_MAPS, f"m-{number}", namespace="default")
        proxied.proxy.faults.clear()
        truth = set(await proxied.names())
        async with asyncio.timeout(20):
            while view.names != truth:
                await view.changed.wait()
                view.changed.clear()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class View:
    """The events that a reflector delivered."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.changed = asyncio.Event()

    def added(self, obj: Any) -> None:
        self.names.add(obj["metadata"]["name"])
        self.changed.set()

    def modified(self, obj: Any) -> None:
        self.added(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        self.names.discard(identity.name)
        self.changed.set()

    def unreadable(self, identity: ObjectIdentity, raw: Any, error: Exception) -> None:
        raise AssertionError(identity) from error
