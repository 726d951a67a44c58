"""If a node's kubelet rejects pods, their controller's next pods go elsewhere for a time.

The statuses are those of a kubelet that rejects a pod: phase Failed, a reason, and no container
with an ID (Kubernetes' pages about the Topology Manager and `UnexpectedAdmissionError`).
"""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from builders import GATE, ROOM, a_claim, a_container, a_device, a_node, a_pod, an_allocation
from replica import Replica
from vgpu_api.core import Pod
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED, SCHEDULING_GATE
from vgpu_api.resources import PODS
from vgpu_api.v1alpha1.base import OwnerReference
from vgpu_operator.engine.observability.claim_metrics import ClaimsCollector
from vgpu_operator.engine.scheduling.avoidance import AVOID_AT_MOST_S, AVOID_S, CONTROLLERS
from vgpu_operator.engine.scheduling.refusal import Refusal

SMALL = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 512}
TOPOLOGY = ("TopologyAffinityError", "Pod was rejected: Resources cannot be allocated")


def owner(name: str = "web") -> OwnerReference:
    return OwnerReference(kind="ReplicaSet", name=name, uid=f"uid-of-{name}", controller=True)


def replica(*nodes: str, gate: bool = False) -> Replica:
    """Return equal idle nodes with a device each."""
    made = Replica(config=GATE) if gate else Replica()
    for number, name in enumerate(nodes or ("one", "two")):
        made.news.node_changed(a_node(name, allocatable=ROOM))
        made.news.device_changed(a_device(uuid=f"GPU-{number}", node=name))
    return made


def recorded(world: Replica, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return a list that collects object, reason and note of all events from now on."""
    told: list[tuple[Any, ...]] = []

    def record(regarding: Any, *, reason: str, note: str, **_: Any) -> None:
        told.append((regarding.kind, regarding.name, reason, note))

    monkeypatch.setattr(world.recorder, "record", record)
    return told


def made(world: Replica, name: str, **fields: Any) -> Pod:
    """A pod with a small part of a device: what failed pods hold until their agent reports them
    is to be in nobody's way."""
    return world.pod(name, limits=SMALL, **fields)


def offered(world: Replica, name: str, **fields: Any) -> Pod:
    """Return a pod after a call of Filter."""
    pod = made(world, name, **fields)
    world.offer(pod)
    return pod


def moved(world: Replica, pod: Pod, *, node: str, **status: Any) -> Pod:
    """Bind the pod to its node, and write the status that its kubelet would write."""
    wire = Pod.model_validate(world.api.objects[(PODS.plural, "default", pod.metadata.name)])
    changed = wire.to_wire()
    changed["spec"] |= {"nodeName": node}
    changed["spec"].pop("schedulingGates", None)
    changed["status"] = status
    stored = Pod.model_validate(world.api.put(PODS, changed))
    world.news.pod_changed(stored)
    return stored


def rejected(world: Replica, pod: Pod, node: str, said: tuple[str, str] = TOPOLOGY) -> None:
    """Bind the pod and let its kubelet reject it."""
    moved(world, pod, node=node, phase="Pending")
    moved(world, pod, node=node, phase="Failed", reason=said[0], message=said[1])


def runs(world: Replica, pod: Pod, node: str) -> None:
    moved(world, pod, node=node, phase="Pending")
    moved(world, pod, node=node, phase="Running")


def filtered(world: Replica, pod: Pod, *nodes: str) -> str:
    """Return the node that Filter leaves for the pod; empty if it leaves none."""
    outcome = world.offer(pod, *nodes)
    assert outcome is not None
    return "" if isinstance(outcome, Refusal) else outcome.node


async def pods_until_one_runs(world: Replica, *, bad: str, most: int = 20) -> list[str]:
    """Play a ReplicaSet of one pod that keeps failing; return the node of each pod."""
    nodes: list[str] = []
    for number in range(most):
        pod = made(world, f"web-{number}", owners=[owner()])
        nodes.append(node := filtered(world, pod))
        await world.settle()
        if node != bad:
            return nodes
        rejected(world, pod, node)
        await world.settle()
    return nodes


@pytest.mark.parametrize("bad", ["one", "two"])
async def test_a_replica_sets_pods_end_on_the_node_that_does_not_reject_them(bad: str) -> None:
    world = replica()
    nodes = await pods_until_one_runs(world, bad=bad)
    assert nodes[-1] not in ("", bad)
    assert len(nodes) <= 2


async def gated(world: Replica, name: str) -> str:
    """Return a pod behind our gate and the node it is let go to; empty if it waits."""
    container = a_container(limits=SMALL)
    pod = a_pod(name, containers=[container], owners=[owner()], scheduler="default-scheduler")
    wire = pod.to_wire()
    wire["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": 1}
    wire["spec"]["schedulingGates"] = [{"name": SCHEDULING_GATE}]
    world.news.pod_changed(Pod.model_validate(world.api.put(PODS, wire)))
    await world.settle()
    return tied(world, name)


def tied(world: Replica, name: str) -> str:
    spec = world.api.objects[(PODS.plural, "default", name)]["spec"]
    if spec.get("schedulingGates"):
        return ""
    (terms,) = spec["affinity"]["nodeAffinity"].values()
    (node,) = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"]
    return str(node)


async def test_pods_behind_the_gate_end_on_the_node_that_does_not_reject_them() -> None:
    world = replica(gate=True)
    first = await gated(world, "web-0")
    rejected(world, a_pod("web-0"), first)
    second = await gated(world, "web-1")
    assert {first, second} == {"one", "two"}


async def test_a_lone_node_is_tried_again_behind_the_gate_too() -> None:
    world = replica("one", gate=True)
    rejected(world, a_pod("web-0"), await gated(world, "web-0"))
    assert await gated(world, "web-1") == ""
    world.time += AVOID_S
    await world.settle()
    assert tied(world, "web-1") == "one"


async def test_a_lone_node_is_tried_again_and_the_pod_says_what_it_waits_for() -> None:
    world = replica("one")
    rejected(world, offered(world, "web-0", owners=[owner()]), "one")
    pod = made(world, "web-1", owners=[owner()])
    assert filtered(world, pod) == ""
    await world.told()
    assert world.claim_of(pod).status.conditions[0].reason == "NodeAvoided"
    assert await world.scheduled() == []
    world.time += AVOID_S
    assert await world.scheduled() == ["web-1"]
    held = world.reservation(pod)
    assert held is not None
    assert held.node == "one"


async def test_a_node_that_goes_on_rejecting_is_tried_less_and_less_often() -> None:
    world, waits = replica("one"), []
    for number in range(8):
        pod = made(world, f"web-{number}", owners=[owner()])
        since = world.time
        while not filtered(world, pod):
            world.time += 10.0
            await world.settle()
        waits.append(world.time - since)
        rejected(world, pod, "one")
        await world.settle()
    assert waits == [0, 30, 60, 120, 240, 480, 600, 600]


async def test_pods_that_were_on_their_way_do_not_make_the_time_longer() -> None:
    world = replica("one")
    for pod in [offered(world, f"web-{number}", owners=[owner()]) for number in range(2)]:
        rejected(world, pod, "one")
    await world.settle()
    world.time += AVOID_S
    await world.settle()
    assert filtered(world, made(world, "web-9", owners=[owner()])) == "one"


async def test_once_a_pod_of_the_controller_has_started_there_the_node_is_no_longer_avoided() -> (
    None
):
    world = replica("one")
    early, late, bad = (offered(world, name, owners=[owner()]) for name in ("a", "b", "c"))
    runs(world, early, "one")
    rejected(world, bad, "one")
    moved(world, early, node="one", phase="Succeeded")  # the pod had started before
    assert filtered(world, made(world, "d", owners=[owner()])) == ""
    runs(world, late, "one")
    world.time += 1.0
    assert "d" in await world.scheduled()


@pytest.mark.parametrize(
    ("reason", "avoided"),
    [
        ("UnexpectedAdmissionError", True),
        ("OutOfcpu", True),
        ("OutOfnvidia.com/gpu", True),
        ("NodeAffinity", True),
        ("SysctlForbidden", True),
        ("SMTAlignmentError", True),
        ("DeadlineExceeded", False),
        ("Preempting", False),
        ("", False),
    ],
)
async def test_only_a_kubelet_that_refuses_the_pod_makes_its_node_avoided(
    reason: str, avoided: bool
) -> None:
    world = replica("one")
    rejected(world, offered(world, "web-0", owners=[owner()]), "one", (reason, "text"))
    assert (filtered(world, made(world, "web-1", owners=[owner()])) == "") is avoided


async def test_a_pod_that_fails_after_a_container_ran_does_not_make_its_node_avoided() -> None:
    world = replica("one")
    pod = offered(world, "web-0", owners=[owner()])
    ran = [{"name": "main", "containerID": "containerd://1", "state": {"terminated": {}}}]
    moved(world, pod, node="one", phase="Pending")
    moved(world, pod, node="one", phase="Failed", reason="Evicted", containerStatuses=ran)
    assert filtered(world, made(world, "web-1", owners=[owner()])) == "one"


async def test_pods_of_other_controllers_and_without_one_go_to_the_node() -> None:
    world = replica("one")
    rejected(world, offered(world, "web-0", owners=[owner()]), "one")
    rejected(world, offered(world, "bare-0"), "one")
    assert filtered(world, made(world, "other", owners=[owner("other")])) == "one"
    assert filtered(world, made(world, "bare-1")) == "one"


async def test_a_pod_whose_immediate_claim_is_on_the_node_waits_as_long() -> None:
    world = replica("one", "two")
    world.claim(a_claim("mine", binding_mode="Immediate", allocation=an_allocation(node="one")))
    rejected(world, offered(world, "web-0", owners=[owner()]), "one")
    named = {ANNOTATION_CLAIM: "mine", ANNOTATION_SLOTS_ADDED: "main"}
    pod = world.pod("web-1", owners=[owner()], annotations=named, containers=[a_container()])
    outcome = world.offer(pod)
    assert isinstance(outcome, Refusal)
    assert outcome.reason == "NodeAvoided"
    world.time += AVOID_S
    assert "web-1" in await world.scheduled()
    assert filtered(world, pod) == "one"


async def test_an_event_and_a_metric_name_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    registry = CollectorRegistry()
    registry.register(ClaimsCollector(world.engine))
    rejected(world, offered(world, "web-0", owners=[owner()]), "one")
    rejected(world, offered(world, "bare"), "one")
    await world.settle()
    (note,) = [note for *about, note in told if about == ["Node", "one", "PodRejected"]]
    assert "default/web-0: TopologyAffinityError: Pod was rejected" in note
    assert "1 more" in note
    name = "vgpu_node_rejected_controllers"
    assert registry.get_sample_value(name, {"node": "one"}) == 2
    assert registry.get_sample_value(name, {"node": "two"}) is None
    world.time += AVOID_S + AVOID_AT_MOST_S + 1.0
    await world.settle()
    assert registry.get_sample_value(name, {"node": "one"}) is None


async def test_a_standby_that_becomes_leader_avoids_the_node_and_tells_of_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = replica()
    told = recorded(world, monkeypatch)
    world.leading = False
    bad = made(world, "web-0", owners=[owner()])
    rejected(world, bad, "one")
    await world.settle()
    world.leading = True
    world.engine.lead()
    await world.settle()
    await world.settle()
    assert [about[1] for about in told if about[2] == "PodRejected"] == ["one"]
    assert filtered(world, made(world, "web-1", owners=[owner()])) == "two"


async def test_memory_is_bounded_whatever_is_rejected() -> None:
    world = replica("one")
    for number in range(CONTROLLERS + 10):
        pod = made(world, f"p-{number}", owners=[owner(f"rs-{number}")])
        rejected(world, pod, "one", ("UnexpectedAdmissionError", "x" * 100_000))
    known = world.state.avoidance.of
    assert len(known) == CONTROLLERS
    assert max(len(each.rejection) for nodes in known.values() for each in nodes.values()) < 500


async def test_schedulers_that_ask_without_effect_hear_that_the_node_is_avoided() -> None:
    world = replica()
    rejected(world, offered(world, "web-0", owners=[owner()]), "one")
    pod = made(world, "web-1", owners=[owner()])
    refused = world.engine.filter_without_effect(pod, {"one", "two"})
    assert refused == {"one": "1/1 NodeAvoided"}
