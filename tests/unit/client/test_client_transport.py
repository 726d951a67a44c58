"""The client classifies every way in which an HTTP exchange can fail."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from set_budget import Budget
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.errors import (
    ClientError,
    Gone,
    Invalid,
    LoginError,
    NotFound,
    ServerError,
    StreamBroken,
    TooManyRequests,
    Unauthorized,
    Unknown,
    Unreachable,
)
from vgpu_client.exchange import Http
from vgpu_client.plain_http import open_plain_http
from vgpu_client.session import Sockets, open_pooled_http
from vgpu_client.transport import REQUESTS, REQUESTS_LEVEL, Manner
from vgpu_local.pki import Authority

Opened = Callable[[], AbstractAsyncContextManager[Http]]
OVER: dict[str, Opened] = {"aiohttp": open_pooled_http, "asyncio": open_plain_http}
"""What sends the requests of servers, and of `kubectl vgpu`: they fail alike."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(params=OVER)
def over(request: pytest.FixtureRequest) -> Opened:
    return OVER[request.param]


@asynccontextmanager
async def a_server(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    await runner.cleanup()


def a_kubeconfig(folder: Path, server: str, *, user: dict[str, Any], **cluster: Any) -> str:
    path = folder / "kubeconfig"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


@asynccontextmanager
async def an_api(folder: Path, handler: Handler, over: Opened) -> AsyncIterator[Api]:
    async with a_server(handler) as url:
        kubeconfig = a_kubeconfig(folder, url, user={"token": "secret"})
        async with Api.connect(kubeconfig, http=over()) as api:
            api._sleep = no_wait  # the waits between reads are not tested here
            yield api


async def no_wait(seconds: float) -> None:
    pass


def answering(*answers: web.Response) -> Handler:
    left = list(answers)

    async def handler(request: web.Request) -> web.Response:
        return left.pop(0)

    return handler


def a_status(code: int, **body: Any) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, **body}, status=code)


async def write(api: Api, **more: Any) -> dict[str, Any]:
    return await api.merge_patch(PODS, "p", {"a": 1}, namespace="ns", **more)


async def test_a_write_carries_the_token_its_limit_and_its_kind(
    tmp_path: Path, over: Opened
) -> None:
    seen: dict[str, str] = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(request.query)
        seen.update(path=request.path, type=request.content_type)
        seen.update(token=request.headers["Authorization"])
        return web.json_response({})

    async with an_api(tmp_path, handler, over) as api:
        await write(api, subresource="status", field_manager="me", timeout_s=2.5)
    assert seen == {
        "path": "/api/v1/namespaces/ns/pods/p/status",
        "type": "application/merge-patch+json",
        "token": "Bearer secret",
        "timeout": "2500ms",
        "fieldValidation": "Ignore",
        "fieldManager": "me",
    }


async def test_a_write_with_a_budget_gives_the_server_half_of_it(
    tmp_path: Path, over: Opened
) -> None:
    limits: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        limits.append(request.query["timeout"])
        return web.json_response({})

    async with an_api(tmp_path, handler, over) as api:
        leader = api.within(Budget(30.0, 5.0))
        await write(leader, timeout_s=10.0)
        await write(leader, timeout_s=10.0)
        await write(api, timeout_s=10.0)  # its own right to write does not end
    assert limits == ["10000ms", "2500ms", "10000ms"]


async def test_a_write_that_could_land_too_late_is_not_sent(tmp_path: Path, over: Opened) -> None:
    sent: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        sent.append(request.method)
        return web.json_response({})

    async with an_api(tmp_path, handler, over) as api:
        leader = api.within(Budget(0.4))
        with pytest.raises(Unreachable, match="no time left to write"):
            await write(leader)
        await leader.get(PODS, "p", namespace="ns")  # reading needs no time left
    assert sent == ["GET"]


async def test_a_write_whose_answer_is_lost_has_an_unknown_outcome(
    tmp_path: Path, over: Opened
) -> None:
    requests = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        await request.read()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with an_api(tmp_path, handler, over) as api:
        with pytest.raises(Unknown):
            await write(api)
    assert requests == 1, "a write must not be sent twice"


async def test_a_write_that_takes_too_long_has_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: Opened
) -> None:
    monkeypatch.setattr("vgpu_client.transport._GRACE_S", 0.0)

    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with an_api(tmp_path, handler, over) as api:
        with pytest.raises(Unknown, match="no answer in time"):
            await write(api, timeout_s=0.05)


async def test_a_write_that_the_server_gave_up_on_has_an_unknown_outcome(
    tmp_path: Path, over: Opened
) -> None:
    async with an_api(tmp_path, answering(a_status(504, reason="Timeout")), over) as api:
        with pytest.raises(Unknown):
            await write(api)


async def test_a_write_to_nobody_was_not_sent(tmp_path: Path, over: Opened) -> None:
    async with a_server(answering()) as url:
        kubeconfig = a_kubeconfig(tmp_path, url, user={"token": "t"})
    async with Api.connect(kubeconfig, http=over()) as api:
        with pytest.raises(Unreachable):
            await write(api)


async def test_a_refused_write_is_told_with_its_causes(tmp_path: Path, over: Opened) -> None:
    cause = {"field": "spec.a", "reason": "FieldValueInvalid", "message": "no"}
    refusal = a_status(422, reason="Invalid", message="is invalid", details={"causes": [cause]})
    async with an_api(tmp_path, answering(refusal), over) as api:
        with pytest.raises(Invalid, match="422 Invalid: is invalid") as caught:
            await write(api)
    assert caught.value.details["causes"] == [cause]


async def test_a_denial_with_422_and_no_details_is_no_conflict(
    tmp_path: Path, over: Opened
) -> None:
    denial = a_status(422, reason="Invalid", message="admission webhook x denied the request")
    async with an_api(tmp_path, answering(denial), over) as api:
        with pytest.raises(Invalid):
            await write(api)


async def test_a_busy_server_says_when_to_come_back(tmp_path: Path, over: Opened) -> None:
    busy = web.json_response({}, status=429, headers={"Retry-After": "7"})
    async with an_api(tmp_path, answering(busy), over) as api:
        with pytest.raises(TooManyRequests) as caught:
            await write(api)
    assert caught.value.retry_after == 7


async def test_reads_are_repeated_until_they_succeed(tmp_path: Path, over: Opened) -> None:
    answers = answering(a_status(500), a_status(429), a_status(503), web.json_response({"a": 1}))
    async with an_api(tmp_path, answers, over) as api:
        assert await api.get(PODS, "p", namespace="ns") == {"a": 1}


async def test_reads_give_up_in_the_end(tmp_path: Path, over: Opened) -> None:
    async with an_api(tmp_path, answering(*(a_status(500) for _ in range(5))), over) as api:
        with pytest.raises(ServerError):
            await api.get(PODS, "p", namespace="ns")


async def test_an_answer_that_is_not_json_is_the_servers_error(
    tmp_path: Path, over: Opened
) -> None:
    async with an_api(tmp_path, answering(web.Response(text="<html>")), over) as api:
        with pytest.raises(ServerError, match="not JSON"):
            await write(api)


async def test_a_list_whose_pages_expired_is_begun_again(tmp_path: Path, over: Opened) -> None:
    def page(*names: str, rest: str = "") -> web.Response:
        items = [{"metadata": {"name": name}} for name in names]
        metadata = {"resourceVersion": "9", "continue": rest}
        return web.json_response({"metadata": metadata, "items": items})

    pages = answering(page("a", rest="x"), a_status(410), page("b", rest="y"), page("c"))
    async with an_api(tmp_path, pages, over) as api:
        listing = await api.list(PODS)
    assert [item["metadata"]["name"] for item in listing.items] == ["b", "c"]


async def test_a_401_renews_the_credentials_once(tmp_path: Path, over: Opened) -> None:
    tokens: list[str] = []
    kubeconfig = ""

    async def handler(request: web.Request) -> web.Response:
        tokens.append(request.headers["Authorization"])
        if request.headers["Authorization"] == "Bearer new":
            return web.json_response({})
        return a_status(401)

    async with a_server(handler) as url:
        kubeconfig = a_kubeconfig(tmp_path, url, user={"token": "old"})
        async with Api.connect(kubeconfig, http=over()) as api:
            with pytest.raises(Unauthorized):
                await write(api)
            a_kubeconfig(tmp_path, url, user={"token": "new"})
            await write(api)
    assert tokens == ["Bearer old"] * 3 + ["Bearer new"]


def watching(*chunks: bytes, end: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0)
        if end == "silence":
            await asyncio.sleep(30)
        if end == "abort":
            assert request.transport is not None
            request.transport.abort()
        return response

    return handler


async def watched(api: Api, **more: Any) -> list[dict[str, Any]]:
    events = api.watch(VGPU_CLAIMS, resource_version="5", **more)
    async with aclosing(events):
        return [event async for event in events]


async def test_events_are_read_however_they_are_cut(tmp_path: Path, over: Opened) -> None:
    big = "x" * 3_000_000
    text = b'{"type":"ADDED","object":{"a":"' + big.encode() + b'"}}\n{"type":"BOOK'
    rest = b'MARK","object":{}}\n\n'
    handler = watching(text[:100], text[100:200_000], text[200_000:], rest, end="properly")
    async with an_api(tmp_path, handler, over) as api:
        events = await watched(api)
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    assert events[0]["object"]["a"] == big


@pytest.mark.parametrize("end", ["abort", "silence"])
async def test_a_broken_and_a_silent_stream_are_told_apart_from_an_ended_one(
    tmp_path: Path, end: str, over: Opened
) -> None:
    handler = watching(b'{"type":"ADDED","object":{}}\n', end=end)
    async with an_api(tmp_path, handler, over) as api:
        with pytest.raises(StreamBroken):
            await watched(api, inactivity_s=0.1)


async def test_half_an_event_breaks_the_stream(tmp_path: Path, over: Opened) -> None:
    async with an_api(tmp_path, watching(b'{"type":\n', end="properly"), over) as api:
        with pytest.raises(StreamBroken, match="not JSON"):
            await watched(api)


async def test_an_error_event_is_raised(tmp_path: Path, over: Opened) -> None:
    gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n'
    async with an_api(tmp_path, watching(gone, end="properly"), over) as api:
        with pytest.raises(Gone):
            await watched(api)


async def test_the_server_is_trusted_by_its_authority_only(tmp_path: Path, over: Opened) -> None:
    right, wrong = Authority(), Authority()
    async with a_server(answering(web.json_response({})), tls=right.leaf().server_context()) as url:
        for number, authority in enumerate((right, wrong)):
            ca = tmp_path / f"{number}.crt"
            ca.write_bytes(authority.certificate)
            kubeconfig = a_kubeconfig(
                tmp_path, url, user={"token": "t"}, **{"certificate-authority": str(ca)}
            )
            async with Api.connect(kubeconfig, http=over()) as api:
                if authority is right:
                    assert await write(api) == {}
                else:
                    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                        await write(api)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "does not exist"),
        ("{", "kubeconfig"),
        ("current-context: nowhere\ncontexts: []\nclusters: []\nusers: []\n", "nowhere"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_is_named(
    tmp_path: Path, content: str | None, why: str
) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LoginError, match=why):
        async with Api.connect(str(path)):
            pass


async def test_a_pod_logs_in_with_its_service_account_and_follows_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: Opened
) -> None:
    authority, tokens = Authority(), []

    async def handler(request: web.Request) -> web.Response:
        tokens.append(request.headers["Authorization"])
        return web.json_response({}) if tokens[-1] == "Bearer new" else a_status(401)

    (tmp_path / "token").write_text("old")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    async with a_server(handler, tls=authority.leaf().server_context()) as url:
        monkeypatch.setattr("vgpu_client.connection.SERVICE_ACCOUNT", tmp_path)
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", url.rpartition(":")[2])
        async with Api.connect(http=over()) as api:
            with pytest.raises(Unauthorized):
                await write(api)
            (tmp_path / "token").write_text("new\n")
            await write(api)
    assert tokens[-1] == "Bearer new"


async def test_a_list_from_the_servers_cache_is_asked_for_at_once_and_not_by_pages(
    tmp_path: Path, over: Opened
) -> None:
    asked: list[dict[str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": []})

    async with an_api(tmp_path, handler, over) as api:
        await api.list(PODS, field_selector="spec.nodeName=n", not_older_than="0")
        await api.list(PODS, field_selector="spec.nodeName=n")
    cached, quorum = asked
    assert cached == {
        "fieldSelector": "spec.nodeName=n",
        "resourceVersion": "0",
        "resourceVersionMatch": "NotOlderThan",
    }
    assert quorum == {"fieldSelector": "spec.nodeName=n", "limit": "500"}


@pytest.mark.parametrize("skew_s", [-3600.0, 3600.0])
async def test_the_time_of_day_is_the_servers_whichever_way_it_is_asked(
    tmp_path: Path, skew_s: float, over: Opened
) -> None:
    """Reads, writes, watches and refusals carry it, and clients made from one another share it."""

    async def handler(request: web.Request) -> web.Response:
        date = formatdate(time.time() + skew_s, usegmt=True)
        status = 404 if request.path.endswith("/missing") else 200
        return web.json_response({"items": []}, status=status, headers={"Date": date})

    async def watch(api: Api) -> None:
        async with aclosing(api.watch(PODS, resource_version="1")) as events:
            async for _ in events:
                pass

    async def miss(api: Api) -> None:
        with pytest.raises(NotFound):
            await api.get(PODS, "missing", namespace="ns")

    for ask in (write, miss, watch, lambda api: api.get(PODS, "p", namespace="ns")):
        async with an_api(tmp_path, handler, over) as api:
            leader = api.within(Budget(30.0))
            assert abs(leader.unix() - time.time()) < 5
            with suppress(ClientError):  # an empty watch
                await ask(api)
            assert abs(leader.unix() - time.time() - skew_s) < 5


def test_a_server_that_is_gone_without_a_word_is_noticed_long_before_a_missed_bookmark() -> None:
    """Before 90 s have passed, nothing else ends a watch whose server was cut off."""
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    with Sockets()(address) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle_s, interval_s, count = (
            made.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
    assert idle_s + interval_s * count <= 25


async def test_requests_are_made_in_the_name_of_another_user(tmp_path: Path, over: Opened):
    seen: list[list[tuple[str, str]]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append([(name, value) for name, value in request.headers.items() if "Imp" in name])
        return web.json_response({"kind": "Pod", "metadata": {}})

    manner = Manner(user="joe", groups=("a", "b"), uid="1")
    async with a_server(handler) as server:
        kubeconfig = a_kubeconfig(tmp_path, server, user={"token": "t"})
        async with Api.connect(kubeconfig, None, manner, http=over()) as api:
            await api.get(PODS, "p", namespace="n")
            await api.acting_as("jane").get(PODS, "p", namespace="n")
    groups = [("Impersonate-Group", "a"), ("Impersonate-Group", "b")]
    assert sorted(seen[0]) == [*groups, ("Impersonate-Uid", "1"), ("Impersonate-User", "joe")]
    assert seen[1] == [("Impersonate-User", "jane")]


async def test_a_request_lasts_no_longer_than_its_limit(tmp_path: Path, over: Opened):
    given: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        given.append(request.query.get("timeout", ""))
        if request.method == "GET":
            await asyncio.sleep(5)
        return web.json_response({"kind": "Pod", "metadata": {}})

    async with a_server(handler) as server:
        kubeconfig = a_kubeconfig(tmp_path, server, user={"token": "t"})
        async with Api.connect(kubeconfig, None, Manner(limit_s=0.3), http=over()) as api:
            await api.merge_patch(PODS, "p", {}, namespace="n")
            with pytest.raises(Unreachable, match="no answer in time"):
                async with asyncio.timeout(4):
                    await api.get(PODS, "p", namespace="n")
    assert given[0] == "300ms"


async def test_requests_are_logged_below_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, over: Opened
):
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Pod", "metadata": {}})

    async with a_server(handler) as server:
        kubeconfig = a_kubeconfig(tmp_path, server, user={"token": "t"})
        async with Api.connect(kubeconfig, http=over()) as api:
            for level, lines in ((logging.DEBUG, 0), (REQUESTS_LEVEL, 1)):
                caplog.clear()
                with caplog.at_level(level, REQUESTS.name):
                    await api.get(PODS, "p", namespace="n")
                assert len(caplog.messages) == lines
    assert re.fullmatch(r"GET http://\S+/pods/p 200 in \d+ ms", caplog.messages[0])
