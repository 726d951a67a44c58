"""Gate mode: pods come and go while answers are lost, events come late and operators change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from builders import GATE, a_container, a_device, a_node, a_pod
from comes_back import ROOM, ChangingWorld, ComesBack, kept_of_objects
from engine_world import World
from replica import Replica
from vgpu_api.core.pod import ResourceRequirements
from vgpu_api.names import SCHEDULING_GATE
from vgpu_api.resources import PODS
from vgpu_api.v1alpha1.base import OwnerReference
from world_states import DEVICES, NAMES, NODES, PICK, SETTINGS, WorldStates

MIB = st.sampled_from([2048, 5120, 8192])


class GateReplica(Replica):
    """An operator in Gate mode whose nodes have more room than devices."""

    def device(self, **fields: Any) -> None:
        device = a_device(**fields)
        self.news.node_changed(a_node(device.spec.node_name, allocatable=ROOM))
        self.news.device_changed(device)


class GateWorld(World):
    """A world without an extender."""

    def new_operator(self) -> Replica:
        return GateReplica(self.api, config=GATE)


class ChangingGateWorld(ChangingWorld, GateWorld):
    """A world whose nodes and devices change."""


class GateStates(WorldStates):
    """Invariants: no device is over capacity, and a pod past its gate keeps its devices."""

    def __init__(self, world: World | None = None) -> None:
        super().__init__(world or GateWorld(DEVICES))
        self.by_hand: set[str] = set()  # UIDs of pods whose gate a user removed

    def _pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self.api.all(PODS) if pod["metadata"]["name"].startswith("pod-")]

    def _lifted(self) -> list[dict[str, Any]]:
        """Return the pods that kube-scheduler may bind."""
        return [
            pod
            for pod in self._pods()
            if not pod["spec"].get("schedulingGates") and not pod["spec"].get("nodeName")
        ]

    # Actions of users.

    @rule(name=NAMES, mib=MIB, cpu=st.sampled_from(["100m", "1", "2"]), owned=st.booleans())
    def create_a_pod(self, name: str, mib: int, cpu: str, *, owned: bool) -> None:
        name = f"pod-{name}"
        if any(pod["metadata"]["name"] == name for pod in self._pods()):
            return
        self.born += 1
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
        amounts = ResourceRequirements(limits=dict(limits),
                                       requests={"nvidia.com/gpu": 1, "cpu": cpu})  # fmt: skip
        owner = OwnerReference(kind="ReplicaSet", name="web", uid="uid-of-web", controller=True)
        pod = a_pod(
            name,
            uid=f"{self.born:08x}-{name}",
            containers=[a_container().model_copy(update={"resources": amounts})],
            scheduler="default-scheduler",
            owners=[owner] if owned else [],
        ).to_wire()
        pod["spec"]["schedulingGates"] = [{"name": SCHEDULING_GATE}]
        self.api.put(PODS, pod)

    @precondition(lambda self: self._pods())
    @rule(pick=PICK)
    def take_the_gate_off_by_hand(self, pick: int) -> None:
        pods = self._pods()
        pod = copy.deepcopy(pods[pick % len(pods)])
        if pod["spec"].pop("schedulingGates", None):
            self.by_hand.add(pod["metadata"]["uid"])
            self.api.put(PODS, pod)

    @rule(node=st.sampled_from(NODES))
    def a_pod_without_gpus_takes_cpu(self, node: str) -> None:
        self.born += 1
        cpu = ResourceRequirements(requests={"cpu": "1"})
        name = f"cpu-{self.born}"
        container = a_container().model_copy(update={"resources": cpu})
        self.api.put(PODS, a_pod(name, uid=f"{self.born:08x}-{name}", node=node,
                                 containers=[container], phase="Running").to_wire())  # fmt: skip

    # Actions of kube-scheduler.

    @precondition(lambda self: self._lifted())
    @rule(pick=PICK, fits=st.booleans())
    def kube_scheduler_has_a_pod(self, pick: int, *, fits: bool) -> None:
        """Let kube-scheduler bind the pod to an allowed node, or find no room there."""
        pods = self._lifted()
        pod = copy.deepcopy(pods[pick % len(pods)])
        if fits:
            nodes = _nodes_of(pod) or list(NODES)
            pod["spec"]["nodeName"] = nodes[pick % len(nodes)]
        else:
            refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod["status"]["conditions"] = [refused]
        self.api.put(PODS, pod)

    # Changes of the cluster.

    @rule()
    def all_goes_well(self) -> None:
        """Let every call succeed, so that many runs get past the gate."""
        self.api.gate.set()
        self.world.turn()
        for _ in range(4):
            self.world.deliver(100)
            self.world.round()

    # Invariants.

    @invariant()
    def no_device_is_over_capacity(self) -> None:
        for uuid, use in self.world.held().items():
            assert use.memory_mib <= DEVICES[uuid][1], uuid

    @invariant()
    def nothing_is_freed_in_use(self) -> None:
        held = {
            (claim.metadata.uid, claim.status.allocation.id): claim.status.allocation.devices
            for claim in self.world.claims()
            if claim.status.allocation is not None
        }
        for claim_uid, allocation_id, devices in self.world.running.values():
            assert held[claim_uid, allocation_id] == list(devices)

    @invariant()
    def a_pod_past_its_gate_has_its_devices_on_its_node(self) -> None:
        """After the patch kube-scheduler calls no extender, so the devices must stay reserved."""
        for pod in self._pods():
            if pod["spec"].get("schedulingGates") or pod["metadata"]["uid"] in self.by_hand:
                continue
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            (node,) = _nodes_of(pod)
            found = [
                claim.status.allocation.node_name
                for claim in self.world.claims()
                if claim.status.allocation is not None
                and claim.status.reserved_for is not None
                and claim.status.reserved_for.pod_uid == pod["metadata"]["uid"]
            ]
            assert found == [node]

    def teardown(self) -> None:
        """Delete everything and check for leaks: no allocation, no finalizer, no reservation."""
        try:
            self.failures = self.losses = 0
            self.api.gate.set()
            self.world.turn(200)
            for pod in list(self.api.all(PODS)):
                self.api.vanish(PODS, pod["metadata"]["name"])
            self.nothing_is_left()
        finally:
            self.world.close()


def _nodes_of(pod: dict[str, Any]) -> list[str]:
    """Return the nodes to which the pod's affinity ties it by name; empty if it is not tied."""
    affinity = pod["spec"].get("affinity") or {}
    return [
        field["values"][0]
        for required in (affinity.get("nodeAffinity") or {}).values()
        for term in required["nodeSelectorTerms"]
        for field in term["matchFields"]
    ]


GateStates.TestCase.settings = SETTINGS
TestGateStates = pytest.mark.timeout(300)(GateStates.TestCase)


class AllComesBack(ComesBack, GateStates):
    """For any report about any object the leader continues, and in the end nothing is held.

    Running pods cannot be checked here, because their claims vanish.
    """

    def __init__(self) -> None:
        super().__init__(ChangingGateWorld(DEVICES))

    def no_device_is_over_capacity(self) -> None:
        """Not checked here: devices vanish, and claims vanish while their pods run."""

    nothing_is_freed_in_use = no_device_is_over_capacity
    a_pod_past_its_gate_has_its_devices_on_its_node = no_device_is_over_capacity

    def nothing_is_left(self) -> None:
        self.world.running.clear()  # no pod is left, and some claims vanished without a report
        super().nothing_is_left()
        assert kept_of_objects(self.world.operator.state) == {}


AllComesBack.TestCase.settings = SETTINGS
TestAllComesBack = pytest.mark.timeout(300)(AllComesBack.TestCase)
