"""What surrounds the operator: users, machines with kubelets and agents, kube-scheduler, garbage.

Machines and agents act by what the API server holds and tell the judge what runs. Whoever acts here
is written from Kubernetes' rules and from `docs/architecture.md`, not from our programs.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from builders import a_claim, a_container, a_device, a_node, a_pod, a_request
from oracle import after_shrinking, moments, of_init, ordinary_init
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_api.names import (
    AGENT_NAMESPACE,
    ANNOTATION_CLAIM,
    ANNOTATION_REQUEUE,
    ANNOTATION_SLOTS_ADDED,
    device_object_name,
)
from vgpu_api.resources import (
    GPU_DEVICES,
    LEASES,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    VGPU_CLAIMS,
)
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim
from vgpu_client.errors import ClientError, DataRestored, Gone
from vgpu_operator.errors import LeadershipLost, NotLeading
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import BindRequest, FilterRequest

from .judge import QUOTA, Finding, Judge, Runs
from .leader import Leader
from .server import WRITER, Change, Faults, Line, Server

DEVICES = {
    "GPU-0": ("node-1", 10240),
    "GPU-1": ("node-1", 8192),
    "GPU-2": ("node-2", 10240),
    "GPU-3": ("node-3", 8192),
}
TICK_S = 0.5
RENEW_S = 10.0
POD_GC_S = 40.0
FLUSH_S = 60.0
KINDS = tuple(
    each.plural for each in (NODES, GPU_DEVICES, LEASES, RESOURCE_QUOTAS, VGPU_CLAIMS, PODS)
)


@dataclass(slots=True)
class Process:
    """A pod whose containers run on a machine."""

    pod: Pod
    claim: str
    runs: Runs
    round: tuple[str, int]
    stage: int = 0
    stage_ends: float = 0.0
    exits_at: float = float("inf")  # by itself
    killed_at: float = float("inf")
    generation: int = 1  # of the claim that the pages follow
    resizes_at: float = 0.0
    said: bool = True  # the end of the init containers has been reported, or there is none
    wants_round: tuple[str, int] | None = None  # init containers must run again after it

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.pod.metadata.uid

    @property
    def is_past_init(self) -> bool:
        """Whether all init containers have ended."""
        return self.stage == len(list(moments(self.pod))) - 1


@dataclass(slots=True)
class Machine:
    """A node's machine, with its kubelet and its agent."""

    name: str
    is_up: bool = True
    agent_silent_until: float = 0.0
    renewed_at: float = -100.0
    gone_since: float | None = None  # the Node object is not there
    processes: dict[str, Process] = field(default_factory=dict)
    seen_ended: dict[tuple[str, str], float] = field(default_factory=dict)
    ended_rounds: set[tuple[str, int]] = field(default_factory=set)  # of init containers, reported
    hidden: set[str] = field(default_factory=set)  # devices that are not published
    ill: set[str] = field(default_factory=set)


class World:
    """Everything around the operator, and the operator's current replica."""

    def __init__(self, seed: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.rng = Random(f"world {seed}")
        self.judge = Judge()
        self.server = Server(self.judge, self.loop.time)
        self.server.on_change = self._changed
        self.faults = Faults()
        self.config = ClusterConfig()
        self.machines = {node: Machine(node) for node, _ in DEVICES.values()}
        self.leader: Leader | None = None
        self._former: list[Leader] = []  # the killed ones, whose tasks hang
        self.restored_at = -1000.0
        self.pods_exit = True
        self.is_at_rest = False  # from then on kube-scheduler asks about all nodes
        self.born = 0
        self.trace: list[str] = []
        self._replica: asyncio.Task[None] | None = None
        self._versions: defaultdict[str, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
        self._active: asyncio.Queue[str] = asyncio.Queue()
        self._aside: dict[str, str] = {}  # by the pod's UID: the stamp that it was refused with
        self._binds: set[asyncio.Task[None]] = set()
        self._read: dict[tuple[str, str], VGPUClaim] = {}
        self._numbers: defaultdict[str, int] = defaultdict(int)
        for name in self.machines:
            self.register(name)

    # Time and the operator.

    @property
    def now(self) -> float:
        """Seconds."""
        return self.loop.time()

    def note(self, text: str) -> None:
        """Keep a line of the trace."""
        self.trace.append(f"{self.now:8.2f} {text}")

    async def lead(self) -> None:
        """Keep a replica of the operator running."""
        number = 0
        while True:
            number += 1
            line = Line(self.server, f"operator-{number}", Random(self.rng.random()), self.faults)
            self.leader = Leader(line, Random(self.rng.random()), self.config)
            self._replica = asyncio.create_task(self.leader.run())
            try:
                await asyncio.wait({self._replica})
                self._replica.result()
            except (asyncio.CancelledError, LeadershipLost) as error:
                self.note(f"{line.name} ended: {type(error).__name__}")
                if self._replica.done() is False:
                    self._replica.cancel()
                    raise
            except DataRestored as error:
                self.note(f"{line.name} ended: {error}")
                if self.now - self.restored_at > 300.0:
                    self._ended_by(error)
            except Exception as error:
                self._ended_by(error)
            line.is_dead = True
            self._former.append(self.leader)
            await asyncio.sleep(self.rng.uniform(0.1, 3.0))

    def _ended_by(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        self.judge.findings.append(Finding("operator ended", text, self.now))

    def kill_the_leader(self) -> None:
        """It is gone at once; what it has sent still lands."""
        if self.leader is not None and self._replica is not None:
            self.leader.line.is_dead = True
            self._replica.cancel()

    # Objects.

    def claims(self) -> list[VGPUClaim]:
        """As the API server has them, each version read once."""
        found = []
        for raw in self.server.all(VGPU_CLAIMS):
            key = raw["metadata"]["uid"], raw["metadata"]["resourceVersion"]
            if key not in self._read:
                self._read[key] = VGPUClaim.read(raw)
            found.append(self._read[key])
        return found

    def pods(self) -> list[dict[str, Any]]:
        """As the API server has them."""
        return self.server.all(PODS)

    def next_uid(self, name: str) -> str:
        """A UID that no object had."""
        self.born += 1
        return f"{self.born:08x}-{name}"

    def _stamp(self) -> str:
        return f"2026-01-01T{self.born // 3600:02}:{self.born // 60 % 60:02}:{self.born % 60:02}Z"

    # Users.

    def create_pod(
        self,
        name: str,
        asks: Iterable[tuple[str, str, dict[str, Any]]],
        *,
        claim: str = "",
    ) -> None:
        """Create a pod.

        Args:
            name: Its name; nothing happens if there is one.
            asks: Of each container `init`, `sidecar` or `app`, its name and its limits.
            claim: The claim that it names.
        """
        if self.server.find(PODS, name) is not None:
            return
        app, init = list[Container](), list[Container]()
        for kind, container, limits in asks:
            policy = "Always" if kind == "sidecar" else None
            made = a_container(container, limits=limits, restart_policy=policy)
            (app if kind == "app" else init).append(made)
        annotations = {ANNOTATION_CLAIM: claim, ANNOTATION_SLOTS_ADDED: "main"} if claim else {}
        pod = a_pod(
            name,
            uid=self.next_uid(name),
            containers=app,
            init_containers=init,
            annotations=annotations,
        ).to_wire()
        pod["metadata"]["creationTimestamp"] = self._stamp()
        self.server.put(PODS, pod)
        self._active.put_nowait(pod["metadata"]["uid"])

    def create_claim(self, name: str, mib: int, cores: int, *, mode: str) -> None:
        """Create a user's claim."""
        if self.server.find(VGPU_CLAIMS, name) is None:
            requests = [a_request(memory=f"{mib}Mi", cores=cores)]
            uid = self.next_uid(name)
            claim = a_claim(name, uid=uid, requests=requests, binding_mode=mode).to_wire()
            claim.pop("status", None)
            self.server.put(VGPU_CLAIMS, claim)

    def edit_claim(self, name: str, mib: int, cores: int) -> None:
        """Ask for other amounts in its first request."""
        raw = self.server.find(VGPU_CLAIMS, name)
        if raw is not None and not raw["metadata"].get("deletionTimestamp"):
            request = raw["spec"]["requests"][0]
            request.update(memory=f"{mib}Mi", cores=cores)
            raw["metadata"]["generation"] = raw["metadata"].get("generation", 1) + 1
            self.server.put(VGPU_CLAIMS, raw)

    def delete_claim(self, name: str) -> None:
        """Delete a claim; finalizers keep it."""
        raw = self.server.find(VGPU_CLAIMS, name)
        if raw is not None and not raw["metadata"].get("finalizers"):
            self.server.vanish(VGPU_CLAIMS, name)
        elif raw is not None and not raw["metadata"].get("deletionTimestamp"):
            raw["metadata"]["deletionTimestamp"] = self._stamp()
            self.server.put(VGPU_CLAIMS, raw)

    def delete_pod(self, name: str, *, by_force: bool = False, lives_s: float = 2.0) -> None:
        """Delete a pod; its processes live for a while, also where it is gone at once."""
        pod = self.server.find(PODS, name)
        if pod is None:
            return
        process = self._process(pod["metadata"]["uid"])
        if process is not None:
            process.killed_at = min(process.killed_at, self.now + lives_s)
        if by_force or not pod["spec"].get("nodeName"):
            self.server.vanish(PODS, name)
        elif not pod["metadata"].get("deletionTimestamp"):
            pod["metadata"]["deletionTimestamp"] = self._stamp()
            self.server.put(PODS, pod)

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
        """Another scheduler binds the pod."""
        pod = self.server.find(PODS, name)
        if pod is not None and not pod["spec"].get("nodeName"):
            pod["spec"]["nodeName"] = node
            self.server.put(PODS, pod)

    # Machines.

    def register(self, name: str) -> None:
        """The Node is there, with a UID of its own, and its agent publishes its devices."""
        machine = self.machines[name]
        machine.is_up, machine.gone_since = True, None
        node = a_node(name).to_wire()
        node["metadata"]["uid"] = self.next_uid(name)
        self.server.put(NODES, node)
        self._publish(machine)

    def unregister(self, name: str) -> None:
        """The Node object is deleted."""
        if (NODES.plural, "", name) in self.server.objects:
            self.server.vanish(NODES, name, namespace="")
            self.machines[name].gone_since = self.now

    def die(self, name: str) -> None:
        """The machine is off: nothing runs there any more."""
        machine = self.machines[name]
        machine.is_up = False
        for uid in list(machine.processes):
            self._end(machine, uid)

    def hide(self, uuid: str) -> None:
        """The device's object is deleted."""
        self.machines[DEVICES[uuid][0]].hidden.add(uuid)
        if self.server.find(GPU_DEVICES, device_object_name(uuid)) is not None:
            self.server.vanish(GPU_DEVICES, device_object_name(uuid), namespace="")

    def _publish(self, machine: Machine) -> None:
        for index, (uuid, (node, mib)) in enumerate(DEVICES.items()):
            if node != machine.name or uuid in machine.hidden:
                continue
            raw = a_device(uuid=uuid, node=node, index=index, memory_mib=mib, slots=10).to_wire()
            raw["status"]["conditions"] = [
                {"type": "Ready", "status": "True"},
                {"type": "Healthy", "status": "False" if uuid in machine.ill else "True"},
            ]
            raw["status"]["allocatable"]["slots"] = 10
            there = self.server.find(GPU_DEVICES, raw["metadata"]["name"])
            if there is not None:
                raw["metadata"] = there["metadata"]
                raw["status"] = {**there["status"], **raw["status"]}
                if _without_times(there) == _without_times(raw):
                    continue
            self.server.put(GPU_DEVICES, raw)

    async def machines_work(self) -> None:
        """Kubelets, agents and the cluster's controllers, for ever."""
        while True:
            for machine in self.machines.values():
                self._control_pods_of(machine)
                if machine.is_up:
                    self._kubelet(machine)
                    if self.now >= machine.agent_silent_until:
                        self._agent(machine)
            self._collect_garbage()
            await asyncio.sleep(TICK_S)

    def _control_pods_of(self, machine: Machine) -> None:
        """Pods of a Node that is gone for long are deleted by force."""
        if machine.gone_since is not None and self.now - machine.gone_since > POD_GC_S:
            for pod in self._pods_on(machine):
                self.delete_pod(pod["metadata"]["name"], by_force=True)

    def _kubelet(self, machine: Machine) -> None:
        for pod in self._pods_on(machine):
            process = machine.processes.get(pod["metadata"]["uid"])
            if pod["metadata"].get("deletionTimestamp") and process is None:
                self.server.vanish(PODS, pod["metadata"]["name"])
        for process in list(machine.processes.values()):
            there = self._pod(process.uid)
            if process.exits_at <= self.now:
                process.killed_at = min(process.killed_at, self.now)
                if there is not None:
                    self._set_phase(there, "Succeeded")
            elif process.killed_at == float("inf") and (
                there is None or there["metadata"].get("deletionTimestamp")
            ):
                process.killed_at = self.now + self.rng.uniform(0.0, 2.0)
            if process.killed_at <= self.now:
                self._end(machine, process.uid)
            elif process.stage_ends <= self.now and not process.is_past_init:
                self._next_stage(process)

    def _agent(self, machine: Machine) -> None:
        if self.now - machine.renewed_at >= RENEW_S and machine.gone_since is None:
            machine.renewed_at = self.now
            metadata = {"name": machine.name, "namespace": AGENT_NAMESPACE}
            self.server.put(LEASES, {"metadata": metadata, "spec": {"renewTime": str(self.now)}})
            self._publish(machine)
        for claim in self.claims():
            allocation, reserved = claim.status.allocation, claim.status.reserved_for
            if allocation is None or reserved is None or allocation.node_name != machine.name:
                continue
            process = machine.processes.get(reserved.pod_uid)
            pod = self._pod(reserved.pod_uid)
            if process is not None:
                self._follow(machine, process, claim, allocation)
            elif pod is None or pod["status"].get("phase") in ("Succeeded", "Failed"):
                self._release(machine, claim, allocation)
            elif pod["spec"].get("nodeName") == machine.name and not pod["metadata"].get(
                "deletionTimestamp"
            ):
                self._start(machine, claim, allocation, pod)
            elif pod["spec"].get("nodeName") == machine.name:
                self._release(machine, claim, allocation)

    def _start(
        self, machine: Machine, claim: VGPUClaim, allocation: Allocation, pod: dict[str, Any]
    ) -> None:
        read = Pod.model_validate(pod)
        uid = read.metadata.uid
        runs = Runs(claim.metadata.uid, allocation.id, ())
        process = Process(read, claim.metadata.name, runs, (allocation.id, allocation.init_round))
        init = of_init(allocation, claim, read)
        asking = ordinary_init(read) & {request.name for request in claim.spec.requests}
        if asking and (not init or process.round in machine.ended_rounds):
            self._want_init(claim, allocation)  # the machine was booted: they run again
            return
        process.said = not init
        if self.pods_exit:
            process.exits_at = self.now + self.rng.choice([8.0, 30.0, 90.0, float("inf")])
        process.generation = claim.metadata.generation or 1
        machine.processes[uid] = process
        self._run_stage(process, claim)
        self._set_phase(pod, "Running")
        if not claim.is_pods_own:
            self._report(claim, "Prepared", generation=None, released=None)

    def _next_stage(self, process: Process) -> None:
        process.stage += 1
        process.stage_ends = self.now + self.rng.uniform(0.5, 4.0)
        claim = self._claim_of(process)
        if claim is not None:
            self._run_stage(process, claim)

    def _run_stage(self, process: Process, claim: VGPUClaim) -> None:
        """The containers of the stage run, with pages of what the claim allows now."""
        pages = _pages(claim, list(moments(process.pod))[process.stage])
        process.runs = Runs(claim.metadata.uid, process.runs.allocation_id, pages)
        process.stage_ends = max(process.stage_ends, self.now + self.rng.uniform(0.5, 4.0))
        self.judge.started(process.uid, process.runs)

    def _follow(
        self, machine: Machine, process: Process, claim: VGPUClaim, allocation: Allocation
    ) -> None:
        """Bring the pages to what the claim says, and report what has ended."""
        if (claim.metadata.uid, allocation.id) != (process.runs.claim_uid, process.round[0]):
            return
        generation = claim.metadata.generation or 1
        if generation != process.generation:
            process.generation, process.resizes_at = generation, self.now + self.rng.uniform(0, 3)
        if generation > 1 and self.now >= process.resizes_at and process.wants_round is None:
            running = list(moments(process.pod))[process.stage]
            if _pages(claim, running) != process.runs.devices:
                self._run_stage(process, claim)
            self._report(claim, "Resized", generation=generation)
        this = allocation.id, allocation.init_round
        if process.wants_round is not None:
            if this != process.wants_round and of_init(allocation, claim, process.pod):
                process.wants_round, process.round, process.stage = None, this, 0
                process.said = False
                self._run_stage(process, claim)
            elif this == process.wants_round:
                self._want_init(claim, allocation)
        elif process.is_past_init and not process.said and this == process.round:
            process.said = True
            machine.ended_rounds.add(this)
            named = {"allocationID": this[0], "round": this[1]}
            self._report(claim, "", generation=None, initReleased=named, initWanted=None)

    def make_sandbox_anew(self, process: Process) -> None:
        """The pod's init containers run again: at once while they have their devices."""
        claim = self._claim_of(process)
        allocation = None if claim is None else claim.status.allocation
        if claim is None or allocation is None or not process.is_past_init:
            return
        if not ordinary_init(process.pod) & {request.name for request in claim.spec.requests}:
            return
        if of_init(allocation, claim, process.pod) and not process.said:
            process.stage = 0
            self._run_stage(process, claim)
        else:
            process.wants_round = allocation.id, allocation.init_round

    def _want_init(self, claim: VGPUClaim, allocation: Allocation) -> None:
        named = {"allocationID": allocation.id, "round": allocation.init_round}
        self._report(claim, "", generation=None, initWanted=named, initReleased=None)

    def _release(self, machine: Machine, claim: VGPUClaim, allocation: Allocation) -> None:
        key = claim.metadata.uid, allocation.id
        seen = machine.seen_ended.setdefault(key, self.now)
        if self.now - seen >= 1.0:
            self._report(claim, "", generation=None, released={"allocationID": allocation.id})

    def _report(
        self, claim: VGPUClaim, condition: str, *, generation: int | None, **fields: Any
    ) -> None:
        """Write the agent's fields, and a condition that is True."""
        raw = self.server.find(VGPU_CLAIMS, claim.metadata.name)
        if raw is None or raw["metadata"]["uid"] != claim.metadata.uid:
            return
        before = copy.deepcopy(raw["status"])
        status = raw["status"]
        for name, value in fields.items():
            status.pop(name, None)
            if value is not None:
                status[name] = value
        if condition:
            others = [c for c in status.get("conditions", []) if c["type"] != condition]
            said = {"type": condition, "status": "True", "reason": "Agent", "message": ""}
            if generation is not None:
                said["observedGeneration"] = generation  # type: ignore[assignment]
            if said not in status.get("conditions", []):
                status["conditions"] = [*others, said]
        if status != before:
            self.server.put(VGPU_CLAIMS, raw)

    def _end(self, machine: Machine, uid: str) -> None:
        del machine.processes[uid]
        self.judge.ended(uid)

    def _collect_garbage(self) -> None:
        there = {pod["metadata"]["uid"] for pod in self.pods()}
        for claim in self.claims():
            owners = claim.metadata.owner_references
            if owners and all(owner.uid not in there for owner in owners):
                self.delete_claim(claim.metadata.name)

    # Parts.

    def processes(self) -> Iterator[Process]:
        """What runs."""
        for machine in self.machines.values():
            yield from machine.processes.values()

    def _process(self, uid: str) -> Process | None:
        return next((each for each in self.processes() if each.uid == uid), None)

    def _pod(self, uid: str) -> dict[str, Any] | None:
        return next((pod for pod in self.pods() if pod["metadata"]["uid"] == uid), None)

    def _pods_on(self, machine: Machine) -> list[dict[str, Any]]:
        return [pod for pod in self.pods() if pod["spec"].get("nodeName") == machine.name]

    def _claim_of(self, process: Process) -> VGPUClaim | None:
        """The claim, as long as it has the allocation that the process was started with."""
        for claim in self.claims():
            allocation = claim.status.allocation
            if claim.metadata.uid == process.runs.claim_uid and allocation is not None:
                return claim if allocation.id == process.round[0] else None
        return None

    def _set_phase(self, pod: dict[str, Any], phase: str) -> None:
        if pod["status"].get("phase") != phase:
            self.server.put(PODS, {**pod, "status": {**pod["status"], "phase": phase}})

    # kube-scheduler.

    def _changed(self, plural: str, change: Change) -> None:
        if plural != LEASES.plural:
            self.note(_described(plural, change))
        if plural != PODS.plural:
            return
        uid = change.obj["metadata"]["uid"]
        if change.type == "DELETED":
            self._aside.pop(uid, None)
            return
        self._versions[uid].append((self.now, change.obj))
        if uid in self._aside and _stamp_of(change.obj) != self._aside[uid]:
            self._again(uid, self.rng.uniform(0.1, 2.0))

    def _again(self, uid: str, seconds: float) -> None:
        self._aside.pop(uid, None)
        self.loop.call_later(seconds, self._active.put_nowait, uid)

    def _flush(self, uid: str, stamp: str) -> None:
        if self._aside.get(uid) == stamp:
            self._again(uid, 0.0)

    async def schedule(self) -> None:
        """One pod after the other, for ever; it may know an old version of a pod."""
        while True:
            uid = await self._active.get()
            await asyncio.sleep(self.rng.uniform(0.005, 0.05))
            pod = self._view(uid)
            if pod is None:
                continue
            nodes = [node["metadata"]["name"] for node in self.server.all(NODES)]
            if self.rng.random() < 0.1 and not self.is_at_rest:
                nodes = self.rng.sample(nodes, self.rng.randint(0, len(nodes)))
            request = FilterRequest.read({"Pod": copy.deepcopy(pod), "NodeNames": nodes})
            leader = self.leader
            try:
                if leader is None or leader.line.is_dead:
                    raise NotLeading("nobody")
                chosen = list(filter_nodes(leader.engine, request).node_names) if nodes else []
            except NotLeading:
                self._again(uid, self.rng.uniform(0.5, 2.0))
                continue
            if chosen:
                task = asyncio.create_task(self._bind(leader, pod, chosen[0]))
                self._binds.add(task)
                task.add_done_callback(self._binds.discard)
            else:
                self._set_aside(uid)

    def _set_aside(self, uid: str) -> None:
        pod = self._pod(uid)
        if pod is None or pod["spec"].get("nodeName"):
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        self.server.put(PODS, {**pod, "status": {**pod["status"], "conditions": [condition]}})
        self._aside[uid] = stamp = _stamp_of(self._versions[uid][-1][1])
        self.loop.call_later(FLUSH_S, self._flush, uid, stamp)

    def _view(self, uid: str) -> dict[str, Any] | None:
        """The pod as kube-scheduler has it; None: it has a node, or is gone."""
        known = self._versions[uid]
        lag = self.rng.choice([0.0, 0.0, 0.0, 0.3, 3.0])
        seen = [obj for at, obj in known if at <= self.now - lag][-1:] or [known[0][1]]
        if self._pod(uid) is None and lag == 0.0:
            return None
        pod = seen[0]
        is_done = pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp")
        return None if is_done else pod

    async def _bind(self, leader: Leader, pod: dict[str, Any], node: str) -> None:
        uid = pod["metadata"]["uid"]
        await asyncio.sleep(self.rng.choice([0.0, 0.02, 0.02, 1.0]))
        request = BindRequest("default", pod["metadata"]["name"], uid, node)
        try:
            failed = bool(await leader.binder.bind(request))
        except (NotLeading, ClientError):
            failed = True
        if failed and self._pod(uid) is not None:
            self._again(uid, self.rng.uniform(0.5, 4.0))

    # A restore of etcd.

    def restore(self) -> None:
        """An older state of everything; all machines are booted anew for it."""
        self.restored_at = self.now
        for machine in self.machines.values():
            for uid in list(machine.processes):
                self._end(machine, uid)
        self.server.restore()
        assert self.leader is not None
        for plural in KINDS:
            self.leader.line.stream(plural).late_until = self.now
            self.leader.line.lose(plural, Gone("restored", status=410))
        self._aside.clear()
        for pod in self.pods():
            self._versions[pod["metadata"]["uid"]] = [(self.now, pod)]
            if not pod["spec"].get("nodeName"):
                self._active.put_nowait(pod["metadata"]["uid"])
        nodes = {node["metadata"]["name"] for node in self.server.all(NODES)}
        for name, machine in self.machines.items():
            machine.is_up = True
            machine.gone_since = None if name in nodes else self.now


def _pages(claim: VGPUClaim, running: frozenset[str]) -> tuple[AllocatedDevice, ...]:
    devices = after_shrinking(claim)
    return tuple(each for each in devices if not each.request or each.request in running)


def _described(plural: str, change: Change) -> str:
    """A change as a line of the trace."""
    obj, status = change.obj, change.obj.get("status") or {}
    words = [f"  {change.version} {WRITER.get()} {change.type} {plural} {obj['metadata']['name']}"]
    if allocation := status.get("allocation"):
        parts = (f"{each['uuid']} {each['memory']}" for each in allocation["devices"])
        words.append(f"{allocation['nodeName']} {allocation['id'][-4:]}: {', '.join(parts)}")
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


def _stamp_of(pod: dict[str, Any]) -> str:
    stamp = pod["metadata"].get("annotations", {}).get(ANNOTATION_REQUEUE, "")
    return f"{stamp} {pod['status'].get('nominatedNodeName', '')}"


def _without_times(device: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((each["type"], each["status"]) for each in device["status"]["conditions"])
