"""kube-scheduler's cycle of a pod group: Filters of all pods, once or several times, then Binds.

It begins once the PodGroup and enough of its pods are there. The extender is asked about one pod
after another, and is not told when all of them are taken back. If enough have found a node, their
Binds come at the same time; what goes wrong after that with one pod is not told to the others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from vgpu_api.core import PodGroup
from vgpu_api.resources import POD_GROUPS, PODS
from vgpu_operator.errors import NotLeading

from .server import copied

if TYPE_CHECKING:
    from .scheduler import Scheduler

_LOOKS_EVERY_S = 3.0


async def try_group(scheduler: Scheduler, name: str) -> None:
    """Try to place the waiting pods of a group."""
    pods = [pod for pod in scheduler.server.all(PODS) if group_of(pod) == name]
    waiting = [pod["metadata"]["uid"] for pod in pods if _waits(pod)]
    binding = [uid for uid in waiting if uid in scheduler.binding]
    waiting = [uid for uid in waiting if uid not in scheduler.binding]
    if not waiting:
        return
    standing = sum(bool(pod["spec"].get("nodeName")) for pod in pods) + len(binding)
    least = _least(scheduler, name)
    if least is None or len(waiting) + standing < least:
        scheduler.again(waiting[0], _LOOKS_EVERY_S)
        return
    needed = max(least - standing, 1)
    try:
        found = await _simulated(scheduler, waiting, needed)
    except NotLeading:
        scheduler.again(waiting[0], scheduler.rng.uniform(0.5, 2.0))
        return
    if len(found) >= needed:
        _bind(scheduler, found)
        for uid in waiting:
            if uid not in found:
                scheduler.set_aside(uid)
    elif scheduler.rng.random() < 0.2:  # Kubernetes 1.36 tries it again and again
        scheduler.again(waiting[0], scheduler.rng.uniform(0.05, 1.0))
    else:
        for uid in waiting:
            scheduler.set_aside(uid)


async def _simulated(
    scheduler: Scheduler, waiting: list[str], needed: int
) -> dict[str, tuple[dict[str, Any], str]]:
    """Return the pods that found a node the last time that all were tried, by UID."""
    rng = scheduler.rng
    found: dict[str, tuple[dict[str, Any], str]] = {}
    for attempt in range(rng.choice((1, 1, 1, 2, 3))):
        if attempt:
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.5, 2.5)))
        found = {}
        rng.shuffle(waiting)
        for number, uid in enumerate(waiting, start=1):
            pod = scheduler.view(uid)
            node = "" if pod is None else scheduler.filter(pod)
            if pod is not None and node:
                found[uid] = pod, node
            await asyncio.sleep(rng.uniform(0.001, 0.02))
            if len(found) + len(waiting) - number < needed:
                break
    return found


def _bind(scheduler: Scheduler, found: dict[str, tuple[dict[str, Any], str]]) -> None:
    """Bind all at once; among faults a pod may be deleted first, and a Bind be late or missing."""
    rng, is_calm = scheduler.rng, scheduler.is_calm
    if not is_calm and rng.random() < 0.1:
        pod, _ = found[rng.choice(sorted(found))]
        there = scheduler.server.pod(pod["metadata"]["uid"])
        if there is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(
                rng.choice((0.0, 0.02, 0.2)), _delete, scheduler, pod["metadata"]["uid"]
            )
    for uid, (pod, node) in found.items():
        if not is_calm and rng.random() < 0.05:
            scheduler.again(uid, rng.uniform(1.0, 4.0))  # another plugin fails after Filter
            continue
        late = rng.choice((0.0, 0.0, 0.0, 0.02, 0.5, 1.5)) if not is_calm else rng.uniform(0, 0.02)
        scheduler.begin_bind(pod, node, late)


def _delete(scheduler: Scheduler, uid: str) -> None:
    pod = scheduler.server.pod(uid)
    if pod is not None:
        scheduler.server.end_pod(copied(pod))


def _least(scheduler: Scheduler, name: str) -> int | None:
    """Return the minimum of a PodGroup, or None if it is unknown."""
    raw = scheduler.server.find(POD_GROUPS[0], name)
    return None if raw is None else PodGroup.model_validate(raw).least


def _waits(pod: dict[str, Any]) -> bool:
    spec, metadata = pod["spec"], pod["metadata"]
    is_held = spec.get("nodeName") or spec.get("schedulingGates")
    return not is_held and not metadata.get("deletionTimestamp")


def group_of(pod: dict[str, Any]) -> str:
    """Return the name of the pod's PodGroup; empty if it names none."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName", ""))
