"""The fuzzer: creates, edits and deletes claims and pods of a few names in random order.

Two claims and three pods share a scenario, so that actions on the same name often collide. The API
server may refuse an action, but nothing else may go wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vgpu_api.names import ANNOTATION_CLAIM
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_local.chaos.pods import Shape, claim, one
from vgpu_local.chaos.scenarios import Scenario, any_shape, requests
from vgpu_local.chaos.stage import Refused, Stage

Act = Callable[[Stage], Awaitable[object]]

_ACTS = 24
_PATIENCE_S = 2.0


def fuzzed(chance: random.Random, name: str) -> Scenario:
    """Return a scenario of random actions from a table."""
    claims = [f"{name}-claim-{number}" for number in range(2)]
    pods = [f"{name}-pod-{number}" for number in range(3)]
    table: list[tuple[int, Callable[[random.Random, str, str], Act]]] = [
        (6, _make_claim),
        (3, _edit_requests),
        (1, _edit_ttl),
        (3, _delete_claim),
        (2, _replace_claim),
        (7, _make_pod),
        (1, _repoint),
        (1, _label),
        (3, _delete_pod),
        (2, _replace_pod),
        (1, _delete_own_claim),
        (1, _edit_own_claim),
    ]
    makers = chance.choices([make for _, make in table], [weight for weight, _ in table], k=_ACTS)
    acts = [make(chance, chance.choice(claims), chance.choice(pods)) for make in makers]
    waits = [chance.choice((0.0, chance.uniform(0, 0.8))) for _ in acts]

    async def scenario(stage: Stage) -> None:
        for act, wait in zip(acts, waits, strict=True):
            if stage.enough.is_set():
                break
            # A pod of a claim that is not there; a name whose former bearer still goes.
            with contextlib.suppress(Refused, TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await act(stage)
            await asyncio.sleep(wait)
        for pod in pods:
            await stage.delete(PODS, pod)
        for name in claims:
            await stage.delete(VGPU_CLAIMS, name)

    return scenario


def _wanted(chance: random.Random, name: str) -> dict[str, Any]:
    ttl: dict[str, Any] = {}
    if chance.random() < 0.2:
        ttl = {"ttlSecondsAfterUnused": chance.randrange(3)}
    return claim(name, requests(chance), immediate=chance.random() < 0.4, **ttl)


def _shape(chance: random.Random, claim: str) -> Shape:
    how = chance.random()
    if how < 0.55:
        return one({}, claim=claim)
    if how < 0.75:
        return one({}, template=claim)
    return any_shape(chance)


# The acts. Each knows a claim's and a pod's name and draws its choices when it is made.


def _make_claim(chance: random.Random, claim: str, pod: str) -> Act:
    wanted = _wanted(chance, claim)
    return lambda stage: stage.claim(wanted)


def _edit_requests(chance: random.Random, claim: str, pod: str) -> Act:
    changes = {"spec": {"requests": requests(chance)}}
    return lambda stage: stage.edit(VGPU_CLAIMS, claim, changes)


def _edit_ttl(chance: random.Random, claim: str, pod: str) -> Act:
    changes = {"spec": {"ttlSecondsAfterUnused": chance.choice((None, 0, 2))}}
    return lambda stage: stage.edit(VGPU_CLAIMS, claim, changes)


def _delete_claim(chance: random.Random, claim: str, pod: str) -> Act:
    return lambda stage: stage.delete(VGPU_CLAIMS, claim)


def _replace_claim(chance: random.Random, claim: str, pod: str) -> Act:
    wanted = _wanted(chance, claim)

    async def act(stage: Stage) -> None:
        await stage.delete(VGPU_CLAIMS, claim)
        await stage.claim(wanted)

    return act


def _make_pod(chance: random.Random, claim: str, pod: str) -> Act:
    shape = _shape(chance, claim)
    return lambda stage: stage.pod(pod, shape)


def _repoint(chance: random.Random, claim: str, pod: str) -> Act:
    return lambda stage: stage.edit(PODS, pod, _metadata("annotations", ANNOTATION_CLAIM, claim))


def _label(chance: random.Random, claim: str, pod: str) -> Act:
    return lambda stage: stage.edit(PODS, pod, _metadata("labels", "edited", claim))


def _delete_pod(chance: random.Random, claim: str, pod: str) -> Act:
    force = chance.random() < 0.4
    return lambda stage: stage.delete(PODS, pod, force=force)


def _replace_pod(chance: random.Random, claim: str, pod: str) -> Act:
    shape, force = _shape(chance, claim), chance.random() < 0.7

    async def act(stage: Stage) -> None:
        await stage.delete(PODS, pod, force=force)
        await stage.pod(pod, shape)

    return act


def _delete_own_claim(chance: random.Random, claim: str, pod: str) -> Act:
    async def act(stage: Stage) -> None:
        if (own := stage.sightings.claim_of(pod)) is not None:
            await stage.delete(VGPU_CLAIMS, own.name)

    return act


def _edit_own_claim(chance: random.Random, claim: str, pod: str) -> Act:
    memory, cores = chance.choice(("600Mi", "4Gi")), chance.choice((0, 30))

    async def act(stage: Stage) -> None:
        own = stage.sightings.claim_of(pod)
        found = await stage.read(VGPU_CLAIMS, own.name) if own is not None else None
        if found is not None:
            asked = found["spec"]["requests"]
            edited = [{**request, "memory": memory, "cores": cores} for request in asked]
            await stage.edit(VGPU_CLAIMS, found["metadata"]["name"], {"spec": {"requests": edited}})

    return act


def _metadata(field: str, key: str, value: str) -> Mapping[str, Any]:
    return {"metadata": {field: {key: value}}}
