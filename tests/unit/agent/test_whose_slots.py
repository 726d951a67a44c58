"""Records that disagree about slots lead to a sentence in an event, except for init containers."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_container, a_pod
from vgpu_api.core.pod import Pod
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.kubelet.identity import Consumer, identify
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry
from vgpu_nodeagent.kubelet.pod_resources import ContainerSlots, PodListing


def an_entry(
    container: str = "main",
    *,
    uid: str = "uid-of-pod-1",
    slots: tuple[str, ...] = ("slot-1", "slot-2"),
    slot_allocation: str = "x",
) -> KubeletEntry:
    return KubeletEntry(uid, container, "nvidia.com/gpu", frozenset(slots), slot_allocation)


def holds(container: str = "main", *, pod: str = "pod-1", slots: str = "slot-1") -> ContainerSlots:
    return ContainerSlots("default", pod, container, frozenset(slots.split()))


def whose(
    *entries: KubeletEntry, holders: tuple[ContainerSlots, ...] = (), pods: tuple[Pod, ...] = ()
) -> Consumer:
    active = {("default", pod.metadata.name) for pod in pods}
    return identify(
        ["slot-2", "slot-1"],
        entries=entries,
        listing=PodListing(frozenset(active), holders),
        pods={("default", pod.metadata.name): pod for pod in pods},
    )


def refusal(*entries: KubeletEntry, **fields: Any) -> tuple[Why, str]:
    with pytest.raises(Refused) as refused:
        whose(*entries, **fields)
    return refused.value.reason, str(refused.value)


def test_slots_without_a_record_are_named_in_order():
    stranger = an_entry(slots=("slot-9",))
    assert refusal(stranger, an_entry(slots=("slot-1",))) == (
        Why.UNKNOWN_ALLOCATION,
        "the kubelet's checkpoint has no container with slots slot-1, slot-2",
    )


def test_an_entry_of_other_slots_is_nobodys_business():
    other = an_entry("other", uid="uid-of-pod-2", slots=("slot-9",))
    pod = a_pod()
    assert whose(other, an_entry(), holders=(holds(),), pods=(pod,)).pod is pod


def test_slots_of_several_pods_on_record_are_refused():
    assert refusal(an_entry(), an_entry(uid="uid-of-pod-2")) == (
        Why.RECORDS_DISAGREE,
        "the kubelet's checkpoint gives slots slot-1, slot-2 to several pods",
    )


def test_slots_that_several_pods_hold_are_refused_with_the_pods():
    holders = (holds(pod="pod-2", slots="slot-2"), holds())
    assert refusal(an_entry(), holders=holders) == (
        Why.RECORDS_DISAGREE,
        "several pods hold the slots: [('default', 'pod-1'), ('default', 'pod-2')]",
    )


def test_slots_under_another_container_are_refused_with_both():
    entries = (an_entry("b"), an_entry("a"))
    assert refusal(*entries, holders=(holds("c"),), pods=(a_pod(),)) == (
        Why.RECORDS_DISAGREE,
        "PodResources lists the slots under container c, the kubelet's checkpoint under a, b",
    )


def test_a_pod_that_was_not_seen_yet_is_named():
    assert refusal(an_entry(), holders=(holds(),)) == (
        Why.POD_UNKNOWN,
        "pod default/pod-1 has not been seen on this node yet",
    )


def test_a_successor_of_the_same_name_is_told_apart_by_its_uid():
    pod = a_pod(uid="uid-of-the-next")
    assert refusal(an_entry(), holders=(holds(),), pods=(pod,)) == (
        Why.RECORDS_DISAGREE,
        "slots slot-1, slot-2 belong to the pod with UID uid-of-pod-1, but default/pod-1 is "
        "uid-of-the-next now",
    )


def test_a_pod_that_has_ended_is_named():
    assert refusal(an_entry(), holders=(holds(),), pods=(a_pod(phase="Succeeded"),)) == (
        Why.POD_ENDED,
        "pod default/pod-1 has ended already",
    )


def test_a_container_of_another_plugin_is_named_and_has_no_binding():
    found = whose(an_entry(slot_allocation=""), holders=(holds(),), pods=(a_pod(),))
    assert (found.bindings, found.of_another) == ((), ("main",))


# No holder, because only ordinary init containers have the slots.

NOT_HELD = (Why.NOT_HELD, "the kubelet lists no container that holds these slots")


def an_init_pod(*, sidecar: bool = False) -> Pod:
    first = a_container("first", **({"restart_policy": "Always"} if sidecar else {}))
    return a_pod(init_containers=[first, a_container("second")])


def test_the_pod_is_found_by_its_uid_among_others():
    other, pod = a_pod("other"), an_init_pod()
    assert whose(an_entry("first"), an_entry("second"), pods=(other, pod)).pod is pod


@pytest.mark.parametrize(
    ("entries", "pods"),
    [
        ((an_entry("first"),), ()),
        ((an_entry("first"),), (a_pod("other"),)),
        ((an_entry("main"),), (an_init_pod(),)),
        ((an_entry("first"), an_entry("main")), (an_init_pod(),)),
        ((an_entry("first"),), (an_init_pod(sidecar=True),)),
    ],
)
def test_slots_that_are_not_all_init_containers_must_be_held(entries, pods):
    assert refusal(*entries, pods=pods) == NOT_HELD


def test_a_pod_that_the_kubelet_no_longer_lists_holds_nothing():
    pod = an_init_pod()
    with pytest.raises(Refused) as refused:
        identify(
            ["slot-1", "slot-2"],
            entries=[an_entry("first")],
            listing=PodListing(frozenset({("default", "other")}), ()),
            pods={("default", "pod-1"): pod},
        )
    assert (refused.value.reason, str(refused.value)) == NOT_HELD
