"""The scheduler's loop: it chooses a node for one pod at a time, and binds concurrently.

The pods of a group are tried one after another, each beside those before it, and then all of them
are bound, or all are taken back. An extender is not told of the latter, as with kube-scheduler.
A pod that finds no node preempts by the scheduler's own filters; extenders are asked about that.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from vgpu_api.core import PodGroup
from vgpu_api.resources import NODES, POD_GROUPS, PODS
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
from vgpu_local.scheduler.occupancy import Amounts, Occupancy
from vgpu_local.scheduler.preemption import Running, best_node, victims_on
from vgpu_local.scheduler.queue import Backoff, Queue

log = logging.getLogger(__name__)

GroupName = tuple[str, str]
"""A PodGroup's namespace and name."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A pod's node; none has an empty name, and then the reasons of the nodes matter."""

    pod: Object
    ask: Demand
    node: str
    refusals: Mapping[str, Refusal]


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
        self._groups: dict[GroupName, int] = {}  # the least number of pods that start together
        self._occupancy = Occupancy()
        self._wake = asyncio.Event()
        self._nodes_copy = Reflector(api, NODES, _NodeSink(self), decode=read_node)
        self._pods_copy = Reflector(api, PODS, _PodSink(self), decode=lambda raw: raw)
        self._groups_copy = Reflector(
            api, POD_GROUPS[0], _GroupSink(self), decode=PodGroup.model_validate
        )

    async def run(self) -> None:
        """Schedule pods; never returns."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            self._extenders = [Extender(config, session) for config in self._extender_configs]
            group.create_task(self._nodes_copy.run())
            group.create_task(self._pods_copy.run())
            group.create_task(self._groups_copy.run())
            for copy in (self._nodes_copy, self._pods_copy, self._groups_copy):
                await copy.synced.wait()
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
                await self._try(self._pods[uid], group)

    async def _try(self, pod: Object, tasks: asyncio.TaskGroup) -> None:
        group = _group_of(pod)
        pods = [pod] if group is None else self._with_fellows(pod, group)
        try:
            if group is None:
                await self._try_alone(pod, tasks)
            else:
                await self._try_together(group, pods, tasks)
        except ExtenderError as error:
            for each in pods:
                self._occupancy.remove(each["metadata"]["uid"])
                await self._put_back(each, "SchedulerError", str(error))

    async def _try_alone(self, pod: Object, tasks: asyncio.TaskGroup) -> None:
        found = await self._find(pod)
        if found is None:
            return
        if found.node:
            tasks.create_task(self._bind(pod, found.node))
            return
        await self._put_back(pod, "Unschedulable", self._explained(found))
        await self._preempt(found)

    def _with_fellows(self, pod: Object, group: GroupName) -> list[Object]:
        """Take the other pods of a group that wait; return all in the order of the queue."""
        uids = [uid for uid, each in self._pods.items() if _group_of(each) == group]
        taken = [pod["metadata"]["uid"], *self._queue.take_all(uids)]
        return [self._pods[uid] for uid in self._queue.in_order(taken)]

    async def _try_together(
        self, group: GroupName, pods: Sequence[Object], tasks: asyncio.TaskGroup
    ) -> None:
        """Find nodes for the waiting pods of a group, and bind them if enough have one."""
        mine = {uid for uid, pod in self._pods.items() if _group_of(pod) == group}
        standing = sum(self._occupancy.node_of(uid) is not None for uid in mine)
        least = self._groups.get(group)
        placed, refused = list[_Found](), dict[str, str]()
        needed = len(pods) + 1 if least is None else max(least - standing, 1)
        for number, pod in enumerate(pods, start=1):
            if len(placed) + len(pods) - number + 1 < needed:
                break
            found = await self._find(pod)
            if found is not None and found.node:
                placed.append(found)
            elif found is not None:
                refused[pod["metadata"]["uid"]] = self._explained(found)
        if len(placed) >= needed:
            for found in placed:
                tasks.create_task(self._bind(found.pod, found.node))
        else:
            for found in placed:
                self._occupancy.remove(found.pod["metadata"]["uid"])
            placed = []
        bound = {found.pod["metadata"]["uid"] for found in placed}
        text = f"group {group[1]} needs {least} pods, {len(pods)} wait and {standing} have a node"
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid not in bound and uid in self._pods:
                await self._put_back(pod, "Unschedulable", refused.get(uid, text))

    async def _find(self, pod: Object) -> _Found | None:
        """Choose a node for a pod and count the pod there; return None if the pod has gone.

        Raises:
            ExtenderError: An extender does not answer.
        """
        ask, uid = read_ask(pod), pod["metadata"]["uid"]
        nominated = (pod.get("status") or {}).get("nominatedNodeName")
        feasible: tuple[str, ...] = ()
        refusals: Mapping[str, Refusal] = {}
        if nominated in self._nodes:
            feasible, refusals = await self._filter(pod, ask, [nominated])
        if not feasible:
            feasible, refusals = await self._filter(pod, ask, list(self._nodes))
        if self._pods.get(uid) is None or _is_done(self._pods[uid]):
            return None  # it went while the extender was thinking
        if not feasible:
            return _Found(pod, ask, "", refusals)
        self._order.shuffle(shuffled := list(feasible))
        node = min(
            shuffled, key=lambda name: load(ask, self._nodes[name], self._occupancy.used(name))
        )
        self._occupancy.place(uid, node, dict(ask.requests))
        return _Found(pod, ask, node, refusals)

    def _explained(self, found: _Found) -> str:
        return explain(list(found.refusals.values()), len(self._nodes))

    async def _preempt(self, found: _Found) -> None:
        """End less important pods where that lets the pod pass this scheduler's own filters."""
        pod, priority = found.pod, _priority(found.pod)
        if pod["spec"].get("preemptionPolicy") == "Never" or self._is_waiting_for_victims(pod):
            return
        victims = {
            name: there
            for name, refusal in found.refusals.items()
            if refusal.resolvable and name in self._nodes
            if (there := self._victims_on(name, found.ask, priority))
        }
        for extender in self._extenders:
            if victims and extender.config.preempt_verb and extender.config.interested_in(pod):
                uids = {node: [each.uid for each in there] for node, there in victims.items()}
                try:
                    answer = await extender.preempt(pod, uids)
                except ExtenderError as error:
                    log.info("nobody ends for %s: %s", pod["metadata"]["name"], error)
                    return
                victims = {
                    node: [self._running(uid) for uid in more if uid in self._pods]
                    for node, more in answer.items()
                }
        if victims:
            node = best_node(victims)
            await self._end(pod, node, [self._pods[each.uid] for each in victims[node]])

    def _victims_on(self, node: str, ask: Demand, priority: int) -> list[Running]:
        ignored, view = self._ignored(), self._nodes[node]
        there = [self._running(uid) for uid in self._occupancy.on(node) if uid in self._pods]

        def fits(used: Amounts) -> bool:
            return refuse(ask, view, used, ignored=ignored) is None

        return victims_on(priority, there, self._occupancy.used(node), fits)

    def _running(self, uid: str) -> Running:
        pod = self._pods[uid]
        return Running(uid, _priority(pod), effective_requests(pod["spec"]))

    def _is_waiting_for_victims(self, pod: Object) -> bool:
        """Return True while less important pods end on the node that the pod is nominated for."""
        nominated = (pod.get("status") or {}).get("nominatedNodeName") or ""
        there = [self._pods[uid] for uid in self._occupancy.on(nominated) if uid in self._pods]
        return any(
            each["metadata"].get("deletionTimestamp") and _priority(each) < _priority(pod)
            for each in there
        )

    async def _end(self, pod: Object, node: str, victims: Sequence[Object]) -> None:
        """Nominate a pod for a node and delete its victims regardless of budgets."""
        try:
            await self._writer.write_status(pod, lambda _: {"nominatedNodeName": node})
            for victim in victims:
                metadata = victim["metadata"]
                await self._api.delete(
                    PODS, metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"]
                )
        except ClientError as error:
            log.info("victims of %s on %s: %s", pod["metadata"]["name"], node, error)
            return
        for victim in victims:
            text = f"Preempted by pod {pod['metadata']['uid']} on node {node}"
            await self._writer.event(victim, "Normal", "Preempted", text)

    def _ignored(self) -> frozenset[str]:
        return frozenset[str]().union(*(e.config.ignored for e in self._extenders))

    async def _filter(
        self, pod: Object, ask: Demand, names: Sequence[str]
    ) -> tuple[tuple[str, ...], Mapping[str, Refusal]]:
        asked = [extender for extender in self._extenders if extender.config.interested_in(pod)]
        ignored = self._ignored()
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

    def see_group(self, group: PodGroup) -> None:
        """Store how many pods of a group start together."""
        self._groups[group.metadata.namespace or "", group.metadata.name] = group.least
        self._hasten_all()

    def lose_group(self, name: GroupName) -> None:
        """Forget a group."""
        self._groups.pop(name, None)

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


def _priority(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)


def _group_of(pod: Object) -> GroupName | None:
    """Return the PodGroup that a pod names, or None."""
    group = pod["spec"].get("schedulingGroup")
    return (pod["metadata"]["namespace"], group["podGroupName"]) if group else None


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


class _GroupSink:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def added(self, obj: PodGroup) -> None:
        self._scheduler.see_group(obj)

    def modified(self, obj: PodGroup) -> None:
        self._scheduler.see_group(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        self._scheduler.lose_group((identity.namespace or "", identity.name))

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        raise error
