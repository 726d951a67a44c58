"""Limits how many refusals are written into claims and events in a second."""

from __future__ import annotations

from vgpu_operator.ledger import ClaimKey

_REPORTS_A_SECOND = 50.0
"""Refusals that are written into claims and events in a second, at most."""
_REPORTS_AT_ONCE = 8.0
"""In one round."""
_FOUND_OUT_AT_ONCE = 2
"""Of those, the ones whose reasons are not known yet: that takes a look at all devices, some
milliseconds at 5,000 nodes, and no pod that waits for a device is served meanwhile."""


class RefusalLimiter:
    """Turns to write down a refusal: so many a second.

    Namespaces take turns, and within one who came first: ten thousand refusals of one tenant do
    not delay another's. A refusal that waits for its turn costs nothing until then. One whose
    reasons would have to be found out gives its turn back where a round has had enough of those.
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
        """The claims whose turn it is by now, monotonic seconds; a turn not taken is lost."""
        gained = (now - self._at) * _REPORTS_A_SECOND
        self._left, self._at = min(self._left + gained, _REPORTS_AT_ONCE), now
        self._found_out = 0
        found = list(self._given_back)
        self._given_back.clear()
        self._left -= len(found)  # there are so many, since each was given back
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
        """Take the claim's turn, if it has come; else wait for one."""
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
        """Whether the reasons of who has taken a turn may be found out.

        Else the turn was not used, and the next round begins with it.
        """
        if self._found_out < _FOUND_OUT_AT_ONCE:
            self._found_out += 1
            return True
        self._left += 1
        self._given_back[key] = None
        return False

    def leave(self, key: ClaimKey) -> None:
        """Wait for a turn no more."""
        self._given_back.pop(key, None)
        queue = self._queues.get(key.namespace)
        if queue is not None:
            queue.pop(key, None)
            if not queue:
                del self._queues[key.namespace]
