"""Faults on demand: what a real server, network or restart does to its clients now and then.

A `Fault` names the requests it befalls and what happens to them; `Faults` holds those that are
armed and draws their shares from a seeded generator, so that a failing run can be repeated.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import Literal

from vgpu_local.apiserver.errors import StatusError

Action = Literal["status", "delay", "lost", "refuse", "drop", "freeze", "gone"]
"""What befalls a request:

status   answered with `code`, not done
delay    done `seconds` later
lost     done, but the connection closes without an answer
refuse   the connection closes; not done
drop     a watch ends its connection after `after` events
freeze   a watch sends nothing any more after `after` events, bookmarks neither
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
        action: see `Action`.
        verb: get, list, watch, create, update, patch, delete, deletecollection, or `*`.
        resource: `pods`, `pods/binding`, `vgpuclaims.vgpu.dev/status` …, or `*`; without a
            subresource only the object itself is meant.
        name: only requests for this object; "" for all.
        user: only requests of this user; "" for everybody's.
        times: how many requests it befalls before it is spent; None for ever.
        share: the part of the matching requests it befalls, 0..1.
        code: the HTTP status of `status`.
        seconds: the wait of `delay`, and the Retry-After of a 429 or 503.
        after: how many events a watch gets; drop, freeze or gone come in place of the next.
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
        """Whether a request is one of those meant."""
        return (
            self.verb in ("*", verb)
            and self.resource in ("*", resource)
            and self.name in ("", name)
            and self.user in ("", user)
            and (self.action not in _ON_STREAMS or verb == "watch" or self.action == "gone")
        )

    def error(self) -> StatusError:
        """The refusal that a `status` fault sends."""
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
    """The armed faults; safe to use from any thread."""

    seed: int = 0
    _armed: list[_Armed] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def reseed(self, seed: int) -> None:
        """Draw the shares anew, as if made with this seed."""
        with self._lock:
            self.seed, self._random = seed, random.Random(seed)

    def add(self, fault: Fault) -> Fault:
        """Arm a fault; returns it, to be handed to `remove` or `count`."""
        with self._lock:
            self._armed.append(_Armed(fault, fault.times))
        return fault

    def remove(self, fault: Fault) -> None:
        """Disarm a fault; one that is not armed is ignored."""
        with self._lock:
            self._armed = [armed for armed in self._armed if armed.fault is not fault]

    def clear(self) -> None:
        """Disarm all."""
        with self._lock:
            self._armed.clear()

    def count(self, fault: Fault) -> int:
        """How many requests the fault befell so far; 0 for one that is not armed."""
        with self._lock:
            return sum(armed.befell for armed in self._armed if armed.fault is fault)

    def take(self, verb: str, resource: str, name: str, user: str = "") -> list[Fault]:
        """The faults that befall this request, each counted once for it."""
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
