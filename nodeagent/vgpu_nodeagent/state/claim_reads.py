"""Reads the claims of the node's pods by name, instead of watching claims.

The API server has no index for fields of custom resources: with a watch of claims in each agent, it
would compare every change of any claim with every node. It does have an index of pods by node. So
the agent watches its pods and reads a claim

* in PreStart, so that no container starts by an old copy; the devices allocated to it are read
  there, too, because an administrator's change of one may be ahead of its mark;
* some seconds after a pod that names it is bound here, unless one of its containers has started
  by then: it was allocated before that;
* when the pod's annotation `vgpu.dev/poke` changes, which announces a resize by the operator;
* while a pod waits for a grant, and from the end of a pod until its allocation is gone.

All claims allocated here are listed when the agent starts, and again when the watch of pods had a
gap: a pod may have come and gone in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from vgpu_api import names
from vgpu_api.core.pod import Pod
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.backoff import Backoff
from vgpu_client.clock import Clock
from vgpu_client.errors import ClientError, NotFound
from vgpu_nodeagent.events import Event, PodChanged, PodListRead, StartGranted, StartRefused
from vgpu_nodeagent.state.device_reads import read_device
from vgpu_nodeagent.state.node_view import NodeView, Place

logger = logging.getLogger(__name__)

_FIRST_S = 0.25
_LAST_S = 10.0
_TOGETHER = 8
"""Claims to read at the same time, beside those of containers that start."""
_BETWEEN_S = 0.25
"""The least time between two reads of a claim for a mark: a tenant may change marks at any rate."""
_BOUND_S = 5.0
"""Seconds until the claim of a new pod is read. Most containers start earlier, and PreStart reads
the claim; the copy is for those that start later, while the API server does not answer.
"""
_PRESTART_S = 1.0
"""Seconds after which a container starts by the copy, because the API server does not answer."""


class ClaimReads:
    """Keeps the view's claims up to date.

    Args:
        api: The API server.
        view: The pods of this node, and the claims to keep.
        resource: The resource name of our slots; pods without it and without ResourceClaims have no
            claim.
        clock: The time, and the waits between reads.
    """

    def __init__(
        self, api: Api, view: NodeView, resource: str, *, clock: Clock | None = None
    ) -> None:
        self._api = api
        self._view = view
        self._resource = resource
        self._clock = clock or Clock()
        self._is_list_due = False
        self._due: dict[Place, float] = {}  # and when at the earliest
        self._read_at: dict[Place, float] = {}  # the last read, of claims that were due
        self._refused: set[str] = set()  # UIDs of pods that wait for a grant
        self._followed: dict[Place, tuple[Backoff, float]] = {}  # and when to read next
        self._wake = asyncio.Event()
        self._reading = asyncio.Semaphore(_TOGETHER)

    def observe(self, event: Event) -> None:
        """Read the claims of a pod that is new here, or whose mark has changed."""
        match event:
            case PodListRead():
                self._is_list_due = True
                self._wake.set()
            case PodChanged(old=old, new=Pod() as new):
                self._pod_changed(old, new)
            case PodChanged(old=Pod() as gone, new=None):
                self._refused.discard(gone.metadata.uid)
                self._due_by(self._unread(gone), self._clock.monotonic())
            case StartRefused(pod=pod):
                self._refused.add(pod.metadata.uid)
                self._wake.set()
            case StartGranted(pod=pod):
                self._refused.discard(pod.metadata.uid)

    def _pod_changed(self, old: Pod | None, new: Pod) -> None:
        now = self._clock.monotonic()
        if old is None and not new.is_terminal:
            self._due_by(self._places(new), now + _BOUND_S)
        elif _mark(new) != _mark(old):
            for place in self._places(new):
                last_s = self._read_at.get(place, -_BETWEEN_S)
                self._due_by([place], last_s + _BETWEEN_S)
        elif old is not None and new.is_terminal and not old.is_terminal:
            self._due_by(self._unread(new), now)

    def _due_by(self, places: Iterable[Place], at: float) -> None:
        """Have claims read by a time, or earlier if they are due earlier."""
        for place in places:
            self._due[place] = min(at, self._due.get(place, at))
        self._wake.set()

    async def run(self) -> None:
        """Make the reads that are due, until cancelled."""
        failures = Backoff(_FIRST_S, _LAST_S)
        while True:
            self._wake.clear()
            try:
                if self._is_list_due:
                    await self._list()
                wait_s = await self._read_due()
                failures = Backoff(_FIRST_S, _LAST_S)
            except ClientError as error:
                wait_s = failures.failed()
                logger.warning("cannot read claims, retrying in %.1f s: %s", wait_s, error)
            try:
                async with asyncio.timeout(wait_s):  # wait_for may swallow a cancellation
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def read_for(self, pod: Pod) -> None:
        """Read the claims of a pod now, and their devices.

        If the API server does not answer, the copies are kept. This does not wait for reads
        requested by other callers.
        """
        places = list(self._places(pod))
        waiting = self._unread(pod)
        for place in waiting:
            del self._due[place]
        try:
            async with asyncio.timeout(_PRESTART_S):
                known = self._devices_of(places)
                await asyncio.gather(*map(self._read, places), *map(self._read_device, known))
                others = self._devices_of(places) - known
                await asyncio.gather(*map(self._read_device, others))
        except (ClientError, TimeoutError) as error:
            self._due_by(waiting, self._clock.monotonic())
            logger.warning("claims of pod %s not read: %s", pod.metadata.name, error or "no answer")
        except asyncio.CancelledError:  # the kubelet gave up: its pod is being deleted
            self._due_by(waiting, self._clock.monotonic())
            raise

    def _unread(self, pod: Pod) -> list[Place]:
        """Return the claims of a pod that are due to be read."""
        return [place for place in self._places(pod) if place in self._due]

    async def _read_device(self, name: str) -> None:
        await read_device(self._api, self._view, name)

    def _devices_of(self, places: Iterable[Place]) -> set[str]:
        """Return the names of the devices allocated to claims."""
        claims = [self._view.claims.objects.get(place) for place in places]
        allocations = [claim.status.allocation for claim in claims if claim is not None]
        devices = [each for held in allocations if held is not None for each in held.devices]
        return {each.name for each in devices if each.name}

    async def _list(self) -> None:
        """List the claims that are allocated here, from the server's cache: there are many nodes.

        Raises:
            ClientError: They could not be read.
        """
        self._is_list_due = False
        try:
            listing = await self._api.list(
                VGPU_CLAIMS,
                field_selector=f"status.allocation.nodeName={self._view.node}",
                not_older_than="0",
            )
        except ClientError:
            self._is_list_due = True
            raise
        self._view.take_claims(listing.items, int(listing.resource_version))

    async def _read_due(self) -> float | None:
        """Make the due reads, and return the seconds until the next; None if none is planned.

        Raises:
            ClientError: A claim could not be read; it stays due.
        """
        now = self._clock.monotonic()
        due = self._take_due(now)
        results = await asyncio.gather(*map(self._read_in_turn, due), return_exceptions=True)
        failed = [each for each in results if isinstance(each, BaseException)]
        for place, result in zip(due, results, strict=True):
            if isinstance(result, BaseException):
                self._due[place] = now
            if place in self._followed:
                backoff, _ = self._followed[place]
                self._followed[place] = backoff, now + backoff.failed()
        if failed:
            raise failed[0]
        times = [*self._due.values(), *(at for _, at in self._followed.values())]
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    def _take_due(self, now: float) -> list[Place]:
        """Return the reads that are due. A mark set during a read makes it due again."""
        self._follow(now)
        self._due.update({place: now for place, (_, at) in self._followed.items() if at <= now})
        due = [place for place, at in self._due.items() if at <= now]
        for place in due:
            del self._due[place]
        self._read_at = {p: at for p, at in self._read_at.items() if now - at < _BETWEEN_S}
        self._read_at.update(dict.fromkeys(due, now))
        return due

    def _follow(self, now: float) -> None:
        """Record the claims to be read repeatedly: those of refused pods, and of ended pods."""
        wanted = {
            place: None
            for pod in self._view.pods.objects.values()
            if pod.metadata.uid in self._refused
            for place in self._places(pod)
        }
        for place, claim in self._view.claims.objects.items():
            reserved = claim.status.reserved_for
            if reserved is None:
                continue  # no pod has used it
            pod = self._view.pod_with_uid(reserved.pod_uid)
            if pod is None or pod.is_terminal:
                wanted[place] = None
        self._followed = {
            place: self._followed.get(place) or (Backoff(_FIRST_S, _LAST_S), now)
            for place in wanted
        }

    async def _read_in_turn(self, place: Place) -> None:
        async with self._reading:
            await self._read(place)

    async def _read(self, place: Place) -> None:
        namespace, name = place
        try:
            raw = await self._api.get(VGPU_CLAIMS, name, namespace=namespace)
        except NotFound:
            self._view.drop_claim(place)
            return
        self._view.take_claim(raw)

    def _places(self, pod: Pod) -> Iterable[Place]:
        """Return the claims that may be reserved for a pod: its own, and the one that it names."""
        metadata, spec = pod.metadata, pod.spec
        containers = (*spec.init_containers, *spec.containers)
        has_slots = any(each.requested(self._resource) is not None for each in containers)
        # A ResourceClaim may be another driver's: then no claim of ours has the pod's name.
        if not has_slots and not spec.resource_claims:
            return ()
        namespace = metadata.namespace or ""
        named = metadata.annotations.get(names.ANNOTATION_CLAIM)
        own = names.pod_claim_name(metadata.name, metadata.uid)
        return [(namespace, name) for name in (named, own) if name]


def _mark(pod: Pod | None) -> tuple[str, Mapping[str, str | None]]:
    """Return a value that changes when the claims of a pod must be read again."""
    if pod is None:
        return "", {}
    annotations = pod.metadata.annotations
    marks = (names.ANNOTATION_CLAIM, names.ANNOTATION_REQUEUE)
    return pod.metadata.uid, {name: annotations.get(name) for name in marks}
