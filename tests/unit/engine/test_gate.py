"""Gate mode: devices are reserved and written before the gate is lifted and the node is fixed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from builders import GATE, ROOM, a_claim, a_container, a_device, a_node, a_pod, use_of
from memory_api import MemoryApi
from replica import Replica
from vgpu_api.core import Pod, Taint
from vgpu_api.core.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ResourceRequirements,
)
from vgpu_api.names import (
    ANNOTATION_CLAIM,
    ANNOTATION_REQUEUE,
    ANNOTATION_SLOTS_ADDED,
    SCHEDULING_GATE,
)
from vgpu_api.resources import PODS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_api.v1alpha1.base import OwnerReference
from vgpu_client.errors import Forbidden, Unknown
from vgpu_operator.engine.gpu_pod import gpu_pod_of
from vgpu_operator.engine.scheduling.avoidance import AVOID_S
from vgpu_operator.engine.scheduling.gate import STUCK_S, tied_to
from vgpu_operator.engine.scheduling.reservation import Phase

OWNER = OwnerReference(kind="ReplicaSet", name="web", uid="uid-of-web", controller=True)


def replica(*nodes: str, api: MemoryApi | None = None, **room: str) -> Replica:
    """Return an operator with ready nodes that have room and a device each."""
    made = Replica(api, config=GATE)
    for number, name in enumerate(nodes or ("node-1",)):
        made.news.node_changed(a_node(name, allocatable={**ROOM, **room}))
        made.news.device_changed(a_device(uuid=f"GPU-{number}", node=name))
    return made


def gated(world: Replica, name: str = "pod-1", *, cpu: str = "1", **fields: Any) -> Pod:
    """Return a pod as the webhook leaves it, which the operator has seen."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
    requests = {"nvidia.com/gpu": 1, "cpu": cpu}
    gates = fields.pop("gates", [{"name": SCHEDULING_GATE}])
    container = a_container(limits=limits)
    container = container.model_copy(
        update={"resources": ResourceRequirements(limits=dict(limits), requests=dict(requests))}
    )
    pod = a_pod(name, containers=[container], scheduler="default-scheduler", **fields)
    pod = pod.model_copy(update={"spec": pod.spec.model_copy(update={"scheduling_gates": gates})})
    return seen(world, pod)


def seen(world: Replica, pod: Pod) -> Pod:
    stored = Pod.model_validate(world.api.put(PODS, pod.to_wire()))
    world.news.pod_changed(stored)
    return stored


def stored(world: Replica, name: str = "pod-1") -> dict[str, Any]:
    found: dict[str, Any] = world.api.objects[(PODS.plural, "default", name)]
    return found


def gates_of(world: Replica, name: str = "pod-1") -> list[Any]:
    return list(stored(world, name)["spec"].get("schedulingGates") or [])


def tied(world: Replica, name: str = "pod-1") -> list[str]:
    """Return the nodes in the pod's affinity."""
    required = stored(world, name)["spec"]["affinity"]["nodeAffinity"]
    (terms,) = required.values()
    return [
        field["values"][0]
        for term in terms["nodeSelectorTerms"]
        for field in term.get("matchFields", [])
    ]


def refused(world: Replica, name: str = "pod-1", **status: Any) -> Pod:
    """Let kube-scheduler report that it finds no room for the pod."""
    pod = Pod.model_validate(stored(world, name)).to_wire()
    pod["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient rdma/hca.",
        }
    ]
    pod["status"].update(status)
    return seen(world, Pod.model_validate(pod))


def recorded(world: Replica, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return a list that collects all events from now on."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(world.recorder, "record", lambda _, **event: told.append(event))
    return told


async def test_a_gated_pod_gets_its_claim_first_and_then_its_node_in_one_patch() -> None:
    world = replica()
    pod = gated(world)
    await world.settle()
    claim = world.claim_of(pod)
    assert claim.status.allocation is not None
    assert claim.status.allocation.node_name == "node-1"
    assert claim.status.reserved_for is not None
    assert claim.status.reserved_for.pod_uid == pod.metadata.uid
    assert (gates_of(world), tied(world)) == ([], ["node-1"])
    assert stored(world)["metadata"]["annotations"]["hami.io/vgpu-node"] == "node-1"
    verbs = [verb for verb, _ in world.api.log]
    assert verbs == ["create vgpuclaims", "patch status", "patch object"]


async def test_no_gate_is_lifted_before_the_claim_is_written() -> None:
    world = replica()
    world.api.before = lambda verb, name: Forbidden("no", status=403) if "status" in verb else None
    gated(world)
    await world.settle()
    assert gates_of(world) == [{"name": SCHEDULING_GATE}]


async def test_a_lifted_pod_keeps_its_devices_however_long_it_waits_for_kube_scheduler() -> None:
    world = replica()
    pod = gated(world)
    await world.settle()
    world.time += 3600.0
    await world.settle()
    assert world.claim_of(pod).status.allocation is not None
    held = world.reservation(pod)
    assert held is not None
    assert held.phase is Phase.BOUND


async def test_a_lifted_pod_that_is_deleted_unbound_gives_its_devices_back() -> None:
    world = replica()
    pod = gated(world)
    await world.settle()
    world.api.vanish(PODS, "pod-1")
    world.news.pod_gone(pod.metadata.uid)
    await world.settle()
    assert use_of(world.ledger, "GPU-0").memory_mib == 0


async def test_a_bound_pod_ends_the_reservation() -> None:
    world = replica()
    pod = gated(world)
    await world.settle()
    bound = Pod.model_validate(stored(world)).to_wire()
    bound["spec"]["nodeName"] = "node-1"
    seen(world, Pod.model_validate(bound))
    await world.settle()
    assert world.reservation(pod) is None
    assert use_of(world.ledger, "GPU-0").memory_mib == 8192


async def test_gates_of_others_are_waited_for() -> None:
    world = replica()
    pod = gated(world, gates=[{"name": "example.com/quota"}, {"name": SCHEDULING_GATE}])
    await world.settle()
    assert world.api.log == []
    open_ = pod.model_copy(
        update={
            "spec": pod.spec.model_copy(update={"scheduling_gates": [{"name": SCHEDULING_GATE}]})
        }
    )
    seen(world, open_)
    await world.settle()
    assert gates_of(world) == []


@pytest.mark.parametrize(
    ("room", "cpu"),
    [({"cpu": "500m"}, "1"), ({"pods": "0"}, "1"), ({"nvidia.com/gpu": "0"}, "0")],
)
async def test_a_node_without_room_for_the_rest_of_the_pod_is_passed_over(
    room: dict[str, str], cpu: str
) -> None:
    world = replica("node-1", **room)
    pod = gated(world, cpu=cpu)
    await world.told()
    assert gates_of(world) != []
    condition = world.claim_of(pod).status.conditions[0]
    assert "NodeInsufficientResources" in condition.message
    world.news.node_changed(a_node("node-1", allocatable=ROOM, resource_version=2))
    await world.settle()
    assert (gates_of(world), tied(world)) == ([], ["node-1"])


async def test_pods_that_are_only_expected_on_a_node_count_there() -> None:
    world = replica("node-1", "node-2", cpu="1")
    for name in ("pod-1", "pod-2", "pod-3"):
        gated(world, name)
    await world.settle()
    assert sorted([*tied(world, "pod-1"), *tied(world, "pod-2")]) == ["node-1", "node-2"]
    assert gates_of(world, "pod-3") != []


async def test_a_pod_without_gpus_that_ends_makes_room() -> None:
    world = replica(cpu="1")
    cpu = ResourceRequirements(requests={"cpu": "1"})
    other = a_pod("other", containers=[a_container().model_copy(update={"resources": cpu})],
                  node="node-1", phase="Running")  # fmt: skip
    world.news.pod_changed(other)
    gated(world)
    await world.settle()
    assert gates_of(world) != []
    world.news.pod_gone(other.metadata.uid)
    await world.settle()
    assert gates_of(world) == []


async def test_a_node_that_is_tainted_before_the_gate_is_lifted_is_left_again() -> None:
    world = replica("node-1", "node-2")
    world.api.before = lambda verb, name: (
        Forbidden("no", status=403) if verb == "patch object" else None
    )
    pod = gated(world)
    await world.settle()
    held = world.reservation(pod)
    assert held is not None
    first, other = held.node, {"node-1": "node-2", "node-2": "node-1"}[held.node]
    taint = Taint(key="maintenance", effect="NoSchedule")
    tainted = a_node(first, allocatable=ROOM, taints=[taint], resource_version=2)
    world.news.node_changed(tainted)
    world.api.before = lambda verb, name: None
    for _ in range(4):
        world.time += 6.0
        await world.settle()
    assert tied(world) == [other]
    assert use_of(world.ledger, f"GPU-{int(first[-1]) - 1}").memory_mib == 0


async def test_a_pod_that_changed_meanwhile_is_patched_at_its_new_version() -> None:
    world = replica()
    pod = gated(world)
    changed = pod.to_wire()
    changed["metadata"]["annotations"] = {ANNOTATION_REQUEUE: "now"}
    world.api.put(PODS, changed)  # and no news of it
    await world.settle()
    world.time += 1.0
    await world.settle()
    assert gates_of(world) == []
    assert stored(world)["metadata"]["annotations"][ANNOTATION_REQUEUE] == "now"


async def test_a_lost_answer_is_read_from_the_pod() -> None:
    world = replica()
    world.api.after = lambda verb, name: Unknown("lost") if verb == "patch object" else None
    pod = gated(world)
    await world.settle()
    held = world.reservation(pod)
    assert gates_of(world) == []
    assert held is not None
    assert held.phase is Phase.BOUND


async def test_a_pod_that_was_bound_and_ended_unseen_keeps_its_devices_for_the_agent() -> None:
    """A user removed its gate while our patch failed, so its offer expires."""
    world = replica()
    world.api.before = lambda verb, _: (
        Forbidden("no", status=403) if verb == "patch object" else None
    )
    pod = gated(world)
    await world.settle()
    ended = copy.deepcopy(stored(world))
    del ended["spec"]["schedulingGates"]
    ended["spec"]["nodeName"], ended["status"]["phase"] = "node-1", "Succeeded"
    world.api.put(PODS, ended)
    held = world.reservation(pod)
    assert held is not None
    assert held.phase is Phase.OFFERED
    world.time += 61
    await world.settle()
    assert world.claim_of(pod).status.allocation is not None


@pytest.mark.parametrize("is_lifted", [False, True])
async def test_a_successor_goes_on_from_either_side_of_the_patch(*, is_lifted: bool) -> None:
    api = MemoryApi()
    world = replica(api=api)
    if not is_lifted:
        api.before = lambda verb, name: (
            Forbidden("no", status=403) if verb == "patch object" else None
        )
    pod = gated(world)
    await world.settle()
    allocation = world.claim_of(pod).status.allocation
    assert allocation is not None
    api.before = lambda verb, name: None
    successor = replica(api=api)
    successor.news.claim_changed(world.claim_of(pod))
    successor.news.pod_changed(Pod.model_validate(stored(world)))
    successor.engine.lead()
    await successor.settle()
    successor.time += 3600.0
    await successor.settle()
    assert gates_of(successor) == []
    again = successor.claim_of(pod).status.allocation
    assert again is not None
    assert again.id == allocation.id


async def test_a_controllers_pod_without_room_is_replaced_and_its_next_goes_elsewhere() -> None:
    world = replica("node-1", "node-2")
    pod = gated(world, owners=[OWNER])
    await world.settle()
    (first,) = tied(world)
    refused(world)
    await world.settle()
    assert ("delete", "pod-1") not in world.api.log
    world.time += STUCK_S
    await world.settle()
    assert ("delete", "pod-1") in world.api.log
    world.news.pod_gone(pod.metadata.uid)
    gated(world, "pod-2", owners=[OWNER])
    await world.settle()
    assert tied(world, "pod-2") != [first]


async def test_a_pod_whose_node_is_gone_is_replaced_too() -> None:
    world = replica("node-1", "node-2")
    gated(world, owners=[OWNER])
    await world.settle()
    (first,) = tied(world)
    world.news.node_gone(first)
    refused(world)
    await world.settle()
    world.time += STUCK_S
    await world.settle()
    assert ("delete", "pod-1") in world.api.log


async def test_a_pod_whose_gate_a_user_took_off_is_not_replaced() -> None:
    world = replica(cpu="500m")
    pod = gated(world, owners=[OWNER])
    spec = pod.spec.model_copy(update={"scheduling_gates": []})
    seen(world, pod.model_copy(update={"spec": spec}))
    refused(world)
    world.time += STUCK_S
    await world.settle()
    assert ("delete", "pod-1") not in world.api.log


async def test_a_node_is_avoided_for_a_time_only() -> None:
    world = replica()
    pod = gated(world, owners=[OWNER])
    await world.settle()
    refused(world)
    world.time += STUCK_S
    await world.settle()
    world.news.pod_gone(pod.metadata.uid)
    gated(world, "pod-2", owners=[OWNER])
    await world.settle()
    assert gates_of(world, "pod-2") != []
    world.time += AVOID_S
    await world.settle()
    assert gates_of(world, "pod-2") == []


async def test_a_pod_that_was_bound_meanwhile_is_not_deleted() -> None:
    world = replica()
    gated(world, owners=[OWNER])
    await world.settle()
    refused(world)
    bound = Pod.model_validate(stored(world)).to_wire()
    bound["spec"]["nodeName"] = "node-1"
    world.api.put(PODS, bound)  # and no news of it
    world.time += STUCK_S
    await world.settle()
    assert stored(world)["spec"]["nodeName"] == "node-1"


async def test_a_pod_for_which_others_are_preempted_is_given_more_time() -> None:
    world = replica()
    gated(world, owners=[OWNER])
    await world.settle()
    refused(world, nominatedNodeName="node-1")
    world.time += STUCK_S
    await world.settle()
    assert ("delete", "pod-1") not in world.api.log


async def test_a_pod_without_a_controller_stays_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    pod = gated(world)
    await world.settle()
    refused(world)
    world.time += STUCK_S
    await world.settle()
    assert ("delete", "pod-1") not in world.api.log
    assert world.claim_of(pod).status.allocation is not None
    (note,) = [each["note"] for each in told if each["reason"] == "PodStuck"]
    assert "Insufficient rdma/hca" in note
    assert "create it anew" in note


async def test_a_gate_in_a_cluster_of_the_other_mode_is_not_lifted_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Replica()
    told = recorded(world, monkeypatch)
    world.device(uuid="GPU-0", node="node-1")
    gated(world)
    await world.told()
    assert gates_of(world) != []
    assert [each["reason"] for each in told] == ["Gated"]


def naming(world: Replica, claim: str) -> Pod:
    """Return a gated pod that names a claim, as the webhook leaves it."""
    annotations = {ANNOTATION_CLAIM: claim, ANNOTATION_SLOTS_ADDED: "main"}
    return gated(world, annotations=annotations)


async def test_a_pod_goes_where_the_devices_of_its_immediate_claim_are() -> None:
    world = replica("node-1", "node-2")
    world.claim(a_claim("mine", binding_mode="Immediate"))
    await world.settle()
    allocation = VGPUClaim.read(world.api.claim("mine")).status.allocation
    assert allocation is not None
    pod = naming(world, "mine")
    await world.settle()
    claim = VGPUClaim.read(world.api.claim("mine"))
    assert tied(world) == [allocation.node_name]
    assert claim.status.reserved_for is not None
    assert claim.status.reserved_for.pod_uid == pod.metadata.uid


async def test_a_pod_and_its_immediate_claim_wait_together() -> None:
    world = Replica(config=GATE)
    world.news.node_changed(a_node("node-1", allocatable=ROOM))
    world.claim(a_claim("mine", binding_mode="Immediate"))
    naming(world, "mine")
    await world.settle()
    assert gates_of(world) != []
    world.news.device_changed(a_device(uuid="GPU-0", node="node-1"))
    await world.settle()
    assert (gates_of(world), tied(world)) == ([], ["node-1"])


async def test_a_pod_waits_for_a_node_that_its_immediate_claim_ties_it_to() -> None:
    world = replica()
    world.claim(a_claim("mine", binding_mode="Immediate"))
    await world.settle()
    world.news.node_changed(a_node("node-1", allocatable=ROOM, unschedulable=True,
                                   resource_version=2))  # fmt: skip
    naming(world, "mine")
    await world.settle()
    assert gates_of(world) != []
    world.news.node_changed(a_node("node-1", allocatable=ROOM, resource_version=3))
    world.time += 1.0
    await world.settle()
    assert gates_of(world) == []


async def test_a_pod_gets_a_named_claim_that_comes_later() -> None:
    world = replica()
    naming(world, "mine")
    await world.settle()
    assert gates_of(world) != []
    world.claim(a_claim("mine"))
    await world.settle()
    assert gates_of(world) == []


def a_gated(affinity: Affinity | None) -> Any:
    pod = gpu_pod_of(a_pod(containers=[a_container(limits={"nvidia.com/gpu": 1})],
                           affinity=affinity), GATE)  # fmt: skip
    assert pod is not None
    return pod


LINE = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
ZONE = NodeSelectorRequirement(key="zone", operator="In", values=["a"])
NAME = NodeSelectorRequirement(key="metadata.name", operator="In", values=["node-1"])


def test_every_term_of_an_affinity_is_narrowed_and_an_empty_one_left_alone() -> None:
    terms = [
        NodeSelectorTerm(match_expressions=[ZONE]),
        NodeSelectorTerm(match_fields=[NAME]),
        NodeSelectorTerm(),
    ]
    required = NodeSelector(nodeSelectorTerms=terms)
    of_node = NodeAffinity(requiredDuringSchedulingIgnoredDuringExecution=required)
    operations = tied_to(a_gated(Affinity(node_affinity=of_node)), "node-1")
    path = (
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"
        "/nodeSelectorTerms"
    )
    assert operations == [
        {"op": "add", "path": f"{path}/0/matchFields", "value": [LINE]},
        {"op": "add", "path": f"{path}/1/matchFields/-", "value": LINE},
        {"op": "remove", "path": "/spec/schedulingGates"},
    ]


@pytest.mark.parametrize(
    ("affinity", "path"),
    [
        (None, "/spec/affinity"),
        (Affinity(), "/spec/affinity/nodeAffinity"),
        (
            Affinity(node_affinity=NodeAffinity()),
            "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution",
        ),
    ],
)
def test_an_affinity_is_added_where_there_is_none(affinity: Affinity | None, path: str) -> None:
    added, _ = tied_to(a_gated(affinity), "node-1")
    assert (added["op"], added["path"]) == ("add", path)


def neighbour(reason: str = "", *, version: int = 1, allocated: str = "1", has: str = "1") -> Pod:
    """Return a pod without a GPU on node-1 that has been resized in place from 1 to 60 CPUs."""
    pending = {"type": "PodResizePending", "status": "True", "reason": reason}
    status: dict[str, Any] = {
        "phase": "Running",
        "conditions": [pending] if reason else [],
        "containerStatuses": [
            {
                "name": "main",
                "resources": {"requests": {"cpu": has}},
                "allocatedResources": {"cpu": allocated},
            }
        ],
    }
    wire = a_pod(
        "neighbour",
        node="node-1",
        containers=[a_container(requests={"cpu": "60"})],
        resource_version=version,
    ).to_wire()
    wire["metadata"]["generation"] = 2
    return Pod.model_validate({**wire, "status": status})


@pytest.mark.parametrize(
    ("pod", "fits"),
    [
        (neighbour("Infeasible"), True),
        (neighbour("Infeasible", allocated="60"), False),
        (neighbour("Infeasible", has="60"), False),
        (neighbour("Deferred"), False),
        (neighbour(), False),
    ],
    ids=["infeasible", "admitted before", "not shrunk yet", "deferred", "not seen by the kubelet"],
)
async def test_a_neighbour_that_is_resized_takes_what_kube_scheduler_counts(
    pod: Pod, *, fits: bool
) -> None:
    world = replica(cpu="64")
    world.news.pod_changed(pod)
    gated(world, cpu="20")
    await world.settle()
    assert (gates_of(world) == []) == fits


async def test_a_resize_that_is_refused_wakes_who_waits_for_its_room() -> None:
    """The kubelet's refusal changes only the status, not the pod's generation."""
    world = replica(cpu="64")
    world.news.pod_changed(neighbour())
    gated(world, cpu="20")
    await world.settle()
    assert gates_of(world)
    world.news.pod_changed(neighbour("Infeasible", version=2))
    await world.settle()
    assert not gates_of(world)
