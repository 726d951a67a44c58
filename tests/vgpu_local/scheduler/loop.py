"""The scheduler's loop: it chooses a node for one pod at a time, and binds concurrently."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from vgpu_api.resources import NODES, PODS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_client.reflector import ObjectIdentity, Reflector
from vgpu_client.transport import Object
from vgpu_local.podwriter import PodWriter, merge_conditions, timestamp
from vgpu_local.scheduler.extender import Extender, ExtenderConfig, ExtenderError
from vgpu_local.scheduler.fit import (
    Demand,
    NodeView,
    Refusal,
    effective_requests,
    explain,
    load,
    read_ask,
    read_node,
    refuse,
)
from vgpu_local.scheduler.occupancy import Occupancy
from vgpu_local.scheduler.queue import Backoff, Queue

log = logging.getLogger(__name__)


class Scheduler:
    """A stand-in for kube-scheduler for the pods that name it."""

    def __init__(
        self,
        api: Api,
        names: frozenset[str],
        extenders: Sequence[ExtenderConfig],
        *,
        backoff: Backoff = Backoff(),  # noqa: B008 - immutable
        order: random.Random | None = None,
    ) -> None:
        """Describe a scheduler; nothing happens before `run`.

        Args:
            api: The cluster's client.
            names: The `schedulerName`s that it serves.
            extenders: The extenders that it calls.
            backoff: The waiting times.
            order: Chooses among equally good nodes; None for a random seed.
        """
        self._api = api
        self._names = names
        self._extender_configs = extenders
        self._extenders: list[Extender] = []
        self._order = order or random.Random()
        self._writer = PodWriter(api, min(names))
        self._queue = Queue(backoff)
        self._nodes: dict[str, NodeView] = {}
        self._pods: dict[str, Object] = {}
        self._occupancy = Occupancy()
        self._wake = asyncio.Event()
        self._nodes_copy = Reflector(api, NODES, _NodeSink(self), decode=read_node)
        self._pods_copy = Reflector(api, PODS, _PodSink(self), decode=lambda raw: raw)

    async def run(self) -> None:
        """Schedule pods; never returns."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            self._extenders = [Extender(config, session) for config in self._extender_configs]
            group.create_task(self._nodes_copy.run())
            group.create_task(self._pods_copy.run())
            await self._nodes_copy.synced.wait()
            await self._pods_copy.synced.wait()
            loop = asyncio.get_running_loop()
            while True:
                self._wake.clear()
                uid = self._queue.take(loop.time())
                if uid is None:
                    try:
                        async with asyncio.timeout_at(self._queue.next_due()):
                            await self._wake.wait()
                    except TimeoutError:
                        pass  # a pod's back-off is over
                    continue
                await self._schedule(self._pods[uid], group)

    async def _schedule(self, pod: Object, group: asyncio.TaskGroup) -> None:
        ask = read_ask(pod)
        try:
            nominated = (pod.get("status") or {}).get("nominatedNodeName")
            feasible: tuple[str, ...] = ()
            refusals: Mapping[str, Refusal] = {}
            if nominated in self._nodes:
                feasible, refusals = await self._filter(pod, ask, [nominated])
            if not feasible:
                feasible, refusals = await self._filter(pod, ask, list(self._nodes))
        except ExtenderError as error:
            await self._put_back(pod, "SchedulerError", str(error))
            return
        uid = pod["metadata"]["uid"]
        if self._pods.get(uid) is None or _is_done(self._pods[uid]):
            return  # it went while the extender was thinking
        if not feasible:
            text = explain(list(refusals.values()), len(self._nodes))
            await self._put_back(pod, "Unschedulable", text)
            return
        self._order.shuffle(shuffled := list(feasible))
        node = min(
            shuffled, key=lambda name: load(ask, self._nodes[name], self._occupancy.used(name))
        )
        self._occupancy.place(uid, node, dict(ask.requests))
        group.create_task(self._bind(pod, node))

    async def _filter(
        self, pod: Object, ask: Demand, names: Sequence[str]
    ) -> tuple[tuple[str, ...], Mapping[str, Refusal]]:
        asked = [extender for extender in self._extenders if extender.config.interested_in(pod)]
        ignored = frozenset[str]().union(*(e.config.ignored for e in self._extenders))
        refusals = {
            name: refusal
            for name in names
            if (
                refusal := refuse(
                    ask, self._nodes[name], self._occupancy.used(name), ignored=ignored
                )
            )
        }
        feasible = tuple(name for name in names if name not in refusals)
        for extender in asked:
            if not feasible:
                break
            answer = await extender.filter(pod, feasible)
            refusals.update(answer.refusals)
            feasible = answer.nodes
        return tuple(name for name in feasible if name in self._nodes), refusals

    async def _bind(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        binder = next(
            (e for e in self._extenders if e.config.bind_verb and e.config.interested_in(pod)), None
        )
        try:
            if binder is not None:
                await binder.bind(pod, node)
            else:
                await self._api.bind_pod(
                    namespace=metadata["namespace"],
                    name=metadata["name"],
                    uid=metadata["uid"],
                    node=node,
                    annotations={},
                )
        except (ClientError, ExtenderError) as error:
            self._occupancy.remove(metadata["uid"])
            if (now := self._pods.get(metadata["uid"])) is not None:
                await self._put_back(now, "SchedulerError", f"binding rejected: {error}")
            return
        text = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
        await self._writer.event(pod, "Normal", "Scheduled", text)

    async def _put_back(self, pod: Object, reason: str, text: str) -> None:
        loop = asyncio.get_running_loop()
        failed = reason != "Unschedulable"
        self._queue.put_back(pod["metadata"]["uid"], loop.time(), failed=failed)
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": text}

        def compose(conditions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
            return {"conditions": merge_conditions(conditions, [condition], timestamp())}

        before = (pod.get("status") or {}).get("conditions") or ()
        if any(all(c.get(key) == condition[key] for key in condition) for c in before):
            return  # reported already
        try:
            await self._writer.write_status(pod, compose)
        except ClientError as error:
            log.info("condition of %s not written: %s", pod["metadata"]["name"], error)
        await self._writer.event(pod, "Warning", "FailedScheduling", text)

    # News

    def see_node(self, node: NodeView) -> None:
        """Store the current version of a node."""
        if self._nodes.get(node.name) != node:
            self._nodes[node.name] = node
            self._hasten_all()

    def lose_node(self, name: str) -> None:
        """Forget a node."""
        if self._nodes.pop(name, None) is not None:
            self._hasten_all()

    def see_pod(self, pod: Object) -> None:
        """Store the current version of a pod, which may wait, use a node, or have ended."""
        uid, spec = pod["metadata"]["uid"], pod["spec"]
        before = self._pods.get(uid)
        self._pods[uid] = pod
        if _is_done(pod):
            if self._occupancy.remove(uid):
                self._hasten_all()
            self._queue.remove(uid)
        elif spec.get("nodeName"):
            self._queue.remove(uid)
            if self._occupancy.node_of(uid) != spec["nodeName"]:
                self._occupancy.place(uid, spec["nodeName"], effective_requests(spec))
                self._hasten_all()
        elif (
            spec.get("schedulerName", "default-scheduler") in self._names
            and not spec.get("schedulingGates")
            and not pod["metadata"].get("deletionTimestamp")
        ):
            self._queue.add(uid, spec.get("priority") or 0)
            if before is not None and _matters(before) != _matters(pod):
                self._queue.hasten(uid)
            self._wake.set()
        else:
            self._queue.remove(uid)

    def lose_pod(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._pods.pop(uid, None)
        self._queue.remove(uid)
        if self._occupancy.remove(uid):
            self._hasten_all()

    def _hasten_all(self) -> None:
        self._queue.hasten_all()
        self._wake.set()


def _is_done(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _matters(pod: Object) -> tuple[object, ...]:
    """Return the parts whose change makes the scheduler retry the pod: all but the status."""
    metadata = pod["metadata"]
    return pod["spec"], metadata.get("labels"), metadata.get("annotations")


class _NodeSink:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def added(self, obj: NodeView) -> None:
        self._scheduler.see_node(obj)

    def modified(self, obj: NodeView) -> None:
        self._scheduler.see_node(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        self._scheduler.lose_node(identity.name)

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        raise error


class _PodSink:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def added(self, obj: Object) -> None:
        self._scheduler.see_pod(obj)

    def modified(self, obj: Object) -> None:
        self._scheduler.see_pod(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        self._scheduler.lose_pod(identity.uid)

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        raise error
