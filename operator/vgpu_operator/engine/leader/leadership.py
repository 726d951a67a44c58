"""Becoming the leader: first the Lease, then the fence, and only then decisions.

A candidate keeps its cache warm, so a takeover costs one touch of each claim that may still be
decided, and nothing is listed twice (docs/design/leader-and-fence.md). A leader that loses the
Lease becomes a candidate again: it ends what only a leader does, waits until its last write has an
outcome, and drops its decisions. From then on it is a standby like any other, and stands for
election under a new name, so the fence that it closes is one against its own former writes, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NoReturn, Protocol

from vgpu_client.lease import Elector, LeaseLost
from vgpu_operator.metrics import LEADER

logger = logging.getLogger(__name__)

# Decide only while at least this much of the lease is left, so that a write still has time.
_MARGIN_S = 0.5


class FollowedInformer(Protocol):
    """The part of a reflector that leadership uses. It keeps one kind of object in the cache."""

    synced: asyncio.Event
    follows: asyncio.Event


class Replica(Protocol):
    """The part of the replica that leads after its election."""

    async def close_fence(self, decider: str) -> int:
        """Observe everything that a predecessor wrote, and make its late writes fail.

        Args:
            decider: The name under which this replica was elected.

        Returns:
            The number of claims that were touched for this.
        """

    def begin(self) -> None:
        """Start making decisions."""

    async def publish(self) -> None:
        """Announce this replica as the leader for as long as it leads."""

    async def follow(self) -> None:
        """Wait until every write has an outcome, and drop all decisions."""


class Leadership:
    """This replica's role: candidate or leader.

    Args:
        elector: Acquires and renews the Lease.
        informers: They must be synced before this replica stands for election, and must follow
            their watches before it decides.
        replica: Closes the fence and starts to decide.
    """

    def __init__(
        self, elector: Elector, informers: Sequence[FollowedInformer], replica: Replica
    ) -> None:
        self._elector = elector
        self._informers = informers
        self._replica = replica
        self._decides = False

    def leads(self) -> bool:
        """Return True if this replica may decide now."""
        return self._decides and self._elector.is_leading(margin_s=_MARGIN_S)

    def resign(self) -> None:
        """Stop deciding; the Lease is kept until `give_up`."""
        self._decides = False
        LEADER.set(0)

    async def give_up(self) -> None:
        """Release the Lease; `run` and every write must have ended before."""
        await self._elector.release()

    async def run(self) -> NoReturn:
        """Stand for election, lead once elected, and follow again when the Lease is lost."""
        await asyncio.gather(*(informer.synced.wait() for informer in self._informers))
        while True:
            logger.info("everything seen; waiting for the lease")
            await self._elector.acquire()
            lost = await self._lead_until_lost()
            logger.warning("not leading any more: %s; following", lost)
            await self._replica.follow()

    async def _lead_until_lost(self) -> LeaseLost:
        """Lead, and return why the Lease was lost; everything that only a leader does has ended."""
        renewing = asyncio.create_task(self._elector.keep())
        leading = asyncio.create_task(self._lead())
        try:
            await asyncio.wait({renewing, leading}, return_when=asyncio.FIRST_COMPLETED)
            for ended in (renewing, leading):
                if ended.done():
                    ended.result()  # raises an error, because both tasks run until they fail
            raise AssertionError("a leader ends by an error or is cancelled")
        except LeaseLost as error:
            return error
        finally:
            self.resign()
            for task in (renewing, leading):
                task.cancel()
            await asyncio.gather(renewing, leading, return_exceptions=True)

    async def _lead(self) -> NoReturn:
        await asyncio.gather(*(informer.follows.wait() for informer in self._informers))
        touched = await self._replica.close_fence(self._elector.identity)
        logger.info("leading; %d undecided claims were touched first", touched)
        self._decides = True
        LEADER.set(1)
        self._replica.begin()
        await self._replica.publish()
        await asyncio.Event().wait()  # wait until `run` cancels this task
        raise AssertionError("nobody sets it")
