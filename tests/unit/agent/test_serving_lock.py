"""Only one agent at a time serves a node, however the previous one ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from vgpu_nodeagent.state.serving_lock import ServingLock

HOLD = """
import asyncio, sys
from pathlib import Path
from vgpu_nodeagent.state.serving_lock import ServingLock

lock = ServingLock(Path(sys.argv[1]))
asyncio.run(lock.acquire())
print("held", flush=True)
sys.stdin.read()
"""


async def test_only_one_holds_the_lock_and_the_next_gets_it_when_it_ends(tmp_path: Path) -> None:
    first, second = ServingLock(tmp_path), ServingLock(tmp_path)
    await first.acquire()
    waiting = asyncio.ensure_future(second.acquire())
    await asyncio.sleep(0.05)
    assert (first.is_held, second.is_held, waiting.done()) == (True, False, False)
    first.release()
    first.release()
    async with asyncio.timeout(2):
        await waiting
    assert (first.is_held, second.is_held) == (False, True)
    second.release()


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    async def acquired_within(limit_s: float) -> bool:
        lock = ServingLock(tmp_path)
        try:
            async with asyncio.timeout(limit_s):
                await lock.acquire()
        except TimeoutError:
            return False
        lock.release()
        return True

    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert not asyncio.run(acquired_within(0.1))
        process.kill()
        assert asyncio.run(acquired_within(5))


async def test_who_stops_waiting_does_not_stand_in_the_way(tmp_path: Path) -> None:
    first, second, third = (ServingLock(tmp_path) for _ in range(3))
    await first.acquire()
    waiting = asyncio.ensure_future(second.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    first.release()
    async with asyncio.timeout(2):
        await third.acquire()
    third.release()


async def test_a_state_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        await ServingLock(tmp_path / "none").acquire()
