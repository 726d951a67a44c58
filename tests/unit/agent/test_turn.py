"""One agent at a time serves a node, whatever ends the one before."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from vgpu_nodeagent.turn import Turn

HOLD = """
import asyncio, sys
from pathlib import Path
from vgpu_nodeagent.turn import Turn

turn = Turn(Path(sys.argv[1]))
asyncio.run(turn.wait())
print("held", flush=True)
sys.stdin.read()
"""


async def test_only_one_has_the_turn_and_the_next_gets_it_when_it_ends(tmp_path: Path) -> None:
    first, second = Turn(tmp_path), Turn(tmp_path)
    await first.wait()
    waiting = asyncio.ensure_future(second.wait())
    await asyncio.sleep(0.05)
    assert (first.is_ours, second.is_ours, waiting.done()) == (True, False, False)
    first.end()
    first.end()
    async with asyncio.timeout(2):
        await waiting
    assert (first.is_ours, second.is_ours) == (False, True)
    second.end()


def test_a_killed_process_leaves_its_turn(tmp_path: Path) -> None:
    async def turn_within(limit_s: float) -> bool:
        turn = Turn(tmp_path)
        try:
            async with asyncio.timeout(limit_s):
                await turn.wait()
        except TimeoutError:
            return False
        turn.end()
        return True

    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert not asyncio.run(turn_within(0.1))
        process.kill()
        assert asyncio.run(turn_within(5))


async def test_who_stops_waiting_does_not_stand_in_the_way(tmp_path: Path) -> None:
    first, second, third = (Turn(tmp_path) for _ in range(3))
    await first.wait()
    waiting = asyncio.ensure_future(second.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    first.end()
    async with asyncio.timeout(2):
        await third.wait()
    third.end()


async def test_a_state_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        await Turn(tmp_path / "none").wait()
