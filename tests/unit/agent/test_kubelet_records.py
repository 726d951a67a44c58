"""The agent reads the kubelet's records of allocations, and refuses contradictions."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from builders import a_container, a_pod
from vgpu_api.core.pod import Pod
from vgpu_nodeagent.errors import KubeletUnavailable, Refused, Why
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp
from vgpu_nodeagent.kubelet.identity import Consumer, identify
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry, read_kubelet_checkpoint
from vgpu_nodeagent.kubelet.pod_resources import ContainerSlots, PodListing
from vgpu_nodeagent.state.slots import Binding

SLOT = "nvidia.com/gpu"


def an_answer(*devices: str) -> str:
    answer = dp.ContainerAllocateResponse(cdi_devices=[dp.CDIDevice(name=d) for d in devices])
    return base64.b64encode(answer.SerializeToString()).decode()


def a_record(**changes: Any) -> dict[str, Any]:
    return {
        "PodUID": "uid-of-pod-1",
        "ContainerName": "main",
        "ResourceName": SLOT,
        "DeviceIDs": {"-1": ["slot-2"], "0": ["slot-5"]},
        "AllocResp": an_answer("vgpu.dev/slot=slot-2-abc"),
        **changes,
    }


def read(tmp_path: Path, *records: dict[str, Any]) -> tuple[KubeletEntry, ...]:
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": records}, "Checksum": 1}))
    return read_kubelet_checkpoint(path, resource=SLOT)


def test_an_entry_names_pod_container_slots_and_lease(tmp_path: Path) -> None:
    assert read(tmp_path, a_record()) == (
        KubeletEntry("uid-of-pod-1", "main", SLOT, frozenset({"slot-2", "slot-5"}), "slot-2-abc"),
    )


def test_ids_may_be_a_flat_list_as_older_kubelets_wrote(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, a_record(DeviceIDs=["slot-2"]))
    assert entry.slot_ids == {"slot-2"}


def test_other_resources_are_passed_over_unread(tmp_path: Path) -> None:
    assert read(tmp_path, a_record(ResourceName="ex.dev/nic", AllocResp="?")) == ()


def test_an_answer_of_another_plugin_has_no_lease(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, a_record(AllocResp=an_answer("nvidia.com/gpu=0")))
    assert entry.slot_allocation == ""


def test_without_a_file_the_kubelet_has_allocated_nothing(tmp_path: Path) -> None:
    assert read_kubelet_checkpoint(tmp_path / "none", resource=SLOT) == ()


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("", "not JSON"),
        ('{"Data": {"PodDeviceEntries": [', "not JSON"),
        ("{}", "field Data"),
        ('{"Data": {}}', "field Data.PodDeviceEntries"),
        (json.dumps({"Data": {"PodDeviceEntries": [{"PodUID": "u"}]}}), "ContainerName"),
    ],
)
def test_a_file_that_is_cut_or_of_another_format_is_refused(
    tmp_path: Path, content: str, names: str
) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_text(content)
    with pytest.raises(KubeletUnavailable, match=names):
        read_kubelet_checkpoint(path, resource=SLOT)


@pytest.mark.parametrize("answer", ["%%%", base64.b64encode(b"\xff\xff").decode()])
def test_an_answer_that_cannot_be_read_is_refused(tmp_path: Path, answer: str) -> None:
    with pytest.raises(KubeletUnavailable, match="AllocResp of container main"):
        read(tmp_path, a_record(AllocResp=answer))


def test_an_answer_with_two_of_our_slot_allocations_is_refused(tmp_path: Path) -> None:
    two = an_answer("vgpu.dev/slot=slot-1-a", "vgpu.dev/slot=slot-2-b")
    with pytest.raises(KubeletUnavailable, match="2 slot allocations"):
        read(tmp_path, a_record(AllocResp=two))


def test_a_container_without_an_answer_has_no_lease(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, a_record(AllocResp=None))
    assert entry.slot_allocation == ""


def test_a_checkpoint_without_entries_is_of_a_kubelet_that_allocated_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_text('{"Data": {"PodDeviceEntries": null}}')
    assert read_kubelet_checkpoint(path, resource=SLOT) == ()


def test_a_file_that_cannot_be_opened_is_named_with_the_cause(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnavailable) as refused:
        read_kubelet_checkpoint(tmp_path, resource=SLOT)
    assert str(refused.value) == f"kubelet checkpoint {tmp_path}: Is a directory"


# The pod of some slots.


def an_entry(
    container: str = "main",
    *,
    uid: str = "uid-of-pod-1",
    slots: str = "slot-1",
    slot_allocation: str = "x",
) -> KubeletEntry:
    return KubeletEntry(uid, container, SLOT, frozenset(slots.split()), slot_allocation)


def a_listing(*containers: ContainerSlots, pods: str = "pod-1") -> PodListing:
    return PodListing(frozenset(("default", pod) for pod in pods.split()), containers)


def holds(container: str = "main", *, pod: str = "pod-1", slots: str = "slot-1") -> ContainerSlots:
    return ContainerSlots("default", pod, container, frozenset(slots.split()))


def whose(
    entries: list[KubeletEntry],
    listing: PodListing,
    *pods: Pod,
    slots: str = "slot-1",
) -> Consumer:
    seen = {("default", pod.metadata.name): pod for pod in pods}
    return identify(slots.split(), entries=entries, listing=listing, pods=seen)


def reason(*args: Any, **kwargs: Any) -> Why:
    with pytest.raises(Refused) as refused:
        whose(*args, **kwargs)
    return refused.value.reason


def test_three_records_that_agree_name_the_pod_and_its_leases() -> None:
    pod = a_pod()
    found = whose([an_entry()], a_listing(holds()), pod)
    assert found == Consumer(pod, (Binding("x", "main"),))


def test_all_leases_of_the_pod_on_these_slots_are_filled() -> None:
    entries = [an_entry("first", slot_allocation="a"), an_entry("main", slot_allocation="b")]
    pod = a_pod(init_containers=[a_container("first")])
    found = whose(entries, a_listing(holds()), pod)
    assert found.bindings == (Binding("a", "first"), Binding("b", "main"))


def test_slots_that_the_kubelet_has_no_record_of_are_refused() -> None:
    assert reason([], a_listing(holds()), a_pod()) is Why.UNKNOWN_ALLOCATION


def test_a_part_of_a_containers_slots_is_refused() -> None:
    entries = [an_entry(slots="slot-1 slot-2")]
    assert reason(entries, a_listing(holds()), a_pod()) is Why.UNKNOWN_ALLOCATION


def test_slots_of_two_pods_are_refused() -> None:
    entries = [an_entry(), an_entry(uid="uid-of-pod-2")]
    assert reason(entries, a_listing(holds()), a_pod()) is Why.RECORDS_DISAGREE


def test_slots_listed_under_two_pods_are_refused() -> None:
    listing = a_listing(holds(), holds(pod="pod-2"))
    assert reason([an_entry()], listing, a_pod()) is Why.RECORDS_DISAGREE


def test_a_pod_of_another_uid_under_that_name_is_refused() -> None:
    pod = a_pod(uid="a-newer-one")
    assert reason([an_entry()], a_listing(holds()), pod) is Why.RECORDS_DISAGREE


def test_a_container_that_only_one_record_names_is_refused() -> None:
    assert reason([an_entry()], a_listing(holds("other")), a_pod()) is Why.RECORDS_DISAGREE


def test_a_pod_not_seen_yet_is_refused() -> None:
    assert reason([an_entry()], a_listing(holds())) is Why.POD_UNKNOWN


def test_a_pod_that_has_ended_is_refused() -> None:
    assert reason([an_entry()], a_listing(holds()), a_pod(phase="Failed")) is Why.POD_ENDED


def test_slots_that_nobody_holds_are_refused() -> None:
    """The kubelet still starts a pod that was deleted by force, but no longer lists it."""
    assert reason([an_entry()], a_listing(pods="pod-2"), a_pod()) is Why.NOT_HELD


def test_slots_that_only_an_init_container_holds_are_the_pods_own() -> None:
    pod = a_pod(init_containers=[a_container("first")])
    found = whose([an_entry("first")], a_listing(), pod)
    assert found.bindings == (Binding("x", "first"),)


def test_a_container_allocated_by_another_plugin_has_no_slot_allocation() -> None:
    found = whose([an_entry(slot_allocation="")], a_listing(holds()), a_pod())
    assert (found.bindings, found.of_another) == ((), ("main",))
