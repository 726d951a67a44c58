"""The leader's part: the contents of Secrets and webhook configurations after its rounds."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from memory_api import MemoryApi
from vgpu_api.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from vgpu_client.errors import Conflict, NotFound
from vgpu_operator.certificates import names
from vgpu_operator.certificates.issuing import Subject, is_signed_by, read_bundle
from vgpu_operator.certificates.keeper import Keeper
from vgpu_operator.certificates.rotation import Lives

NAMESPACE = "vgpu-system"
SUBJECTS = {
    names.WEBHOOK_SECRET: Subject("vgpu-webhook", ("vgpu-webhook.vgpu-system.svc",)),
    names.EXTENDER_SECRET: Subject("vgpu-extender", ("vgpu-extender.vgpu-system.svc",)),
    names.SCHEDULER_SECRET: Subject("vgpu-scheduler"),
}
LIVES = Lives(pair=timedelta(days=90), authority=timedelta(days=3650))
START = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """An API server with the objects of manifests/, and a clock."""

    def __init__(self) -> None:
        self.api: Any = MemoryApi()
        self.now = START
        for name in (names.AUTHORITY_SECRET, *SUBJECTS):
            self.api.put(SECRETS, {"metadata": {"namespace": NAMESPACE, "name": name}})
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            hooks = [{"name": f"{n}.vgpu.dev", "clientConfig": {}} for n in ("one", "two")]
            self.api.put(resource, {"metadata": {"name": "vgpu"}, "webhooks": hooks})

    def keeper(self) -> Keeper:
        return Keeper(
            self.api, namespace=NAMESPACE, subjects=SUBJECTS, lives=LIVES, now=lambda: self.now
        )

    async def settle(self) -> int:
        """Run rounds until nothing is left to do; return how many of them changed something."""
        rounds = 0
        while await self.keeper().step():
            rounds += 1
            assert rounds < 10, "it never comes to rest"
        return rounds

    def content(self, secret: str) -> Mapping[str, bytes]:
        found = self.api.objects[("secrets", NAMESPACE, secret)]
        return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}

    def certificate(self, secret: str) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.content(secret)["tls.crt"])

    def authority(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.content("vgpu-authority")["signing.crt"])

    def bundles(self) -> list[tuple[x509.Certificate, ...]]:
        """Return the trust bundles of all webhooks."""
        return [
            read_bundle(base64.b64decode(hook["clientConfig"].get("caBundle", "")))
            for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
            for hook in self.api.objects[(resource.plural, "", "vgpu")]["webhooks"]
        ]


async def test_an_empty_cluster_gets_an_authority_first_and_pairs_when_all_trust_it() -> None:
    world = World()
    await world.keeper().step()
    assert "tls.crt" not in world.content(names.WEBHOOK_SECRET)
    assert [len(bundle) for bundle in world.bundles()] == [1, 1, 1, 1]
    await world.settle()
    for secret in SUBJECTS:
        assert is_signed_by(world.certificate(secret), world.authority())
        assert read_bundle(world.content(secret)["ca.crt"]) == (world.authority(),)
    assert world.bundles() == [(world.authority(),)] * 4


async def test_a_round_in_which_nothing_is_due_writes_nothing() -> None:
    world = World()
    await world.settle()
    written = len(world.api.log)
    world.now += timedelta(days=59)
    assert await world.settle() == 0
    assert len(world.api.log) == written


async def test_a_pair_is_issued_anew_after_two_thirds_of_its_life() -> None:
    world = World()
    await world.settle()
    before = world.certificate(names.EXTENDER_SECRET)
    world.now += timedelta(days=61)
    await world.settle()
    after = world.certificate(names.EXTENDER_SECRET)
    assert after.not_valid_after_utc - before.not_valid_after_utc == timedelta(days=61)
    assert is_signed_by(after, world.authority())


async def test_a_new_authority_is_announced_for_a_sixth_of_its_life_before_it_signs() -> None:
    world = World()
    await world.settle()
    first = world.authority()
    world.now = START + timedelta(days=2434)  # a little over two thirds
    await world.settle()
    assert world.authority() == first
    assert [len(bundle) for bundle in world.bundles()] == [2] * 4
    world.now += timedelta(days=607)
    await world.settle()
    assert world.authority() == first
    world.now += timedelta(days=2)
    await world.settle()
    assert world.authority() != first
    assert is_signed_by(world.certificate(names.WEBHOOK_SECRET), world.authority())
    assert all(first in bundle for bundle in world.bundles())
    world.now = START + timedelta(days=3651)
    await world.settle()
    assert world.bundles() == [(world.authority(),)] * 4


async def test_a_lost_authority_is_replaced_and_what_it_signed_is_still_trusted() -> None:
    world = World()
    await world.settle()
    first = world.authority()
    world.api.put(SECRETS, {"metadata": {"namespace": NAMESPACE, "name": "vgpu-authority"}})
    await world.settle()
    assert world.authority() != first
    assert all(first in bundle and world.authority() in bundle for bundle in world.bundles())
    assert is_signed_by(world.certificate(names.SCHEDULER_SECRET), world.authority())


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nx"])
async def test_a_damaged_pair_is_issued_anew(damage: bytes) -> None:
    world = World()
    await world.settle()
    secret = world.api.objects[("secrets", NAMESPACE, names.WEBHOOK_SECRET)]
    secret["data"]["tls.crt"] = base64.b64encode(damage).decode()
    await world.settle()
    assert is_signed_by(world.certificate(names.WEBHOOK_SECRET), world.authority())


async def test_a_caBundle_that_somebody_emptied_comes_back() -> None:  # noqa: N802
    world = World()
    await world.settle()
    configuration = world.api.objects[(MUTATING_WEBHOOKS.plural, "", "vgpu")]
    del configuration["webhooks"][1]["clientConfig"]["caBundle"]
    await world.settle()
    assert world.bundles() == [(world.authority(),)] * 4


async def test_without_webhook_configurations_the_rest_is_kept_all_the_same() -> None:
    world = World()
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        world.api.vanish(resource, "vgpu", namespace="")
    await world.settle()
    assert is_signed_by(world.certificate(names.SCHEDULER_SECRET), world.authority())


async def test_of_two_that_write_at_once_one_is_refused_and_finds_everything_done() -> None:
    world = World()
    late = world.keeper()
    stale = dict(world.api.objects)

    async def old(resource: Any, name: str, *, namespace: str | None = None) -> Any:
        return stale[(resource.plural, namespace or "", name)]

    newest = world.api.get
    world.api.get = old
    await world.keeper().step()
    with pytest.raises(Conflict):
        await late.step()
    world.api.get = newest
    await world.settle()
    assert world.bundles() == [(world.authority(),)] * 4


async def test_a_missing_secret_is_said_by_name() -> None:
    world = World()
    world.api.vanish(SECRETS, names.SCHEDULER_SECRET, namespace=NAMESPACE)
    with pytest.raises(NotFound):
        await world.keeper().step()


async def test_python_takes_the_pairs_for_what_they_are(tmp_path: Path) -> None:
    """By OpenSSL's rules they are server and client, names and purposes included."""
    world = World()
    world.now = datetime.now(UTC)  # OpenSSL has no other clock
    await world.settle()
    server, client = (
        _context(world, names.EXTENDER_SECRET, tmp_path, server=True),
        _context(world, names.SCHEDULER_SECRET, tmp_path, server=False),
    )
    assert _handshake(server, client, "vgpu-extender.vgpu-system.svc") == "vgpu-scheduler"
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(server, client, "vgpu-webhook.vgpu-system.svc")
    impostor = _context(world, names.WEBHOOK_SECRET, tmp_path, server=False)
    with pytest.raises(ssl.SSLError):
        _handshake(server, impostor, "vgpu-extender.vgpu-system.svc")


def _context(world: World, secret: str, folder: Any, *, server: bool) -> ssl.SSLContext:
    content = world.content(secret)
    (folder / "c").write_bytes(content["tls.crt"])
    (folder / "k").write_bytes(content["tls.key"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(folder / "c", folder / "k")
    context.load_verify_locations(cadata=content["ca.crt"].decode())
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str:
    """Return the client's common name as the server sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for side in (other, one):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    peer: Any = one.getpeercert()
    return str(dict(pair for ((pair),) in peer["subject"])["commonName"])
