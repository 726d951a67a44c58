"""Everything around the operator, and its successive replicas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, TypeAlias

from builders import a_claim, a_container, a_pod, a_pod_group, a_request
from vgpu_api.core import Container
from vgpu_api.names import (
    AGENT_NAMESPACE,
    ANNOTATION_CLAIM,
    ANNOTATION_RESOURCES,
    ANNOTATION_SLOTS_ADDED,
    SCHEDULING_GATE,
)
from vgpu_api.resources import (
    GPU_DEVICES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    VGPU_CLAIMS,
)
from vgpu_api.v1alpha1.base import OwnerReference
from vgpu_client.errors import DataRestored, Gone

from .group_cycle import group_of
from .judge import QUOTA, Finding, Judge
from .leader import Leader
from .machines import Machines
from .making_way import Limits
from .scheduler import Scheduler
from .server import WRITER, Change, Faults, Line, Server
from .setup import drawn_config

KINDS = tuple(
    each.plural
    for each in (NODES, GPU_DEVICES, RESOURCE_QUOTAS, VGPU_CLAIMS, PODS,
                 RESOURCE_CLAIMS, POD_DISRUPTION_BUDGETS, POD_GROUPS[0])
)  # fmt: skip
"""The kinds that the operator watches."""
KillAt: TypeAlias = Literal["", "eviction", "binding", "decision", "creation", "allocation"]
RESTORE_SEEN_S = 300.0


@dataclass(frozen=True, slots=True)
class Traits:
    """The fields of a pod that decide who makes way for whom, and who starts together.

    Attributes:
        priority: Of its PriorityClass.
        never: Its `preemptionPolicy` is Never.
        app: The label by which budgets select it; empty for none.
        group: Its PodGroup; empty for none.
        is_daemon: A DaemonSet made it.
    """

    priority: int = 0
    never: bool = False
    app: str = ""
    group: str = ""
    is_daemon: bool = False


PLAIN = Traits()
_DAEMON_SET = OwnerReference(kind="DaemonSet", name="exporter", uid="uid-of-exporter",
                             controller=True)  # fmt: skip


class World:
    """A cluster, with everything that is in it.

    Args:
        seed: The seed of all random choices.

    Attributes:
        judge: Observes everything that happens.
        leader: The operator's current replica.
        trace: The events, a line each.
        kill_at: The leader's next write of this kind at which it is killed.
    """

    def __init__(self, seed: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.rng = Random(f"world {seed}")
        self.config = drawn_config(seed)
        rules = self.config.scheduling.preemption
        has_filters = self.config.scheduling.mode == "Extender"
        limits = Limits(rules.enabled, rules.budgets == "Prefer", rules.min_gap, rules.per_minute)
        self.judge = Judge(limits, has_filters=has_filters)
        self.server = Server(self.judge, self.loop.time)
        self.server.on_change = self._changed
        self.faults = Faults()
        self.trace: list[str] = []
        self.leader: Leader | None = None
        self.kill_at: KillAt = ""
        self._replica: asyncio.Task[None] | None = None
        self._former: list[Leader] = []  # killed replicas, whose tasks hang
        self._restored_at = float("-inf")
        self.scheduler = Scheduler(
            self.server,
            Random(self.rng.random()),
            lambda: self.leader,
            self.judge,
            calls_extender=has_filters,
        )
        self.machines = Machines(self.server, self.judge, Random(self.rng.random()))

    @property
    def now(self) -> float:
        """Return the seconds now."""
        return self.loop.time()

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now:8.2f} {text}")

    def _changed(self, plural: str, change: Change) -> None:
        if change.obj["metadata"].get("namespace") == AGENT_NAMESPACE:
            return
        self.note(_described(plural, change))
        if plural == RESOURCE_CLAIMS.plural and change.type != "DELETED":
            self.scheduler.claim_changed(change.obj)
        if plural == PODS.plural:
            self.scheduler.pod_changed(change)
        if self._is_moment_to_kill(plural, change):
            self.kill_at = ""
            self.kill_the_leader()

    # The operator.

    async def lead(self) -> None:
        """Keep a replica running until cancelled."""
        number = 0
        while True:
            number += 1
            line = Line(self.server, f"operator-{number}", Random(self.rng.random()), self.faults)
            self.leader = Leader(line, Random(self.rng.random()), self.config)
            self._replica = asyncio.create_task(self.leader.run())
            await asyncio.wait({self._replica})
            self._note_end(line.name, self._replica)
            line.is_dead = True
            self._former.append(self.leader)
            await asyncio.sleep(self.rng.uniform(0.1, 3.0))

    def _note_end(self, name: str, replica: asyncio.Task[None]) -> None:
        error = None if replica.cancelled() else replica.exception()
        self.note(f"{name} ended: {error or 'killed'}")
        was_restored = self.now - self._restored_at < RESTORE_SEEN_S
        if error is not None and not (isinstance(error, DataRestored) and was_restored):
            text = f"{type(error).__name__}: {error}"
            self.judge.findings.append(Finding("operator ended", text, self.now))

    def _is_moment_to_kill(self, plural: str, change: Change) -> bool:
        """Return True if the change is the one at which a step wants the leader killed."""
        if WRITER.get() == "world" or not self.kill_at:
            return False
        return self.kill_at in _moments_of(plural, change)

    def kill_the_leader(self) -> None:
        """Kill the leader at once; what it has sent still lands."""
        if self.leader is not None and self._replica is not None:
            self.leader.line.is_dead = True
            self._replica.cancel()

    # Users.

    def create_pod(
        self,
        name: str,
        asks: Iterable[tuple[str, str, dict[str, Any]]],
        *,
        claim: str = "",
        traits: Traits = PLAIN,
    ) -> None:
        """Create a pod as admission would in the run's mode.

        Args:
            name: Its name; nothing happens if there is one.
            asks: Of each container `init`, `sidecar` or `app`, its name and its limits.
            claim: The claim that it names.
            traits: Who it is to others.
        """
        if self.server.find(PODS, name) is not None:
            return
        app, init = list[Container](), list[Container]()
        for kind, container, limits in asks:
            policy = "Always" if kind == "sidecar" else None
            requests = limits
            # admission moves the amounts that no node counts
            if self.config.scheduling.mode == "Gate":
                requests = {key: n for key, n in limits.items() if key == "nvidia.com/gpu"}
            made = a_container(container, limits=limits, requests=requests, restart_policy=policy)
            (app if kind == "app" else init).append(made)
        annotations = {ANNOTATION_CLAIM: claim, ANNOTATION_SLOTS_ADDED: "main"} if claim else {}
        pod = a_pod(
            name,
            uid=self.server.next_uid(name),
            containers=app,
            init_containers=init,
            annotations=annotations,
            labels={"app": traits.app} if traits.app else {},
            owners=[_DAEMON_SET] if traits.is_daemon else [],
            priority=traits.priority,
            group=traits.group,
        ).to_wire()
        if traits.never:
            pod["spec"]["preemptionPolicy"] = "Never"
        asks_for_gpus = claim or any(limits for _, _, limits in asks)
        if self.config.scheduling.mode == "Gate" and asks_for_gpus:
            pod["spec"]["schedulerName"] = "default-scheduler"
            pod["spec"]["schedulingGates"] = [{"name": SCHEDULING_GATE}]
        if self.config.scheduling.mode == "Claims" and asks_for_gpus:
            _name_resource_claim(pod)
        pod["metadata"]["creationTimestamp"] = self.server.stamp()
        self.server.put(PODS, pod)

    def pods_of(self, group: str) -> list[str]:
        """Return the names of the pods of a group."""
        pods = self.server.all(PODS)
        return [pod["metadata"]["name"] for pod in pods if group_of(pod) == group]

    def replace_group(self, name: str, least: int | None) -> None:
        """Create a PodGroup again; without a minimum its pods may start one by one."""
        if self.server.find(POD_GROUPS[0], name) is not None:
            self.server.vanish(POD_GROUPS[0], name)
        group = a_pod_group(name, least=least).to_wire()
        self.server.put(POD_GROUPS[0], group)

    def delete_group(self, name: str) -> None:
        """Delete a PodGroup and its pods."""
        for pod in self.pods_of(name):
            self.delete_pod(pod)
        if self.server.find(POD_GROUPS[0], name) is not None:
            self.server.vanish(POD_GROUPS[0], name)

    def set_budget(self, app: str, least: int | None) -> None:
        """Protect all but this many Running pods of an app from evictions; None: no budget."""
        there = self.server.find(POD_DISRUPTION_BUDGETS, app)
        if least is None and there is not None:
            self.server.vanish(POD_DISRUPTION_BUDGETS, app)
        elif least is not None:
            spec = {"minAvailable": least, "selector": {"matchLabels": {"app": app}}}
            status = {"disruptionsAllowed": 0}  # until the controller has counted
            metadata = {"name": app, "namespace": "default"}
            self.server.put(
                POD_DISRUPTION_BUDGETS, {"metadata": metadata, "spec": spec, "status": status}
            )

    def create_claim(self, name: str, mib: int, cores: int, *, mode: str) -> None:
        """Create a user's claim."""
        if self.server.find(VGPU_CLAIMS, name) is None:
            requests = [a_request(memory=f"{mib}Mi", cores=cores)]
            uid = self.server.next_uid(name)
            claim = a_claim(name, uid=uid, requests=requests, binding_mode=mode).to_wire()
            claim.pop("status", None)
            self.server.put(VGPU_CLAIMS, claim)

    def edit_claim(self, name: str, mib: int, cores: int) -> None:
        """Change the amounts of the claim's first request."""
        raw = self.server.find(VGPU_CLAIMS, name)
        if raw is not None and not raw["metadata"].get("deletionTimestamp"):
            request = raw["spec"]["requests"][0]
            request.update(memory=f"{mib}Mi", cores=cores)
            raw["metadata"]["generation"] = raw["metadata"].get("generation", 1) + 1
            self.server.put(VGPU_CLAIMS, raw)

    def delete_pod(self, name: str, *, by_force: bool = False, lives_s: float = 2.0) -> None:
        """Delete a pod; its processes live for a while, even if the object is gone at once."""
        pod = self.server.find(PODS, name)
        if pod is None:
            return
        process = self.machines.process(pod["metadata"]["uid"])
        if process is not None:
            process.killed_at = min(process.killed_at, self.now + lives_s)
        if by_force:
            self.server.vanish(PODS, name)
        else:
            self.server.end_pod(pod)

    def set_quota(self, mib: int | None) -> None:
        """Limit the namespace's memory; None: no limit."""
        there = (RESOURCE_QUOTAS.plural, "default", "gpus") in self.server.objects
        if mib is not None:
            metadata = {"name": "gpus", "namespace": "default"}
            obj = {"metadata": metadata, "spec": {"hard": {QUOTA: str(mib)}}}
            self.server.put(RESOURCE_QUOTAS, obj)
        elif there:
            self.server.vanish(RESOURCE_QUOTAS, "gpus")

    def bind_past_us(self, name: str, node: str) -> None:
        """Bind the pod as another scheduler."""
        pod = self.server.find(PODS, name)
        if pod is not None and not pod["spec"].get("nodeName"):
            pod["spec"]["nodeName"] = node
            self.server.put(PODS, pod)

    def restore(self) -> None:
        """Restore etcd from its backup. All machines reboot, and all clients list again."""
        self._restored_at = self.now
        self.machines.stop()
        self.server.restore()
        self.machines.restart_agents()
        if self.leader is not None:
            for plural in KINDS:
                self.leader.line.stream(plural).late_until = self.now
                self.leader.line.lose(plural, Gone("restored", status=410))
        self.scheduler.restart()
        self.machines.boot()


def _moments_of(plural: str, change: Change) -> list[KillAt]:
    """Return the moments to kill the leader that a write of it is."""
    obj = change.obj
    is_allocated = bool((obj.get("status") or {}).get("allocation"))
    if plural == VGPU_CLAIMS.plural:
        return ["decision"] if is_allocated else []
    if plural == RESOURCE_CLAIMS.plural:
        return ["allocation"] if is_allocated else ["creation"]
    if plural != PODS.plural:
        return []
    if obj["metadata"].get("deletionTimestamp"):
        return ["eviction"]
    is_bound = bool(obj["spec"].get("nodeName"))
    return ["binding"] if is_bound and obj["spec"].get("schedulingGroup") else []


def _name_resource_claim(pod: dict[str, Any]) -> None:
    """Move what the pod asks for into the annotation, and name a ResourceClaim, as admission does.

    A pod that names a VGPUClaim gets its devices in its container `main`.
    """
    pod["spec"]["schedulerName"] = "default-scheduler"
    name = f"vgpu-{int(pod['metadata']['uid'][:8], 16):012x}"
    pod["spec"]["resourceClaims"] = [{"name": "vgpu", "resourceClaimName": name}]
    moved = {}
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        limits = container["resources"].pop("limits", {})
        container["resources"].pop("requests", None)
        if limits:
            moved[container["name"]] = limits
        if limits or ANNOTATION_CLAIM in pod["metadata"]["annotations"]:
            used = {"name": "vgpu", "request": container["name"]}
            container["resources"]["claims"] = [used]
    if moved:
        pod["metadata"]["annotations"][ANNOTATION_RESOURCES] = json.dumps(moved)
    pod["metadata"]["annotations"].pop(ANNOTATION_SLOTS_ADDED, None)


def _described(plural: str, change: Change) -> str:
    """Return a change as a line of the trace."""
    obj, status = change.obj, change.obj.get("status") or {}
    words = [f"  {change.version} {WRITER.get()} {change.type} {plural} {obj['metadata']['name']}"]
    allocation = status.get("allocation")
    if allocation and plural == VGPU_CLAIMS.plural:
        parts = (f"{each['uuid']} {each['memory']}" for each in allocation["devices"])
        words.append(f"{allocation['nodeName']} {allocation['id'][-4:]}: {', '.join(parts)}")
    if allocation and plural == RESOURCE_CLAIMS.plural:
        results = allocation["devices"]["results"]
        words += [f"{each['device']} {each['shareID'][-4:]}" for each in results]
    for key in ("reservedFor", "released", "initReleased", "initWanted", "phase"):
        if status.get(key):
            words.append(f"{key}={status[key]}")
    for key in ("nodeName", "requests"):
        if (obj.get("spec") or {}).get(key):
            words.append(f"{key}={obj['spec'][key]}")
    words += [
        f"{key}={obj['metadata'][key]}"
        for key in ("uid", "deletionTimestamp")
        if obj["metadata"].get(key)
    ]
    return " ".join(words)
