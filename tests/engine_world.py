"""A small cluster around the engine: an API with late watch events, an agent, a kubelet, a user.

Nothing here depends on how the engine works. It keeps the truth: the objects in the API, and the
containers that run on the nodes.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

from memory_api import MemoryApi
from oracle import Amounts, needed_by, of_init, ordinary_init, total_of
from replica import Replica
from vgpu_api.core import Pod, ResourceClaim
from vgpu_api.resources import PODS, RESOURCE_CLAIMS, VGPU_CLAIMS, Resource
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim
from vgpu_client.errors import Conflict, NotFound
from vgpu_operator.engine.leader.fence import may_be_decided

Round = tuple[str, int]
"""An allocation's id, and how often its init containers were allocated devices again."""
Runs = tuple[str, str, tuple[AllocatedDevice, ...]]
"""For a pod whose containers run: its claim's UID, the allocation's id, and what they use."""


class LateApi(MemoryApi):
    """Delivers every change in order, but only on request."""

    def __init__(self) -> None:
        self.news: deque[tuple[str, dict[str, Any]]] = deque()
        self.pods_ever: dict[str, Pod] = {}
        """The last version of each pod, by UID, including pods that are gone."""
        self.moved: list[str] = []
        """Claims that got other devices while a new leader would not have touched them."""
        super().__init__()

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> dict[str, Any]:
        former = self.objects.get(
            (resource.plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        )
        stored = super().put(resource, obj)
        if resource is PODS:
            self.pods_ever[stored["metadata"]["uid"]] = Pod.model_validate(stored)
        if resource is VGPU_CLAIMS and former is not None:
            self._note_moved(VGPUClaim.read(former), VGPUClaim.read(stored))
        metadata = stored["metadata"]
        self.news.append(("PUT " + resource.plural, stored))
        going = metadata.get("deletionTimestamp") and not metadata.get("finalizers")
        if going and resource in (VGPU_CLAIMS, RESOURCE_CLAIMS):
            self.vanish(resource, metadata["name"], namespace=metadata["namespace"])
        return stored

    def _note_moved(self, before: VGPUClaim, after: VGPUClaim) -> None:
        """Record a write that nothing could have kept from landing late."""
        had, has = before.status.allocation, after.status.allocation
        if had is None or has is None or may_be_decided(before, self._node_of_pod(before)):
            return
        # the devices of init containers go back
        is_less = all(device in had.devices for device in has.devices)
        if had.id != has.id or not is_less:
            self.moved.append(before.metadata.name)

    def _node_of_pod(self, claim: VGPUClaim) -> str:
        reserved = claim.status.reserved_for
        for pod in self.all(PODS):
            if reserved is not None and pod["metadata"]["uid"] == reserved.pod_uid:
                return pod["spec"].get("nodeName") or ""
        return ""

    def vanish(self, resource: Resource, name: str, *, namespace: str = "default") -> None:
        gone = self.objects[(resource.plural, namespace, name)]
        super().vanish(resource, name, namespace=namespace)
        self.news.append(("GONE " + resource.plural, gone))

    async def bind_pod(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Any, **_: Any
    ) -> None:
        async with self._write("bind", name):
            pod = copy.deepcopy(self._find(PODS, name, namespace))
            if pod["metadata"]["uid"] != uid:
                raise NotFound("another pod", status=404)
            if pod["spec"].get("nodeName"):
                raise Conflict("it is bound", status=409)
            pod["spec"]["nodeName"] = node
            self.put(PODS, pod)

    def all(self, resource: Resource) -> list[dict[str, Any]]:
        """Return the objects of a kind, by name."""
        return [obj for place, obj in sorted(self.objects.items()) if place[0] == resource.plural]


class World:
    """An operator and everything around it, in a loop of its own."""

    def __init__(self, devices: Mapping[str, tuple[str, int]]) -> None:
        self.loop = self.new_loop()
        self.api = self.new_api()
        self.devices = devices  # UUID → node, MiB
        self.running: dict[str, Runs] = {}  # by pod UID
        self.init_rounds: dict[str, Round] = {}  # pod UID → in which its init containers run
        self.ended_rounds: set[tuple[str, Round]] = set()  # of claims, by UID
        self.words: deque[tuple[str, str, Round]] = deque()  # claim UID, status: to be reported
        self.binds: list[asyncio.Task[str]] = []
        self.operator = self.started(1000.0)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def new_api(self) -> LateApi:
        return LateApi()

    def new_operator(self) -> Replica:
        return Replica(self.api)

    def started(self, time: float) -> Replica:
        """Return a new operator that has read everything."""

        async def make() -> Replica:
            operator = self.new_operator()
            operator.time = time
            for uuid, (node, mib) in self.devices.items():
                operator.device(uuid=uuid, node=node, memory_mib=mib)
            for raw in self.api.all(VGPU_CLAIMS):
                operator.news.claim_changed(VGPUClaim.read(raw))
            for raw in self.api.all(RESOURCE_CLAIMS):
                operator.news.resource_claim_changed(ResourceClaim.model_validate(raw))
            for raw in self.api.all(PODS):
                operator.news.pod_changed(Pod.model_validate(raw))
            operator.engine.lead()
            return operator

        return self.loop.run_until_complete(make())

    def follow(self) -> None:
        """Let the operator lose the Lease, and observe everything that was written until now."""
        self.api.gate.set()
        self.loop.run_until_complete(self.operator.follow())
        self.deliver(len(self.api.news))

    def lead_again(self) -> None:
        """Let the same operator be elected again."""
        self.operator.leading = True
        self.operator.engine.lead()

    def turn(self, times: int = 20) -> None:
        """Let work in progress continue."""

        async def turns() -> None:
            for _ in range(times):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def round(self) -> None:
        """Run one round of the engine and some of the work that it starts."""

        async def once() -> None:
            for node, _ in self.devices.values():  # the agents of this world are alive
                self.operator.news.agent_is(node, ready=True)
            self.operator.submit()

        self.loop.run_until_complete(once())
        self.turn()

    def deliver(self, count: int) -> None:
        """Deliver the next changes to the operator."""
        for _ in range(min(count, len(self.api.news))):
            what, raw = self.api.news.popleft()
            self._tell(what, raw, was_seen=True)

    def _tell(self, what: str, raw: dict[str, Any], *, was_seen: bool) -> None:
        news, metadata = self.operator.news, raw["metadata"]
        match what:
            case "PUT pods":
                news.pod_changed(Pod.model_validate(raw))
            case "GONE pods":
                news.pod_gone(metadata["uid"], was_seen=was_seen)
            case "PUT vgpuclaims":
                news.claim_changed(VGPUClaim.read(raw))
            case "GONE vgpuclaims":
                news.claim_gone((metadata["namespace"], metadata["name"]), metadata["uid"])
            case "PUT resourceclaims":
                news.resource_claim_changed(ResourceClaim.model_validate(raw))
            case "GONE resourceclaims":
                news.resource_claim_gone(metadata["namespace"], metadata["name"], metadata["uid"])

    def lose_the_watch(self) -> None:
        """Lose all events; a list then shows which objects exist and which are gone."""
        missed, self.api.news = self.api.news, deque()
        there = {obj["metadata"]["uid"] for obj in self.api.objects.values()}
        for what, raw in missed:
            if raw["metadata"]["uid"] not in there:
                self._tell("GONE " + what.split()[1], raw, was_seen=False)
        for resource in (VGPU_CLAIMS, RESOURCE_CLAIMS, PODS):
            for raw in self.api.all(resource):
                self._tell(f"PUT {resource.plural}", raw, was_seen=True)

    # The state of the world.

    def claims(self) -> list[VGPUClaim]:
        """Return every claim as the API has it."""
        return [VGPUClaim.read(raw) for raw in self.api.all(VGPU_CLAIMS)]

    def pod(self, uid: str) -> dict[str, Any] | None:
        """Return the pod with this UID, while it is there."""
        return next((p for p in self.api.all(PODS) if p["metadata"]["uid"] == uid), None)

    def pod_of(self, claim: VGPUClaim) -> Pod | None:
        """Return the pod that the claim is reserved for, there or gone."""
        reserved = claim.status.reserved_for
        return None if reserved is None else self.api.pods_ever.get(reserved.pod_uid)

    def held(self) -> dict[str, Amounts]:
        """Return the amounts that the pods of all claims need on each device, by the API alone."""
        return total_of(needed_by(claim, self.pod_of(claim)) for claim in self.claims())

    # The node's part.

    def agent_starts_what_it_may(self) -> None:
        """Start containers of bound pods if a claim is reserved for exactly their pod."""
        for claim in self.claims():
            allocation, reserved = claim.status.allocation, claim.status.reserved_for
            if allocation is None or reserved is None or reserved.pod_uid in self.running:
                continue
            pod = self.pod(reserved.pod_uid)
            if pod is None or pod["spec"].get("nodeName") != allocation.node_name:
                continue
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            runs = claim.metadata.uid, allocation.id, tuple(allocation.devices)
            self.running[reserved.pod_uid] = runs
            if of_init(allocation, claim, self.pod_of(claim)):
                self.init_rounds[reserved.pod_uid] = _round(allocation)
            self._report(claim, prepared=not claim.is_pods_own, released=None)

    def init_containers_end(self) -> None:
        """End the init containers: their pages now deny access, which the agent will report."""
        for claim, allocation, pod_uid in self._used():
            round_ = _round(allocation)
            if self.init_rounds.get(pod_uid) == round_:
                del self.init_rounds[pod_uid]
                self.ended_rounds.add((claim.metadata.uid, round_))
                ended = of_init(allocation, claim, self.pod_of(claim))
                rest = tuple(device for device in allocation.devices if device not in ended)
                self.running[pod_uid] = (*self.running[pod_uid][:2], rest)
                self.words.append((claim.metadata.uid, "True", round_))

    def sandboxes_are_made_anew(self) -> None:
        """Run init containers again, at once if they were fitted again; otherwise request it."""
        for claim, allocation, pod_uid in self._used():
            round_, pod = _round(allocation), self.pod_of(claim)
            asking = {request.name for request in claim.spec.requests}
            if pod is None or pod_uid in self.init_rounds or not asking & ordinary_init(pod):
                continue
            has_part = bool(of_init(allocation, claim, pod))
            if has_part and (claim.metadata.uid, round_) not in self.ended_rounds:
                self.init_rounds[pod_uid] = round_
                self.running[pod_uid] = (*self.running[pod_uid][:2], tuple(allocation.devices))
            else:
                self.words.append((claim.metadata.uid, "False", round_))

    def say(self, count: int) -> None:
        """Deliver the agent's next report about init containers to the API server, perhaps late."""
        for _ in range(min(count, len(self.words))):
            uid, status, round_ = self.words.popleft()
            for claim in self.claims():
                if claim.metadata.uid == uid:
                    named = {"allocationID": round_[0], "round": round_[1]}
                    ended = named if status == "True" else None
                    again = named if status == "False" else None
                    self._report(claim, initReleased=ended, initWanted=again)

    def _used(self) -> list[tuple[VGPUClaim, Allocation, str]]:
        """Return the claims of running pods, with their allocations and the pods' UIDs."""
        found = []
        for claim in self.claims():
            allocation, reserved = claim.status.allocation, claim.status.reserved_for
            if allocation is not None and reserved is not None:
                runs = self.running.get(reserved.pod_uid)
                if runs and runs[:2] == (claim.metadata.uid, allocation.id):
                    found.append((claim, allocation, reserved.pod_uid))
        return found

    def agent_releases_what_has_ended(self) -> None:
        """Remove the containers of pods that ended or vanished; the agent reports it."""
        for claim in self.claims():
            allocation, reserved = claim.status.allocation, claim.status.reserved_for
            if allocation is None or reserved is None:
                continue
            pod = self.pod(reserved.pod_uid)
            if pod is not None and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                continue
            ran = self.running.get(reserved.pod_uid)
            if ran is not None and ran[:2] == (claim.metadata.uid, allocation.id):
                del self.running[reserved.pod_uid]
                self.init_rounds.pop(reserved.pod_uid, None)
            self._report(claim, released={"allocationID": allocation.id})

    def _report(self, claim: VGPUClaim, *, prepared: bool = False, **fields: Any) -> None:
        """Write the agent's fields, and its condition once the limits are in place."""
        raw = copy.deepcopy(self.api.claim(claim.metadata.name))
        status = raw["status"]
        before = copy.deepcopy(status)
        for name, value in fields.items():
            status.pop(name, None)
            if value is not None:
                status[name] = value
        if prepared:
            kept = [c for c in status.get("conditions", []) if c["type"] != "Prepared"]
            said = {"type": "Prepared", "status": "True", "message": "", "reason": "Agent"}
            status["conditions"] = [*kept, said]
        if status != before:
            self.api.put(VGPU_CLAIMS, raw)

    # The user's part.

    def delete_claim(self, name: str) -> None:
        """Delete a claim as the API server does: finalizers keep the object."""
        raw = copy.deepcopy(self.api.claim(name))
        if not raw["metadata"].get("finalizers"):
            self.api.vanish(VGPU_CLAIMS, name)
        elif not raw["metadata"].get("deletionTimestamp"):
            raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.api.put(VGPU_CLAIMS, raw)

    def collect_garbage(self) -> None:
        """Delete claims whose pod is gone."""
        there = {obj["metadata"]["uid"] for obj in self.api.objects.values()}
        for claim in self.claims():
            owners = claim.metadata.owner_references
            if owners and all(owner.uid not in there for owner in owners):
                self.delete_claim(claim.metadata.name)

    def close(self) -> None:
        """End all work in progress."""

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.loop.run_until_complete(end())
        self.loop.close()


def _round(allocation: Allocation) -> Round:
    return allocation.id, allocation.init_round
