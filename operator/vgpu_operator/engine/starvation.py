"""Who has waited for too long, and what is held for them.

kube-scheduler owns the order of pods, so a stream of small requests could take every card that a
large one waits for. A request that was refused for want of room for long enough gets cards held,
the oldest first and a few at a time; it gives them up when it is served or no longer waits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from vgpu_api.reasons import Reason
from vgpu_operator.engine.claim_writer import Key
from vgpu_operator.engine.held_target import choose_target
from vgpu_operator.engine.holds import Holds
from vgpu_operator.engine.wanted import Wanted
from vgpu_operator.placement import Columns

logger = logging.getLogger(__name__)

MOST_HOLDS = 3
_WEIGHED_AT_ONCE = 64  # requests, the longest waiting, of which the most important go first
_LOOKED_AT_ONCE = 4  # requests for which a target is looked for in one round

OF_ROOM = frozenset(
    {
        Reason.CARD_TIME_SLICING_EXHAUSTED,
        Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
        Reason.CARD_INSUFFICIENT_MEMORY,
        Reason.CARD_INSUFFICIENT_CORE,
        Reason.CARD_COMPUTE_UNITS_EXHAUSTED,
        Reason.NUMA_NOT_FIT,
        Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST,
    }
)
"""Reasons that other requests' ends can cure."""


@dataclass(slots=True)
class _Waiting:
    since: float
    look_at: float


class Starvation:
    """Begins and ends nominated reservations.

    Args:
        holds: Where they are kept.
        columns: The state of all cards.
        after_s: Seconds of waiting after which cards are held; 0: never.
        wanted: What a claim that waits asks for; None when it does not wait any more.
    """

    def __init__(
        self,
        *,
        holds: Holds,
        columns: Columns,
        after_s: float,
        wanted: Callable[[Key], Wanted | None],
    ) -> None:
        self._holds = holds
        self._columns = columns
        self._after_s = after_s
        self._wanted = wanted
        self._waiting: dict[Key, _Waiting] = {}  # longest first
        self._next_look = math.inf

    def refused(self, key: Key, reason: Reason, now: float) -> None:
        """A request was refused; what nobody's end can cure is not waiting for room."""
        if reason in OF_ROOM:
            waiting = self._waiting.setdefault(key, _Waiting(now, now + self._after_s))
            self._next_look = min(self._next_look, waiting.look_at)
        else:
            self.over(key)

    def over(self, key: Key) -> None:
        """A request was served, or waits no more."""
        self._waiting.pop(key, None)
        self._holds.end(key)

    def review(self, now: float) -> None:
        """End what is moot, begin what is due. Call at the beginning of a round."""
        for hold in self._holds:
            if self._wanted(hold.key) is None:
                self.over(hold.key)
            elif not self._holds.is_sound(hold):
                self._holds.end(hold.key)
        if not self._after_s or len(self._holds) >= MOST_HOLDS:
            return
        for key, wanted in self._due(now)[:_LOOKED_AT_ONCE]:
            if len(self._holds) < MOST_HOLDS:
                self._hold(key, wanted, now)

    def _due(self, now: float) -> list[tuple[Key, Wanted]]:
        if now < self._next_look:
            return []
        self._next_look = min((each.look_at for each in self._waiting.values()), default=math.inf)
        late = (key for key, each in self._waiting.items() if each.look_at <= now)
        without = (key for key in late if self._holds.of(key) is None)
        due: list[tuple[Key, Wanted]] = []
        for key in list(islice(without, _WEIGHED_AT_ONCE)):
            wanted = self._wanted(key)
            if wanted is None:
                del self._waiting[key]
            else:
                due.append((key, wanted))
        return sorted(due, key=lambda item: (item[1].rank, item[0]))

    def _hold(self, key: Key, wanted: Wanted, now: float) -> None:
        taken = self._holds.cards
        target = choose_target(self._columns, wanted.ask, wanted.nodes(), taken=taken)
        waiting = self._waiting[key]
        waiting.look_at = now + self._after_s  # where none is found now, one may be then
        if target is None:
            return
        waited = now - waiting.since
        cards = ", ".join(target.cards)
        logger.info("held for %s/%s after %.0f s: %s on %s", *key, waited, cards, target.node)
        self._holds.begin(key, target)
