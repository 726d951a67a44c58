"""A pod that our admission has not read gets no device.

Such pods come from system namespaces and from namespaces that opt out (`hami.io/webhook: ignore`).
A label marks a pod as read; on a real API server, the policy vgpu-marks protects that label.
"""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_claim, a_request
from replica import Replica
from vgpu_api.config import ClusterConfig, SchedulingConfig
from vgpu_api.core import Pod
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation
from vgpu_operator.extender.wire import BindRequest

GATE = {"schedulingGates": [{"name": "vgpu.dev/placement"}]}


@pytest.fixture
def world() -> Replica:
    made = Replica()
    made.device()
    return made


def claims(world: Replica) -> list[dict[str, Any]]:
    return [made for (kind, _, _), made in world.api.objects.items() if kind == VGPU_CLAIMS.plural]


def pod_of(world: Replica) -> dict[str, Any]:
    found: dict[str, Any] = world.api.objects[PODS.plural, "default", "pod-1"]
    return found


def stored_again(world: Replica, pod: Pod, **changes: Any) -> Pod:
    """Return a newer version of the pod, with changes to its spec and metadata."""
    wire = pod.to_wire()
    wire["metadata"]["resourceVersion"] = str(int(pod.metadata.resource_version) + 1)
    wire["metadata"].update(changes.pop("metadata", {}))
    wire["spec"].update(changes)
    newer = Pod.model_validate(world.api.put(PODS, wire))
    world.news.pod_changed(newer)
    return newer


async def test_filter_refuses_it_in_words_and_no_claim_is_made(world: Replica) -> None:
    outcome = world.offer(world.pod(admitted=False))
    assert isinstance(outcome, Refusal)
    assert outcome.reason == "NotAdmitted"
    assert "hami.io/webhook: ignore" in outcome.message
    await world.told()
    assert claims(world) == []
    assert world.offer(world.pod("read")) is not None
    await world.settle()
    assert len(claims(world)) == 1


async def test_its_author_learns_why_from_an_event(
    world: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(world.recorder, "record", lambda _, **event: told.append(event))
    world.offer(world.pod(admitted=False))
    await world.told()
    assert [event["reason"] for event in told] == ["NotAdmitted"]


@pytest.mark.parametrize(("node", "reasons"), [("node-1", ["NotAdmitted"]), ("of-hami", [])])
async def test_one_that_runs_on_a_node_without_devices_of_ours_is_nobodys_business(
    world: Replica, monkeypatch: pytest.MonkeyPatch, node: str, reasons: list[str]
) -> None:
    """Beside HAMi each of its pods would get a warning of a program that it never asked."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(world.recorder, "record", lambda _, **event: told.append(event))
    stored_again(world, world.pod(admitted=False), nodeName=node)
    await world.told()
    assert [event["reason"] for event in told] == reasons
    assert claims(world) == []


async def test_bind_refuses_it(world: Replica) -> None:
    pod = world.pod(admitted=False)
    request = BindRequest("default", pod.metadata.name, pod.metadata.uid, "node-1")
    assert "NotAdmitted" in await world.binder.bind(request)
    assert not pod_of(world)["spec"].get("nodeName")


async def test_where_another_scheduler_has_bound_it_the_operator_decides_nothing(
    world: Replica,
) -> None:
    world.pod(admitted=False, node="node-1", scheduler="default-scheduler")
    await world.told()
    assert claims(world) == []


async def test_an_immediate_claim_that_it_names_does_not_serve_it(world: Replica) -> None:
    world.claim(a_claim("mine", requests=[a_request(name="main")], binding_mode="Immediate"))
    await world.settle()
    annotations = {"vgpu.dev/claim": "mine", "vgpu.dev/slots-added": "main"}
    limits = {"nvidia.com/gpu": 1}
    outcome = world.offer(world.pod(admitted=False, annotations=annotations, limits=limits))
    assert isinstance(outcome, Refusal)
    assert outcome.reason == "NotAdmitted"
    assert isinstance(
        world.offer(world.pod("b", annotations=annotations, limits=limits)), Reservation
    )


async def test_a_gate_of_ours_that_it_wrote_itself_is_not_lifted() -> None:
    world = Replica(config=ClusterConfig(scheduling=SchedulingConfig(mode="Gate")))
    world.device()
    stored_again(world, world.pod(admitted=False), **GATE)
    await world.told()
    assert pod_of(world)["spec"]["schedulingGates"] == GATE["schedulingGates"]
    assert claims(world) == []


async def test_words_that_come_later_make_no_request_of_it(world: Replica) -> None:
    """Annotations may change while a pod waits; admission reads a pod once."""
    world.claim(a_claim("mine", requests=[a_request(name="main")]))
    pod = world.pod("plain", admitted=False, limits={})
    later = {"annotations": {"vgpu.dev/claim": "mine", "vgpu.dev/slots-added": "main"}}
    outcome = world.offer(stored_again(world, pod, metadata=later))
    assert isinstance(outcome, Refusal)
    assert outcome.reason == "NotAdmitted"


async def test_devices_that_were_given_to_it_before_marks_were_asked_for_stay_its_own(
    world: Replica,
) -> None:
    """An upgrade finds running pods, and pods about to be bound, without the mark."""
    pod = world.offered()
    await world.settle()
    claim = world.claim_of(pod)
    successor = Replica(world.api)
    successor.device()
    unmarked = pod.model_copy(update={"metadata": pod.metadata.model_copy(update={"labels": {}})})
    successor.news.claim_changed(claim)
    successor.news.pod_changed(unmarked)
    outcome = successor.offer(unmarked)
    assert isinstance(outcome, Reservation)
    assert outcome.allocation_id == (claim.status.allocation and claim.status.allocation.id)
