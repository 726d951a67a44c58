"""A forked program behaves like an executed one: arguments, output, exit codes and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_local.fork_server import Child, ForkServer


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer(os.environ) as fork_server:
        yield fork_server


def forked(fork_server: ForkServer, log: Path, module: str, *arguments: str) -> Child:
    return fork_server.spawn([sys.executable, "-m", module, *arguments], os.environ, log)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("vgpu_nodeagent", ["--help"]),
        ("vgpu_nodeagent", ["--node-name", "n", "--library", "/none"]),
        ("vgpu_operator", ["--config", "/none"]),
    ],
    ids=["help", "a wrong argument", "a file that is not there"],
)
def test_it_says_and_ends_as_if_executed(
    fork_server: ForkServer, tmp_path: Path, module: str, arguments: list[str]
) -> None:
    executed = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log = tmp_path / "log"
    log.write_text("before\n")
    child = forked(fork_server, log, module, *arguments)
    assert child.wait(60) == executed.returncode == child.poll()
    assert log.read_text() == "before\n" + executed.stdout


def a_waiting_operator(fork_server: ForkServer, tmp_path: Path) -> Child:
    """Return an operator whose configuration is never written."""
    config = tmp_path / "config"
    os.mkfifo(config)
    return forked(fork_server, tmp_path / "log", "vgpu_operator", "--config", str(config))


def test_one_that_is_killed_says_by_which_signal(fork_server: ForkServer, tmp_path: Path) -> None:
    child = a_waiting_operator(fork_server, tmp_path)
    assert os.getsid(child.pid) == child.pid
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    assert child.wait(60) == -signal.SIGKILL
    child.send_signal(signal.SIGKILL)  # of one that has ended, no process's


def test_what_was_forked_ends_with_the_fork_server(tmp_path: Path) -> None:
    fork_server = ForkServer(os.environ)
    fork_server.start()
    child = a_waiting_operator(fork_server, tmp_path)
    pidfd = os.pidfd_open(child.pid)
    try:
        fork_server.stop()
        assert child.wait(0) == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
