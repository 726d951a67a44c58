"""Connections to a Service reach an endpoint that answers, while there is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from vgpu_local.ports import free_ports
from vgpu_local.service import Backend, Service


@asynccontextmanager
async def a_server(name: str, *, silent: bool = False) -> AsyncIterator[Backend]:
    """Answers every line with its name and the line."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if not silent:
                writer.write(name.encode() + b" " + line)
        writer.close()

    port = free_ports(1)[0]
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield Backend("127.0.0.1", port)
    finally:
        server.close()


@asynccontextmanager
async def a_service(backends: Sequence[Backend]) -> AsyncIterator[int]:
    service, port = Service(lambda: backends), free_ports(1)[0]
    await service.start(port)
    try:
        yield port
    finally:
        await service.stop()


async def ask(port: int, *lines: str) -> list[str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    for line in lines:
        writer.write(f"{line}\n".encode())
        answers.append((await reader.readline()).decode().strip())
    writer.close()
    return answers


async def test_what_is_said_is_carried_both_ways() -> None:
    async with a_server("one") as one, a_service([one]) as port:
        assert await ask(port, "a", "b") == ["one a", "one b"]


async def test_an_endpoint_that_is_gone_is_passed_over() -> None:
    gone = Backend("127.0.0.1", free_ports(1)[0])
    async with a_server("two") as two, a_service([gone, two]) as port:
        assert await ask(port, "a") == ["two a"]


async def test_an_endpoint_that_says_nothing_is_passed_over() -> None:
    async with (
        a_server("stopped", silent=True) as stopped,
        a_server("two") as two,
        a_service([stopped, two]) as port,
    ):
        assert await ask(port, "a") == ["two a"]
        assert await ask(port, "b") == ["two b"]


async def test_without_endpoints_the_caller_is_hung_up_on() -> None:
    async with a_service([]) as port:
        assert await ask(port, "a") == [""]


async def test_much_is_carried_whole_to_a_side_that_reads_slowly() -> None:
    line = "x" * 60_000
    async with a_server("one") as one, a_service([one]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 17)
        for _ in range(200):
            writer.write(f"{line}\n".encode())
        await asyncio.sleep(0.2)  # by now no side takes any more
        for _ in range(200):
            assert await reader.readline() == f"one {line}\n".encode()
        writer.close()
