"""What `kubectl vgpu` sends requests with reads each form of HTTP/1.1 that a server may choose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from vgpu_client.exchange import HttpRequest, TimeLimits
from vgpu_client.plain_http import BadAnswer, NotSent, open_plain_http
from vgpu_local.pki import Authority

Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIMITS = TimeLimits(connect_s=5, total_s=5)


@asynccontextmanager
async def a_server(served: Served, **more: object) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await served(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, **more)  # type: ignore[arg-type]
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def answering(*texts: bytes) -> tuple[Served, list[bytes]]:
    """Return a server that gives these answers, one a request, and the requests that it got."""
    left, seen = list(texts), list[bytes]()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while left:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(left.pop(0))
            await writer.drain()

    return served, seen


def get(address: str, *, proxy: str | None = None, **more: str) -> HttpRequest:
    return HttpRequest("GET", f"http://{address}/a b", more, (), None, None, None, proxy)


FORMS = {
    "a length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": b"HTTP/1.1 200 OK\r\nTRANSFER-encoding: chunked\r\n\r\n"
    b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: a\r\n\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\n\r\nhello",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "an early hint before it": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
async def test_a_body_is_read_to_its_end_in_each_form(text: bytes) -> None:
    served, seen = answering(text)
    async with a_server(served) as address, open_plain_http() as http:
        answer = await http.send(get(address, limit="5"), LIMITS)
        assert (answer.status, await answer.read()) == (200, b"hello")
    assert seen[0].startswith(b"GET /a%20b?limit=5 HTTP/1.1\r\n")
    assert f"\r\nHost: {address}\r\n".encode() in seen[0]


WRONG = {
    "a body cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
    "a chunk cut short": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
    "a chunk without a size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
async def test_an_answer_that_is_not_whole_is_no_answer(text: bytes) -> None:
    served, _ = answering(text)
    async with a_server(served) as address, open_plain_http() as http:
        with pytest.raises(BadAnswer):
            await (await http.send(get(address), LIMITS)).read()


@pytest.mark.parametrize(
    ("headers", "connections"), [(b"", 1), (b"Connection: close\r\n", 2)], ids=["kept", "closed"]
)
async def test_a_connection_is_used_again_unless_the_server_closes_it(
    headers: bytes, connections: int
) -> None:
    opened = 0

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n" + headers + b"\r\nx")

    async with a_server(served) as address, open_plain_http() as http:
        for _ in range(2):
            assert await (await http.send(get(address), LIMITS)).read() == b"x"
    assert opened == connections


async def test_a_connection_in_use_is_not_used_for_another_request() -> None:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readuntil(b"\r\n\r\n")
        text = first.split(b" ")[1][-1:]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + text)
        await reader.read()

    async with a_server(served) as address, open_plain_http() as http:
        answers = [await http.send(get(address, n=str(n)), LIMITS) for n in range(3)]
        assert [await each.read() for each in reversed(answers)] == [b"2", b"1", b"0"]


async def test_a_header_cannot_carry_another_header() -> None:
    served, seen = answering()
    async with a_server(served) as address, open_plain_http() as http:
        headers = (("Impersonate-User", "a\r\nImpersonate-Group: system:masters"),)
        request = HttpRequest("GET", f"http://{address}/", {}, headers, None, None, None, None)
        with pytest.raises(NotSent, match="line break"):
            await http.send(request, LIMITS)
    assert seen == []


async def test_a_proxy_gets_the_whole_address_of_a_plain_server() -> None:
    served, seen = answering(FORMS["a length"])
    async with a_server(served) as proxy, open_plain_http() as http:
        request = get("far.example:8080", proxy=f"http://ann:b%20c@{proxy}")
        assert await (await http.send(request, LIMITS)).read() == b"hello"
    assert seen[0].startswith(b"GET http://far.example:8080/a%20b HTTP/1.1\r\n")
    assert b"\r\nProxy-Authorization: Basic YW5uOmIgYw==\r\n" in seen[0]


async def test_a_server_with_tls_is_reached_and_verified_through_a_proxy() -> None:
    authority, asked = Authority(), list[bytes]()
    served, _ = answering(FORMS["a length"])

    async with a_server(served, ssl=authority.leaf().server_context()) as address:

        async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            host, _, port = address.partition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                while data := await source.read(4096):
                    target.write(data)

            async with asyncio.TaskGroup() as group:
                copies = [
                    group.create_task(copy(reader, far_writer)),
                    group.create_task(copy(far_reader, writer)),
                ]
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
                for each in copies:
                    each.cancel()
            far_writer.transport.abort()

        async with a_server(tunnel) as proxy, open_plain_http() as http:
            trust = authority.client_context()
            url = f"https://{address}/"
            request = HttpRequest("GET", url, {}, (), None, trust, None, f"http://{proxy}")
            assert await (await http.send(request, LIMITS)).read() == b"hello"
    assert asked[0].startswith(f"CONNECT {address} HTTP/1.1\r\n".encode())


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "https://127.0.0.1:1", "nonsense"])
async def test_another_kind_of_proxy_is_refused(proxy: str) -> None:
    async with open_plain_http() as http:
        with pytest.raises(NotSent, match="proxy-url: Unsupported value"):
            await http.send(get("127.0.0.1:1", proxy=proxy), LIMITS)
