"""Leader election: one holder of a Lease, without trust in anybody's wall clock.

A holder may act until `duration_s` after it *began* its last successful renewal, by its own
monotonic clock. A candidate takes over only when it has seen the record unchanged for that duration
plus the time that a write may take, again by its own clock. The times in the record are only for
people. So a jumping wall clock can neither prolong nor shorten a lease.

kubernetes-asyncio's elector was rejected: it compares wall clocks, and it does not report how much
of the lease is left, which a writer needs so that no write outlives the lease.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from vgpu_api.resources import LEASES
from vgpu_client.api import Api
from vgpu_client.clock import Clock, rfc3339
from vgpu_client.errors import ClientError, Conflict, NotFound
from vgpu_client.transport import Object

logger = logging.getLogger(__name__)


class LeaseLost(ClientError):
    """Another replica may already lead; everything that relies on the lease must stop at once."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The times of an election in seconds. All candidates for one lease must use the same."""

    duration_s: int = 15
    """A lease lasts this long after the start of its last renewal."""
    renew_s: float = 4.0
    """The interval at which the holder renews. Candidates look twice as often, because the lease
    counts for them from when they first saw its last renewal."""
    retry_s: float = 1.0
    """The wait before a failed renewal is retried."""
    write_s: float = 5.0
    """The time limit of a renewal. A candidate waits this much longer than the lease, until the
    holder's writes have landed."""


class BootClock(Clock):
    """A clock that counts time asleep: a suspended holder must find its lease over."""

    def monotonic(self) -> float:
        """Return the seconds since boot, time asleep included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class Elector:
    """A candidate for one Lease: `acquire`, then `keep` until it raises, or `release`.

    After `keep` has raised, `acquire` stands for election again. Each time it has another name, so
    it waits for its own former lease as for anybody's.

    Args:
        api: The API server that has the lease.
        namespace: Its namespace.
        name: Its name.
        identity: Our name in it at first; must be unique to this process, restarts included.
        times: The times of the election.
        clock: Monotonic seconds, waiting, and the jitter that spreads the candidates' looks. Its
            time of day is recorded but never read back.

    Attributes:
        identity: The name under which it stands or leads.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes = LeaseTimes(),
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self.identity = self._first_identity = identity
        self._terms = 0
        self._times = times
        self._clock = clock or BootClock()
        self._lease: Object = {}  # as last read or written
        self._seen: Object = {}  # the record whose age counts ...
        self._seen_at = 0.0  # ... and when we saw it first
        self._until: float | None = None  # the end of our lease

    def remaining_s(self) -> float:
        """Return the seconds for which we certainly lead, which bound a write; at most 0 if not."""
        return 0.0 if self._until is None else self._until - self._clock.monotonic()

    def is_leading(self, *, margin_s: float = 0.0) -> bool:
        """Return True if we shall still lead in `margin_s` seconds."""
        return self.remaining_s() > margin_s

    async def acquire(self) -> None:
        """Return when we lead. Errors of the server are retried."""
        self._terms += 1
        if self._terms > 1:
            self.identity = f"{self._first_identity}.{self._terms}"
        while True:
            try:
                if await self._try_to_take():
                    return
            except ClientError as error:
                logger.warning("lease %s: retrying: %s", self._name, error)
            await self._clock.sleep(self._until_next_look_s())

    def _until_next_look_s(self) -> float:
        """Return the time until the next regular look, or until the observed record expires."""
        regular_s = self._times.renew_s / 2 * (0.75 + 0.5 * self._clock.jitter())
        if not self._seen.get("holderIdentity"):
            return regular_s
        left_s = self._runs_out_at(self._seen) - self._clock.monotonic()
        return min(regular_s, left_s) if left_s > 0 else regular_s

    async def keep(self) -> NoReturn:
        """Renew the lease until cancelled or lost.

        Raises:
            LeaseLost: Another replica holds it, or it expired before a renewal succeeded.
        """
        wait_s = self._times.renew_s
        while True:
            await self._clock.sleep(max(0.0, min(wait_s, self.remaining_s())))
            if not self.is_leading():
                self._until = None
                raise LeaseLost(f"{self._name}: not renewed in time")
            wait_s = self._times.renew_s if await self._renew() else self._times.retry_s

    async def release(self) -> None:
        """Give the lease up, so that a successor need not wait.

        End `keep` and every write first.
        """
        if not self.is_leading():
            return
        self._until = None
        with suppress(ClientError):  # then it simply expires
            try:
                await self._write_released()
            except Conflict:  # a renewal was in flight when `keep` was ended
                self._lease = await self._api.get(LEASES, self._name, namespace=self._namespace)
                if self._lease["spec"].get("holderIdentity") == self.identity:
                    await self._write_released()

    async def _write_released(self) -> None:
        spec = {**self._lease["spec"], "holderIdentity": ""}
        timeout_s = self._times.write_s
        await self._api.replace(LEASES, {**self._lease, "spec": spec}, timeout_s=timeout_s)

    async def _try_to_take(self) -> bool:
        try:
            self._lease = await self._api.get(LEASES, self._name, namespace=self._namespace)
            spec = self._lease.get("spec") or {}
        except NotFound:
            # Someone deleted the lease of a holder that we saw. The holder may not know yet, so we
            # still wait until its lease has expired.
            self._lease = {}
            spec = {**self._seen, "deleted": True} if self._seen else {}
        if spec != self._seen:
            self._seen, self._seen_at = spec, self._clock.monotonic()
        holder = spec.get("holderIdentity")
        if holder and holder != self.identity and not self._has_run_out(spec):
            return False
        if not self._lease:
            return await self._create()
        # The holder may have our own name: a write of ours succeeded but its response was lost. We
        # still renew, because only an answered renewal tells us when the lease started.
        return await self._write(taking_over=holder != self.identity)

    def _has_run_out(self, spec: Object) -> bool:
        return self._clock.monotonic() >= self._runs_out_at(spec)

    def _runs_out_at(self, spec: Object) -> float:
        """Return when an unchanged record no longer binds any process, by our clock."""
        duration_s = float(spec.get("leaseDurationSeconds") or self._times.duration_s)
        return self._seen_at + duration_s + self._times.write_s

    async def _create(self) -> bool:
        began = self._clock.monotonic()
        now = self._now()
        lease: Object = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"namespace": self._namespace, "name": self._name},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self._times.duration_s,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }
        self._lease = await self._api.create(LEASES, lease, timeout_s=self._times.write_s)
        self._begin_lease(began)
        return True

    def _begin_lease(self, began: float) -> None:
        """Note a write of ours that succeeded.

        If nobody writes the record after it and we lose the lease, its time counts from here for us
        as well, so after a stall of the server we wait no longer than the other candidates.
        """
        self._until = began + self._times.duration_s
        self._seen, self._seen_at = self._lease["spec"], began

    async def _renew(self) -> bool:
        """Renew the lease; return False if that failed and should be retried."""
        try:
            return await self._write(taking_over=False)
        except Conflict:
            pass  # changed since: by another replica, or by our own renewal whose response was lost
        except ClientError:
            return False
        try:
            self._lease = await self._api.get(LEASES, self._name, namespace=self._namespace)
        except ClientError:
            return False
        holder = (self._lease.get("spec") or {}).get("holderIdentity")
        if holder != self.identity:
            self._until = None
            raise LeaseLost(f"{self._name}: held by {holder or 'nobody'}")
        # A renewal of ours landed and its response was lost, as after a stall of the server, when
        # little time is left.
        try:
            return await self._write(taking_over=False)
        except ClientError:
            return False

    async def _write(self, *, taking_over: bool) -> bool:
        began = self._clock.monotonic()
        spec = {
            **(self._lease.get("spec") or {}),
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._times.duration_s,
            "renewTime": self._now(),
        }
        if taking_over:
            spec["acquireTime"] = spec["renewTime"]
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        self._lease = await self._api.replace(
            LEASES, {**self._lease, "spec": spec}, timeout_s=self._times.write_s
        )
        self._begin_lease(began)
        return True

    def _now(self) -> str:
        return rfc3339(self._clock.unix())
