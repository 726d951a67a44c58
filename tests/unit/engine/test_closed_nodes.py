"""Cordoned and unready nodes accept pods that tolerate the taint, as with kube-scheduler.

Sources: Kubernetes, Taints and Tolerations (taint nodes by condition), DaemonSet (the tolerations
that its controller adds), the scheduler's plugins NodeUnschedulable and TaintToleration.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from builders import GATE, ROOM, a_claim, a_container, a_device, a_node, a_pod, a_request
from replica import Replica
from vgpu_api.core import Pod, Taint, Toleration
from vgpu_api.names import SCHEDULING_GATE
from vgpu_api.resources import PODS
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation

CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
NOT_READY = tuple(
    Taint(key="node.kubernetes.io/not-ready", effect=effect)
    for effect in ("NoSchedule", "NoExecute")
)
OF_A_DAEMON_SET = tuple(
    Toleration(key=f"node.kubernetes.io/{key}", operator="Exists", effect=effect)
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)
OF_ALL_PODS = tuple(each for each in OF_A_DAEMON_SET if each.effect == "NoExecute")
"""The tolerations that admission adds to every pod."""
EVERYTHING = (Toleration(operator="Exists"),)
UNSCHEDULABLE = "1/1 NodeUnschedulable"


def with_node(
    replica: Replica, *, node: str = "node-1", taints: Iterable[Taint] = (), **state: bool
):
    made = a_node(node, taints=taints, allocatable=ROOM, resource_version=2, **state)
    replica.news.node_changed(made)
    replica.news.device_changed(a_device(uuid=f"GPU-{node}", node=node))


def a_gpu_pod(tolerations: Iterable[Toleration] = (), *, gated: bool = False, **fields) -> Pod:
    gpu = {"nvidia.com/gpu": 1}
    container = a_container(limits={**gpu, "nvidia.com/gpumem": 1024}, requests=gpu)
    pod = a_pod("p", containers=[container], tolerations=tolerations, **fields)
    gates = [{"name": SCHEDULING_GATE}] if gated else []
    return pod.model_copy(update={"spec": pod.spec.model_copy(update={"scheduling_gates": gates})})


def seen(replica: Replica, pod: Pod) -> Pod:
    stored = Pod.model_validate(replica.api.put(PODS, pod.to_wire()))
    replica.news.pod_changed(stored)
    return stored


@pytest.mark.parametrize("taints", [(), (CORDON,)], ids=["before its taint", "with its taint"])
@pytest.mark.parametrize(
    ("tolerations", "goes"),
    [((), False), (OF_ALL_PODS, False), (OF_A_DAEMON_SET, True), (EVERYTHING, True)],
    ids=["plain", "default", "DaemonSet", "everything"],
)
async def test_a_cordoned_node_takes_who_tolerates_the_cordon(
    replica: Replica, taints, tolerations, goes
):
    with_node(replica, unschedulable=True, taints=taints)
    outcome = replica.offer(seen(replica, a_gpu_pod(tolerations)))
    if goes:
        assert isinstance(outcome, Reservation)
        return
    assert isinstance(outcome, Refusal)
    assert outcome.message == UNSCHEDULABLE, "the advice is to uncordon, not a toleration"


@pytest.mark.parametrize(
    ("tolerations", "goes"),
    [((), False), (OF_ALL_PODS, False), (OF_A_DAEMON_SET, False), (EVERYTHING, True)],
    ids=["plain", "default", "DaemonSet", "everything"],
)
async def test_an_unready_node_takes_who_tolerates_that(replica: Replica, tolerations, goes):
    with_node(replica, ready=False, taints=NOT_READY)
    outcome = replica.offer(seen(replica, a_gpu_pod(tolerations)))
    assert isinstance(outcome, Reservation) == goes
    assert goes or outcome.message == "1/1 NodeNotReady"


async def test_a_cordon_tolerated_is_no_leave_for_another_taint(replica: Replica):
    with_node(replica, unschedulable=True, taints=(CORDON, Taint(key="team", effect="NoSchedule")))
    outcome = replica.offer(seen(replica, a_gpu_pod(OF_A_DAEMON_SET)))
    assert outcome.message == "1/1 NodeTainted"


async def test_the_best_node_is_found_among_open_and_tolerated_ones(replica: Replica):
    """Binpack selects a cordoned node with a claim among more nodes than are tried."""
    for number in range(40):
        with_node(replica, node=f"open-{number:02}")
    with_node(replica, node="shut", unschedulable=True, taints=(CORDON,))
    first = replica.offer(seen(replica, a_gpu_pod(OF_A_DAEMON_SET, uid="one")), "shut")
    assert first.node == "shut"
    everywhere = [*(f"open-{number:02}" for number in range(40)), "shut"]
    tolerant = a_gpu_pod(OF_A_DAEMON_SET, uid="two").model_copy()
    assert replica.offer(seen(replica, tolerant), *everywhere).node == "shut"
    assert replica.offer(seen(replica, a_gpu_pod(uid="three")), *everywhere).node == "open-00"


async def test_a_daemon_sets_pod_passes_its_gate_on_a_cordoned_node():
    world = Replica(config=GATE)
    with_node(world, unschedulable=True, taints=(CORDON,))
    seen(world, a_gpu_pod(OF_A_DAEMON_SET, gated=True, scheduler="default-scheduler"))
    await world.settle()
    stored = world.api.objects[(PODS.plural, "default", "p")]
    assert not stored["spec"].get("schedulingGates")


async def test_behind_the_gate_a_cordon_is_named_as_such():
    world = Replica(config=GATE)
    with_node(world, unschedulable=True, taints=(CORDON,))
    pod = seen(world, a_gpu_pod(OF_ALL_PODS, gated=True, scheduler="default-scheduler"))
    await world.told()
    assert world.claim_of(pod).status.conditions[0].message == UNSCHEDULABLE
    with_node_open = a_node(allocatable=ROOM, resource_version=3)
    world.news.node_changed(with_node_open)
    await world.settle()
    assert not world.api.objects[(PODS.plural, "default", "p")]["spec"].get("schedulingGates")


async def test_a_pod_that_waits_for_room_on_a_cordoned_node_is_requeued_for_it(replica: Replica):
    with_node(replica)
    replica.claim(a_claim("holder", requests=[a_request()], binding_mode="Immediate"))
    await replica.settle()
    cordoned = a_node(unschedulable=True, taints=(CORDON,), allocatable=ROOM, resource_version=3)
    replica.news.node_changed(cordoned)
    pod = seen(replica, a_gpu_pod(OF_A_DAEMON_SET))
    assert isinstance(replica.offer(pod), Refusal)
    await replica.settle()
    replica.news.claim_gone(("default", "holder"), "uid-of-holder")
    assert await replica.scheduled() == ["p"]
    assert replica.reservation(pod) is not None


async def test_a_bound_pod_gets_its_devices_though_its_node_was_closed_since(replica: Replica):
    with_node(replica, unschedulable=True, ready=False, taints=(CORDON, *NOT_READY))
    pod = seen(replica, a_gpu_pod(node="node-1"))
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None


async def test_a_claim_without_a_pod_stays_off_a_cordoned_node(replica: Replica):
    with_node(replica, unschedulable=True, taints=(CORDON,))
    replica.claim(a_claim("mine", binding_mode="Immediate"))
    await replica.settle()
    assert "allocation" not in replica.api.claim("mine")["status"]


@pytest.mark.parametrize(
    ("operator", "value", "goes"),
    [("Gt", "90", True), ("Gt", "95", False), ("Lt", "100", True), ("Lt", "95", False),
     ("Gt", "090", False), ("Gt", "high", False), ("Lt", "9223372036854775808", False)],
)  # fmt: skip
async def test_a_number_of_a_taint_is_compared_with_the_tolerations(
    replica: Replica, operator, value, goes
):
    """KEP-5471: Gt tolerates taints above the value, Lt those below."""
    with_node(replica, taints=[Taint(key="sla", value="95", effect="NoSchedule")])
    toleration = Toleration(key="sla", operator=operator, value=value, effect="NoSchedule")
    outcome = replica.offer(seen(replica, a_gpu_pod([toleration])))
    assert isinstance(outcome, Reservation) == goes
    assert goes or outcome.message == "1/1 NodeTainted"
