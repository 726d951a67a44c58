"""Metrics are served to scrapers that the API server authenticates and lets read them."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from set_clock import SetClock
from vgpu_api.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource
from vgpu_client.errors import Unreachable
from vgpu_client.listen import listen
from vgpu_client.metrics_server import MetricsServer
from vgpu_client.own_certificate import own_certificate
from vgpu_client.reviews import AT_ONCE, KEPT, WAITING
from vgpu_client.scrapers import ALLOWED_S, REFUSED_S, Answer, Scrapers


class Reviews:
    """An API server that reviews tokens, and counts the reviews."""

    def __init__(self) -> None:
        self.users = {"good": "prometheus", "other": "tenant"}
        self.allowed = {"prometheus"}
        self.asked: list[str] = []
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.at_once = self.most_at_once = 0

    async def create(self, resource: Resource, obj: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        self.asked.append(resource.kind)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
        finally:
            self.at_once -= 1
        if self.away:
            raise Unreachable("no answer in time")
        spec = obj["spec"]
        if resource is TOKEN_REVIEWS:
            user = self.users.get(spec["token"])
            if user is None:
                return {"status": {"authenticated": False}}
            known = {"username": user, "uid": "7", "groups": ["g"], "extra": {"k": ["v"]}}
            return {"status": {"authenticated": True, "user": known}}
        assert resource is SUBJECT_ACCESS_REVIEWS
        assert spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        assert (spec["groups"], spec["extra"]) == (["g"], {"k": ["v"]})
        return {"status": {"allowed": spec["user"] in self.allowed}}


@pytest.fixture
def api() -> Reviews:
    return Reviews()


@pytest.fixture
def clock() -> SetClock:
    return SetClock(100.0)


@pytest.fixture
def reviewed(api: Reviews, clock: SetClock) -> Scrapers:
    return Scrapers(api, clock=clock)  # type: ignore[arg-type]


async def test_who_may_get_the_path_is_allowed(reviewed: Scrapers, api: Reviews) -> None:
    assert await reviewed.review("Bearer good") == Answer(200)
    assert api.asked == ["TokenReview", "SubjectAccessReview"]


async def test_a_user_without_the_right_is_refused_by_name(reviewed: Scrapers) -> None:
    answer = await reviewed.review("Bearer other")
    assert answer == Answer(403, 'user "tenant" cannot get path "/metrics"')


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic Z29vZA==", "good"])
async def test_without_a_token_nobody_is_asked(
    reviewed: Scrapers, api: Reviews, header: str
) -> None:
    assert (await reviewed.review(header)).status == 401
    assert api.asked == []


async def test_a_forged_token_is_refused(reviewed: Scrapers) -> None:
    assert (await reviewed.review("Bearer forged")).status == 401


async def test_an_answer_is_kept_for_a_while_and_no_longer(
    reviewed: Scrapers, api: Reviews, clock: SetClock
) -> None:
    await reviewed.review("Bearer good")
    clock.time += ALLOWED_S - 1
    await reviewed.review("bearer good")
    assert len(api.asked) == 2
    api.allowed.clear()
    clock.time += 2
    assert (await reviewed.review("Bearer good")).status == 403
    api.allowed.add("prometheus")
    clock.time += REFUSED_S + 1
    assert (await reviewed.review("Bearer good")).status == 200


async def test_while_the_api_server_is_away_nothing_is_served_and_nothing_kept(
    reviewed: Scrapers, api: Reviews
) -> None:
    api.away = True
    assert (await reviewed.review("Bearer good")).status == 503
    api.away = False
    assert (await reviewed.review("Bearer good")).status == 200


async def test_scrapers_of_one_token_are_reviewed_together(
    reviewed: Scrapers, api: Reviews
) -> None:
    answers = await asyncio.gather(*(reviewed.review("Bearer good") for _ in range(20)))
    assert {answer.status for answer in answers} == {200}
    assert len(api.asked) == 2


async def test_a_flood_of_forged_tokens_is_bounded(reviewed: Scrapers, api: Reviews) -> None:
    """Requests in flight, waiting requests and cached answers are all limited."""
    api.gate.clear()
    flood = [asyncio.create_task(reviewed.review(f"Bearer forged-{n}")) for n in range(200)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    turned_away = [task for task in flood if task.done()]
    assert len(turned_away) == 200 - WAITING
    assert {task.result().status for task in turned_away} == {503}
    api.gate.set()
    await asyncio.gather(*flood)
    assert api.most_at_once <= AT_ONCE
    for number in range(KEPT + 50):
        await reviewed.review(f"Bearer again-{number}")
    assert len(reviewed._answers) == KEPT


async def test_a_flood_of_forged_tokens_neither_delays_nor_evicts_a_known_scraper(
    reviewed: Scrapers, api: Reviews, clock: SetClock
) -> None:
    assert (await reviewed.review("Bearer good")).status == 200
    for number in range(KEPT + 50):
        await reviewed.review(f"Bearer forged-{number}")
    asked = len(api.asked)
    assert (await reviewed.review("Bearer good")).status == 200
    assert len(api.asked) == asked  # it is still kept
    clock.time += ALLOWED_S + 1
    api.gate.clear()
    flood = [asyncio.create_task(reviewed.review(f"Bearer again-{n}")) for n in range(200)]
    await asyncio.sleep(0)
    honest = asyncio.create_task(reviewed.review("Bearer good"))
    await asyncio.sleep(0)
    assert not honest.done()  # it is being reviewed, not turned away
    assert api.asked[-1] == "TokenReview"
    api.gate.set()
    assert (await honest).status == 200
    await asyncio.gather(*flood)


async def test_a_token_whose_right_ended_is_a_strangers_again(
    reviewed: Scrapers, api: Reviews, clock: SetClock
) -> None:
    assert (await reviewed.review("Bearer good")).status == 200
    api.allowed.clear()
    clock.time += ALLOWED_S + 1
    assert (await reviewed.review("Bearer good")).status == 403
    clock.time += REFUSED_S + 1
    api.gate.clear()
    flood = [asyncio.create_task(reviewed.review(f"Bearer again-{n}")) for n in range(WAITING)]
    await asyncio.sleep(0)
    assert (await reviewed.review("Bearer good")).status == 503
    api.gate.set()
    await asyncio.gather(*flood)


@asynccontextmanager
async def served(api: Reviews | None) -> AsyncIterator[str]:
    """A server with one gauge, and its address."""
    registry = CollectorRegistry()
    Gauge("vgpu_devices", "Devices.", registry=registry).set(8)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    reviewed = None if api is None else Scrapers(api)  # type: ignore[arg-type]
    tls = None if api is None else own_certificate("vgpu-nodeagent.node-1")
    async with MetricsServer(registry, listening, scrapers=reviewed, tls=tls):
        yield f"{'http' if api is None else 'https'}://127.0.0.1:{port}/metrics"


async def get(url: str, **headers: str) -> tuple[int, str, Mapping[str, str]]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=context) as answer,
    ):
        return answer.status, await answer.text(), answer.headers


async def test_the_server_shows_metrics_to_reviewed_scrapers_over_tls(api: Reviews) -> None:
    async with served(api) as url:
        status, text, headers = await get(url, Authorization="Bearer good")
        assert (status, "vgpu_devices 8.0" in text) == (200, True)
        assert headers["Content-Type"].startswith("text/plain")
        status, text, headers = await get(url)
        assert (status, "vgpu_devices" in text) == (401, False)
        assert headers["WWW-Authenticate"] == "Bearer"
        assert (await get(url, Authorization="Bearer other"))[0] == 403


async def test_an_administrator_may_open_it() -> None:
    async with served(None) as url:
        status, text, _ = await get(url)
        assert (status, "vgpu_devices 8.0" in text) == (200, True)


async def test_openmetrics_are_served_to_those_who_accept_them() -> None:
    async with served(None) as url:
        accept = "application/openmetrics-text; version=1.0.0"
        _, text, headers = await get(url, Accept=accept)
        assert headers["Content-Type"].startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")


def test_all_addresses_are_those_of_both_families() -> None:
    with listen("", 0) as listening:
        port = listening.getsockname()[1]
        for host in ("::1", "127.0.0.1"):
            socket.create_connection((host, port), timeout=5).close()


def test_one_address_is_that_one_alone() -> None:
    with listen("::1", 0) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)


def test_where_ipv6_is_switched_off_ipv4_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.create_server

    def without_ipv6(*arguments: Any, **options: Any) -> socket.socket:
        if options.get("family") == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return real(*arguments, **options)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    with listen("", 0) as listening:
        assert listening.family == socket.AF_INET


def test_a_port_that_is_taken_is_an_error() -> None:
    with listen("", 0) as first, pytest.raises(OSError, match="in use"):
        listen("", first.getsockname()[1])
