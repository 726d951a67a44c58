"""The pods that wait for a node, and when each is tried again. Pure: the clock is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times of a pod that found no node, in seconds.

    Attributes:
        first: after the first attempt; doubled with each further one.
        last: at most.
        between: at least, when something else in the cluster changed.
    """

    first: float = 1.0
    last: float = 10.0
    between: float = 0.3


@dataclass(slots=True)
class _Entry:
    """One pod.

    Attributes:
        due_at: when to try it; infinite while it is being tried or bound.
        failed: the last attempt ended with an error instead of a verdict.
        again_after: what happened during an attempt cuts the wait after it down to this.
    """

    order: tuple[int, int]
    attempts: int = 0
    tried_at: float = -math.inf
    due_at: float = -math.inf
    failed: bool = False
    again_after: float = math.inf


@dataclass(slots=True)
class Queue:
    """Pods by UID; the highest priority, then the longest known, comes first."""

    backoff: Backoff
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _arrivals: int = 0

    def add(self, uid: str, priority: int) -> None:
        """Take in a pod that is not known yet; it is due at once."""
        if uid not in self._entries:
            self._arrivals += 1
            self._entries[uid] = _Entry((-priority, self._arrivals))

    def remove(self, uid: str) -> None:
        """Forget a pod."""
        self._entries.pop(uid, None)

    def take(self, now: float) -> str | None:
        """Return the pod to try now, if one is due; it is due again only once put back."""
        due = [(e.order, uid) for uid, e in self._entries.items() if e.due_at <= now]
        if not due:
            return None
        uid = min(due)[1]
        self._entries[uid].due_at = self._entries[uid].again_after = math.inf
        return uid

    def next_due(self) -> float | None:
        """Return when the next pod is due, if there is one."""
        due = min((entry.due_at for entry in self._entries.values()), default=math.inf)
        return None if due == math.inf else due

    def put_back(self, uid: str, now: float, *, failed: bool) -> None:
        """Put a pod back that found no node, unless it was removed meanwhile.

        Args:
            uid: the pod.
            now: the time.
            failed: an error kept it from being judged; then only its own change cuts the wait.
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
        """Make a pod due at once: it was changed itself."""
        entry = self._entries.get(uid)
        if entry is None:
            return
        if entry.due_at == math.inf:
            entry.again_after = 0.0
        else:
            entry.due_at = -math.inf

    def hasten_all(self) -> None:
        """Make the pods due soon that found no node: a node or another pod changed."""
        between = self.backoff.between
        for entry in self._entries.values():
            if entry.due_at == math.inf:
                entry.again_after = min(entry.again_after, between)
            elif not entry.failed:
                entry.due_at = min(entry.due_at, entry.tried_at + between)
