"""The queue of Immediate claims: priority, then age; a change cuts its back-off short. Pure.

They have no pod and hence no place in kube-scheduler's queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_operator.engine.claim_writer import Key

FIRST_BACKOFF_S = 1.0
LAST_BACKOFF_S = 60.0


@dataclass(slots=True)
class _Queued:
    rank: tuple[int, str]
    generation: int
    due: float = 0.0
    backoff_s: float = FIRST_BACKOFF_S


class ImmediateQueue:
    """Claims that wait to be decided."""

    def __init__(self) -> None:
        self._queued: dict[Key, _Queued] = {}

    def put(self, key: Key, *, priority: int, created: str, generation: int) -> None:
        """A claim waits, or waits still: its back-off goes on unless its spec has changed."""
        queued = self._queued.get(key)
        if queued is None or queued.generation != generation:
            self._queued[key] = _Queued((-priority, created), generation)

    def drop(self, key: Key) -> None:
        """A claim waits no more."""
        self._queued.pop(key, None)

    def ready(self, now: float, *, changed: bool) -> list[Key]:
        """Whom to decide now, in this order: who is due, or everybody when something changed."""
        keys = [key for key, queued in self._queued.items() if changed or queued.due <= now]
        return sorted(keys, key=lambda key: (self._queued[key].rank, key))

    def hurry(self, namespace: str) -> None:
        """Something changed for the claims of a namespace: their back-off is over."""
        for key, queued in self._queued.items():
            if key[0] == namespace:
                queued.due = 0.0

    def refused(self, key: Key, now: float) -> None:
        """It found no room: not before its back-off is over, unless something changes."""
        queued = self._queued.get(key)
        if queued is not None:
            queued.due = now + queued.backoff_s
            queued.backoff_s = min(queued.backoff_s * 2, LAST_BACKOFF_S)
