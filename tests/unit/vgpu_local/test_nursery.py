"""What is forked behaves as what is executed: arguments, output, exit codes, signals, the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_local.nursery import Child, Nursery


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(os.environ) as nursery:
        yield nursery


def born(nursery: Nursery, log: Path, module: str, *arguments: str) -> Child:
    return nursery.spawn([sys.executable, "-m", module, *arguments], os.environ, log)


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
    nursery: Nursery, tmp_path: Path, module: str, arguments: list[str]
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
    child = born(nursery, log, module, *arguments)
    assert child.wait(60) == executed.returncode == child.poll()
    assert log.read_text() == "before\n" + executed.stdout


def a_waiting_operator(nursery: Nursery, tmp_path: Path) -> Child:
    """One whose configuration is never written."""
    config = tmp_path / "config"
    os.mkfifo(config)
    return born(nursery, tmp_path / "log", "vgpu_operator", "--config", str(config))


def test_one_that_is_killed_says_by_which_signal(nursery: Nursery, tmp_path: Path) -> None:
    child = a_waiting_operator(nursery, tmp_path)
    assert os.getsid(child.pid) == child.pid
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    assert child.wait(60) == -signal.SIGKILL
    child.send_signal(signal.SIGKILL)  # of one that has ended, no process's


def test_who_was_born_ends_with_the_nursery(tmp_path: Path) -> None:
    nursery = Nursery(os.environ)
    nursery.start()
    child = a_waiting_operator(nursery, tmp_path)
    pidfd = os.pidfd_open(child.pid)
    try:
        nursery.stop()
        assert child.wait(0) == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
