"""A process whose event loop is stuck is killed, for any cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.programs

LIMIT_S = 2.0

PROGRAM = """
    import asyncio, ctypes, os, sys, time
    from vgpu_nodeagent.reporting import hang_guard
    from vgpu_nodeagent.reporting.hang_guard import HangGuard

    hang_guard.BEAT_S = 0.1
    guard = HangGuard(float(sys.argv[1]))

    async def live():
        alive = asyncio.create_task(guard.keep())
        await asyncio.sleep(1.5 * float(sys.argv[1]))
        print(guard.pid, flush=True)
        {then}

    asyncio.run(live())
    guard.close()
"""
STOPPED = "os.kill(os.getpid(), 19); await asyncio.sleep(60)"
STUCK = "time.sleep(60)"
HOLDING_THE_LOCK = "ctypes.PyDLL(None).sleep(60)"


def run(then: str) -> subprocess.CompletedProcess[str]:
    """Run a process that lives longer than the limit and then runs the code `then`."""
    code = textwrap.dedent(PROGRAM).format(then=then)
    return subprocess.run(
        [sys.executable, "-c", code, str(LIMIT_S)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize(
    "then", [STOPPED, STUCK, HOLDING_THE_LOCK], ids=["stopped", "stuck", "holding Python's lock"]
)
def test_who_lives_is_left_alone_and_who_stands_still_is_killed(then: str) -> None:
    done = run(then)
    assert done.stdout.strip().isdecimal()  # it lived longer than the limit
    assert done.returncode == -signal.SIGKILL
    assert (
        done.stderr == f"vgpu-nodeagent: its event loop has not turned for {LIMIT_S:g} s: killed\n"
    )


def test_who_ends_is_not_waited_for_and_leaves_no_process() -> None:
    done = run("pass")
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_without_the_one_that_waits_the_agent_goes_on_and_reports_it() -> None:
    done = run("os.kill(guard.pid, 9); os.waitpid(guard.pid, 0); await alive")
    assert done.returncode == 0
    assert "the process that would kill this one if it hangs is gone" in done.stderr
