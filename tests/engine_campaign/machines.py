"""Machines with their kubelets and agents, and the controllers that clean up after them.

They act by the objects of the API server and tell the judge what runs. They are written from
Kubernetes' rules and from `docs/architecture.md`, not from our agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from builders import a_device, a_node, an_agent_pod
from oracle import after_shrinking, moments, of_init, ordinary_init
from vgpu_api.core import Pod
from vgpu_api.names import AGENT_NAMESPACE, ANNOTATION_REQUEUE, device_object_name
from vgpu_api.resources import (
    GPU_DEVICES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    VGPU_CLAIMS,
)
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim

from . import resource_claims
from .judge import Judge, Runs
from .server import Server, copied

DEVICES = {
    "GPU-0": ("node-1", 10240),
    "GPU-1": ("node-1", 8192),
    "GPU-2": ("node-2", 10240),
    "GPU-3": ("node-3", 8192),
}
"""The node and the MiB of each device."""
TICK_S = 0.5
PROBED_S = 20.0
"""After this long the kubelet finds that an agent hangs, or Kubernetes that a machine is off."""
POD_GC_S = 40.0
STAYS = "fill-"
"""The beginning of the names of pods whose containers never exit by themselves."""
ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "20"}
"""The allocatable resources of a node, which Gate mode checks; never what is short."""


@dataclass(slots=True)
class Process:
    """A pod whose containers run on a machine."""

    pod: Pod
    claim: str
    runs: Runs
    round: tuple[str, int]
    copy: VGPUClaim  # its agent's
    mark: str  # of the pod, as its agent saw it last
    stage: int = 0
    stage_ends: float = 0.0
    exits_at: float = float("inf")  # when it ends on its own
    killed_at: float = float("inf")
    generation: int = 1  # of the claim that the pages follow
    resizes_at: float = 0.0
    said: bool = True  # the end of the init containers was reported, or there are none
    wants_round: tuple[str, int] | None = None  # the init containers must run again after it

    @property
    def uid(self) -> str:
        """Return the pod's UID."""
        return self.pod.metadata.uid

    @property
    def is_past_init(self) -> bool:
        """True if all init containers have ended."""
        return self.stage == len(list(moments(self.pod))) - 1


@dataclass(slots=True)
class Machine:
    """A node's machine, with its kubelet and its agent."""

    name: str
    is_up: bool = True
    agent_silent_until: float = 0.0
    heard_at: float = 0.0
    mark: str = ""  # the devices, as the agent saw them last
    pods_late_until: float = 0.0  # the agent's watch of pods
    written: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # the agent's copies
    gone_since: float | None = None  # the Node object is missing
    processes: dict[str, Process] = field(default_factory=dict)
    seen_ended: dict[tuple[str, str], float] = field(default_factory=dict)
    ended_rounds: set[tuple[str, int]] = field(default_factory=set)  # reports about init containers
    hidden: set[str] = field(default_factory=set)  # devices that are not published
    ill: set[str] = field(default_factory=set)


class Machines:
    """All machines of the cluster.

    Args:
        server: Where their Nodes, devices, pods and claims are.
        judge: Is told what runs.
        rng: Draws how long things take.
    """

    def __init__(self, server: Server, judge: Judge, rng: Random) -> None:
        self._server = server
        self._judge = judge
        self._rng = rng
        self.of = {node: Machine(node) for node, _ in DEVICES.values()}
        self.pods_exit = True
        self.are_prompt = False  # no pod outlives its grace period
        for name in self.of:
            self.register(name)

    @property
    def _now(self) -> float:
        return self._server.clock()

    def register(self, name: str) -> None:
        """Register the Node with a new UID; its agent publishes its devices."""
        machine = self.of[name]
        machine.is_up, machine.gone_since = True, None
        node = a_node(name, allocatable=ROOM).to_wire()
        node["metadata"]["uid"] = self._server.next_uid(name)
        self._server.put(NODES, node)
        self._publish(machine, reads=True)

    def unregister(self, name: str) -> None:
        """Delete the Node object."""
        if (NODES.plural, "", name) in self._server.objects:
            self._server.vanish(NODES, name, namespace="")
            self.of[name].gone_since = self._now

    def die(self, name: str) -> None:
        """Switch the machine off: nothing runs on it any more."""
        self.of[name].is_up = False
        for uid in list(self.of[name].processes):
            self._end(self.of[name], uid)

    def stop(self) -> None:
        """Switch all machines off."""
        for name in self.of:
            self.die(name)

    def boot(self) -> None:
        """Switch on all machines, with the Nodes that the API server has."""
        nodes = {node["metadata"]["name"] for node in self._server.all(NODES)}
        for name, machine in self.of.items():
            machine.is_up = True
            machine.gone_since = None if name in nodes else self._now

    def hide(self, uuid: str) -> None:
        """Delete the device's object."""
        self.of[DEVICES[uuid][0]].hidden.add(uuid)
        self.of[DEVICES[uuid][0]].written.pop(uuid, None)
        if self._server.find(GPU_DEVICES, device_object_name(uuid)) is not None:
            self._server.vanish(GPU_DEVICES, device_object_name(uuid), namespace="")

    def restart_agents(self) -> None:
        """Restart the agents, as the manual asks after a restore; they then read their devices."""
        for machine in self.of.values():
            machine.written.clear()

    def _publish(self, machine: Machine, *, reads: bool = False) -> None:
        """Write the devices that differ from the agent's copies, or from its current readings."""
        for index, (uuid, (node, mib)) in enumerate(DEVICES.items()):
            if node != machine.name or uuid in machine.hidden:
                continue
            raw = a_device(uuid=uuid, node=node, index=index, memory_mib=mib, slots=10).to_wire()
            raw["status"]["conditions"] = [
                {"type": "Ready", "status": "True"},
                {"type": "Healthy", "status": "False" if uuid in machine.ill else "True"},
            ]
            raw["status"]["allocatable"]["slots"] = 10
            if machine.written.get(uuid) == _without_times(raw) and not reads:
                continue
            machine.written[uuid] = _without_times(raw)
            there = self._server.find(GPU_DEVICES, raw["metadata"]["name"])
            if there is not None:
                raw["metadata"] = there["metadata"]
                raw["status"] = {**there["status"], **raw["status"]}
                if _without_times(there) == _without_times(raw):
                    continue
            self._server.put(GPU_DEVICES, raw)

    async def work(self) -> None:
        """Simulate kubelets, agents and the cluster's controllers until cancelled."""
        while True:
            self._judge.tick(self._now)
            for machine in self.of.values():
                self._control_pods_of(machine)
                self._probe(machine)
                if machine.is_up:
                    self._kubelet(machine)
                    if self._now >= machine.agent_silent_until:
                        self._agent(machine)
            self._collect_garbage()
            resource_claims.control(self._server)
            self._control_budgets()
            await asyncio.sleep(TICK_S)

    def _control_pods_of(self, machine: Machine) -> None:
        """Delete pods by force if their Node has been gone for long."""
        if machine.gone_since is not None and self._now - machine.gone_since > POD_GC_S:
            for pod in self._pods_on(machine):
                self._server.vanish(PODS, pod["metadata"]["name"])

    def _probe(self, machine: Machine) -> None:
        """Write what kubelet and node controller find out about the agent, if that has changed."""
        name = f"agent-{machine.name}"
        there = self._server.objects.get((PODS.plural, AGENT_NAMESPACE, name))
        if machine.gone_since is not None:
            if there is not None and self._now - machine.gone_since > POD_GC_S:
                self._server.vanish(PODS, name, namespace=AGENT_NAMESPACE)
            return
        hears = machine.is_up and self._now >= machine.agent_silent_until
        if hears:
            machine.heard_at = self._now
        ready = "True" if self._now - machine.heard_at < PROBED_S else "False"
        if there is None:
            self._server.put(PODS, an_agent_pod(machine.name, name=name).to_wire())
        elif there["status"]["conditions"][0]["status"] != ready:
            changed = copied(there)
            changed["status"]["conditions"][0]["status"] = ready
            self._server.put(PODS, changed)
        if hears and there is not None and self._now >= machine.pods_late_until:
            mark = _mark(there)
            self._publish(machine, reads=mark != machine.mark)
            machine.mark = mark

    def _kubelet(self, machine: Machine) -> None:
        for pod in self._pods_on(machine):
            process = machine.processes.get(pod["metadata"]["uid"])
            if pod["metadata"].get("deletionTimestamp") and process is None:
                self._server.vanish(PODS, pod["metadata"]["name"])
        for process in list(machine.processes.values()):
            there = self._server.pod(process.uid)
            if process.exits_at <= self._now:
                process.killed_at = min(process.killed_at, self._now)
                if there is not None:
                    self._set_phase(there, "Succeeded")
            elif process.killed_at == float("inf") and (
                there is None or there["metadata"].get("deletionTimestamp")
            ):
                process.killed_at = self._now + self._grace_s()
            if process.killed_at <= self._now:
                self._end(machine, process.uid)
            elif process.stage_ends <= self._now and not process.is_past_init:
                self._next_stage(process)

    def _grace_s(self) -> float:
        """Return the seconds that a pod's containers take to end, sometimes too many."""
        longest = 12.0 if self.are_prompt else 80.0
        return self._rng.uniform(0.0, self._rng.choice((2.0, 2.0, 2.0, 2.0, 2.0, 12.0, longest)))

    def _agent(self, machine: Machine) -> None:
        for claim in self._server.claims():
            allocation, reserved = claim.status.allocation, claim.status.reserved_for
            if allocation is None or reserved is None or allocation.node_name != machine.name:
                continue
            process = machine.processes.get(reserved.pod_uid)
            pod = self._server.pod(reserved.pod_uid)
            if process is not None:
                if (claim.metadata.uid, allocation.id) == (
                    process.runs.claim_uid,
                    process.round[0],
                ):
                    self._read_if_told(machine, process, claim, pod)
                    self._follow(machine, process)
            elif pod is None or pod["status"].get("phase") in ("Succeeded", "Failed"):
                self._release(machine, claim, allocation)
            elif pod["spec"].get("nodeName") == machine.name and not pod["metadata"].get(
                "deletionTimestamp"
            ):
                if resource_claims.is_prepared(self._server, pod, allocation):
                    self._start(machine, claim, allocation, pod)
            elif pod["spec"].get("nodeName") == machine.name:
                self._release(machine, claim, allocation)

    def _start(
        self, machine: Machine, claim: VGPUClaim, allocation: Allocation, pod: dict[str, Any]
    ) -> None:
        read = Pod.model_validate(pod)
        uid = read.metadata.uid
        runs = Runs(claim.metadata.uid, allocation.id, ())
        this = allocation.id, allocation.init_round
        process = Process(read, claim.metadata.name, runs, this, claim, _mark(pod))
        init = of_init(allocation, claim, read)
        asking = ordinary_init(read) & {request.name for request in claim.spec.requests}
        if asking and (not init or process.round in machine.ended_rounds):
            self._want_init(claim, allocation)  # the machine was booted, so they run again
            return
        process.said = not init
        if self.pods_exit and not read.metadata.name.startswith(STAYS):
            process.exits_at = self._now + self._rng.choice([4.0, 10.0, 30.0, float("inf")])
        process.generation = claim.metadata.generation or 1
        machine.processes[uid] = process
        self._run_stage(process, claim)
        self._set_phase(pod, "Running")
        if not claim.is_pods_own:
            self._report(claim, "Prepared", generation=None, released=None)

    def _next_stage(self, process: Process) -> None:
        process.stage += 1
        process.stage_ends = self._now + self._rng.uniform(0.5, 4.0)
        claim = self._claim_of(process)
        if claim is not None:
            process.copy = claim  # a container starts
            self._run_stage(process, claim)

    def _read_if_told(
        self, machine: Machine, process: Process, claim: VGPUClaim, pod: dict[str, Any] | None
    ) -> None:
        """Read the claim if the pod shows another mark, is gone, or waits for init containers."""
        if pod is None or process.wants_round is not None:
            process.copy = claim
        elif self._now >= machine.pods_late_until and _mark(pod) != process.mark:
            process.copy, process.mark = claim, _mark(pod)

    def _run_stage(self, process: Process, claim: VGPUClaim) -> None:
        """Run the containers of the stage, with limit pages that grant what the claim allows."""
        pages = _pages(claim, list(moments(process.pod))[process.stage])
        process.runs = Runs(claim.metadata.uid, process.runs.allocation_id, pages)
        process.stage_ends = max(process.stage_ends, self._now + self._rng.uniform(0.5, 4.0))
        self._judge.started(process.uid, process.runs)

    def _follow(self, machine: Machine, process: Process) -> None:
        """Update the pages from the agent's copy of the claim, and report what has ended."""
        claim, allocation = process.copy, process.copy.status.allocation
        assert allocation is not None
        generation = claim.metadata.generation or 1
        if generation != process.generation:
            process.generation, process.resizes_at = generation, self._now + self._rng.uniform(0, 3)
        if generation > 1 and self._now >= process.resizes_at and process.wants_round is None:
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
        """Run the pod's init containers again, at once if they still have their devices."""
        claim = self._claim_of(process)
        allocation = None if claim is None else claim.status.allocation
        if claim is None or allocation is None or not process.is_past_init:
            return
        if not ordinary_init(process.pod) & {request.name for request in claim.spec.requests}:
            return
        if of_init(allocation, claim, process.pod) and not process.said:
            process.stage, process.copy = 0, claim
            self._run_stage(process, claim)
        else:
            process.wants_round = allocation.id, allocation.init_round

    def _want_init(self, claim: VGPUClaim, allocation: Allocation) -> None:
        named = {"allocationID": allocation.id, "round": allocation.init_round}
        self._report(claim, "", generation=None, initWanted=named, initReleased=None)

    def _release(self, machine: Machine, claim: VGPUClaim, allocation: Allocation) -> None:
        key = claim.metadata.uid, allocation.id
        seen = machine.seen_ended.setdefault(key, self._now)
        if self._now - seen >= 1.0:
            self._report(claim, "", generation=None, released={"allocationID": allocation.id})

    def _report(
        self, claim: VGPUClaim, condition: str, *, generation: int | None, **fields: Any
    ) -> None:
        """Write the agent's fields, and a condition that is True."""
        raw = self._server.find(VGPU_CLAIMS, claim.metadata.name)
        if raw is None or raw["metadata"]["uid"] != claim.metadata.uid:
            return
        before = copied(raw["status"])
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
            self._server.put(VGPU_CLAIMS, raw)

    def _end(self, machine: Machine, uid: str) -> None:
        del machine.processes[uid]
        self._judge.ended(uid)

    def _collect_garbage(self) -> None:
        there = {pod["metadata"]["uid"] for pod in self._server.all(PODS)}
        for claim in self._server.claims():
            owners = claim.metadata.owner_references
            if owners and all(owner.uid not in there for owner in owners):
                self._server.remove(VGPU_CLAIMS, claim.metadata.name)

    def _control_budgets(self) -> None:
        """Count how many more pods of each budget may be evicted (the disruption controller)."""
        for budget in self._server.all(POD_DISRUPTION_BUDGETS):
            name = budget["metadata"]["name"]
            pods = {
                pod["metadata"]["name"]
                for pod in self._server.all(PODS)
                if pod["metadata"]["labels"].get("app") == name
                and pod["status"].get("phase") == "Running"
                and not pod["metadata"].get("deletionTimestamp")
            }
            going = {
                p: at for p, at in budget["status"].get("disruptedPods", {}).items() if p in pods
            }
            allowed = max(len(pods) - len(going) - budget["spec"]["minAvailable"], 0)
            status = {"disruptionsAllowed": allowed, "disruptedPods": going}
            if status != budget["status"]:
                self._server.put(POD_DISRUPTION_BUDGETS, {**budget, "status": status})

    def processes(self) -> Iterator[Process]:
        """Return the running containers."""
        for machine in self.of.values():
            yield from machine.processes.values()

    def process(self, uid: str) -> Process | None:
        return next((each for each in self.processes() if each.uid == uid), None)

    def _pods_on(self, machine: Machine) -> list[dict[str, Any]]:
        return [
            pod for pod in self._server.all(PODS) if pod["spec"].get("nodeName") == machine.name
        ]

    def _claim_of(self, process: Process) -> VGPUClaim | None:
        """Return the claim, as long as it has the allocation that the process was started with."""
        for claim in self._server.claims():
            allocation = claim.status.allocation
            if claim.metadata.uid == process.runs.claim_uid and allocation is not None:
                return claim if allocation.id == process.round[0] else None
        return None

    def _set_phase(self, pod: dict[str, Any], phase: str) -> None:
        if pod["status"].get("phase") != phase:
            status = {**pod["status"], "phase": phase}
            if not status.get("startTime"):
                status["startTime"] = self._server.stamp()
            self._server.put(PODS, {**pod, "status": status})


def _pages(claim: VGPUClaim, running: frozenset[str]) -> tuple[AllocatedDevice, ...]:
    devices = after_shrinking(claim)
    return tuple(each for each in devices if not each.request or each.request in running)


def _mark(pod: dict[str, Any]) -> str:
    """Return the operator's mark on a pod."""
    found: str = pod["metadata"].get("annotations", {}).get(ANNOTATION_REQUEUE, "")
    return found


def _without_times(device: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((each["type"], each["status"]) for each in device["status"]["conditions"])
