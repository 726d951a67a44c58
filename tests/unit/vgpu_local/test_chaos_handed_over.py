"""The judge of ResourceClaims finds each kind of violation; else its silence would mean nothing."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from builders import a_claim, a_device, a_request, an_allocated_device, an_allocation
from vgpu_api.v1alpha1 import ReservedFor
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.chaos.handed_over import breaches, disagreements

Raw = dict[str, Any]
UID = "uid-of-pod-1"
OTHER = {"resource": "pods", "name": "other", "uid": "another"}


def a_pod(name: str = "pod-1", *, node: str = "node-1", **status: Any) -> Raw:
    entry = {"name": "vgpu", "resourceClaimName": f"vgpu-of-{name}"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}"},
        "spec": {"nodeName": node, "containers": [{"name": "main"}], "resourceClaims": [entry]},
        "status": {"phase": "Running", **status},
    }


def a_vgpuclaim(name: str = "pod-1", *, number: int = 0, memory_mib: int = 1024) -> Raw:
    device = an_allocated_device(request="main", memory_mib=memory_mib)
    allocation = an_allocation(device, number=number)
    allocation = allocation.model_copy(update={"resource_claim_uid": f"uid-of-vgpu-of-{name}"})
    claim = a_claim(name, requests=[a_request(name="main")], allocation=allocation)
    reserved = ReservedFor(pod_name=name, pod_uid=f"uid-of-{name}")
    status = claim.status.model_copy(update={"reserved_for": reserved})
    return claim.model_copy(update={"status": status}).to_wire()


def a_resource_claim(name: str = "pod-1", *, number: int = 0, memory: str = "1Gi") -> Raw:
    result = {
        "request": "main",
        "driver": "vgpu.dev",
        "pool": "node-1",
        "device": "gpu-0",
        "shareID": str(uuid.uuid5(uuid.UUID(int=number), "main")),
        "consumedCapacity": {"memory": memory, "cores": "0"},
    }
    return {
        "metadata": {
            "name": f"vgpu-of-{name}",
            "namespace": "default",
            "uid": f"uid-of-vgpu-of-{name}",
            "finalizers": ["vgpu.dev/in-use"],
            "annotations": {"vgpu.dev/pod-uid": f"uid-of-{name}"},
        },
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-of-{name}"}],
        },
    }


class History:
    """Writes in order."""

    def __init__(self) -> None:
        self.writes: list[WriteEvent] = []
        device = a_device(memory_mib=10_000, slots=10).to_wire()
        self.write("gpudevices.vgpu.dev", device)

    def write(self, kind: str, obj: Raw, type_: str = "MODIFIED") -> None:
        self.writes.append(WriteEvent(type_, kind, len(self.writes) + 1, orjson.dumps(obj)))

    def pod(self, obj: Raw) -> None:
        self.write("pods", obj)

    def vgpuclaim(self, obj: Raw) -> None:
        self.write("vgpuclaims.vgpu.dev", obj)

    def resource_claim(self, obj: Raw) -> None:
        self.write("resourceclaims.resource.k8s.io", obj)

    def runs(self, name: str = "pod-1", *, number: int = 0, memory: tuple[int, str]) -> None:
        """Let a pod come and run in the right order."""
        self.pod(a_pod(name, node="", phase="Pending"))
        self.vgpuclaim(a_vgpuclaim(name, number=number, memory_mib=memory[0]))
        self.resource_claim(a_resource_claim(name, number=number, memory=memory[1]))
        self.pod(a_pod(name))


GIB = (1024, "1Gi")


def test_nothing_is_found_where_the_order_is_right() -> None:
    history = History()
    history.runs(memory=GIB)
    assert breaches(history.writes) == []


def test_an_allocation_before_its_vgpuclaim_is_found() -> None:
    history = History()
    history.pod(a_pod(node=""))
    history.resource_claim(a_resource_claim())
    (found,) = breaches(history.writes)
    assert "which no VGPUClaim gave before" in found


def test_an_allocation_of_another_amount_is_found() -> None:
    history = History()
    history.runs(memory=(1024, "2Gi"))
    (found,) = breaches(history.writes)
    assert "which no VGPUClaim gave before" in found


def test_a_pod_that_is_bound_without_a_vgpuclaim_is_found() -> None:
    history = History()
    history.pod(a_pod(node=""))
    history.pod(a_pod())
    (found,) = breaches(history.writes)
    assert "pod pod-1 was bound, and no VGPUClaim gave it devices there" in found


def test_more_than_a_device_has_is_found_by_what_resource_claims_consume() -> None:
    history = History()
    for number, name in enumerate(("a", "b")):
        history.runs(name, number=number, memory=(5120, "5Gi"))
    (found,) = breaches(history.writes)
    assert "ResourceClaims consume" in found


def test_claims_of_pods_that_have_ended_consume_nothing() -> None:
    history = History()
    history.runs("a", memory=(5120, "5Gi"))
    history.pod(a_pod("a", phase="Succeeded"))
    history.runs("b", number=1, memory=(5120, "5Gi"))
    assert breaches(history.writes) == []


def test_an_allocation_that_goes_under_its_pod_is_found() -> None:
    history = History()
    history.runs(memory=GIB)
    taken = a_resource_claim()
    taken["status"] = {}
    history.resource_claim(taken)
    (found,) = breaches(history.writes)
    assert "lost its allocation while pod-1 had it" in found


def test_a_missing_finalizer_and_another_consumer_are_found() -> None:
    history = History()
    history.vgpuclaim(a_vgpuclaim())
    claim = a_resource_claim()
    del claim["metadata"]["finalizers"]
    claim["status"]["reservedFor"].append(OTHER)
    history.resource_claim(claim)
    found = " ".join(breaches(history.writes))
    assert "is allocated without its finalizer" in found
    assert "is reserved for ['another'], which it does not serve" in found


def agreeing() -> tuple[Raw, Raw, Raw]:
    return a_resource_claim(), a_vgpuclaim(), a_pod()


def another_device(resource_claim: Raw, claim: Raw, pod: Raw) -> str:
    resource_claim["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-1"
    return "and VGPUClaim pod-1 has"


def another_amount(resource_claim: Raw, claim: Raw, pod: Raw) -> str:
    claim["status"]["allocation"]["devices"][0]["cores"] = 5
    return "and VGPUClaim pod-1 has"


def another_uid(resource_claim: Raw, claim: Raw, pod: Raw) -> str:
    claim["status"]["allocation"]["resourceClaimUID"] = "another"
    return "has 0 VGPUClaims"


def no_allocation(resource_claim: Raw, claim: Raw, pod: Raw) -> str:
    resource_claim["status"] = {}
    return "pod pod-1 is bound, and its ResourceClaim shows nothing"


def no_pod(resource_claim: Raw, claim: Raw, pod: Raw) -> str:
    pod["metadata"]["uid"] = "another"
    return "is allocated for a pod that is gone"


def test_claims_at_rest_that_agree_are_no_finding() -> None:
    resource_claim, claim, pod = agreeing()
    assert disagreements([resource_claim], [claim], [pod]) == []


@pytest.mark.parametrize(
    "change", [another_device, another_amount, another_uid, no_allocation, no_pod]
)
def test_claims_at_rest_that_disagree_are_found(change: Callable[[Raw, Raw, Raw], str]) -> None:
    resource_claim, claim, pod = agreeing()
    words = change(resource_claim, claim, pod)
    found = disagreements([resource_claim], [claim], [pod])
    assert any(words in each for each in found), found


def test_two_vgpuclaims_behind_one_resource_claim_are_found() -> None:
    resource_claim, claim, pod = agreeing()
    second = copy.deepcopy(claim)
    second["metadata"] |= {"name": "second", "uid": "second"}
    (found,) = disagreements([resource_claim], [claim, second], [pod])
    assert "has 2 VGPUClaims" in found
