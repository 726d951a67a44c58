"""The page is passed on to a browser, which gets the user's token once and by a code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from memory_api import MemoryApi
from vgpu_operator.cli.__main__ import main
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.web_page import (
    LOGIN,
    SERVICES,
    OneTimeLogin,
    check_installed,
    forwarded,
    served,
)


@asynccontextmanager
async def a_page() -> AsyncIterator[str]:
    """Serve a page that repeats what it is asked, and has a view that never ends."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/endless":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b"data: 1\n\n")
            await asyncio.sleep(30)
            return response
        text = await request.text()
        seen = [request.method, request.path_qs, request.headers.get("Authorization", ""), text]
        return web.json_response(seen, status=203, headers={"X-Frame-Options": "DENY"})

    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def a_browser(port: int = 0) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """Yield a session, and the address on which the page is passed on."""
    login = OneTimeLogin("the-token", "the-code")
    async with (
        a_page() as target,
        aiohttp.ClientSession() as session,
        served(login, target, port=port) as address,
    ):
        yield session, address


async def ask(session: aiohttp.ClientSession, method: str, url: str, **how: Any) -> tuple[int, Any]:
    async with session.request(method, url, **how) as answer:
        return answer.status, await answer.json()


async def test_the_token_is_given_once_for_the_right_code() -> None:
    async with a_browser() as (session, address):
        for code in ("wrong", ""):
            assert (await ask(session, "POST", f"{address}{LOGIN}?code={code}"))[0] == 403
        right = f"{address}{LOGIN}?code=the-code"
        assert await ask(session, "POST", right) == (200, {"token": "the-token"})
        assert (await ask(session, "POST", right))[0] == 403


async def test_requests_and_responses_are_passed_on_whole() -> None:
    async with a_browser() as (session, address):
        headers = {"Authorization": "Bearer t"}
        url = f"{address}/api/v1/what-if?a=b"
        async with session.post(url, data="kind: Pod", headers=headers) as answer:
            assert (answer.status, answer.headers["X-Frame-Options"]) == (203, "DENY")
            assert await answer.json() == ["POST", "/api/v1/what-if?a=b", "Bearer t", "kind: Pod"]


async def test_the_token_is_added_to_no_request() -> None:
    async with a_browser() as (session, address):
        assert (await ask(session, "GET", f"{address}/api/v1/fleet"))[1][2] == ""


async def test_a_view_arrives_before_it_ends() -> None:
    async with (
        a_browser() as (session, address),
        asyncio.timeout(5),
        session.get(f"{address}/endless") as answer,
    ):
        assert await answer.content.readline() == b"data: 1\n"


async def test_a_site_that_took_another_name_for_this_address_gets_nothing() -> None:
    async with a_browser() as (session, address):
        url = f"{address}{LOGIN}?code=the-code"
        status, found = await ask(session, "POST", url, headers={"Host": "evil.example"})
        assert (status, found) == (403, {"error": "unknown host evil.example"})
        assert (await ask(session, "POST", url))[0] == 200


async def test_a_page_that_is_gone_is_named() -> None:
    async with aiohttp.ClientSession() as session:
        login = OneTimeLogin("t", "c")
        async with served(login, "http://127.0.0.1:9", port=0) as address:
            status, found = await ask(session, "GET", address)
    assert status == 502
    assert found["error"].startswith("the page does not answer: ")


async def test_a_port_in_use_is_named() -> None:
    async with a_browser() as (_, address):
        port = int(address.rpartition(":")[2])
        login = OneTimeLogin("t", "c")
        with pytest.raises(CannotAnswer, match=f"port {port}: "):
            async with served(login, address, port=port):
                pass


def a_kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put a program named kubectl first on the PATH; it writes its arguments to a file."""
    program, seen = folder / "kubectl", folder / "seen"
    program.write_text(f'#!/bin/sh\necho "$@" >>{seen}\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return seen


@pytest.mark.programs
async def test_kubectl_forwards_the_port_with_the_users_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "echo 'Forwarding from 127.0.0.1:4711 -> 9446'; exec sleep 60"
    seen = a_kubectl(tmp_path, monkeypatch, script)
    async with forwarded(["--context=a"]) as target:
        assert target == "https://127.0.0.1:4711"
    assert seen.read_text() == "--context=a -n vgpu-system port-forward service/vgpu-web :443\n"


async def test_a_page_that_is_not_installed_is_named() -> None:
    api = MemoryApi()
    with pytest.raises(CannotAnswer, match="add manifests/components/web"):
        await check_installed(api)  # type: ignore[arg-type]
    api.put(SERVICES, {"metadata": {"name": "vgpu-web", "namespace": "vgpu-system"}})
    await check_installed(api)  # type: ignore[arg-type]


@pytest.mark.programs
async def test_what_kubectl_says_against_it_is_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_kubectl(tmp_path, monkeypatch, "echo 'services \"vgpu-web\" not found' >&2; exit 1")
    with pytest.raises(CannotAnswer, match=r'^services "vgpu-web" not found$'):
        async with forwarded([]):
            pass


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--as", "joe"), "use --service-account"),
        (("-n", "a"), "use it with --service-account"),
        ((), "the kubeconfig has no token"),
    ],
)
def test_without_a_token_the_way_to_one_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    config = tmp_path / "config"
    config.write_text(
        '{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],'
        '"users": [{"name": "u", "user": {"username": "a", "password": "b"}}],'
        '"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],'
        '"current-context": "x"}'
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert main(["web", "--no-browser", *words]) == 2
    assert said in capsys.readouterr().err
