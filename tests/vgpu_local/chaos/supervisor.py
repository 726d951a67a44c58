"""Restarts our programs when they have ended, as a Deployment and a DaemonSet would.

An end is expected if the campaign caused it, if a Lease was lost, or if the campaign filled the
disk. Every other end is a finding.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import threading
import time
from collections.abc import Iterable

from vgpu_local.daemon import Daemon, DaemonDied

_LOOK_S = 0.1
_AGAIN_S = 0.3
_ENDS_WITHIN_S = 30.0
_NO_ROOM = (os.strerror(errno.ENOSPC),)
# The latter where the program had just begun and did not listen to signals yet.
_IN_ORDER = (" ended with 0:", f" ended with {-signal.SIGTERM}:")


class Supervisor:
    """A supervisor of processes in a thread of its own, between `start` and `stop`.

    Attributes:
        findings: A text for each unexpected end.
    """

    def __init__(self, daemons: Iterable[Daemon]) -> None:
        self.findings: list[str] = []
        self._daemons = {daemon.name: daemon for daemon in daemons}
        self._due: dict[str, float] = {}  # when one that has ended starts again
        self._asked: dict[
            str, tuple[float, float]
        ] = {}  # to end: until when, and away for how long
        self._without_room: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the processes stay as they are."""
        self._stop.set()
        self._thread.join()

    def daemon(self, name: str) -> Daemon:
        """Return the process of that name."""
        return self._daemons[name]

    def kill(self, name: str, *, away_s: float) -> bool:
        """Kill a process, to be started again later; False if it is away already."""
        with self._lock:
            if name in self._due:
                return False
            self._asked.pop(name, None)
            self._daemons[name].kill()
            self._due[name] = time.monotonic() + away_s
            return True

    def ask_to_end(self, name: str, *, away_s: float) -> bool:
        """Let a process end in order, to be started again later; False if it is away already."""
        with self._lock:
            if name in self._due or name in self._asked:
                return False
            self._asked[name] = (time.monotonic() + _ENDS_WITHIN_S, away_s)
            self._daemons[name].signal(signal.SIGTERM)
            return True

    def has_no_room(self, name: str) -> None:
        """Expect from now on that the process may end because its disk is full."""
        with self._lock:
            self._without_room.add(name)

    def is_up(self, name: str) -> bool:
        """Return True if a process is neither away nor about to end."""
        with self._lock:
            return name not in self._due and name not in self._asked

    def mend(self) -> None:
        """Start all processes that are away, and resume all that are stopped."""
        with self._lock:
            for name in list(self._due):
                self._restart(name)
            for daemon in self._daemons.values():
                daemon.signal(signal.SIGCONT)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Check every process once."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        for name, due in list(self._due.items()):
            if due <= now:
                self._restart(name)
        for name, daemon in self._daemons.items():
            if name in self._due:
                continue
            until, away_s = self._asked.get(name, (math.inf, _AGAIN_S))
            try:
                daemon.check()
            except DaemonDied as error:
                was_asked = self._asked.pop(name, None) is not None
                in_order = was_asked and any(word in str(error) for word in _IN_ORDER)
                allowed = _NO_ROOM if name in self._without_room else ()
                if not in_order and not any(word in daemon.said() for word in allowed):
                    self.findings.append(str(error))
                self._due[name] = now + away_s
            else:
                if now > until:
                    self.findings.append(f"{name} was asked to end and did not")
                    daemon.kill()

    def _restart(self, name: str) -> None:
        self._due.pop(name, None)
        self._daemons[name].start()
