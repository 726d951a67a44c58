"""The queue of pods that wait for a node, and when each is retried.

It reads no clock: callers pass in the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waiting times of a pod that found no node, in seconds.

    Attributes:
        first: The wait after the first attempt; it doubles with each further one.
        last: The longest wait.
        between: The shortest wait when something else in the cluster has changed.
    """

    first: float = 1.0
    last: float = 10.0
    between: float = 0.3


@dataclass(slots=True)
class _Entry:
    """A pod in the queue.

    Attributes:
        due_at: The time of the next attempt; infinite while it is being tried or bound.
        failed: True if the last attempt ended with an error.
        again_after: The longest wait after the current attempt, if something changed during it.
    """

    order: tuple[int, int]
    attempts: int = 0
    tried_at: float = -math.inf
    due_at: float = -math.inf
    failed: bool = False
    again_after: float = math.inf


@dataclass(slots=True)
class Queue:
    """Pods by UID, ordered by priority and then by the time they have been known."""

    backoff: Backoff
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _arrivals: int = 0

    def add(self, uid: str, priority: int) -> None:
        """Add a pod, due at once, unless it is known already."""
        if uid not in self._entries:
            self._arrivals += 1
            self._entries[uid] = _Entry((-priority, self._arrivals))

    def remove(self, uid: str) -> None:
        """Forget a pod."""
        self._entries.pop(uid, None)

    def take(self, now: float) -> str | None:
        """Return the pod to try now, or None; it is not due again until it is put back."""
        due = [(e.order, uid) for uid, e in self._entries.items() if e.due_at <= now]
        if not due:
            return None
        uid = min(due)[1]
        self._entries[uid].due_at = self._entries[uid].again_after = math.inf
        return uid

    def take_all(self, uids: Iterable[str]) -> list[str]:
        """Return those of some pods that wait, due or not, to be tried now with one of their group.

        They are not due again until they are put back.
        """
        found = [uid for uid in uids if uid in self._entries]
        waiting = [uid for uid in found if self._entries[uid].due_at != math.inf]
        for uid in waiting:
            self._entries[uid].due_at = self._entries[uid].again_after = math.inf
        return waiting

    def in_order(self, uids: Iterable[str]) -> list[str]:
        """Return known pods by priority and then by the time they have been known."""
        return sorted(uids, key=lambda uid: self._entries[uid].order)

    def next_due(self) -> float | None:
        """Return the time at which the next pod is due, or None."""
        due = min((entry.due_at for entry in self._entries.values()), default=math.inf)
        return None if due == math.inf else due

    def put_back(self, uid: str, now: float, *, failed: bool) -> None:
        """Put back a pod that found no node, unless it has been removed.

        Args:
            uid: The pod's UID.
            now: The current time.
            failed: True if the attempt ended with an error. Then only a change of the pod itself
                shortens the wait.
        """
        entry = self._entries.get(uid)
        if entry is None:
            return
        wait = min(self.backoff.first * 2**entry.attempts, self.backoff.last)
        if not failed or entry.again_after <= 0:
            wait = min(wait, entry.again_after)
        entry.attempts += 1
        entry.tried_at, entry.due_at, entry.failed = now, now + wait, failed

    def hasten(self, uid: str) -> None:
        """Make a pod due at once, because it was changed."""
        entry = self._entries.get(uid)
        if entry is None:
            return
        if entry.due_at == math.inf:
            entry.again_after = 0.0
        else:
            entry.due_at = -math.inf

    def hasten_all(self) -> None:
        """Make all pods that found no node due soon, because a node or another pod changed."""
        between = self.backoff.between
        for entry in self._entries.values():
            if entry.due_at == math.inf:
                entry.again_after = min(entry.again_after, between)
            elif not entry.failed:
                entry.due_at = min(entry.due_at, entry.tried_at + between)
