"""A Service's address on this machine, and what stands behind it: kube-proxy in small.

Connections are carried byte by byte to one of the Service's endpoints. The endpoints of a Service
with a selector are given; those of one without are read from its EndpointSlices as they change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vgpu_api.resources import ENDPOINT_SLICES
from vgpu_client.api import Api
from vgpu_client.reflector import ObjectIdentity, Reflector, Scope
from vgpu_client.transport import Object

_CONNECT_S = 1.0
_FIRST_WORD_S = 2.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Backend:
    """Where an endpoint listens."""

    host: str
    port: int


class Service:
    """One port that leads to the endpoints, the next one where one does not answer.

    An endpoint that takes a connection and then sends nothing is passed over too: a readiness
    probe would have taken it out of the Service. The one that answered last is asked first.
    """

    def __init__(self, backends: Callable[[], Sequence[Backend]]) -> None:
        """Describe it.

        Args:
            backends: the endpoints of the moment.
        """
        self._backends = backends
        self._good: Backend | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> None:
        """Listen on a port of this machine."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def stop(self) -> None:
        """Hang up."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._carry(reader, writer)
        except OSError:
            pass  # one side is gone; the other is closed below
        finally:
            self._connections.discard(task)
            await _hang_up(writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(_CHUNK)  # the client speaks first, in TLS and in HTTP
        if not first:
            return
        backends = sorted(self._backends(), key=lambda backend: backend != self._good)
        for backend in backends:
            is_last = backend is backends[-1]  # then there is nothing to hurry for
            try:
                async with asyncio.timeout(None if is_last else _CONNECT_S):
                    inward, outward = await asyncio.open_connection(backend.host, backend.port)
            except (OSError, TimeoutError):
                continue
            try:
                outward.write(first)
                async with asyncio.timeout(None if is_last else _FIRST_WORD_S):
                    word = await inward.read(_CHUNK)
                if word:
                    self._good = backend
                    writer.write(word)
                    await _both_ways(reader, writer, inward, outward)
                    return
            except TimeoutError:
                continue
            finally:
                await _hang_up(outward)


class Slices:
    """The endpoints of Services without selectors, as they stand in EndpointSlices."""

    def __init__(self, api: Api, hosts: dict[str, str]) -> None:
        """Describe what to watch.

        Args:
            api: the cluster.
            hosts: by which address of this machine an address in a slice is reached; the real
                API server takes no loopback addresses into slices.
        """
        self._hosts = hosts
        self._slices: dict[ObjectIdentity, Object] = {}
        self._reflector = Reflector(
            api,
            ENDPOINT_SLICES,
            self,
            decode=lambda raw: raw,
            scope=Scope(label_selector="kubernetes.io/service-name"),
        )

    async def run(self) -> None:
        """Follow them for ever."""
        await self._reflector.run()

    def backends(self, namespace: str, service: str, port_name: str) -> list[Backend]:
        """The ready endpoints of a Service's port."""
        return [
            Backend(self._hosts[address], port["port"])
            for found in self._slices.values()
            if found["metadata"]["namespace"] == namespace
            and found["metadata"]["labels"]["kubernetes.io/service-name"] == service
            for port in found["ports"]
            if port["name"] == port_name
            for endpoint in found["endpoints"]
            if endpoint.get("conditions", {}).get("ready") is not False
            for address in endpoint["addresses"]
        ]

    def added(self, obj: Object) -> None:
        """Take a slice."""
        metadata = obj["metadata"]
        identity = ObjectIdentity(metadata["namespace"], metadata["name"], metadata["uid"])
        self._slices[identity] = obj

    def modified(self, obj: Object) -> None:
        """Take a newer version."""
        self.added(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        """Forget a slice."""
        self._slices.pop(identity, None)

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """Cannot be: nothing is decoded."""
        raise error


async def _both_ways(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    inward: asyncio.StreamReader,
    outward: asyncio.StreamWriter,
) -> None:
    """Carry until either side ends."""
    ways = {
        asyncio.ensure_future(_pump(reader, outward)),
        asyncio.ensure_future(_pump(inward, writer)),
    }
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK):
        sink.write(chunk)
        await sink.drain()


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
