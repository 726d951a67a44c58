"""Rules for every value on the wire."""

from __future__ import annotations

from vgpu_api.core.storage import CSINode
from vgpu_api.v1alpha1 import AllocatedDevice, Metadata


def test_values_that_were_given_the_same_fields_share_the_memory_that_says_so() -> None:
    one = AllocatedDevice(uuid="GPU-0", memory="1Gi")
    another = AllocatedDevice.model_validate({"uuid": "GPU-1", "memory": "2Gi"})
    assert one.model_fields_set is another.model_fields_set
    assert one.model_fields_set == {"uuid", "memory"}


def test_values_that_were_given_different_fields_do_not_share_it() -> None:
    one, another = Metadata(name="claim-1"), Metadata(name="claim-1", uid="uid-1")
    assert one.model_fields_set == {"name"}
    assert another.model_fields_set == {"name", "uid"}


def test_a_changed_copy_leaves_what_the_original_and_its_like_were_given() -> None:
    one, like = Metadata(name="claim-1"), Metadata(name="claim-2")
    copy = one.model_copy(update={"uid": "uid-1"})
    assert copy.model_fields_set == {"name", "uid"}
    assert one.model_fields_set == like.model_fields_set == {"name"}


def test_a_node_without_csi_drivers_has_null_in_place_of_a_list() -> None:
    wire = {"metadata": {"name": "node-1"}, "spec": {"drivers": None}}
    assert CSINode.model_validate(wire).spec.drivers == []
