"""A kube-scheduler that calls Filter for one pod at a time, binds concurrently, and may be late.

A refused pod is set aside until the operator requeues it, or for a minute. Pods of a group are
tried together (`group_cycle`), and now and then a refused pod preempts others by the rules of
kube-scheduler itself (`own_preemption`). In the modes Gate and Claims it calls no extender. In
Claims mode a pod goes where its ResourceClaim is allocated, and now and then its node does not fit.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_REQUEUE
from vgpu_api.resources import NODES, PODS
from vgpu_client.errors import ClientError, Conflict
from vgpu_operator.errors import NotLeading
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import BindRequest, FilterRequest

from . import resource_claims
from .group_cycle import group_of, try_group
from .judge import Judge
from .leader import Leader
from .own_preemption import preempt_as_kube_scheduler
from .server import Change, Server, copied

FLUSH_S = 60.0
_PREEMPTS = 0.05


class Scheduler:
    """The scheduler of the cluster.

    Args:
        server: The server of pods and nodes.
        rng: Decides the delays.
        leader: The replica that its calls reach.
        judge: Observes Binds and preemptions.
        calls_extender: False in the modes Gate and Claims.

    Attributes:
        is_calm: It offers every node, and asks for every Bind at once; else now and then for some,
            as other plugins leave, and late.
        rejections: How many more times a pod's node does not fit, so that its ResourceClaim loses
            its allocation.
    """

    def __init__(
        self,
        server: Server,
        rng: Random,
        leader: Callable[[], Leader | None],
        judge: Judge,
        *,
        calls_extender: bool,
    ) -> None:
        self.server = server
        self.rng = rng
        self.judge = judge
        self._leader = leader
        self._calls_extender = calls_extender
        self._loop = asyncio.get_running_loop()
        self._versions: defaultdict[str, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
        self._active: asyncio.PriorityQueue[tuple[int, int, str]] = asyncio.PriorityQueue()
        self._queued: set[str] = set()
        self._number = 0
        self._aside: dict[str, str] = {}  # by the pod's UID: the stamp with which it was refused
        self.binding: set[str] = set()  # UIDs of pods whose Bind is in flight
        self._binds: set[asyncio.Task[None]] = set()
        self.is_calm = False
        self.rejections = 0

    @property
    def now(self) -> float:
        """Return the seconds now."""
        return self.server.clock()

    def leader(self) -> Leader:
        """Return the replica that answers.

        Raises:
            NotLeading: None does.
        """
        leader = self._leader()
        if leader is None or leader.line.is_dead:
            raise NotLeading("nobody")
        return leader

    def pod_changed(self, change: Change) -> None:
        """Note that a pod was added, changed or deleted."""
        uid = change.obj["metadata"]["uid"]
        if change.type == "DELETED":
            self._aside.pop(uid, None)
            return
        if change.obj["spec"].get("schedulingGates"):
            return
        if uid not in self._versions:
            self._versions[uid].append((self.now, change.obj))
            self._enqueue(uid)
        self._versions[uid].append((self.now, change.obj))
        if uid in self._aside and _stamp_of(change.obj) != self._aside[uid]:
            self.again(uid, self.rng.uniform(0.1, 2.0))

    def restart(self) -> None:
        """Start again with the existing pods."""
        self._aside.clear()
        self._versions.clear()
        for pod in self.server.all(PODS):
            uid = pod["metadata"]["uid"]
            if pod["spec"].get("schedulingGates"):
                continue
            self._versions[uid] = [(self.now, pod)]
            if not pod["spec"].get("nodeName"):
                self._enqueue(uid)

    def _enqueue(self, uid: str) -> None:
        """Put a pod, or the group that it belongs to, into the queue by its priority."""
        known = self._versions.get(uid)
        if known is None:
            return
        pod = known[-1][1]
        name = group_of(pod)
        entity = f"group {name}" if name else uid
        if entity not in self._queued:
            self._queued.add(entity)
            self._number += 1
            place = -(pod["spec"].get("priority") or 0), self._number, entity
            self._active.put_nowait(place)

    def again(self, uid: str, seconds: float) -> None:
        """Try a pod again after a while."""
        self._aside.pop(uid, None)
        self._loop.call_later(seconds, self._enqueue, uid)

    def _flush(self, uid: str, stamp: str) -> None:
        if self._aside.get(uid) == stamp:
            self.again(uid, 0.0)

    async def schedule(self) -> None:
        """Schedule pods and groups in turn until cancelled; versions of pods may be old."""
        while True:
            _, _, entity = await self._active.get()
            self._queued.discard(entity)
            await asyncio.sleep(self.rng.uniform(0.005, 0.05))
            if entity.startswith("group "):
                await try_group(self, entity.removeprefix("group "))
            elif (pod := self.view(entity)) is not None:
                await self._try_pod(pod)

    async def _try_pod(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if resource_claims.name_of(pod):
            self._try_pod_of_claim(pod)
            return
        try:
            chosen = self.filter(pod)
        except NotLeading:
            self.again(uid, self.rng.uniform(0.5, 2.0))
            return
        if chosen:
            self.begin_bind(pod, chosen, self.rng.choice([0.0, 0.02, 0.02, 1.0]))
            return
        self.set_aside(uid)
        if self._calls_extender and self.rng.random() < _PREEMPTS:
            await preempt_as_kube_scheduler(self, pod)

    def claim_changed(self, claim: dict[str, Any]) -> None:
        """Try the pods that wait for a ResourceClaim that is allocated now."""
        if not resource_claims.node_of_claim(claim):
            return
        for owner in claim["metadata"].get("ownerReferences", ()):
            self.again(owner["uid"], self.rng.uniform(0.01, 0.1))

    def _try_pod_of_claim(self, pod: dict[str, Any]) -> None:
        """Bind a pod where its ResourceClaim is allocated, or take the allocation away."""
        claim = resource_claims.usable_by(self.server, pod)
        if claim is None or pod["metadata"]["uid"] in self.binding:
            return  # it is tried when the claim changes
        if self.rejections and not self.is_calm:
            self.rejections -= 1
            resource_claims.take_away(self.server, pod)
            return
        node = resource_claims.node_of_claim(claim)
        self.begin_bind(pod, node, self.rng.choice([0.0, 0.02, 0.02, 1.0]))

    def filter(self, pod: dict[str, Any]) -> str:
        """Return the node that is chosen for a pod; empty if none is.

        Raises:
            NotLeading: Nobody answers.
        """
        nodes = [node["metadata"]["name"] for node in self.server.all(NODES)]
        if not (self._calls_extender and asks_for_gpus(pod)):
            allowed = _tied_to(pod) or nodes
            nodes = [node for node in nodes if node in allowed]
            return self.rng.choice(nodes) if nodes else ""
        if self.rng.random() < 0.1 and not self.is_calm:
            nodes = self.rng.sample(nodes, self.rng.randint(0, len(nodes)))
        request = FilterRequest.read({"Pod": copied(pod), "NodeNames": nodes})
        found = filter_nodes(self.leader().engine, request).node_names if nodes else ()
        return next(iter(found), "")

    def set_aside(self, uid: str) -> None:
        """Report that a pod cannot be placed, and leave it until something changes."""
        pod = self.server.pod(uid)
        if pod is None or pod["spec"].get("nodeName"):
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        self.server.put(PODS, {**pod, "status": {**pod["status"], "conditions": [condition]}})
        self._aside[uid] = stamp = _stamp_of(self._versions[uid][-1][1])
        self._loop.call_later(FLUSH_S, self._flush, uid, stamp)

    def view(self, uid: str) -> dict[str, Any] | None:
        """Return kube-scheduler's version of the pod, or None if the pod has a node or is gone."""
        known = self._versions.get(uid)
        if known is None:
            return None
        lag = self.rng.choice([0.0, 0.0, 0.0, 0.3, 3.0])
        seen = [obj for at, obj in known if at <= self.now - lag][-1:] or [known[0][1]]
        if self.server.pod(uid) is None and lag == 0.0:
            return None
        pod = seen[0]
        is_done = pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp")
        return None if is_done else pod

    def begin_bind(self, pod: dict[str, Any], node: str, seconds: float) -> None:
        """Bind a pod after a while, while other work continues."""
        task = asyncio.create_task(self._bind(pod, node, seconds))
        self._binds.add(task)
        task.add_done_callback(self._binds.discard)

    async def _bind(self, pod: dict[str, Any], node: str, seconds: float) -> None:
        uid = pod["metadata"]["uid"]
        self.binding.add(uid)
        await asyncio.sleep(seconds)
        request = BindRequest("default", pod["metadata"]["name"], uid, node)
        try:
            if self._calls_extender and asks_for_gpus(pod):
                if group := group_of(pod):
                    self.judge.now = self.now
                    self.judge.gangs.bind_asked(group, uid)
                failed = bool(await self.leader().binder.bind(request))
            else:
                failed = False
                self._reserve(pod, node)
                await self.server.bind_pod(
                    namespace="default", name=request.name, uid=uid, node=node, annotations={}
                )
        except (NotLeading, ClientError):
            failed = True
        self.binding.discard(uid)
        if failed and self.server.pod(uid) is not None:
            self.again(uid, self.rng.uniform(0.5, 4.0))

    def _reserve(self, pod: dict[str, Any], node: str) -> None:
        """Reserve the ResourceClaim of a pod just before it is bound.

        Raises:
            Conflict: The claim is no longer allocated on this node.
        """
        if not resource_claims.name_of(pod):
            return
        claim = resource_claims.usable_by(self.server, pod)
        if claim is None or resource_claims.node_of_claim(claim) != node:
            raise Conflict("the claim has changed", status=409)
        resource_claims.reserve(self.server, pod, claim)


def asks_for_gpus(pod: dict[str, Any]) -> bool:
    """Return True if the extender is called for the pod."""
    if ANNOTATION_CLAIM in pod["metadata"].get("annotations", {}):
        return True
    containers = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    return any("nvidia.com/gpu" in each["resources"].get("limits", {}) for each in containers)


def _tied_to(pod: dict[str, Any]) -> list[str]:
    """Return the nodes that the pod's affinity allows by name; none if it allows all."""
    required = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return [
        name
        for terms in required.values()
        for term in terms["nodeSelectorTerms"]
        for field in term.get("matchFields", ())
        for name in field["values"]
    ]


def _stamp_of(pod: dict[str, Any]) -> str:
    stamp = pod["metadata"].get("annotations", {}).get(ANNOTATION_REQUEUE, "")
    return f"{stamp} {pod['status'].get('nominatedNodeName', '')}"
