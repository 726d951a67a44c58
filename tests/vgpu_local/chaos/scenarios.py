"""Scenarios, each of which plays the life of a few pods and claims as a coroutine on a stage.

All random choices of a scenario are made when it is created, so that they follow from the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vgpu_api.resources import NAMESPACES, POD_GROUPS, PODS, VGPU_CLAIMS
from vgpu_local.chaos.pods import CORES, COUNT, MEMORY, PERCENT, Box, Limits, Shape, claim, one
from vgpu_local.chaos.stage import Stage

STAYING = 20
"""The number of pods that stay, which are so small that they always fit together (see `small`)."""
LOW, URGENT, TOP = -10, 100, 1000
"""Priorities: of those that make way for all others, of those for whom others make way, and of
those that stay."""

_LOOK_S = 0.2

Scenario = Callable[[Stage], Awaitable[None]]

_STUBBORN = "trap '' TERM; while :; do sleep 1; done"


def _slice(chance: random.Random) -> Limits:
    memory = {MEMORY: chance.choice((500, 2000, 4096, 8000, 12000))}
    if chance.random() < 0.2:
        memory = {PERCENT: chance.choice((5, 25, 50))}
    cores = {CORES: chance.choice((5, 20, 50))} if chance.random() < 0.6 else {}
    return {COUNT: 2 if chance.random() < 0.2 else 1, **memory, **cores}


def any_shape(chance: random.Random) -> Shape:
    """Return a random one of the shapes that use HAMi's resource names."""
    kind = chance.choices(
        ("slice", "exclusive", "two", "init", "sidecar", "meshed"), weights=(10, 2, 3, 3, 2, 2)
    )[0]
    if kind == "exclusive":
        return one({COUNT: 1, **({CORES: 100} if chance.random() < 0.5 else {})})
    main = Box("main", _slice(chance))
    if kind == "two":
        return Shape((main, Box("second", _slice(chance))))
    if kind == "init":
        return Shape((Box("prepare", _slice(chance), "exit 0", "init"), main))
    if kind == "meshed":  # an init container beside a sidecar
        beside = Box("beside", _slice(chance), kind="sidecar")
        return Shape((beside, Box("first", _slice(chance), "exit 0", "init"), main))
    if kind == "sidecar":
        return Shape((Box("beside", _slice(chance), kind="sidecar"), main))
    return Shape((main,))


def small(chance: random.Random) -> Limits:
    """Return limits so small that twenty pods fit on six devices in any order.

    A device has 16 GiB, 100 % and ten slots. It refuses one more only if 10 slots, over 14 GiB
    (seven pods) or over 90 % are taken, so twenty pods fill at most two devices.
    """
    return {COUNT: 1, MEMORY: chance.choice((500, 1000, 2000)), CORES: chance.choice((1, 5, 10))}


def requests(chance: random.Random) -> list[Mapping[str, Any]]:
    """Return random requests for a user's claim."""
    memory: Mapping[str, Any] = {"memory": chance.choice(("500Mi", "3Gi", "8Gi"))}
    if chance.random() < 0.2:
        memory = {"memoryPercent": chance.choice((10, 50))}
    return [{**memory, "cores": chance.choice((0, 10, 40)), "count": chance.choice((1, 1, 2))}]


def comes_and_goes(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a pod that is deleted at a random moment, running or not."""
    shape = any_shape(chance)
    if chance.random() < 0.2:
        shape = shape.ending(_STUBBORN)
    life, force = chance.uniform(0.1, 5), chance.random() < 0.3
    label = chance.random() < 0.3

    async def scenario(stage: Stage) -> None:
        uid = await stage.pod(name, shape)
        await asyncio.sleep(life / 2)
        if label:
            await stage.edit(PODS, name, {"metadata": {"labels": {"edited": "yes"}}})
        await asyncio.sleep(life / 2)
        await stage.delete(PODS, name, force=force)
        await stage.gone(name, uid)

    return scenario


def runs_and_goes(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a pod that is deleted some time after it runs, or if it never does."""
    shape = any_shape(chance)
    if chance.random() < 0.2:
        shape = shape.ending(_STUBBORN)
    patience, life = chance.uniform(6, 20), chance.uniform(0.1, 2)
    force = chance.random() < 0.3

    async def scenario(stage: Stage) -> None:
        uid = await stage.pod(name, shape)
        if await stage.runs(name, within=patience):
            await asyncio.sleep(life)
        await stage.delete(PODS, name, force=force)
        await stage.gone(name, uid)

    return scenario


def ends_by_itself(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a pod that succeeds or fails, and is deleted before or after that."""
    code, after = chance.choice((0, 1)), chance.choice((0, 0.3, 1))
    shape = any_shape(chance).ending(f"sleep {after}; exit {code}")
    if code and chance.random() < 0.5:
        shape = Shape(shape.boxes, restart="OnFailure")
    waits, stays_on = chance.random() < 0.7, chance.uniform(0.5, 4)

    async def scenario(stage: Stage) -> None:
        await stage.pod(name, shape)
        if waits:
            await stage.runs(name, within=8)
        await asyncio.sleep(stays_on)
        await stage.delete(PODS, name)

    return scenario


def replica_of_a_set(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a pod that is created again under its name, as by a StatefulSet.

    After a deletion by force, its old container may live on for a second.
    """
    shape, lives = any_shape(chance), [chance.uniform(0.1, 2) for _ in range(4)]
    if chance.random() < 0.6:
        shape = shape.ending(_STUBBORN)
    patience = [chance.choice((0.0, 4.0)) for _ in lives]
    force = chance.random() < 0.7

    async def scenario(stage: Stage) -> None:
        for life, within in zip(lives, patience, strict=True):
            uid = await stage.pod(name, shape)
            await stage.runs(name, within=within)
            await asyncio.sleep(life)
            await stage.delete(PODS, name, force=force)
            await stage.gone(name, uid)

    return scenario


def claim_and_pod(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a user's claim and its pod, deleted in either order."""
    wanted = claim(name, requests(chance), immediate=chance.random() < 0.5)
    shape = one({}, claim=name)
    claim_goes_first, force = chance.random() < 0.4, chance.random() < 0.3
    before, life = chance.uniform(0, 1), chance.uniform(0.2, 3)
    waits = chance.random() < 0.6

    async def scenario(stage: Stage) -> None:
        await stage.claim(wanted)
        await asyncio.sleep(before)
        await stage.pod(f"{name}-pod", shape)
        if waits:
            await stage.runs(f"{name}-pod", within=8)
        await asyncio.sleep(life)
        if claim_goes_first:
            await stage.delete(VGPU_CLAIMS, name)
            await asyncio.sleep(0.3)
        await stage.delete(PODS, f"{name}-pod", force=force)
        if not claim_goes_first:
            await stage.delete(VGPU_CLAIMS, name)

    return scenario


def claim_in_turns(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of two pods that use one claim, one after the other."""
    wanted = claim(name, requests(chance), immediate=chance.random() < 0.5)
    life = chance.uniform(0.2, 3)

    async def scenario(stage: Stage) -> None:
        await stage.claim(wanted)
        await stage.pod(f"{name}-a", one({}, claim=name))
        await stage.pod(f"{name}-b", one({}, claim=name))
        await asyncio.sleep(life)
        await stage.delete(PODS, f"{name}-a")
        await stage.runs(f"{name}-b", within=6)
        await asyncio.sleep(life)
        await stage.delete(PODS, f"{name}-b")
        await stage.delete(VGPU_CLAIMS, name)

    return scenario


def template(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a template that is copied for each of three pods."""
    wanted, lives = claim(name, requests(chance)), [chance.uniform(0.2, 4) for _ in range(3)]

    async def scenario(stage: Stage) -> None:
        await stage.claim(wanted)
        for number, life in enumerate(lives):
            await stage.pod(f"{name}-{number}", one({}, template=name))
            await asyncio.sleep(life / 3)
        await stage.runs(f"{name}-2", within=6)
        for number in range(len(lives)):
            await stage.delete(PODS, f"{name}-{number}")
        await stage.delete(VGPU_CLAIMS, name)

    return scenario


def namespace_goes(chance: random.Random, name: str) -> Scenario:
    """Return a scenario that deletes a namespace with claims in use: a user's and a pod's."""
    wanted = claim("claim", requests(chance), namespace=name, immediate=chance.random() < 0.5)
    shape = any_shape(chance)
    if chance.random() < 0.3:
        shape = shape.ending(_STUBBORN)
    life = chance.uniform(0.5, 6)

    async def scenario(stage: Stage) -> None:
        await stage.namespace(name)
        await stage.claim(wanted)
        await stage.pod("of-claim", one({}, claim="claim"), namespace=name)
        await stage.pod("alone", shape, namespace=name)
        await asyncio.sleep(life)
        await stage.delete(NAMESPACES, name)
        await stage.namespace_is_gone(name)

    return scenario


def fits_nowhere(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a pod that must never get a node."""
    limits = chance.choice(({COUNT: 1, MEMORY: 200_000}, {COUNT: 3}, {COUNT: 2, MEMORY: 82_000}))
    priority = chance.choice((0, URGENT, TOP))

    async def scenario(stage: Stage) -> None:
        stage.hopeless.add(name)
        await stage.pod(name, one(limits, priority=priority))

    return scenario


def nobody_schedules(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a pod for which no Filter is ever called."""
    limits, life = small(chance), chance.uniform(0.5, 4)

    async def scenario(stage: Stage) -> None:
        await stage.pod(name, one(limits, scheduler="nobody"))
        await asyncio.sleep(life)
        await stage.delete(PODS, name)

    return scenario


def turned_away(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a pod from whose ResourceClaim each allocation is taken away again.

    No scheduler serves it, so it is never bound.
    """
    limits = small(chance)

    async def scenario(stage: Stage) -> None:
        await stage.pod(name, one(limits, scheduler="nobody"))
        pod = await stage.read(PODS, name)
        entries = ((pod or {}).get("spec") or {}).get("resourceClaims") or ()
        while entries and not stage.enough.is_set():
            await stage.take_away(entries[0]["resourceClaimName"])
            await asyncio.sleep(_LOOK_S)
        await stage.delete(PODS, name)

    return scenario


def stays(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a pod that stays until the end.

    It is created again, as by a controller, if a kubelet without its plugin refuses it. If its node
    goes down and comes back, its container is started again.
    """
    shape = one(small(chance), restart="Always", priority=TOP)

    async def scenario(stage: Stage) -> None:
        await _stay(stage, name, shape)

    return scenario


async def _stay(stage: Stage, name: str, shape: Shape) -> None:
    stage.staying.add(name)
    await stage.pod(name, shape)
    while not await stage.runs(name):
        await stage.delete(PODS, name, force=True)
        await stage.pod(name, shape)


def gang_stays(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of two pods of a gang that stay until the end; see `stays`."""
    shape = one(small(chance), restart="Always", priority=TOP, group=name)

    async def scenario(stage: Stage) -> None:
        await stage.group(name, 2)
        async with asyncio.TaskGroup() as pods:
            for number in range(2):
                pods.create_task(_stay(stage, f"{name}-{number}", shape))

    return scenario


def gang(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a gang that may lose a pod, before it starts or after."""
    size = chance.randint(2, 4)
    least = chance.randint(2, size)
    limits = chance.choice(({COUNT: 1}, {COUNT: 1, MEMORY: 8000}, {COUNT: 1, MEMORY: 2000}))
    shape = one(limits, group=name, priority=chance.choice((LOW, 0, 0, URGENT)))
    group_comes_late, life = chance.random() < 0.2, chance.uniform(0.2, 3)
    loses = chance.choice((None, None, chance.uniform(0.0, 1.0)))

    async def scenario(stage: Stage) -> None:
        if not group_comes_late:
            await stage.group(name, least)
        pods = [f"{name}-{number}" for number in range(size)]
        for pod in pods:
            await stage.pod(pod, shape)
        if group_comes_late:
            await stage.group(name, least)
        if loses is not None:
            await asyncio.sleep(loses)
            await stage.delete(PODS, pods[-1])
        await stage.runs(pods[0], within=12)
        await asyncio.sleep(life)
        for pod in pods:
            await stage.delete(PODS, pod)
        await stage.delete(POD_GROUPS[0], name)

    return scenario


def outranks(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a pod that lacks compute, perhaps memory, beside less important ones.

    Two of them do not fit on one device, so there is one on each unless others are in the way.
    """
    takes = {COUNT: 1, MEMORY: chance.choice((1000, 8000)), CORES: 60}
    wants = {COUNT: 1, MEMORY: chance.choice((1000, 8000)), CORES: 50}
    return _outranks(chance, name, one(takes, priority=LOW), one(wants, priority=URGENT), 6)


def outranks_for_cpu(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of a pod that lacks CPU beside others, and perhaps a device as well.

    One of these pods fits on a node beside the others, so kube-scheduler preempts by itself.
    """
    takes = {COUNT: 1, "cpu": 40, MEMORY: chance.choice((2000, 14_000))}
    wants = {COUNT: 1, "cpu": 40, MEMORY: chance.choice((2000, 14_000))}
    return _outranks(chance, name, one(takes, priority=LOW), one(wants, priority=URGENT), 3)


def _outranks(chance: random.Random, name: str, takes: Shape, wants: Shape, count: int) -> Scenario:
    life = chance.uniform(0.2, 2)

    async def scenario(stage: Stage) -> None:
        takers = [f"{name}-low-{number}" for number in range(count)]
        for taker in takers:
            await stage.pod(taker, takes)
        for taker in takers:
            await stage.runs(taker, within=2)
        await stage.pod(name, wants)
        await stage.runs(name, within=12)
        await asyncio.sleep(life)
        for pod in (name, *takers):
            await stage.delete(PODS, pod)

    return scenario
