"""The processes of all our programs in one cluster."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from vgpu_local.daemon import Daemon, Spawn, execute
from vgpu_local.programs import program_environment


class Daemons:
    """The processes, in the order in which they were started.

    Args:
        undo: The stack to which the end of each process is added.
    """

    def __init__(self, undo: contextlib.ExitStack) -> None:
        self._undo = undo
        self._all: list[Daemon] = []

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path,
        spawn: Spawn = execute,
    ) -> Daemon:
        """Start a process.

        Args:
            name: The name in messages and of the log file.
            command: The program and its arguments.
            environment: Variables to add to those that all processes get.
            folder: The cluster's folder, for the log.
            spawn: Starts the process.
        """
        variables = program_environment(folder, environment)
        daemon = Daemon(name, command, variables, folder / f"{name}.log", spawn=spawn)
        self._undo.callback(daemon.stop)
        self._all.append(daemon)
        daemon.start()
        return daemon

    def check(self) -> None:
        """Check that all processes that should be running are running.

        Raises:
            DaemonDied: One is not.
        """
        for daemon in self._all:
            if daemon.wanted:
                daemon.check()

    def pids(self) -> dict[str, int]:
        """Return the ids of the processes that should be running, by name.

        Raises:
            DaemonDied: One is not running.
        """
        return {daemon.name: daemon.pid for daemon in self._all if daemon.wanted}

    def terminate(self) -> None:
        """Send SIGTERM to all processes; `undo` waits for each of them."""
        for daemon in self._all:
            daemon.signal(signal.SIGTERM)
