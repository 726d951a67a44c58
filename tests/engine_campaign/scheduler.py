"""A kube-scheduler: asks Filter about one pod after the other, binds beside that, and may be late.

What is refused is set aside until the operator requeues it, or for a minute.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

from vgpu_api.names import ANNOTATION_REQUEUE
from vgpu_api.resources import NODES, PODS
from vgpu_client.errors import ClientError
from vgpu_operator.errors import NotLeading
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import BindRequest, FilterRequest

from .leader import Leader
from .server import Change, Server

FLUSH_S = 60.0


class Scheduler:
    """The scheduler of the cluster.

    Args:
        server: Where pods and nodes are.
        rng: Draws how late it is.
        leader: The replica that its calls reach.

    Attributes:
        asks_about_all: It offers every node; else now and then some, as other plugins leave.
    """

    def __init__(self, server: Server, rng: Random, leader: Callable[[], Leader | None]) -> None:
        self._server = server
        self._rng = rng
        self._leader = leader
        self._loop = asyncio.get_running_loop()
        self._versions: defaultdict[str, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
        self._active: asyncio.Queue[str] = asyncio.Queue()
        self._aside: dict[str, str] = {}  # by the pod's UID: the stamp that it was refused with
        self._binds: set[asyncio.Task[None]] = set()
        self.asks_about_all = False

    @property
    def _now(self) -> float:
        return self._server.clock()

    def pod_changed(self, change: Change) -> None:
        """A pod has come, has changed, or is gone."""
        uid = change.obj["metadata"]["uid"]
        if change.type == "DELETED":
            self._aside.pop(uid, None)
            return
        if uid not in self._versions:
            self._active.put_nowait(uid)
        self._versions[uid].append((self._now, change.obj))
        if uid in self._aside and _stamp_of(change.obj) != self._aside[uid]:
            self._again(uid, self._rng.uniform(0.1, 2.0))

    def restart(self) -> None:
        """Begin anew with the pods that there are."""
        self._aside.clear()
        self._versions.clear()
        for pod in self._server.all(PODS):
            uid = pod["metadata"]["uid"]
            self._versions[uid] = [(self._now, pod)]
            if not pod["spec"].get("nodeName"):
                self._active.put_nowait(uid)

    def _again(self, uid: str, seconds: float) -> None:
        self._aside.pop(uid, None)
        self._loop.call_later(seconds, self._active.put_nowait, uid)

    def _flush(self, uid: str, stamp: str) -> None:
        if self._aside.get(uid) == stamp:
            self._again(uid, 0.0)

    async def schedule(self) -> None:
        """One pod after the other, for ever; it may know an old version of a pod."""
        while True:
            uid = await self._active.get()
            await asyncio.sleep(self._rng.uniform(0.005, 0.05))
            pod = self._view(uid)
            if pod is None:
                continue
            nodes = [node["metadata"]["name"] for node in self._server.all(NODES)]
            if self._rng.random() < 0.1 and not self.asks_about_all:
                nodes = self._rng.sample(nodes, self._rng.randint(0, len(nodes)))
            request = FilterRequest.read({"Pod": copy.deepcopy(pod), "NodeNames": nodes})
            leader = self._leader()
            try:
                if leader is None or leader.line.is_dead:
                    raise NotLeading("nobody")
                chosen = list(filter_nodes(leader.engine, request).node_names) if nodes else []
            except NotLeading:
                self._again(uid, self._rng.uniform(0.5, 2.0))
                continue
            if chosen:
                task = asyncio.create_task(self._bind(leader, pod, chosen[0]))
                self._binds.add(task)
                task.add_done_callback(self._binds.discard)
            else:
                self._set_aside(uid)

    def _set_aside(self, uid: str) -> None:
        pod = self._server.pod(uid)
        if pod is None or pod["spec"].get("nodeName"):
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        self._server.put(PODS, {**pod, "status": {**pod["status"], "conditions": [condition]}})
        self._aside[uid] = stamp = _stamp_of(self._versions[uid][-1][1])
        self._loop.call_later(FLUSH_S, self._flush, uid, stamp)

    def _view(self, uid: str) -> dict[str, Any] | None:
        """Return the pod as kube-scheduler has it; None: it has a node, or is gone."""
        known = self._versions.get(uid)
        if known is None:
            return None
        lag = self._rng.choice([0.0, 0.0, 0.0, 0.3, 3.0])
        seen = [obj for at, obj in known if at <= self._now - lag][-1:] or [known[0][1]]
        if self._server.pod(uid) is None and lag == 0.0:
            return None
        pod = seen[0]
        is_done = pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp")
        return None if is_done else pod

    async def _bind(self, leader: Leader, pod: dict[str, Any], node: str) -> None:
        uid = pod["metadata"]["uid"]
        await asyncio.sleep(self._rng.choice([0.0, 0.02, 0.02, 1.0]))
        request = BindRequest("default", pod["metadata"]["name"], uid, node)
        try:
            failed = bool(await leader.binder.bind(request))
        except (NotLeading, ClientError):
            failed = True
        if failed and self._server.pod(uid) is not None:
            self._again(uid, self._rng.uniform(0.5, 4.0))


def _stamp_of(pod: dict[str, Any]) -> str:
    stamp = pod["metadata"].get("annotations", {}).get(ANNOTATION_REQUEUE, "")
    return f"{stamp} {pod['status'].get('nominatedNodeName', '')}"
