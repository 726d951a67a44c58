"""A small kube-proxy: a port of this machine that leads to the endpoints of a Service.

Bytes are copied between the client and one of the endpoints. The endpoints of a Service with a
selector are given; those of a Service without one are read from its EndpointSlices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vgpu_api.resources import ENDPOINT_SLICES
from vgpu_client.api import Api
from vgpu_client.background import Background
from vgpu_client.reflector import ObjectIdentity, Reflector, Scope
from vgpu_client.transport import Object

_CONNECT_S = 1.0
_FIRST_WORD_S = 2.0


@dataclass(frozen=True, slots=True)
class Backend:
    """The address of an endpoint."""

    host: str
    port: int


class Service:
    """A port that leads to the first endpoint that answers.

    An endpoint that accepts a connection and then sends nothing is skipped too, because a readiness
    probe would have removed it from the Service. The endpoint that answered last is tried first.
    """

    def __init__(self, backends: Callable[[], Sequence[Backend]]) -> None:
        """Create a Service that is not started yet.

        Args:
            backends: Returns the current endpoints.
        """
        self._backends = backends
        self._good: Backend | None = None
        self._server: asyncio.Server | None = None
        self._connections = Background()

    async def start(self, port: int) -> None:
        """Listen on a port of this machine."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self._serve), "127.0.0.1", port)

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        await self._connections.cancel()

    def _serve(self, client: _Side) -> None:
        self._connections.start(self._carry(client))

    async def _carry(self, client: _Side) -> None:
        try:
            await client.spoke.wait()  # the client speaks first, in TLS and in HTTP
            if client.received:
                await self._lead_on(client)
        finally:
            client.hang_up()

    async def _lead_on(self, client: _Side) -> None:
        backends = sorted(self._backends(), key=lambda backend: backend != self._good)
        for backend in backends:
            is_last = backend is backends[-1]  # no other backend is left to try, so wait for it
            try:
                server = await _connected(backend, None if is_last else _CONNECT_S)
            except (OSError, TimeoutError):
                continue
            try:
                sent = len(client.received)
                server.write(bytes(client.received))
                async with asyncio.timeout(None if is_last else _FIRST_WORD_S):
                    await server.spoke.wait()
                if server.received:
                    self._good = backend
                    client.join(server, already=sent)
                    server.join(client)
                    await client.ended.wait()
                    return
            except TimeoutError:
                continue
            finally:
                server.hang_up()


class _Side(asyncio.Protocol):
    """The connection of one side, which buffers its data until it is joined to the other side.

    Attributes:
        received: The data received before the join.
        spoke: Set once data was received or the connection has ended.
        ended: Set once the connection has ended.
    """

    def __init__(self, opened: Callable[[_Side], None] | None = None) -> None:
        self.received = bytearray()
        self.spoke = asyncio.Event()
        self.ended = asyncio.Event()
        self._opened = opened
        self._other: _Side | None = None

    def join(self, other: _Side, *, already: int = 0) -> None:
        """Forward data to the other side, except for the first `already` bytes."""
        self._other = other
        other.write(bytes(self.received[already:]))
        self.received.clear()

    def write(self, data: bytes) -> None:
        """Send data to this side."""
        self._transport.write(data)

    def hang_up(self) -> None:
        """End the connection after all written data was sent."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the opening of the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._opened is not None:
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        """Forward data to the other side, or buffer it before the join."""
        if self._other is not None:
            self._other.write(data)
            return
        self.received += data
        self.spoke.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection by ending the other side's."""
        self.ended.set()
        self.spoke.set()
        if self._other is not None:
            self._other.hang_up()

    def pause_writing(self) -> None:
        """Stop reading from the other side, since this side's buffer is full."""
        if self._other is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the other side again."""
        if self._other is not None:
            self._other._transport.resume_reading()


async def _connected(backend: Backend, limit_s: float | None) -> _Side:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(limit_s):
        _, side = await loop.create_connection(_Side, backend.host, backend.port)
    return side


class Slices:
    """The endpoints of Services without selectors, from their EndpointSlices."""

    def __init__(self, api: Api, hosts: dict[str, str]) -> None:
        """Create the endpoints, which are empty until `run`.

        Args:
            api: The cluster's client.
            hosts: The address of this machine for each address in a slice, because a real API
                server accepts no loopback addresses in slices.
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
        """Watch the slices; never returns."""
        await self._reflector.run()

    def backends(self, namespace: str, service: str, port_name: str) -> list[Backend]:
        """Return the ready endpoints of a Service's port."""
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
        """Store a slice."""
        metadata = obj["metadata"]
        identity = ObjectIdentity(metadata["namespace"], metadata["name"], metadata["uid"])
        self._slices[identity] = obj

    def modified(self, obj: Object) -> None:
        """Store a newer version of a slice."""
        self.added(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        """Forget a slice."""
        self._slices.pop(identity, None)

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """Never called, because nothing is decoded."""
        raise error
