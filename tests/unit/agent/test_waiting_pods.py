"""A refused pod is woken when the cause of its refusal is gone."""

from __future__ import annotations

import pytest

from agent_bench import AtOnce
from builders import a_claim, a_pod, an_allocation
from vgpu_api.core.pod import Pod
from vgpu_api.v1alpha1 import Condition, ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.errors import Why
from vgpu_nodeagent.kubelet.waiting import WaitingPods
from vgpu_nodeagent.state.node_view import NodeView


def a_granted_claim(*, prepared: str = "", number: int = 0) -> VGPUClaim:
    allocation = an_allocation(number=number)
    conditions = [Condition(type="Prepared", status="False", reason=prepared)] if prepared else []
    status = VGPUClaimStatus(
        allocation=allocation,
        reserved_for=ReservedFor(pod_name="pod-1", pod_uid="uid-of-pod-1"),
        conditions=conditions,
    )
    return a_claim(status=status)


class Touched(list[Pod]):
    def touch(self, pod: Pod) -> None:
        self.append(pod)


def a_view_with_a_refused_pod() -> tuple[NodeView, WaitingPods, Touched]:
    events, touched = AtOnce(), Touched()
    view = NodeView("n1", events)
    waiting = WaitingPods(view, touched)
    events.observers.append(waiting)
    view.pods.added(a_pod())
    waiting.add(("default", "pod-1"), Why.NO_CLAIM)
    return view, waiting, touched


def test_a_refused_pod_is_touched_once_when_its_grant_appears() -> None:
    view, _, touched = a_view_with_a_refused_pod()
    view.claims.added(a_granted_claim())
    view.claims.modified(a_granted_claim(number=1))
    assert [pod.metadata.name for pod in touched] == ["pod-1"]


def test_our_own_conditions_wake_nobody() -> None:
    view, waiting, touched = a_view_with_a_refused_pod()
    view.claims.added(a_granted_claim())
    waiting.add(("default", "pod-1"), Why.OVER_CAPACITY)
    view.claims.modified(a_granted_claim(prepared="OverCapacity"))
    assert len(touched) == 1


def test_room_wakes_only_those_who_wait_for_room() -> None:
    _, waiting, touched = a_view_with_a_refused_pod()
    waiting.room_was_made()
    assert touched == []
    waiting.add(("default", "pod-1"), Why.OVER_CAPACITY)
    waiting.room_was_made()
    assert len(touched) == 1


def test_a_pod_that_was_granted_after_all_is_left_alone() -> None:
    view, waiting, touched = a_view_with_a_refused_pod()
    waiting.done(("default", "pod-1"))
    waiting.done(("default", "never-refused"))
    view.claims.added(a_granted_claim())
    assert touched == []


def test_a_successor_of_a_refused_pod_is_not_woken_in_its_stead() -> None:
    view, waiting, touched = a_view_with_a_refused_pod()
    view.pods.modified(a_pod(resource_version=2))
    waiting.add(("default", "pod-1"), Why.OVER_CAPACITY)
    view.pods.deleted(ObjectIdentity("default", "pod-1", "uid-of-pod-1"))
    view.pods.added(a_pod(uid="uid-of-its-successor"))
    waiting.room_was_made()
    assert touched == []


def test_a_change_of_a_waiting_pod_does_not_end_its_waiting() -> None:
    view, _, touched = a_view_with_a_refused_pod()
    view.pods.modified(a_pod(resource_version=2))
    view.claims.added(a_granted_claim())
    assert len(touched) == 1


def test_a_pod_that_is_not_seen_here_is_woken_once_it_is() -> None:
    events, touched = AtOnce(), Touched()
    view = NodeView("n1", events)
    waiting = WaitingPods(view, touched)
    events.observers.append(waiting)
    waiting.add(("default", "pod-1"), Why.OVER_CAPACITY)
    waiting.room_was_made()
    view.pods.added(a_pod())
    waiting.room_was_made()
    assert [pod.metadata.name for pod in touched] == ["pod-1"]


def test_a_claim_that_goes_or_names_no_pod_wakes_nobody() -> None:
    view, _, touched = a_view_with_a_refused_pod()
    view.claims.added(a_claim(allocation=an_allocation()))
    view.claims.deleted(ObjectIdentity("default", "claim-1", "uid-of-claim-1"))
    assert touched == []


@pytest.mark.parametrize("reason", [Why.OVER_CAPACITY, Why.SLOT_TAKEN, Why.CLAIM_CLOSED])
def test_room_wakes_each_who_waits_for_it_and_later_ones_too(reason: Why) -> None:
    view, waiting, touched = a_view_with_a_refused_pod()  # it lacks a claim, so it is first in line
    view.pods.added(a_pod("pod-2"))
    waiting.add(("default", "pod-2"), reason)
    waiting.room_was_made()
    assert [pod.metadata.name for pod in touched] == ["pod-2"]
