"""One of our programs as a real process: its log in a file, its end certain."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

_TAIL = 4000


class Process(Protocol):
    """What a daemon needs of a process."""

    @property
    def pid(self) -> int:
        """Its id."""

    def poll(self) -> int | None:
        """How it ended; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, or raise `subprocess.TimeoutExpired`."""

    def send_signal(self, number: signal.Signals, /) -> None:
        """Send it a signal."""


class Spawn(Protocol):
    """Starts a command with an environment in a session of its own."""

    def __call__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        errors: Path | None = None,
        /,
    ) -> Process:
        """Start it; output is appended to `log`, with that for errors unless it has its own."""


def execute(
    command: Sequence[str], environment: Mapping[str, str], log: Path, errors: Path | None = None
) -> Process:
    """Start a program as it is started everywhere."""
    with log.open("ab") as output, (errors or log).open("ab") as complaints:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaints,
            start_new_session=True,
        )


class DaemonDied(Exception):
    """A program that should be running has ended; the text has the end of its log."""


class Daemon:
    """A process in a process group of its own.

    Attributes:
        name: for messages.
        log: file that its output is appended to.
        wanted: whether it was started, and neither stopped nor allowed to end since.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        spawn: Spawn = execute,
    ) -> None:
        """Describe a process; `start` starts it.

        Args:
            name: for messages.
            command: program and arguments.
            environment: all of it.
            log: file that its output is appended to.
            spawn: how it comes to be.
        """
        self.name = name
        self.log = log
        self.wanted = False
        self._command = command
        self._environment = environment
        self._spawn = spawn
        self._process: Process | None = None
        self._log_from = 0  # what lies before is of processes before this one

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            DaemonDied: it does not run.
        """
        self.check()
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process; a second one of a running daemon is never started."""
        self.wanted = True
        if self._process is not None and self._process.poll() is None:
            return
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        self._process = self._spawn(self._command, self._environment, self.log)

    def check(self) -> None:
        """Make sure that it runs.

        Raises:
            DaemonDied: it does not.
        """
        if self._process is None:
            raise DaemonDied(f"{self.name} was not started")
        if (code := self._process.poll()) is not None:
            raise DaemonDied(f"{self.name} ended with {code}:\n{self.tail()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash does: at once, nothing cleaned up."""
        self.stop(grace=0.0)

    def stop(self, *, grace: float = 5.0) -> None:
        """End it and everything it started, by force after `grace` seconds."""
        self.wanted = False
        process = self._process
        if process is None:
            return
        if grace > 0:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def may_end(self) -> None:
        """From now on its end is no surprise."""
        self.wanted = False

    def wait(self, limit: float) -> int:
        """Wait for its end; returns how it ended.

        Raises:
            TimeoutError: it has not, within `limit` seconds.
        """
        assert self._process is not None, f"{self.name} was not started"
        try:
            return self._process.wait(limit)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} runs on after {limit:g} s") from None

    def said(self) -> str:
        """Return the present process's log."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_from)
            return file.read().decode(errors="replace")

    def tail(self) -> str:
        """Return the end of it."""
        return self.said()[-_TAIL:]
