"""No server ever shows an untrusted certificate, for any order of events."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from hypothesis_profiles import fewer_examples
from memory_api import MemoryApi
from vgpu_api.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS
from vgpu_client.errors import ServerError
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
LIVES = Lives(pair=timedelta(days=30), authority=timedelta(days=240))
NEVER = datetime(1, 1, 1, tzinfo=UTC)
LOOK = timedelta(minutes=10)
"""The longest time between two looks of a replica or kubelet at the Secrets."""


@dataclass
class Replica:
    """The state of one operator: its key pairs, and the clients that its extender admits."""

    webhook: x509.Certificate | None = None
    extender: x509.Certificate | None = None
    admits: frozenset[x509.Certificate] = frozenset()
    looked: datetime = NEVER


@dataclass
class Scheduler:
    """A scheduler that rereads its own pair, but its trusted certificates only at its start."""

    shows: x509.Certificate | None = None
    trusts: frozenset[x509.Certificate] = frozenset()
    started: datetime = NEVER


@dataclass
class World:
    """An API server, a clock, two replicas and a scheduler."""

    api: Any = field(default_factory=MemoryApi)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    replicas: list[Replica] = field(default_factory=lambda: [Replica(), Replica()])
    scheduler: Scheduler = field(default_factory=Scheduler)
    lost: datetime = NEVER
    """The last time at which no authority could sign."""

    def __post_init__(self) -> None:
        for name in (names.AUTHORITY_SECRET, *SUBJECTS):
            self.api.put(SECRETS, {"metadata": {"namespace": NAMESPACE, "name": name}})
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            hooks = [{"name": f"{n}.vgpu.dev", "clientConfig": {}} for n in ("one", "two")]
            self.api.put(resource, {"metadata": {"name": "vgpu"}, "webhooks": hooks})

    def _content(self, secret: str, key: str) -> bytes:
        found = self.api.objects[("secrets", NAMESPACE, secret)].get("data", {})
        return base64.b64decode(found.get(key, ""))

    def leaf(self, secret: str) -> x509.Certificate | None:
        found = self._content(secret, "tls.crt")
        return x509.load_pem_x509_certificate(found) if found else None

    def trust(self, secret: str) -> frozenset[x509.Certificate]:
        return frozenset(read_bundle(self._content(secret, "ca.crt")))

    def bundles(self) -> list[frozenset[x509.Certificate]]:
        return [
            frozenset(read_bundle(base64.b64decode(hook["clientConfig"].get("caBundle", ""))))
            for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
            for hook in self.api.objects[(resource.plural, "", "vgpu")]["webhooks"]
        ]

    def signs(self) -> bool:
        found = self._content(names.AUTHORITY_SECRET, "signing.crt")
        return bool(found) and not self.is_over(x509.load_pem_x509_certificate(found))

    def is_over(self, certificate: x509.Certificate) -> bool:
        return certificate.not_valid_after_utc <= self.now

    # Events.

    def time_passes(self, by: timedelta) -> None:
        self.now += by
        if not self.signs():
            self.lost = self.now

    def leader_works(self, steps: int, dies_after: int | None) -> None:
        """Run a leader for some rounds; it may end between any two writes."""
        left = dies_after
        if not self.signs():
            self.lost = self.now

        def fault(verb: str, name: str) -> BaseException | None:
            nonlocal left
            if verb == "get" or left is None:
                return None
            left -= 1
            return ServerError("gone", status=500) if left < 0 else None

        self.api.before = fault
        keeper = Keeper(
            self.api, namespace=NAMESPACE, subjects=SUBJECTS, lives=LIVES, now=lambda: self.now
        )

        async def work() -> None:
            for _ in range(steps):
                if not await keeper.step():
                    break

        try:
            asyncio.run(work())
        except ServerError:
            pass
        finally:
            self.api.before = lambda verb, name: None

    def replica_looks(self, number: int) -> None:
        replica = self.replicas[number]
        replica.webhook = self.leaf(names.WEBHOOK_SECRET) or replica.webhook
        replica.extender = self.leaf(names.EXTENDER_SECRET) or replica.extender
        if replica.extender is not None:
            replica.admits |= self.trust(names.EXTENDER_SECRET)
        replica.looked = self.now

    def scheduler_looks(self) -> None:
        self.scheduler.shows = self.leaf(names.SCHEDULER_SECRET) or self.scheduler.shows

    def scheduler_starts(self) -> None:
        self.scheduler_looks()
        self.scheduler.trusts = self.trust(names.SCHEDULER_SECRET)
        self.scheduler.started = self.now

    def authority_is_emptied(self) -> None:
        self.api.put(
            SECRETS, {"metadata": {"namespace": NAMESPACE, "name": names.AUTHORITY_SECRET}}
        )
        self.lost = self.now

    # Invariants.

    def check(self) -> None:
        for replica in self.replicas:
            if replica.webhook is not None and not self.is_over(replica.webhook):
                for bundle in self.bundles():
                    assert covers(bundle, replica.webhook, self.now), "the API server trusts nobody"
            # Without an authority, the successor's pairs may arrive before clients trust them.
            fresh = self.now - replica.looked <= LOOK < self.now - self.lost
            shown = self.scheduler.shows
            if fresh and replica.extender and shown is not None and not self.is_over(shown):
                assert covers(replica.admits, shown, self.now), "the scheduler is not admitted"
            self._check_scheduler(replica)

    def _check_scheduler(self, replica: Replica) -> None:
        """Check that it trusts the certificates it meets while an authority is announced.

        The exception is a lost authority whose successor could not be announced.
        """
        scheduler, shown = self.scheduler, replica.extender
        recent = self.now - scheduler.started <= LIVES.announcement
        if recent and scheduler.trusts and scheduler.started > self.lost and shown is not None:
            if self.is_over(shown):
                return
            assert covers(scheduler.trusts, shown, self.now), "the scheduler trusts nobody"


def covers(
    bundle: Iterable[x509.Certificate], certificate: x509.Certificate, now: datetime
) -> bool:
    return any(
        authority.not_valid_after_utc > now and is_signed_by(certificate, authority)
        for authority in bundle
    )


EVENTS = st.one_of(
    st.tuples(
        st.just("time_passes"),
        st.one_of(
            st.timedeltas(timedelta(seconds=1), timedelta(minutes=9)),
            st.timedeltas(timedelta(hours=1), timedelta(days=15)),
            st.timedeltas(timedelta(days=15), timedelta(days=100)),
        ),
    ),
    st.tuples(
        st.just("leader_works"),
        st.integers(1, 8),
        st.one_of(st.none(), st.integers(0, 8)),
    ),
    st.tuples(st.just("replica_looks"), st.integers(0, 1)),
    st.tuples(st.just("scheduler_looks")),
    st.tuples(st.just("scheduler_starts")),
    st.tuples(st.just("authority_is_emptied")),
)


@given(events=st.lists(EVENTS, max_size=40))
def test_what_is_shown_is_trusted_at_every_moment(events: list[tuple[Any, ...]]) -> None:
    """Every certificate that is shown and has not expired is covered by every bundle it meets."""
    world = World()
    for name, *arguments in events:
        getattr(world, name)(*arguments)
        world.check()


@settings(max_examples=fewer_examples(5))
@given(
    pauses=st.lists(st.timedeltas(timedelta(hours=1), timedelta(days=9)), min_size=30, max_size=70),
    deaths=st.lists(st.one_of(st.none(), st.integers(0, 8)), min_size=70, max_size=70),
)
def test_where_a_leader_looks_often_enough_nothing_shown_ever_expires(
    pauses: list[timedelta], deaths: list[int | None]
) -> None:
    """Authorities change, and the leader checks at least once in a third of a pair's lifetime."""
    world = World()
    world.leader_works(8, None)
    world.scheduler_starts()
    for pause, death in zip(pauses, deaths, strict=False):
        world.time_passes(pause)
        if world.now - world.scheduler.started > LIVES.announcement - timedelta(days=9):
            world.scheduler_starts()
        world.leader_works(8, death)
        world.leader_works(8, None)
        for number in (0, 1):
            world.replica_looks(number)
        world.scheduler_looks()
        world.check()
        for replica in world.replicas:
            assert replica.webhook is not None
            assert not world.is_over(replica.webhook)


@pytest.mark.parametrize("writes", range(1, 9))
def test_leaders_that_all_die_after_so_many_writes_get_there_and_show_nothing_untrusted(
    writes: int,
) -> None:
    world = World()
    for _ in range(12):
        world.leader_works(8, writes)
        for number in (0, 1):
            world.replica_looks(number)
        world.check()
    assert all(replica.webhook is not None for replica in world.replicas)
