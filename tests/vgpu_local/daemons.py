"""All of our programs in one cluster: started alike, watched together, none left behind."""

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
        undo: gets what ends each of them.
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
        """Start one.

        Args:
            name: for messages, and of its log.
            command: program and arguments.
            environment: what it gets beside what all of them get.
            folder: the cluster's; the log goes there.
            spawn: how it comes to be.
        """
        variables = program_environment(folder, environment)
        daemon = Daemon(name, command, variables, folder / f"{name}.log", spawn=spawn)
        self._undo.callback(daemon.stop)
        self._all.append(daemon)
        daemon.start()
        return daemon

    def check(self) -> None:
        """Make sure that those run that should.

        Raises:
            DaemonDied: one does not.
        """
        for daemon in self._all:
            if daemon.wanted:
                daemon.check()

    def pids(self) -> dict[str, int]:
        """The process id of each that should run, by its name.

        Raises:
            DaemonDied: one of them does not.
        """
        return {daemon.name: daemon.pid for daemon in self._all if daemon.wanted}

    def terminate(self) -> None:
        """Ask all of them at once to end; `undo` waits for each."""
        for daemon in self._all:
            daemon.signal(signal.SIGTERM)
