"""Runs `kubectl vgpu` as a process, with its output in files or in a terminal of its own.

Our other programs run only with their output in files.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from vgpu_local.daemon import Spawn, execute

_MODULE = "vgpu_operator.cli"
_LIMIT_S = 120.0
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def in_files(
    kubeconfig: Path,
    *arguments: str,
    spawn: Spawn = execute,
    environment: Mapping[str, str] | None = None,
    module: str = _MODULE,
) -> subprocess.CompletedProcess[str]:
    """Run a command whose output goes into files, so that it sees no terminal.

    Args:
        kubeconfig: The kubeconfig of the cluster.
        arguments: The arguments of `kubectl vgpu`.
        spawn: Starts the process.
        environment: Variables to add to our environment.
        module: The program; by default `kubectl vgpu`.

    Raises:
        subprocess.TimeoutExpired: It has not ended in time.
    """
    command = [sys.executable, "-m", module, *arguments, "--kubeconfig", str(kubeconfig)]
    variables = {**os.environ, **(environment or {})}
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder) / "stdout", Path(folder) / "stderr"
        process = spawn(command, variables, *outputs)
        try:
            code = process.wait(_LIMIT_S)
        finally:
            process.send_signal(signal.SIGKILL)  # of one that has ended, no process's
        stdout, stderr = (path.read_text() for path in outputs)
    return subprocess.CompletedProcess(command, code, stdout, stderr)


def in_terminal(
    kubeconfig: Path,
    *arguments: str,
    columns: int = 200,
    until: str = "",
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run a command in a pseudo-terminal; return its exit status and output.

    Args:
        kubeconfig: The kubeconfig of the cluster.
        arguments: The arguments of `kubectl vgpu`.
        columns: The width of the terminal.
        until: Type Ctrl-C when this text has appeared; empty if the command ends by itself.
        environment: Variables to add to our environment.

    Raises:
        TimeoutError: It has not ended in time.
    """
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": "50", "TERM": "xterm-256color"}
    without = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    command = subprocess.Popen(
        [sys.executable, "-m", _MODULE, *arguments],
        env={**without, "KUBECONFIG": str(kubeconfig), **size, **(environment or {})},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=of_a_terminal,
    )
    os.close(theirs)
    written, deadline, typed = b"", time.monotonic() + _LIMIT_S, False
    try:
        while True:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{arguments}: not ended; wrote {written!r}")
            ready, _, _ = select.select([ours], [], [], 0.1)
            if not ready:
                continue
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # Linux's word for the end of a terminal
                break
            if not chunk:
                break
            written += chunk
            if until and not typed and until.encode() in written:
                typed = True
                command.send_signal(signal.SIGINT)
        return command.wait(timeout=_LIMIT_S), written.decode().replace("\r\n", "\n")
    finally:
        command.kill()
        command.wait()
        os.close(ours)


def of_a_terminal() -> None:
    """Start a session and restore Ctrl-C, which children of a background shell would ignore."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def without_codes(text: str) -> str:
    """Return the text that a terminal shows, without control codes."""
    return _CODES.sub("", text)
