"""What kube-scheduler cannot see, it is told: a nominated node, and a poke to look at a pod again.

Where its queue is long, a nomination makes it try our node first and spares it the search; it
costs one write, so there is none while Filters come promptly. A pod that it has set aside as
unschedulable wakes on changes that it can see only: an annotation of ours is one. Both are hints:
one that is lost costs time and nothing else, but a poke would cost minutes and is written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from vgpu_api.names import ANNOTATION_POKE
from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_operator.engine.clock import Clock
from vgpu_operator.engine.consumers import Consumer
from vgpu_operator.engine.reservations import Reservation
from vgpu_operator.engine.status import rfc3339

logger = logging.getLogger(__name__)

FILTER_WITHIN_S = 0.05
"""A Filter that has not come by then stands in a long queue, or will not come by itself."""
POKE_EVERY_S = 3.0
_WRITES_AT_ONCE = 16

Later = Callable[[float, Callable[[], None]], object]
"""Calls something after so many seconds."""


def _later(seconds: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, call)


class Hints:
    """Nominates and pokes.

    Args:
        api: Where hints are written.
        clock: Both clocks.
        wanted: Whether this replica leads and the reservation stands: else there is nothing to say.
        later: Waits; swapped in tests.
    """

    def __init__(
        self,
        api: Api,
        *,
        clock: Clock,
        wanted: Callable[[Reservation], bool],
        later: Later = _later,
    ) -> None:
        self._api = api
        self._clock = clock
        self._wanted = wanted
        self._later = later
        self._poked: dict[str, float] = {}
        self._pokes_due: set[str] = set()
        self._nominated: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writes = asyncio.Semaphore(_WRITES_AT_ONCE)

    def reserved(self, consumer: Consumer, reservation: Reservation, *, in_vain: bool) -> None:
        """Cards are reserved for a pod that no Filter asks about at this moment.

        Args:
            consumer: The pod.
            reservation: Its reservation.
            in_vain: A Filter was refused before, so kube-scheduler has set the pod aside.
        """
        if in_vain:
            self._poke_in_time(consumer, reservation)
        self._later(FILTER_WITHIN_S, lambda: self._not_asked(consumer, reservation))

    def withdrawn(self, consumer: Consumer) -> None:
        """The pod's reservation is given up: a node that we nominated is one no more."""
        if consumer.uid in self._nominated:
            self._nominated.discard(consumer.uid)
            self._start(self._nominate(consumer, None))

    def forget(self, uid: str) -> None:
        """The pod is gone, or has its node."""
        self._poked.pop(uid, None)
        self._nominated.discard(uid)

    async def drain(self) -> None:
        """Wait until every hint that was begun is written."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _not_asked(self, consumer: Consumer, reservation: Reservation) -> None:
        if not self._waits(reservation):
            return
        if consumer.pod.status.nominated_node_name != reservation.node:
            self._nominated.add(consumer.uid)
            self._start(self._nominate(consumer, reservation.node))
        if _set_aside(consumer) and consumer.uid not in self._poked:
            self._poke_in_time(consumer, reservation)

    def _poke_in_time(self, consumer: Consumer, reservation: Reservation) -> None:
        """One write for a pod in so many seconds; the next comes when they are over."""
        uid = consumer.uid
        if uid in self._pokes_due:
            return
        wait = self._poked.get(uid, -POKE_EVERY_S) + POKE_EVERY_S - self._clock.monotonic()

        def poke() -> None:
            self._pokes_due.discard(uid)
            if self._waits(reservation):
                self._poked[uid] = self._clock.monotonic()
                self._start(self._poke(consumer, reservation))

        if wait <= 0:
            poke()
        else:
            self._pokes_due.add(uid)
            self._later(wait, poke)

    def _waits(self, reservation: Reservation) -> bool:
        return reservation.asked is None and not reservation.binding and self._wanted(reservation)

    async def _nominate(self, consumer: Consumer, node: str | None) -> None:
        await self._patch(consumer, {"status": {"nominatedNodeName": node}}, subresource="status")

    async def _poke(self, consumer: Consumer, reservation: Reservation) -> None:
        """One that is lost would cost minutes, so it is tried again in a few seconds."""
        now = rfc3339(self._clock.unix())
        changes = {"metadata": {"annotations": {ANNOTATION_POKE: now}}}
        if not await self._patch(consumer, changes) and self._waits(reservation):
            self._poke_in_time(consumer, reservation)

    async def _patch(
        self, consumer: Consumer, changes: dict[str, Any], *, subresource: str | None = None
    ) -> bool:
        """Write it; returns whether that was done."""
        metadata = consumer.pod.metadata
        identity = {"uid": metadata.uid}  # another pod of this name refuses it
        changes = {**changes, "metadata": {**changes.get("metadata", {}), **identity}}
        try:
            async with self._writes:
                await self._api.merge_patch(
                    PODS,
                    metadata.name,
                    changes,
                    namespace=metadata.namespace,
                    subresource=subresource,
                )
        except ClientError as error:
            logger.info("pod %s/%s got no hint: %s", metadata.namespace, metadata.name, error)
            return False
        return True

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _set_aside(consumer: Consumer) -> bool:
    """Whether kube-scheduler says of the pod that it fits nowhere."""
    return any(
        condition.type == "PodScheduled"
        and condition.status == "False"
        and condition.reason == "Unschedulable"
        for condition in consumer.pod.status.conditions
    )
