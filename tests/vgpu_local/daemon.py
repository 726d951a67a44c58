"""Runs one of our programs as a real process, with a log file, and always stops it at the end."""

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
    """The methods of a process that a daemon uses."""

    @property
    def pid(self) -> int:
        """Return the process id."""

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, or raise `subprocess.TimeoutExpired`."""

    def send_signal(self, number: signal.Signals, /) -> None:
        """Send it a signal."""


class Spawn(Protocol):
    """A function that starts a command with an environment in a session of its own."""

    def __call__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        errors: Path | None = None,
        /,
    ) -> Process:
        """Start the command; append its output to `log`, and its errors to `errors` if given."""


def execute(
    command: Sequence[str], environment: Mapping[str, str], log: Path, errors: Path | None = None
) -> Process:
    """Start a program with `subprocess.Popen`."""
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
    """A program that should be running has ended; the text contains the end of its log."""


class Daemon:
    """A process in a process group of its own.

    Attributes:
        name: The name in messages.
        log: The file that its output is appended to.
        wanted: True if it was started, and has been neither stopped nor allowed to end since.
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
            name: The name in messages.
            command: The program and its arguments.
            environment: The complete environment.
            log: The file that its output is appended to.
            spawn: Starts the process.
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
        """Return the process id.

        Raises:
            DaemonDied: It is not running.
        """
        self.check()
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process, unless it is running already."""
        self.wanted = True
        if self._process is not None and self._process.poll() is None:
            return
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        self._process = self._spawn(self._command, self._environment, self.log)

    def check(self) -> None:
        """Check that it is running.

        Raises:
            DaemonDied: It is not.
        """
        if self._process is None:
            raise DaemonDied(f"{self.name} was not started")
        if (code := self._process.poll()) is not None:
            raise DaemonDied(f"{self.name} ended with {code}:\n{self.tail()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, but not to its children."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it at once without any cleanup, like a crash."""
        self.stop(grace=0.0)

    def stop(self, *, grace: float = 5.0) -> None:
        """Stop it and everything it has started, by force after `grace` seconds."""
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
        """Expect its end from now on."""
        self.wanted = False

    def wait(self, limit: float) -> int:
        """Wait for its end; return its exit code.

        Raises:
            TimeoutError: It has not ended within `limit` seconds.
        """
        assert self._process is not None, f"{self.name} was not started"
        try:
            return self._process.wait(limit)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} runs on after {limit:g} s") from None

    def said(self) -> str:
        """Return the log of the current process."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_from)
            return file.read().decode(errors="replace")

    def tail(self) -> str:
        """Return the end of the log."""
        return self.said()[-_TAIL:]
