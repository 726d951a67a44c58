"""Mode Gate: pods come and go while answers get lost, news come late and operators are replaced."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from builders import a_container, a_device, a_node, a_pod, use_of
from engine_world import World
from replica import Replica
from vgpu_api.config import ClusterConfig, SchedulingConfig
from vgpu_api.core.pod import ResourceRequirements
from vgpu_api.effective import effective_use
from vgpu_api.names import SCHEDULING_GATE
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1.base import OwnerReference
from vgpu_client.errors import ServerError, Unknown

CARDS = {"GPU-0": ("node-1", 10240), "GPU-1": ("node-1", 8192), "GPU-2": ("node-2", 10240)}
NODES = ("node-1", "node-2")
GATE = ClusterConfig(scheduling=SchedulingConfig(mode="Gate"))
ROOM = {"cpu": "3", "pods": "10", "nvidia.com/gpu": "20"}
MIB = st.sampled_from([2048, 5120, 8192])
NAMES = st.sampled_from(["a", "b", "c"])
PICK = st.integers(0, 100)


class GateReplica(Replica):
    """An operator in mode Gate, whose nodes have room for more than devices."""

    def card(self, **fields: Any) -> None:
        device = a_device(**fields)
        self.news.node_changed(a_node(device.spec.node_name, allocatable=ROOM))
        self.news.device_changed(device)


class GateWorld(World):
    """A world without an extender."""

    def new_operator(self) -> Replica:
        return GateReplica(self.api, config=GATE)


class GateStates(RuleBasedStateMachine):
    """Never over capacity; a pod past its gate has its devices for as long as it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.world = GateWorld(CARDS)
        self.api: Any = self.world.api
        self.api.before = self._before
        self.api.after = self._after
        self.failures = self.losses = self.born = 0
        self.by_hand: set[str] = set()  # UIDs of pods whose gate a user took off

    def _before(self, verb: str, name: str) -> BaseException | None:
        if self.failures:
            self.failures -= 1
            return ServerError("failing", status=500)
        return None

    def _after(self, verb: str, name: str) -> BaseException | None:
        if self.losses:
            self.losses -= 1
            return Unknown("the answer was lost")
        return None

    def _pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self.api.all(PODS) if pod["metadata"]["name"].startswith("pod-")]

    def _lifted(self) -> list[dict[str, Any]]:
        """Pods that kube-scheduler may bind."""
        return [
            pod
            for pod in self._pods()
            if not pod["spec"].get("schedulingGates") and not pod["spec"].get("nodeName")
        ]

    # Users.

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

    @precondition(lambda self: self._pods())
    @rule(pick=PICK)
    def delete_a_pod_by_force(self, pick: int) -> None:
        pods = self._pods()
        self.api.vanish(PODS, pods[pick % len(pods)]["metadata"]["name"])
        self.world.collect_garbage()

    @precondition(lambda self: self._pods())
    @rule(pick=PICK)
    def a_pod_ends(self, pick: int) -> None:
        pods = self._pods()
        pod = copy.deepcopy(pods[pick % len(pods)])
        if pod["spec"].get("nodeName"):
            pod["status"]["phase"] = "Succeeded"
            self.api.put(PODS, pod)

    @rule(node=st.sampled_from(NODES))
    def a_pod_without_gpus_takes_cpu(self, node: str) -> None:
        self.born += 1
        cpu = ResourceRequirements(requests={"cpu": "1"})
        name = f"cpu-{self.born}"
        container = a_container().model_copy(update={"resources": cpu})
        self.api.put(PODS, a_pod(name, uid=f"{self.born:08x}-{name}", node=node,
                                 containers=[container], phase="Running").to_wire())  # fmt: skip

    # kube-scheduler.

    @precondition(lambda self: self._lifted())
    @rule(pick=PICK, fits=st.booleans())
    def kube_scheduler_has_a_pod(self, pick: int, *, fits: bool) -> None:
        """It binds the pod where its affinity allows that, or finds no room there."""
        pods = self._lifted()
        pod = copy.deepcopy(pods[pick % len(pods)])
        if fits:
            nodes = _nodes_of(pod) or list(NODES)
            pod["spec"]["nodeName"] = nodes[pick % len(nodes)]
        else:
            refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod["status"]["conditions"] = [refused]
        self.api.put(PODS, pod)

    # The world.

    @rule(count=st.integers(1, 6))
    def news_come(self, count: int) -> None:
        self.world.deliver(count)

    @rule()
    def work(self) -> None:
        self.world.round()

    @rule()
    def all_goes_well(self) -> None:
        """So that many a run gets past the gate."""
        self.api.gate.set()
        self.world.turn()
        for _ in range(4):
            self.world.deliver(100)
            self.world.round()

    @rule(seconds=st.sampled_from([1.0, 10.0, 61.0, 301.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.operator.time += seconds

    @rule()
    def the_watch_is_lost(self) -> None:
        self.world.lose_the_watch()

    @rule(count=st.integers(1, 3))
    def answers_get_lost(self, count: int) -> None:
        self.losses += count

    @rule(count=st.integers(1, 3))
    def requests_fail(self, count: int) -> None:
        self.failures += count

    @rule()
    def writes_hang(self) -> None:
        self.api.gate.clear()

    @rule()
    def writes_go_on(self) -> None:
        self.api.gate.set()
        self.world.turn()

    @rule()
    def the_agent_starts_containers(self) -> None:
        self.world.agent_starts_what_it_may()

    @rule()
    def the_agent_releases(self) -> None:
        self.world.agent_releases_what_has_ended()

    @rule()
    def another_operator_leads(self) -> None:
        """The former one has finished its writes, as one that gives the Lease up does."""
        self.api.gate.set()
        self.world.turn(200)
        former = self.world.operator
        former.leading = False
        self.world.turn(200)
        self.api.news.clear()
        self.world.operator = self.world.started(former.time)

    # What must hold.

    @invariant()
    def no_card_is_over_capacity(self) -> None:
        for uuid, use in self.world.held().items():
            assert use.memory_mib <= CARDS[uuid][1], uuid

    @invariant()
    def nothing_is_freed_in_use(self) -> None:
        held = {
            (claim.metadata.uid, claim.status.allocation.id): effective_use(
                claim.spec, claim.status.allocation.devices
            )
            for claim in self.world.claims()
            if claim.status.allocation is not None
        }
        for claim_uid, allocation_id, uses in self.world.running.values():
            assert held[claim_uid, allocation_id] == uses

    @invariant()
    def a_pod_past_its_gate_has_its_devices_on_its_node(self) -> None:
        """From the patch on kube-scheduler asks nobody: so its devices wait there all the time."""
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
        """Everything goes, and nothing is left: no allocation, no finalizer, no reservation."""
        try:
            self.failures = self.losses = 0
            self.api.gate.set()
            self.world.turn(200)
            for pod in list(self.api.all(PODS)):
                self.api.vanish(PODS, pod["metadata"]["name"])
            for _ in range(12):
                self.world.collect_garbage()
                self.world.deliver(1000)
                self.world.round()
                self.world.agent_releases_what_has_ended()
                self.world.operator.time += 61
                self.world.turn(50)
            assert self.api.all(VGPU_CLAIMS) == []
            ledger = self.world.operator.ledger
            used = {uuid: use_of(ledger, uuid).memory_mib for uuid in CARDS}
            assert used == dict.fromkeys(CARDS, 0)
            assert list(self.world.operator.state.reservations) == []
            assert self.world.running == {}
        finally:
            self.world.close()


def _nodes_of(pod: dict[str, Any]) -> list[str]:
    """The nodes that the pod is tied to by name; none: not tied."""
    affinity = pod["spec"].get("affinity") or {}
    return [
        field["values"][0]
        for required in (affinity.get("nodeAffinity") or {}).values()
        for term in required["nodeSelectorTerms"]
        for field in term["matchFields"]
    ]


GateStates.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestGateStates = pytest.mark.timeout(300)(GateStates.TestCase)
