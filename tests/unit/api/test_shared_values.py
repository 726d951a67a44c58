"""Values that many objects share are kept once, and compact JSON means the same as verbose JSON."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from builders import a_claim, a_device
from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim

LINK = {"peer": "GPU-1", "type": "NVLink", "score": 600}


def a_raw_device(name: str, **link: Any) -> dict[str, Any]:
    raw = a_device(name=name).to_wire()
    raw["status"]["links"] = [{**LINK, **link}]
    return raw


def test_equal_links_of_two_devices_are_one_object() -> None:
    (first,), (second,) = (
        GPUDevice.model_validate(a_raw_device(name)).status.links for name in ("gpu-0", "gpu-2")
    )
    assert first is second


def test_links_that_differ_are_two() -> None:
    (first,), (second,) = (
        GPUDevice.model_validate(a_raw_device("gpu-0", score=score)).status.links
        for score in (600, 601)
    )
    assert (first.score, second.score) == (600, 601)


def test_a_value_that_cannot_be_read_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="links"):
            GPUDevice.model_validate(a_raw_device("gpu-0", score="much"))


def test_a_large_value_is_not_kept() -> None:
    limits = {f"example.com/{number}": "1" for number in range(100)}
    raw = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    first, second = (Pod.model_validate(raw).spec.containers[0].resources for _ in range(2))
    assert first == second
    assert first is not second


def test_claims_that_ask_for_the_same_have_one_spec() -> None:
    first, second = (VGPUClaim.read(a_claim(name).to_wire()) for name in ("a", "b"))
    assert first.spec is second.spec


def test_devices_of_a_node_share_what_they_have_in_common() -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "one"}
    raws = [a_raw_device(name) for name in ("gpu-0", "gpu-1")]
    for raw in raws:
        raw["metadata"]["ownerReferences"] = [dict(owner)]
        raw["status"]["mig"] = {"enabled": False, "profiles": []}
    first, second = (GPUDevice.model_validate(raw) for raw in raws)
    assert first.spec is second.spec
    assert first.metadata.owner_references[0] is second.metadata.owner_references[0]
    assert first.status.mig is second.status.mig
    assert all(map(operator.is_, first.status.conditions, second.status.conditions))


def test_texts_of_two_objects_are_one() -> None:
    first, second = (
        Pod.model_validate({"metadata": {"namespace": "".join(("name", "space"))}})
        for _ in range(2)
    )
    assert first.metadata.namespace is second.metadata.namespace


def test_a_short_spec_is_read_as_the_long_one() -> None:
    claim = a_claim("a")
    short = claim.spec.to_short_wire()
    assert short.keys() < claim.spec.to_wire().keys()
    assert VGPUClaim.read({**claim.to_wire(), "spec": short}) == claim
