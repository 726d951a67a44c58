"""One run: the steps of a seed, a quiet period without faults, and a check that nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from vgpu_api.resources import PODS, VGPU_CLAIMS
from virtual_time import VirtualLoop

from .judge import Finding
from .machines import DEVICES
from .steps import APPS, GROUPS, Step, plan, play
from .world import World

STEPS = 150
CALM_STEPS = 30
CALM_AFTER_S = 100.0
"""Seconds after the last fault in which all that was put off ends."""
REST_S = 420.0
"""More than an Immediate claim keeps devices that can serve no pod (300 s)."""
EMPTY_S = 120.0
_SHRINKS = 60
_WHOLE = {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 100}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of a run.

    Attributes:
        seed: Its seed.
        steps: What was played.
        findings: The rules that were broken.
        trace: What happened.
    """

    seed: int
    steps: Sequence[Step]
    findings: Sequence[Finding]
    trace: Sequence[str]


def run(seed: int, steps: Sequence[Step] | None = None) -> Verdict:
    """Play a seed's steps, or these in its world."""
    steps = plan(seed, STEPS, CALM_STEPS) if steps is None else steps
    random.seed(seed)  # for parts that are given no generator
    loop = VirtualLoop()
    broken: list[str] = []
    loop.set_exception_handler(lambda _, context: broken.append(str(context)))
    try:
        world = loop.run_until_complete(_run(seed, steps, broken))
    finally:
        loop.run_until_complete(_cancel_all())
        loop.close()
    return Verdict(seed, steps, world.judge.findings, world.trace)


async def _run(seed: int, steps: Sequence[Step], broken: list[str]) -> World:
    world = World(seed)
    beside = [
        asyncio.create_task(work)
        for work in (world.lead(), world.scheduler.schedule(), world.machines.work())
    ]
    await asyncio.sleep(2.0)
    await _play([step for step in steps if not step.is_calm], world)
    await _end_faults(world)
    await _play([step for step in steps if step.is_calm], world)
    world.note("rest")
    await asyncio.sleep(REST_S)
    world.judge.at_rest(world.now)
    world.judge.calm_since = float("inf")  # pods that end from now on free no devices for others
    await _empty(world)
    world.judge.emptied(world.now)
    world.machines.pods_exit = False
    for number in range(len(DEVICES)):
        world.create_pod(f"whole-{number}", [("app", "main", _WHOLE)])
    await asyncio.sleep(EMPTY_S)
    world.judge.unplaced(world.now)
    for task in beside:
        if task.done():
            task.result()
    world.judge.findings += [Finding("task failed", text, world.now) for text in broken]
    return world


async def _play(steps: Sequence[Step], world: World) -> None:
    for step in steps:
        await asyncio.sleep(step.after_s)
        play(step, world)


async def _end_faults(world: World) -> None:
    """End all faults and bring everything back."""
    world.note("calm")
    world.scheduler.is_calm = world.machines.are_prompt = True
    world.kill_at = ""
    faults = world.faults
    faults.refused = faults.lost = faults.busy = faults.unread = 0
    faults.slow_until = faults.cut_until = world.now
    await asyncio.sleep(CALM_AFTER_S)
    for name, machine in world.machines.of.items():
        machine.hidden.clear()
        machine.ill.clear()
        if machine.gone_since is not None or not machine.is_up:
            world.machines.register(name)
    await asyncio.sleep(CALM_AFTER_S)
    world.judge.calm_since = world.now


async def _empty(world: World) -> None:
    """Let every user delete everything."""
    world.note("empty")
    world.set_quota(None)
    for app in APPS:
        world.set_budget(app, None)
    for group in GROUPS:
        world.delete_group(group)
    for pod in world.server.all(PODS):
        world.delete_pod(pod["metadata"]["name"])
    for claim in world.server.claims():
        if not claim.metadata.owner_references:
            world.server.remove(VGPU_CLAIMS, claim.metadata.name)
    await asyncio.sleep(EMPTY_S)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def shrunk(verdict: Verdict) -> Verdict:
    """Return a shorter run that still breaks the first broken rule."""
    rule, best, tries = verdict.findings[0].rule, verdict, 0
    size = len(best.steps) // 2
    while size and tries < _SHRINKS:
        for at in range(0, len(best.steps), size):
            tries += 1
            fewer = run(best.seed, [*best.steps[:at], *best.steps[at + size :]])
            if any(finding.rule == rule for finding in fewer.findings):
                best = fewer
                break
        else:
            size //= 2
    return best
