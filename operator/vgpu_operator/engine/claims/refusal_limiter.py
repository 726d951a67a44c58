"""Limits how many refusals are written into claims and events per second."""

from __future__ import annotations

from vgpu_operator.ledger import ClaimKey

_REPORTS_A_SECOND = 50.0
"""Refusals that are written into claims and events per second."""
_REPORTS_AT_ONCE = 8.0
"""Refusals per round."""
_FOUND_OUT_AT_ONCE = 2
"""Refusals per round whose reasons have yet to be computed. Each takes a look at all devices, some
milliseconds at 5,000 nodes, while no waiting pod is served.
"""


class RefusalLimiter:
    """A rate limiter for reports of refusals that is fair between namespaces.

    Namespaces take turns, and within a namespace the first in line comes first, so ten thousand
    refusals of one tenant do not delay another's. A refusal costs nothing while it waits for its
    turn. If its reasons have yet to be computed and the round has computed enough already, it
    returns its turn.
    """

    def __init__(self) -> None:
        self._queues: dict[str, dict[ClaimKey, None]] = {}  # by namespace, each in turn
        self._given_back: dict[ClaimKey, None] = {}
        self._granted: set[ClaimKey] = set()
        self._left = _REPORTS_AT_ONCE
        self._at = 0.0
        self._found_out = 0  # in this round

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + len(self._given_back)

    def __bool__(self) -> bool:
        return bool(self._queues or self._given_back)

    def next(self, now: float) -> list[ClaimKey]:
        """Return the claims whose turn has come at `now`, in monotonic seconds.

        A turn that is not used in this round is lost.
        """
        gained = (now - self._at) * _REPORTS_A_SECOND
        self._left, self._at = min(self._left + gained, _REPORTS_AT_ONCE), now
        self._found_out = 0
        found = list(self._given_back)
        self._given_back.clear()
        self._left -= len(found)  # never below zero: `may_find_out` added one for each of them
        while self._queues and self._left >= 1:
            namespace, queue = next(iter(self._queues.items()))
            del self._queues[namespace]
            found.append(key := next(iter(queue)))
            del queue[key]
            if queue:
                self._queues[namespace] = queue
            self._left -= 1
        self._granted = set(found)
        return found

    def take(self, key: ClaimKey) -> bool:
        """Take the claim's turn and return True, or put the claim in line and return False."""
        if key in self._granted:
            self._granted.discard(key)
            return True
        if self or self._left < 1:
            if key not in self._given_back:
                self._queues.setdefault(key.namespace, {})[key] = None
            return False
        self._left -= 1
        return True

    def may_find_out(self, key: ClaimKey) -> bool:
        """Return True if the reasons of a claim that has taken its turn may be computed now.

        If not, the claim returns its turn and is first in the next round.
        """
        if self._found_out < _FOUND_OUT_AT_ONCE:
            self._found_out += 1
            return True
        self._left += 1
        self._given_back[key] = None
        return False

    def leave(self, key: ClaimKey) -> None:
        """Take the claim out of the line."""
        self._given_back.pop(key, None)
        queue = self._queues.get(key.namespace)
        if queue is not None:
            queue.pop(key, None)
            if not queue:
                del self._queues[key.namespace]
