"""From candidate to leader: the Lease, the fence, and only then decisions.

A candidate keeps its cache warm, so that what a takeover costs is one touch of each claim that may
still be decided; nothing is listed twice (docs/design/leader-and-fence.md). Losing the Lease ends
the process: it is the one way in which nothing of a leader goes on by mistake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NoReturn, Protocol

from vgpu_client.lease import Elector, LeaseLost
from vgpu_operator.errors import LeadershipLost
from vgpu_operator.metrics import LEADER

logger = logging.getLogger(__name__)

# A decision is begun only while at least this much of the lease is left to write it in.
_MARGIN_S = 0.5


class FollowedInformer(Protocol):
    """What keeps one kind in the cache: a reflector."""

    synced: asyncio.Event
    follows: asyncio.Event


class Replica(Protocol):
    """What leads, when it is elected."""

    async def close_fence(self) -> int:
        """Observe what a predecessor wrote, and make late writes of its fail.

        Returns:
            How many claims were touched for that.
        """

    def begin(self) -> None:
        """Decide from now on."""

    async def publish(self) -> None:
        """Make this replica known as the leader, for as long as it leads."""


class Leadership:
    """Whether this replica decides.

    Args:
        elector: Our candidacy.
        informers: What must have been seen before we stand, and must be watched when we decide.
        replica: What leads.
    """

    def __init__(
        self, elector: Elector, informers: Sequence[FollowedInformer], replica: Replica
    ) -> None:
        self._elector = elector
        self._informers = informers
        self._replica = replica
        self._decides = False

    def leads(self) -> bool:
        """Whether this replica decides now."""
        return self._decides and self._elector.is_leading(margin_s=_MARGIN_S)

    def resign(self) -> None:
        """Decide nothing more; the Lease is kept until `give_up`."""
        self._decides = False
        LEADER.set(0)

    async def give_up(self) -> None:
        """Give the Lease up; `run` and every write must have ended."""
        await self._elector.release()

    async def run(self) -> NoReturn:
        """Stand, and lead when elected.

        Raises:
            LeadershipLost: Another replica may decide now.
        """
        await asyncio.gather(*(informer.synced.wait() for informer in self._informers))
        logger.info("everything seen; waiting for the lease")
        await self._elector.acquire()
        renewing = asyncio.create_task(self._elector.keep())
        leading = asyncio.create_task(self._lead())
        try:
            await asyncio.wait({renewing, leading}, return_when=asyncio.FIRST_COMPLETED)
            for ended in (renewing, leading):
                if ended.done():
                    ended.result()  # neither ends but by what it raises
            raise AssertionError("a leader ends by an error or is cancelled")
        except LeaseLost as error:
            raise LeadershipLost(str(error)) from error
        finally:
            self.resign()
            for task in (renewing, leading):
                task.cancel()
            await asyncio.gather(renewing, leading, return_exceptions=True)

    async def _lead(self) -> NoReturn:
        await asyncio.gather(*(informer.follows.wait() for informer in self._informers))
        touched = await self._replica.close_fence()
        logger.info("leading; %d undecided claims were touched first", touched)
        self._decides = True
        LEADER.set(1)
        self._replica.begin()
        await self._replica.publish()
        await asyncio.Event().wait()  # until `run` ends us
        raise AssertionError("nobody sets it")
