"""Faults on demand, as a real server, network or restart causes them now and then.

A `Fault` names the requests it affects and what happens to them. `Faults` holds the armed faults
and uses a seeded generator for their shares, so that a failing run can be repeated.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import Literal

from vgpu_local.apiserver.errors import StatusError

Action = Literal["status", "answered", "delay", "lost", "refuse", "drop", "freeze", "gone"]
"""The effect on a request:

status   answered with `code`, not done
answered done, but answered with `code`
delay    done `seconds` later
lost     done, but the connection closes without an answer
refuse   the connection closes; not done
drop     a watch ends its connection after `after` events
freeze   a watch sends nothing more after `after` events, not even bookmarks
gone     410: a list's continuation, or a watch after `after` events
"""

_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_ON_STREAMS = frozenset({"drop", "freeze", "gone"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong.

    Args:
        action: One of `Action`.
        verb: get, list, watch, create, update, patch, delete, deletecollection, or `*`.
        resource: `pods`, `pods/binding`, `vgpuclaims.vgpu.dev/status` …, or `*`; without a
            subresource only the object itself is meant.
        name: Only requests for this object; "" for all.
        user: Only requests of this user; "" for all.
        times: The number of requests it affects before it is spent; None for no limit.
        share: The share of matching requests that it affects, from 0 to 1.
        code: The HTTP status of `status` and `answered`.
        seconds: The wait of `delay`, and the Retry-After of a 429 or 503.
        after: The number of events that a watch gets; drop, freeze or gone replace the next.
    """

    action: Action
    verb: str = "*"
    resource: str = "*"
    name: str = ""
    user: str = ""
    times: int | None = 1
    share: float = 1.0
    code: int = 500
    seconds: float = 0.0
    after: int = 0

    def matches(self, verb: str, resource: str, name: str, user: str = "") -> bool:
        """Return True if the fault applies to such a request."""
        return (
            self.verb in ("*", verb)
            and self.resource in ("*", resource)
            and self.name in ("", name)
            and self.user in ("", user)
            and (self.action not in _ON_STREAMS or verb == "watch" or self.action == "gone")
        )

    def error(self) -> StatusError:
        """Return the refusal that a `status` or `answered` fault sends."""
        reason = _REASONS.get(self.code, "Unknown")
        details = {"retryAfterSeconds": round(self.seconds)} if self.seconds else None
        return StatusError(self.code, reason, "injected fault", details=details)


@dataclass(slots=True)
class _Armed:
    fault: Fault
    left: int | None
    befell: int = 0


@dataclass(slots=True)
class Faults:
    """The armed faults; safe to use from any thread.

    Attributes:
        landed_late: How many writes a proxy has passed on after their clients had gone.
    """

    seed: int = 0
    landed_late: int = 0
    _armed: list[_Armed] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def reseed(self, seed: int) -> None:
        """Restart the generator of shares with this seed."""
        with self._lock:
            self.seed, self._random = seed, random.Random(seed)

    def add(self, fault: Fault) -> Fault:
        """Arm a fault; return it, for `remove` and `count`."""
        with self._lock:
            self._armed.append(_Armed(fault, fault.times))
        return fault

    def remove(self, fault: Fault) -> None:
        """Disarm a fault; one that is not armed is ignored."""
        with self._lock:
            self._armed = [armed for armed in self._armed if armed.fault is not fault]

    def clear(self) -> None:
        """Disarm all faults."""
        with self._lock:
            self._armed.clear()

    def count(self, fault: Fault) -> int:
        """Return how many requests the fault has affected; 0 if it is not armed."""
        with self._lock:
            return sum(armed.befell for armed in self._armed if armed.fault is fault)

    def take(self, verb: str, resource: str, name: str, user: str = "") -> list[Fault]:
        """Return the faults that affect this request, and count each of them once."""
        if not self._armed:
            return []
        with self._lock:
            return [
                armed.fault
                for armed in self._armed
                if self._befalls(armed, armed.fault.matches(verb, resource, name, user))
            ]

    def _befalls(self, armed: _Armed, meant: bool) -> bool:
        if armed.left == 0 or not meant:
            return False
        if armed.fault.share < 1 and self._random.random() >= armed.fault.share:
            return False
        armed.befell += 1
        if armed.left is not None:
            armed.left -= 1
        return True
