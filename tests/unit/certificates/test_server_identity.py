"""A server that gets a new certificate presents it from then on, and keeps serving."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from prometheus_client import REGISTRY

from replica import Replica
from vgpu_local.ports import free_ports
from vgpu_operator.certificates.identity import Identity, InFiles, InSecret
from vgpu_operator.certificates.issuing import Pair, Subject, issue, new_authority
from vgpu_operator.config import Address, Tls
from vgpu_operator.extender.server import ExtenderServer

HOST = "localhost"
DAY = timedelta(days=1)


class Looks:
    """Lets an identity check for a change on request."""

    def __init__(self) -> None:
        self._go = asyncio.Event()
        self._rests = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self._rests.set()
        await self._go.wait()
        self._go.clear()

    async def once(self) -> None:
        """Return once it has looked for the first time."""
        await self._rests.wait()

    async def again(self) -> None:
        """Return once it has looked again."""
        await self._rests.wait()
        self._rests.clear()
        self._go.set()
        await self._rests.wait()


def a_server(port: int, tls: ssl.SSLContext) -> ExtenderServer:
    replica = Replica()
    address = Address("127.0.0.1", port)
    return ExtenderServer(replica.engine, replica.binder, lambda: True, address, tls)


def authority() -> Pair:
    return new_authority(now=datetime.now(UTC), life=30 * DAY)


def signed(by: Pair, *, server: bool = True) -> Pair:
    subject = Subject("it", (HOST,) if server else ())
    return issue(by, subject, now=datetime.now(UTC), life=DAY)


def put(folder: Path, pair: Pair, *trusted: Pair) -> Tls:
    tls = Tls(folder / "c", folder / "k", folder / "ca")
    tls.certificate.write_bytes(pair.certificate)
    tls.key.write_bytes(pair.key)
    assert tls.client_ca is not None
    tls.client_ca.write_bytes(b"".join(ca.certificate for ca in trusted))
    return tls


@asynccontextmanager
async def running(identity: Identity) -> AsyncIterator[None]:
    task = asyncio.create_task(identity.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def client(trusts: Pair, shows: Pair, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trusts.certificate.decode())
    (folder / "cc").write_bytes(shows.certificate + shows.key)
    context.load_cert_chain(folder / "cc")
    return context


async def shown(port: int, tls: ssl.SSLContext) -> x509.Certificate:
    """Return the certificate that the server presents to a client that it answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=HOST)
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(found)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def test_a_new_pair_is_shown_without_a_restart_and_new_clients_are_admitted(
    tmp_path: Path,
) -> None:
    old, new = authority(), authority()
    first, second = signed(old), signed(new)
    looks = Looks()
    tls = put(tmp_path, first, old)
    identity = Identity("test-expiry", InFiles(tls), verifies_clients=True, sleep=looks)
    port = free_ports(1)[0]
    server = a_server(port, identity.context)
    async with running(identity):
        await identity.ready.wait()
        async with server:
            of_old = client(old, signed(old, server=False), tmp_path)
            assert await shown(port, of_old) == first.parsed()
            of_new = client(new, signed(new, server=False), tmp_path)
            with pytest.raises(OSError, match=r"CERTIFICATE_VERIFY_FAILED|reset"):
                await shown(port, of_new)
            put(tmp_path, second, old, new)
            await looks.again()
            assert await shown(port, of_new) == second.parsed()
    ends = REGISTRY.get_sample_value(
        "vgpu_certificate_expiry_timestamp_seconds", {"name": "test-expiry"}
    )
    assert ends == second.parsed().not_valid_after_utc.timestamp()


async def test_a_client_gets_no_session_to_resume(tmp_path: Path) -> None:
    """Sessions would slow each handshake by a third, and resumed ones show no certificate."""
    ca = authority()
    tls = put(tmp_path, signed(ca), ca)
    identity = Identity("test", InFiles(tls), verifies_clients=True)
    port = free_ports(1)[0]
    async with running(identity):
        await identity.ready.wait()
        async with a_server(port, identity.context):
            shows = client(ca, signed(ca, server=False), tmp_path)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=shows, server_hostname=HOST
            )
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            connection = writer.get_extra_info("ssl_object")
            assert connection.version() == "TLSv1.3"
            assert not connection.session.has_ticket
            writer.close()


async def test_a_pair_that_cannot_be_used_is_passed_over(tmp_path: Path) -> None:
    ca = authority()
    pair = signed(ca)
    looks = Looks()
    identity = Identity(
        "test", InFiles(put(tmp_path, pair, ca)), verifies_clients=True, sleep=looks
    )
    port = free_ports(1)[0]
    server = a_server(port, identity.context)
    async with running(identity):
        await identity.ready.wait()
        async with server:
            put(tmp_path, Pair(signed(ca).certificate, pair.key), ca)
            await looks.again()
            of_ca = client(ca, signed(ca, server=False), tmp_path)
            assert await shown(port, of_ca) == pair.parsed()


async def test_a_first_pair_that_cannot_be_used_ends_the_process(tmp_path: Path) -> None:
    tls = put(tmp_path, Pair(b"no", b"pair"))
    with pytest.raises(ssl.SSLError):
        await Identity("test", InFiles(tls), verifies_clients=False).run()


async def test_a_first_pair_that_was_read_while_it_was_renewed_is_read_again(
    tmp_path: Path,
) -> None:
    ca = authority()
    pair, looks = signed(ca), Looks()
    tls = put(tmp_path, Pair(signed(ca).certificate, pair.key), ca)
    identity = Identity("test", InFiles(tls), verifies_clients=True, sleep=looks)
    async with running(identity):
        await looks.once()
        assert not identity.ready.is_set()
        put(tmp_path, pair, ca)
        await looks.again()
        assert identity.ready.is_set()


async def test_a_secret_that_is_not_filled_yet_is_waited_for() -> None:
    class Empty:
        async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {"metadata": {"name": "x"}, "data": {"ca.crt": "eA=="}}

    api: Any = Empty()
    assert await InSecret(api, "vgpu-system", "x").read() is None
