"""What comes and goes during a campaign: stories, each the life of a few pods and claims.

A story is a coroutine on a stage. Which are played, with what and when, follows from the seed
alone; what happens between them follows from the machine too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vgpu_api.names import ANNOTATION_CLAIM
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_local.chaos.pods import CORES, COUNT, MEMORY, PERCENT, Box, Limits, Shape, claim, one
from vgpu_local.chaos.stage import Refused, Stage

STAYING = 20
"""Pods that stay: so small that they fit together wherever they are put (see `_small`)."""

Story = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A story and when it begins, in seconds."""

    at: float
    story: Story


def script(chance: random.Random, *, lasts: float) -> list[Entry]:
    """The stories of a campaign, in order of time."""
    tell: list[tuple[int, Callable[[random.Random, str], Story]]] = [
        (46, _comes_and_goes),
        (10, _ends_by_itself),
        (6, _replica_of_a_set),
        (12, _claim_and_pod),
        (4, _claim_in_turns),
        (4, _template),
        (6, _fuzzed_claim),
        (3, _fits_nowhere),
        (3, _nobody_schedules),
        (STAYING, _stays),
    ]
    entries = [
        Entry(
            chance.uniform(0, lasts),
            make(chance, f"{make.__name__.strip('_').replace('_', '-')}-{number}"),
        )
        for times, make in tell
        for number in range(times)
    ]
    return sorted(entries, key=lambda entry: entry.at)


async def play(entries: list[Entry], stage: Stage) -> None:
    """Play all stories to their ends."""
    async with asyncio.TaskGroup() as stories:
        began = asyncio.get_running_loop().time()
        for entry in entries:
            await asyncio.sleep(max(0.0, began + entry.at - asyncio.get_running_loop().time()))
            stories.create_task(_told(entry.story, stage))


async def _told(story: Story, stage: Stage) -> None:
    try:
        await story(stage)
    except Refused as refusal:
        stage.findings.append(f"refused: {refusal}")


# Shapes.


def _slice(chance: random.Random) -> Limits:
    memory = {MEMORY: chance.choice((500, 2000, 4096, 8000, 12000))}
    if chance.random() < 0.2:
        memory = {PERCENT: chance.choice((5, 25, 50))}
    cores = {CORES: chance.choice((5, 20, 50))} if chance.random() < 0.6 else {}
    return {COUNT: 2 if chance.random() < 0.2 else 1, **memory, **cores}


def _shape(chance: random.Random) -> Shape:
    kind = chance.choices(
        ("slice", "exclusive", "two", "init", "sidecar"), weights=(10, 2, 3, 3, 2)
    )[0]
    if kind == "exclusive":
        return one({COUNT: 1, **({CORES: 100} if chance.random() < 0.5 else {})})
    main = Box("main", _slice(chance))
    if kind == "two":
        return Shape((main, Box("second", _slice(chance))))
    if kind == "init":
        return Shape((Box("prepare", _slice(chance), "exit 0", "init"), main))
    if kind == "sidecar":
        return Shape((Box("beside", _slice(chance), kind="sidecar"), main))
    return Shape((main,))


def _small(chance: random.Random) -> Limits:
    """Twenty of these fit on six cards of 16 GiB, 100 % and ten slots in any order.

    A card refuses one only with 10 slots, over 14 GiB (seven of them) or over 90 % taken, so that
    twenty fill two cards at most.
    """
    return {COUNT: 1, MEMORY: chance.choice((500, 1000, 2000)), CORES: chance.choice((1, 5, 10))}


def _requests(chance: random.Random) -> list[Mapping[str, Any]]:
    memory: Mapping[str, Any] = {"memory": chance.choice(("500Mi", "3Gi", "8Gi"))}
    if chance.random() < 0.2:
        memory = {"memoryPercent": chance.choice((10, 50))}
    return [{**memory, "cores": chance.choice((0, 10, 40)), "count": chance.choice((1, 1, 2))}]


# Stories.


def _comes_and_goes(chance: random.Random, name: str) -> Story:
    shape = _shape(chance)
    if chance.random() < 0.2:
        shape = shape.ending("trap '' TERM; while :; do sleep 1; done")
    life, force = chance.uniform(0.1, 5), chance.random() < 0.3
    label = chance.random() < 0.3

    async def story(stage: Stage) -> None:
        uid = await stage.pod(name, shape)
        await asyncio.sleep(life / 2)
        if label:
            await stage.edit(PODS, name, {"metadata": {"labels": {"edited": "yes"}}})
        await asyncio.sleep(life / 2)
        await stage.delete(PODS, name, force=force)
        await stage.gone(PODS, name, uid)

    return story


def _ends_by_itself(chance: random.Random, name: str) -> Story:
    code, after = chance.choice((0, 1)), chance.choice((0, 0.3, 1))
    shape = _shape(chance).ending(f"sleep {after}; exit {code}")
    if code and chance.random() < 0.5:
        shape = Shape(shape.boxes, restart="OnFailure")
    stays = chance.uniform(1, 8)

    async def story(stage: Stage) -> None:
        await stage.pod(name, shape)
        await asyncio.sleep(stays)
        await stage.delete(PODS, name)

    return story


def _replica_of_a_set(chance: random.Random, name: str) -> Story:
    shape, lives = _shape(chance), [chance.uniform(0.1, 3) for _ in range(4)]
    force = chance.random() < 0.5

    async def story(stage: Stage) -> None:
        for life in lives:
            uid = await stage.pod(name, shape)
            await asyncio.sleep(life)
            await stage.delete(PODS, name, force=force)
            await stage.gone(PODS, name, uid)

    return story


def _claim_and_pod(chance: random.Random, name: str) -> Story:
    wanted = claim(name, _requests(chance), immediate=chance.random() < 0.5)
    shape = one({}, claim=name)
    claim_goes_first, force = chance.random() < 0.4, chance.random() < 0.3
    before, life = chance.uniform(0, 1), chance.uniform(0.2, 4)

    async def story(stage: Stage) -> None:
        await stage.claim(wanted)
        await asyncio.sleep(before)
        await stage.pod(f"{name}-pod", shape)
        await asyncio.sleep(life)
        if claim_goes_first:
            await stage.delete(VGPU_CLAIMS, name)
            await asyncio.sleep(0.3)
        await stage.delete(PODS, f"{name}-pod", force=force)
        if not claim_goes_first:
            await stage.delete(VGPU_CLAIMS, name)

    return story


def _claim_in_turns(chance: random.Random, name: str) -> Story:
    wanted = claim(name, _requests(chance), immediate=chance.random() < 0.5)
    life = chance.uniform(0.2, 3)

    async def story(stage: Stage) -> None:
        await stage.claim(wanted)
        await stage.pod(f"{name}-a", one({}, claim=name))
        await stage.pod(f"{name}-b", one({}, claim=name))
        await asyncio.sleep(life)
        await stage.delete(PODS, f"{name}-a")
        await asyncio.sleep(life)
        await stage.delete(PODS, f"{name}-b")
        await stage.delete(VGPU_CLAIMS, name)

    return story


def _template(chance: random.Random, name: str) -> Story:
    wanted, lives = claim(name, _requests(chance)), [chance.uniform(0.2, 4) for _ in range(3)]

    async def story(stage: Stage) -> None:
        await stage.claim(wanted)
        for number, life in enumerate(lives):
            await stage.pod(f"{name}-{number}", one({}, template=name))
            await asyncio.sleep(life / 3)
        for number in range(len(lives)):
            await stage.delete(PODS, f"{name}-{number}")
        await stage.delete(VGPU_CLAIMS, name)

    return story


def _fuzzed_claim(chance: random.Random, name: str) -> Story:
    """Created, edited, deleted and created again, with pods about, in any order."""
    acts = [
        chance.choice(("create", "edit", "delete", "pod", "repoint", "unpod")) for _ in range(9)
    ]
    waits = [chance.uniform(0, 0.7) for _ in acts]
    wishes = [_requests(chance) for _ in acts]
    immediate = [chance.random() < 0.5 for _ in acts]

    async def story(stage: Stage) -> None:
        there = {"claim": False, "pod": False}
        for act, wait, wish, at_once in zip(acts, waits, wishes, immediate, strict=True):
            try:
                if act == "create" and not there["claim"]:
                    there["claim"] = True
                    await asyncio.wait_for(stage.claim(claim(name, wish, immediate=at_once)), 3)
                elif act == "edit":
                    await stage.edit(VGPU_CLAIMS, name, {"spec": {"requests": wish}})
                elif act == "delete":
                    there["claim"] = False
                    await stage.delete(VGPU_CLAIMS, name)
                elif act == "pod" and not there["pod"]:
                    await asyncio.wait_for(stage.pod(f"{name}-pod", one({}, claim=name)), 3)
                    there["pod"] = True
                elif act == "repoint":
                    other = {"metadata": {"annotations": {ANNOTATION_CLAIM: "another"}}}
                    await stage.edit(PODS, f"{name}-pod", other)
                elif act == "unpod":
                    there["pod"] = False
                    await stage.delete(PODS, f"{name}-pod", force=True)
            except (Refused, TimeoutError):
                pass  # a pod of a claim that is not there; a claim that still goes
            await asyncio.sleep(wait)
        await stage.delete(PODS, f"{name}-pod")
        await stage.delete(VGPU_CLAIMS, name)

    return story


def _fits_nowhere(chance: random.Random, name: str) -> Story:
    limits = chance.choice(({COUNT: 1, MEMORY: 200_000}, {COUNT: 3}, {COUNT: 2, MEMORY: 82_000}))

    async def story(stage: Stage) -> None:
        stage.hopeless.add(name)
        await stage.pod(name, one(limits))

    return story


def _nobody_schedules(chance: random.Random, name: str) -> Story:
    """Its cards are reserved, and no Filter ever asks about them."""
    limits, life = _small(chance), chance.uniform(0.5, 4)

    async def story(stage: Stage) -> None:
        await stage.pod(name, one(limits, scheduler="nobody"))
        await asyncio.sleep(life)
        await stage.delete(PODS, name)

    return story


def _stays(chance: random.Random, name: str) -> Story:
    """Made again by its controller when a kubelet whose plugin was away would not have it."""
    limits = _small(chance)

    async def story(stage: Stage) -> None:
        stage.staying.add(name)
        await stage.pod(name, one(limits))
        while not await stage.runs(name):
            await stage.delete(PODS, name, force=True)
            await stage.pod(name, one(limits))

    return story
