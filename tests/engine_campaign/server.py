"""An API server in memory with watches, and the line between it and one replica of the operator.

Objects, patches and conflicts are `MemoryApi`'s. Every change is kept in order, so that each
replica's stream of a kind may be late, broken or compacted away on its own. A request that was sent
lands even if its sender has ended.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import orjson

from memory_api import MemoryApi
from vgpu_api.names import AGENT_NAMESPACE
from vgpu_api.resources import (
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import (
    ClientError,
    Conflict,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unknown,
    Unreachable,
)
from vgpu_client.reads import Each, Listing

from .judge import Judge, Write

WRITER: ContextVar[str] = ContextVar("WRITER", default="world")
"""The author of the change in progress: a replica's name, or the world."""
SENT: ContextVar[float | None] = ContextVar("SENT", default=None)
"""When the request for the change in progress was sent; None for one of the world."""
_BOOKMARK_S = 60.0
_BUMP = 1_000_000
_IN_NAMESPACES = (PODS, VGPU_CLAIMS, RESOURCE_CLAIMS, POD_DISRUPTION_BUDGETS, *POD_GROUPS)
_AT_0 = datetime.fromtimestamp(1.7e9, UTC)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object, as watches report it."""

    version: int
    type: str
    obj: dict[str, Any]


def copied(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an object as it is on the wire; `copy.deepcopy` takes ten times as long."""
    made: dict[str, Any] = orjson.loads(orjson.dumps(obj))
    return made


class Server(MemoryApi):
    """Objects with their history.

    Args:
        judge: Observes every change.
        clock: The time.
    """

    def __init__(self, judge: Judge, clock: Callable[[], float]) -> None:
        super().__init__()
        self.judge = judge
        self.clock = clock
        self.history: defaultdict[str, list[Change]] = defaultdict(list)
        self.compacted = 0
        self.changed: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.never = asyncio.Event()
        self._born = 0
        self._read: dict[tuple[str, str], VGPUClaim] = {}
        self._sorted: dict[str, list[dict[str, Any]]] = {}  # by kind, until it changes
        self._claims: list[VGPUClaim] | None = None
        self._pods: dict[str, dict[str, Any]] | None = None  # by UID
        self.on_change: Callable[[str, Change], None] = lambda plural, change: None
        self._backup: dict[tuple[str, str, str], dict[str, Any]] = {}

    @staticmethod
    def copied(obj: dict[str, Any]) -> dict[str, Any]:
        """See `copied`."""
        return copied(obj)

    @property
    def version(self) -> int:
        """Return the version of the last change."""
        return self._version

    def all(self, resource: Resource) -> list[dict[str, Any]]:
        """Return the objects of a kind, by name, without the agents' pods."""
        plural = resource.plural
        if plural not in self._sorted:
            there = [
                each
                for each in self.objects.items()
                if each[0][0] == plural and each[0][1] != AGENT_NAMESPACE
            ]
            self._sorted[plural] = [obj for _, obj in sorted(there)]
        return list(self._sorted[plural])

    def agent_pods(self) -> list[dict[str, Any]]:
        """Return the agents' pods."""
        return [obj for place, obj in sorted(self.objects.items()) if place[1] == AGENT_NAMESPACE]

    def _forget_sorted(self, plural: str) -> None:
        self._sorted.pop(plural, None)
        if plural == PODS.plural:
            self._pods = None
        elif plural == VGPU_CLAIMS.plural:
            self._claims = None

    def find(self, resource: Resource, name: str) -> dict[str, Any] | None:
        """Return a copy of an object; None if it is not there."""
        namespace = "default" if resource in _IN_NAMESPACES else ""
        found = self.objects.get((resource.plural, namespace, name))
        return None if found is None else copied(found)

    def claims(self) -> list[VGPUClaim]:
        """Return all claims, each version read once."""
        if self._claims is not None:
            return list(self._claims)
        found = []
        for raw in self.all(VGPU_CLAIMS):
            key = raw["metadata"]["uid"], raw["metadata"]["resourceVersion"]
            if key not in self._read:
                self._read[key] = VGPUClaim.read(raw)
            found.append(self._read[key])
        self._claims = found
        return list(found)

    def pod(self, uid: str) -> dict[str, Any] | None:
        """Return the pod with this UID, while it is there."""
        if self._pods is None:
            self._pods = {pod["metadata"]["uid"]: pod for pod in self.all(PODS)}
        return self._pods.get(uid)

    def next_uid(self, name: str) -> str:
        """Return a UID that no other object had."""
        self._born += 1
        return f"{self._born:08x}-{name}"

    def stamp(self) -> str:
        """Return a time later than those of objects that were made before."""
        minute, second = divmod(self._born, 60)
        return f"2026-01-01T{minute // 60:02}:{minute % 60:02}:{second:02}Z"

    def remove(self, resource: Resource, name: str) -> None:
        """Delete an object; finalizers keep it, marked as being deleted."""
        raw = self.find(resource, name)
        if raw is not None and not raw["metadata"].get("finalizers"):
            self.vanish(resource, name)
        elif raw is not None:
            self.mark_deleted(resource, raw)

    def mark_deleted(self, resource: Resource, raw: dict[str, Any]) -> None:
        """Begin to delete an object; a pod's timestamp is the end of its grace period."""
        if not raw["metadata"].get("deletionTimestamp"):
            grace_s = (
                raw["spec"].get("terminationGracePeriodSeconds", 30) if resource is PODS else 0
            )
            at = _AT_0 + timedelta(seconds=int(self.clock()) + grace_s)
            raw["metadata"]["deletionTimestamp"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
            self.put(resource, raw)

    def end_pod(self, raw: dict[str, Any]) -> None:
        """Delete a pod: one without a node at once, others by their grace period."""
        if raw["spec"].get("nodeName"):
            self.mark_deleted(PODS, raw)
        else:
            self.vanish(PODS, raw["metadata"]["name"])

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> dict[str, Any]:
        """Store an object. If it is being deleted and has no finalizer left, remove it."""
        metadata = obj["metadata"]
        place = (resource.plural, metadata.get("namespace", ""), metadata["name"])
        type_ = "MODIFIED" if place in self.objects else "ADDED"
        if resource is RESOURCE_CLAIMS:
            _check_allocation(self.objects.get(place), obj)
        stored = super().put(resource, obj)
        self._forget_sorted(resource.plural)
        is_free = metadata.get("deletionTimestamp") and not metadata.get("finalizers")
        if is_free and resource in (VGPU_CLAIMS, RESOURCE_CLAIMS):
            self.vanish(resource, metadata["name"], namespace=metadata["namespace"])
            return stored
        self._changed(resource, type_, stored)
        return stored

    def vanish(self, resource: Resource, name: str, *, namespace: str = "default") -> None:
        """Remove an object, finalizers or not."""
        gone = self.objects[resource.plural, namespace, name]
        super().vanish(resource, name, namespace=namespace)
        self._forget_sorted(resource.plural)
        self._version += 1
        metadata = {**gone["metadata"], "resourceVersion": str(self._version)}
        self._changed(resource, "DELETED", {**gone, "metadata": metadata})

    def _changed(self, resource: Resource, type_: str, obj: dict[str, Any]) -> None:
        change = Change(self._version, type_, copied(obj))
        if obj["metadata"].get("namespace") != AGENT_NAMESPACE:
            now, sent = self.clock(), SENT.get()
            sent = now if sent is None else sent
            self.judge.wrote(
                Write(type_, resource.plural, change.obj, WRITER.get(), now, sent_at=sent)
            )
        self.history[resource.plural].append(change)
        self.wake(resource.plural)
        self.on_change(resource.plural, change)

    def since(self, resource: Resource, version: int) -> list[Change]:
        """Return the changes of a kind after a version."""
        history = self.history[resource.plural]
        return history[bisect_right(history, version, key=lambda change: change.version) :]

    def wake(self, plural: str) -> None:
        """Wake the watches of a kind."""
        self.changed.pop(plural, asyncio.Event()).set()

    async def apply(self, resource: Resource, obj: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Apply a status: conditions by type, other fields as they are."""
        found = copied(self._find(resource, obj["metadata"]["name"], None))
        status = found.setdefault("status", {})
        new = {each["type"]: each for each in obj["status"].get("conditions", ())}
        old = {each["type"]: each for each in status.get("conditions", ())}
        found["status"] = {**status, **obj["status"], "conditions": list({**old, **new}.values())}
        return self.put(resource, found)

    async def bind_pod(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Any, **_: Any
    ) -> None:
        """Bind a pod as the real server does, unless it is bound or being deleted."""
        pod = copied(self._find(PODS, name, namespace))
        if pod["metadata"]["uid"] != uid:
            raise NotFound("another pod", status=404)
        if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            raise Conflict("it is bound, or going", status=409)
        pod["spec"]["nodeName"] = node
        pod["metadata"].setdefault("annotations", {}).update(annotations)
        self.put(PODS, pod)

    async def delete(self, resource: Resource, name: str, **options: Any) -> dict[str, Any]:
        """Delete an object; a pod that has a node gets its grace period."""
        if resource is not PODS:
            return await super().delete(resource, name, **options)
        pod = copied(self._find(PODS, name, options.get("namespace")))
        metadata = pod["metadata"]
        meant = options.get("uid"), options.get("resource_version")
        if any(want and want != has for want, has in zip(
            meant, (metadata["uid"], metadata["resourceVersion"]), strict=True
        )):  # fmt: skip
            raise Conflict("it has changed", status=409)
        self.end_pod(pod)
        return pod

    async def _evict(self, name: str, preconditions: Mapping[str, Any]) -> dict[str, Any]:
        """Evict a pod, unless a disruption budget refuses that (`EvictionREST.Create`)."""
        pod = copied(self._find(PODS, name, "default"))
        if pod["metadata"]["uid"] != preconditions["uid"]:
            raise Conflict("another pod", status=409)
        is_counted = pod["status"].get("phase") == "Running"
        if is_counted and not pod["metadata"].get("deletionTimestamp"):
            self._use_up_budgets(pod)
        said = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        others = pod["status"].get("conditions") or []
        pod["status"]["conditions"] = [*others, said]
        self.end_pod(pod)
        return pod

    def _use_up_budgets(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        for budget in self.all(POD_DISRUPTION_BUDGETS):
            wanted = budget["spec"]["selector"]["matchLabels"].items()
            if not wanted <= pod["metadata"]["labels"].items():
                continue
            if budget["status"]["disruptionsAllowed"] < 1:
                self.judge.making_way.was_refused(pod["metadata"]["uid"])
                cause = {"reason": "DisruptionBudget", "message": budget["metadata"]["name"]}
                raise TooManyRequests(
                    "it would violate the budget", status=429, details={"causes": [cause]}
                )
            budget = copied(budget)
            budget["status"]["disruptionsAllowed"] -= 1
            budget["status"].setdefault("disruptedPods", {})[name] = self.stamp()
            self.put(POD_DISRUPTION_BUDGETS, budget)

    def back_up(self) -> None:
        """Remember the current state."""
        self._backup = {p: copied(o) for p, o in self.objects.items() if p[1] != AGENT_NAMESPACE}

    @property
    def has_backup(self) -> bool:
        """True if there is a state to restore."""
        return bool(self._backup)

    def restore(self) -> None:
        """Restore the backup as etcd's guide says: raise the revision and compact all before it.

        The agents' pods stay, because their DaemonSet makes them again within seconds.
        """
        agents = {p: obj for p, obj in self.objects.items() if p[1] == AGENT_NAMESPACE}
        self.objects, self._backup = {**self._backup, **agents}, {}
        self._sorted.clear()
        self._pods = self._claims = None
        self._version += _BUMP
        self.compacted = self._version
        self.history.clear()
        objects = [
            (place[0], obj)
            for place, obj in sorted(self.objects.items())
            if place[1] != AGENT_NAMESPACE
        ]
        self.judge.restored(objects, self._version, self.clock())


def _check_allocation(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> None:
    """Refuse what the API server refuses of a ResourceClaim's allocation."""
    had = ((before or {}).get("status") or {}).get("allocation")
    has = (after.get("status") or {}).get("allocation")
    reserved = (after.get("status") or {}).get("reservedFor")
    if (had and has and had != has) or (reserved and not has):
        raise Invalid("status.allocation: the claim is allocated or reserved", status=422)


@dataclass(slots=True)
class Stream:
    """A replica's watch of one kind."""

    latency_s: float
    late_until: float = 0.0
    error: ClientError | None = None


@dataclass(slots=True)
class Faults:
    """The faults of the next requests."""

    refused: int = 0  # 500 without doing anything
    lost: int = 0  # 500 after it was done
    busy: int = 0  # 429
    unread: int = 0  # reads that fail
    slow_until: float = 0.0  # requests take seconds until then
    cut_until: float = 0.0  # no connection until then


@dataclass(slots=True)
class Line:
    """The API client of one replica.

    Attributes:
        server: The server that gets its requests.
        name: The replica's name.
        rng: Draws latencies.
        faults: The faults of the cluster's network, which all lines share.
        is_dead: The replica was killed: no answer comes any more, and what was sent still lands.
    """

    server: Server
    name: str
    rng: Random
    faults: Faults
    streams: dict[str, Stream] = field(default_factory=dict)
    is_dead: bool = False

    def stream(self, plural: str) -> Stream:
        """Return the stream of a kind."""
        if plural not in self.streams:
            self.streams[plural] = Stream(self.rng.uniform(0.001, 0.2))
        return self.streams[plural]

    # Reads.

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        """Read an object."""
        await self._way()
        if self.faults.unread:
            self.faults.unread -= 1
            raise ServerError("failing", status=500)
        return await self.server.get(resource, name, namespace=namespace)

    async def current_version(self, resource: Resource) -> int:
        """Return the version of the newest object."""
        await self._way()
        return self.server.version

    async def list(
        self, resource: Resource, *, namespace: str | None = None, each: Each, **_: Any
    ) -> Listing:
        """List a kind."""
        await self._way()
        found = [obj for obj in self.server.all(resource) if _is_in(obj, namespace)]
        if resource is PODS:
            found += [obj for obj in self.server.agent_pods() if _is_in(obj, namespace)]
        self._told(resource, self.server.version)
        return Listing([each(copied(obj)) for obj in found], str(self.server.version))

    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        timeout_s: float = 300.0,
        **_: Any,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Watch a kind; the stream may be late, and may break."""
        await self._way()
        server, stream, now = self.server, self.stream(resource.plural), self.server.clock
        position, ends, bookmark = int(resource_version), now() + timeout_s, now() + _BOOKMARK_S
        if position < server.compacted:
            raise Gone("too old", status=410)
        while now() < ends:
            await asyncio.sleep(max(stream.latency_s, stream.late_until - now()))
            if stream.error is not None:
                error, stream.error = stream.error, None
                raise error
            for change in server.since(resource, position):
                position = change.version
                if _is_in(change.obj, namespace):
                    self._told(resource, position)
                    yield {"type": change.type, "object": copied(change.obj)}
            if now() >= bookmark:
                bookmark = now() + _BOOKMARK_S
                yield {
                    "type": "BOOKMARK",
                    "object": {"metadata": {"resourceVersion": str(position)}},
                }
            if not server.since(resource, position) and stream.error is None:
                await _until(server.changed[resource.plural], min(ends, bookmark) - now())

    def lose(self, plural: str, error: ClientError) -> None:
        """End the stream of a kind, once it is no longer late."""
        self.stream(plural).error = error
        self.server.wake(plural)

    def _told(self, resource: Resource, version: int) -> None:
        self.server.judge.told(self.name, resource.plural, version, self.server.clock())

    # Writes land, or not, whether or not their sender lives.

    async def create(self, *args: Any, **options: Any) -> Any:
        """As `MemoryApi.create`."""
        return await self._send(self.server.create, args, options)

    async def replace(self, *args: Any, **options: Any) -> Any:
        """As `MemoryApi.replace`."""
        return await self._send(self.server.replace, args, options)

    async def json_patch(self, *args: Any, **options: Any) -> Any:
        """Patch as `MemoryApi.json_patch`; a patch of a claim may land after its time limit."""
        return await self._send(self.server.json_patch, args, options, outlives=20.0)

    async def merge_patch(self, *args: Any, **options: Any) -> Any:
        """Patch as `MemoryApi.merge_patch`."""
        return await self._send(self.server.merge_patch, args, options)

    async def delete(self, *args: Any, **options: Any) -> Any:
        """As `MemoryApi.delete`."""
        return await self._send(self.server.delete, args, options)

    async def apply(self, *args: Any, **options: Any) -> Any:
        """As `Server.apply`."""
        return await self._send(self.server.apply, args, options)

    async def bind_pod(self, **options: Any) -> None:
        """Bind a pod, like `Server.bind_pod`."""
        await self._send(self.server.bind_pod, (), options)

    async def _send(
        self,
        call: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        options: dict[str, Any],
        *,
        outlives: float = 0.0,
    ) -> Any:
        """Send a request and wait for the answer, no longer than its time limit."""
        limit = options.pop("timeout_s", 10.0)
        is_slow = self.server.clock() < self.faults.slow_until
        takes = self.rng.uniform(0.0, limit + outlives) if is_slow else self.rng.uniform(0.0, 0.1)
        landing = asyncio.ensure_future(self._land(call, args, options, takes))
        landing.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait({landing}, timeout=limit)
        await self._while_alive()
        if not done:
            raise Unknown("no answer in time")
        return landing.result()

    async def _land(
        self,
        call: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        options: dict[str, Any],
        takes: float,
    ) -> Any:
        sent = self.server.clock()
        await asyncio.sleep(takes)
        faults = self.faults
        if self.server.clock() < faults.cut_until:
            raise Unreachable("no connection")
        if error := self._refusal(faults):
            raise error
        tokens = WRITER.set(self.name), SENT.set(sent)
        try:
            done = await call(*args, **options)
        finally:
            WRITER.reset(tokens[0])
            SENT.reset(tokens[1])
        if faults.lost:
            faults.lost -= 1
            raise self.rng.choice((ServerError("after commit", status=500), Unknown("lost")))
        return done

    @staticmethod
    def _refusal(faults: Faults) -> ClientError | None:
        if faults.refused:
            faults.refused -= 1
            return ServerError("failing", status=500)
        if faults.busy:
            faults.busy -= 1
            return TooManyRequests("busy", status=429, retry_after=1.0)
        return None

    async def _while_alive(self) -> None:
        """Return if the replica is alive; the tasks of a dead one hang here."""
        if self.is_dead:
            await self.server.never.wait()

    async def _way(self) -> None:
        """Wait as long as a request and its answer take."""
        await asyncio.sleep(self.rng.uniform(0.0, 0.1))
        await self._while_alive()
        if self.server.clock() < self.faults.cut_until:
            raise Unreachable("no connection")


def _is_in(obj: dict[str, Any], namespace: str | None) -> bool:
    return namespace is None or obj["metadata"].get("namespace", "") == namespace


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(seconds, 0.001)):
            await event.wait()
    except TimeoutError:
        pass
