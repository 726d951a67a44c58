"""One running container: a local process in a process group of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a command that ran inside a container."""

    exit_code: int
    stdout: str
    stderr: str


class ContainerProcess:
    """The main process of a container and everything it started."""

    def __init__(
        self, process: asyncio.subprocess.Process, environment: Mapping[str, str], folder: Path
    ) -> None:
        """Use `start` instead."""
        self._process = process
        self._environment = environment
        self._folder = folder
        self._commands: set[asyncio.subprocess.Process] = set()

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], *, folder: Path, log: Path
    ) -> ContainerProcess:
        """Run a command.

        Args:
            command: The program, which is found on the container's PATH, and its arguments.
            environment: The complete environment; nothing is inherited.
            folder: The working directory.
            log: The file that its output is appended to.

        Raises:
            OSError: There is no such program.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(environment),
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, environment, folder)

    @property
    def pid(self) -> int:
        """Return the process id on the host, which is also the id of its process group."""
        return self._process.pid

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment that the process was started with."""
        return self._environment

    async def wait(self) -> int:
        """Wait for the main process, end its children, and return the exit code as a shell does."""
        code = await self._process.wait()
        _signal_group(self.pid, signal.SIGKILL)
        for command in tuple(self._commands):
            _signal_group(command.pid, signal.SIGKILL)
        return code if code >= 0 else 128 - code

    async def stop(self, grace: float) -> None:
        """Ask the main process to end, and kill everything after `grace` seconds."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # Not through asyncio: its send_signal may reap the child behind its own back.
                os.kill(self.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(grace):
                    await self._process.wait()
            except TimeoutError:
                self.kill()
        await self.wait()

    def kill(self) -> None:
        """Kill the whole process group at once."""
        _signal_group(self.pid, signal.SIGKILL)

    async def exec(
        self, command: Sequence[str], environment: Mapping[str, str], limit: float
    ) -> ExecResult:
        """Run one more command in the container's environment.

        Args:
            command: The program and its arguments.
            environment: Variables to add to the container's.
            limit: The seconds after which it is killed.

        Raises:
            TimeoutError: It took longer than `limit`.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**self._environment, **environment},
            cwd=self._folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._commands.add(process)
        try:
            async with asyncio.timeout(limit):
                stdout, stderr = await process.communicate()
        finally:
            if process.returncode is None:
                _signal_group(process.pid, signal.SIGKILL)
                await process.wait()
            self._commands.discard(process)
        code = process.returncode if process.returncode is not None else -1
        return ExecResult(code if code >= 0 else 128 - code, stdout.decode(), stderr.decode())


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # everything has ended already
        os.killpg(pid, number)
