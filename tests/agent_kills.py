"""`make chaos-agent`: an agent is killed at random moments while pods start and end.

With some kills the agent's record is truncated, the kubelet or the container runtime is restarted,
the driver hangs for a minute, the agent's disk is full, or its clock goes back an hour. A full disk
needs root to mount a small one; without it that fault is left out, which the result shows.

Whatever the moment, leases, pages, CDI specs, the kubelet's record and the claims agree exactly
afterwards: the agent's own audit finds nothing, as many claims are held as pods run, and when the
last pod is gone nothing is left on disk. Pods that the kubelet refused because no plugin was there
at their admission (`UnexpectedAdmissionError`) are counted and created again, as a controller
would.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agent_stage import Stage, a_stage, until
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_nodeagent.lifecycle.audit_socket import SOCKET, query

DEVICES, AT_ONCE, KEPT = 4, 6, 8
SHARE_MIB = 1024
QUIET_S = 240.0
HANG_MS = 60_000
"""Much longer than the agent waits for NVML."""
BACK_S = -3600
OUT = Path("build/chaos/agent.json")


@dataclass(slots=True)
class Result:
    """The outcome of a run; correct when `wrong` is empty.

    Attributes:
        seed: Of the random choices.
        kills: How often the agent was killed.
        started: Pods that ran.
        ended: Pods that ran and were deleted.
        refused: Pods that the kubelet did not admit, because no plugin ran.
        strikes: What happened with the kills, and how often.
        gave_up: How often the agent ended by itself, and was started again.
        wrong: Findings, and counts that differ.
    """

    seed: int
    kills: int = 0
    started: int = 0
    ended: int = 0
    refused: int = 0
    strikes: dict[str, int] = field(default_factory=dict)
    gave_up: int = 0
    wrong: tuple[str, ...] = ()


async def campaign(folder: Path, *, pods: int, kills: int, seed: int) -> Result:
    """Start and end pods while the agent is killed; then compare everything.

    Args:
        folder: For everything on disk.
        pods: How many start.
        kills: How often the agent is killed at least.
        seed: Of the random choices.
    """
    result, chance = Result(seed), random.Random(seed)
    async with a_stage(folder, devices=DEVICES, pods=pods + 10, log_level="ERROR") as stage:
        numbers = iter(range(1_000_000))
        async with asyncio.TaskGroup() as tasks:
            killing = tasks.create_task(_kill(stage, result, chance, kills))
            workers = [
                tasks.create_task(_live(stage, result, chance, numbers, pods, killing))
                for _ in range(AT_ONCE)
            ]
            await asyncio.wait(workers)
        kept = [number async for number in _running(stage)]
        await _settles(stage, result, len(kept))
        for number in kept:
            await _end(stage, result, number)
        await _settles(stage, result, 0)
        result.wrong += _left(stage)
        result.gave_up = stage.gave_up
    return result


async def _kill(stage: Stage, result: Result, chance: random.Random, kills: int) -> None:
    """Kill the agent so often, and let something else happen with some of the kills."""
    for name in planned(chance, kills, with_full_disk=stage.is_limited):
        if chance.random() < 0.5:  # else perhaps while it starts
            await until(partial(_offers_slots, stage), limit_s=QUIET_S)
        await asyncio.sleep(chance.uniform(0.2, 2.5))
        await stage.kill_agent()
        result.kills += 1
        result.strikes[name] = result.strikes.get(name, 0) + 1
        await STRIKES[name][1](stage, chance)


def planned(chance: random.Random, kills: int, *, with_full_disk: bool) -> Sequence[str]:
    """Return a fault for each kill in random order, each kind at least once if possible."""
    names = [name for name in STRIKES if with_full_disk or name != FULL_DISK]
    weights = [STRIKES[name][0] for name in names]
    surely = names if kills >= len(names) else []
    planned = [*surely, *chance.choices(names, weights, k=kills - len(surely))]
    chance.shuffle(planned)
    return planned


async def _nothing_else(stage: Stage, chance: random.Random) -> None:
    await stage.start_agent()


async def _cut_record(stage: Stage, chance: random.Random) -> None:
    """Truncate the record as a file system may do after a power failure."""
    record = stage.state / "slots.json"
    if record.exists():
        os.truncate(record, chance.randrange(record.stat().st_size + 1))
    await stage.start_agent()


async def _restart_kubelet(stage: Stage, chance: random.Random) -> None:
    await stage.start_agent()
    await asyncio.sleep(chance.uniform(0.0, 1.5))
    await stage.kubelet.restart()


async def _hang_driver(stage: Stage, chance: random.Random) -> None:
    """Let the driver hang before the agent's first call, or while it runs and pods start."""
    if chance.random() < 0.5:
        await stage.slow_driver(HANG_MS)
        await stage.start_agent()
    else:
        await stage.start_agent()
        await asyncio.sleep(chance.uniform(0.5, 3.0))
        await stage.slow_driver(HANG_MS)
    await asyncio.sleep(HANG_MS / 1000)
    await stage.slow_driver(0)


async def _fill_disk(stage: Stage, chance: random.Random) -> None:
    """Fill the disk while the agent starts and for a while after, or only while it runs."""
    if chance.random() < 0.5:
        stage.fill_disk()
        await stage.start_agent()
    else:
        await stage.start_agent()
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        stage.fill_disk()
    await asyncio.sleep(chance.uniform(1.0, 4.0))
    stage.empty_disk()
    await _start_if_ended(stage)


async def _set_clock_back(stage: Stage, chance: random.Random) -> None:
    """Set the clock back soon after the agent's start or while it runs.

    The next time, set it forward.
    """
    await stage.start_agent()
    await asyncio.sleep(chance.uniform(0.0, 2.0))
    stage.shift_clock(0 if stage.clock_shift_s else BACK_S)


async def _restart_runtime(stage: Stage, chance: random.Random) -> None:
    await stage.start_agent()
    await stage.kubelet.restart_runtime(chance.uniform(0.5, 3.0))


async def _offers_slots(stage: Stage) -> bool:
    await _start_if_ended(stage)
    return await stage.offers_slots()


async def _start_if_ended(stage: Stage) -> None:
    """Start the agent if it has ended, as the kubelet does with one that cannot start."""
    if stage.has_ended:
        stage.gave_up += 1
        await stage.start_agent()


FULL_DISK = "kill and full disk"
STRIKES: Mapping[str, tuple[float, Callable[[Stage, random.Random], Awaitable[None]]]] = {
    "kill": (0.52, _nothing_else),
    "kill and cut record": (0.15, _cut_record),
    "kill and kubelet restart": (0.12, _restart_kubelet),
    "kill and runtime restart": (0.07, _restart_runtime),
    FULL_DISK: (0.07, _fill_disk),
    "kill and clock back": (0.06, _set_clock_back),
    "kill and hanging driver": (0.01, _hang_driver),
}
"""By kind of kill: its probability, and the action to take until the agent runs again."""


async def _live(
    stage: Stage,
    result: Result,
    chance: random.Random,
    numbers: Any,
    pods: int,
    killing: asyncio.Task[None],
) -> None:
    """Start pods and end most of them, until enough have started and the last kill is over."""
    while result.started < pods or not killing.done():
        number = next(numbers)
        await stage.start_pod(number, memory_mib=SHARE_MIB)
        decided = partial(_is_decided, stage, number)
        await until(decided, limit_s=QUIET_S)
        if await stage.phase(number) == "Failed":
            result.refused += 1
            await _end(stage, None, number)
            await asyncio.sleep(chance.uniform(0.1, 0.5))  # as a controller backs off
            continue
        result.started += 1
        await asyncio.sleep(chance.uniform(0.0, 0.5))
        if result.started - result.ended > KEPT:
            await _end(stage, result, number)


async def _is_decided(stage: Stage, number: int) -> bool:
    return await stage.phase(number) in ("Running", "Failed")


async def _end(stage: Stage, result: Result | None, number: int) -> None:
    """Delete a pod, and its claim once the agent has reported its release, if it was in use."""
    name = f"p-{number}"
    await stage.api.delete(PODS, name, namespace="default", grace_s=0)
    if result is not None:
        try:
            await until(lambda: _is_released(stage, name), limit_s=QUIET_S)
        except AssertionError:
            result.wrong += await _still_held(stage, name)
        result.ended += 1
    await stage.api.delete(VGPU_CLAIMS, name, namespace="default")


async def _is_released(stage: Stage, name: str) -> bool:
    claim = await stage.api.get(VGPU_CLAIMS, name, namespace="default")
    return bool(claim.get("status", {}).get("released"))


async def _still_held(stage: Stage, name: str) -> tuple[str, ...]:
    """Return the remains of a claim that should have been released, as text."""
    claim = await stage.api.get(VGPU_CLAIMS, name, namespace="default")
    try:
        answer = await query(stage.state / SOCKET)
    except (OSError, ValueError) as error:
        answer = {"error": str(error)}
    phase = await stage.phase(int(name.rpartition("-")[2]))
    return (
        f"claim {name} is not released after {QUIET_S:g} s; pod: {phase or 'gone'}; "
        f"status: {json.dumps(claim.get('status'))}; audit: {json.dumps(answer)}",
    )


async def _running(stage: Stage) -> Any:
    listing = await stage.api.list(PODS, namespace="default")
    for pod in listing.items:
        if pod["status"].get("phase") == "Running":
            yield int(pod["metadata"]["name"].rpartition("-")[2])


async def _settles(stage: Stage, result: Result, claims: int) -> None:
    """Wait until the audit has no findings and counts this many claims; fail with its findings."""
    wrong: Sequence[str] = ("the agent does not answer",)
    deadline = time.monotonic() + QUIET_S
    while wrong and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        await _start_if_ended(stage)
        wrong = await _wrong(stage, claims)
    result.wrong += tuple(wrong)


async def _wrong(stage: Stage, claims: int) -> Sequence[str]:
    try:
        answer = await query(stage.state / SOCKET)
    except (OSError, ValueError) as error:
        return (f"the agent does not answer: {error}",)
    if "error" in answer:
        return (str(answer["error"]),)
    found = [f"{f['reason']} {f['subject']}: {f['message']}" for f in answer["findings"]]
    if answer["claims"] != claims:
        found.append(f"{answer['claims']} claims are held, {claims} pods run")
    return found


def _left(stage: Stage) -> tuple[str, ...]:
    """Return the files that are on disk although no claim holds anything."""
    folders = [path.name for path in (stage.state / "slots").iterdir()]
    specs = [path.name for path in stage.folders.cdi.glob("vgpu.dev-slot_*")]
    return tuple(f"left on disk: {name}" for name in (*folders, *specs))


def main() -> int:
    """Run one campaign and write its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vgpu-kills-") as folder:
        result = asyncio.run(
            campaign(Path(folder), pods=given.pods, kills=given.kills, seed=given.seed)
        )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(asdict(result), indent=2) + "\n")
    print(json.dumps(asdict(result), indent=2))
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
