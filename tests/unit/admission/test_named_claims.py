"""Pods that name their author's ResourceClaims ask as with resource names, and keep them."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest

from builders import CLAIMS, GATE
from vgpu_api.core import Pod
from vgpu_api.names import (
    ANNOTATION_DEVICE_SELECTOR,
    ANNOTATION_RESOURCE_CLAIM,
    ANNOTATION_SCHEDULER_CLAIM,
)
from vgpu_operator.admission.rules import (
    Denied,
    NamedObjects,
    ask_by_claims,
    asks_as_described,
    mutate_pod,
    objects_named_by,
)
from vgpu_operator.admission.rules.no_effect import without_effect
from vgpu_operator.dialects import read
from vgpu_operator.dialects.resource_claims import claim_of_pod, requests_of

Raw = dict[str, Any]
A100 = 'device.attributes["vgpu.dev"].productName == "NVIDIA A100-SXM4-80GB"'
UID = "00000000-0000-0000-0000-00000000000c"


def a_pod(*containers: Raw, entries: dict[str, str] | None = None, **annotations: str) -> Raw:
    named = {"gpu": "mine"} if entries is None else entries
    return {
        "metadata": {"name": "pod-1", "annotations": annotations},
        "spec": {
            "containers": list(containers) or [using("main")],
            "resourceClaims": [
                {"name": entry, "resourceClaimName": name} for entry, name in named.items()
            ],
        },
    }


def using(name: str, *, limits: Raw | None = None, **more: str) -> Raw:
    resources = {"claims": [{"name": "gpu", **more}], **({"limits": limits} if limits else {})}
    return {"name": name, "resources": resources}


def a_claim(*requests: str, class_name: str = "vgpu.dev", **exactly: Any) -> Raw:
    wanted = {"deviceClassName": class_name, **exactly}
    named = [{"name": name, "exactly": wanted} for name in requests or ("gpu",)]
    return {"metadata": {"name": "mine", "uid": UID}, "spec": {"devices": {"requests": named}}}


def admitted(pod: Raw, claim: Raw) -> Any:
    """Return the pod after a review."""
    named = objects_named_by(pod)
    found = NamedObjects({}, dict.fromkeys(named.claims, claim))
    asking = jsonpatch.apply_patch(copy.deepcopy(pod), ask_by_claims(pod, found, CLAIMS))
    return jsonpatch.apply_patch(asking, mutate_pod(asking, CLAIMS, None, token="0" * 12))


def refused(pod: Raw, claim: Raw) -> str:
    with pytest.raises(Denied) as denied:
        admitted(pod, claim)
    return denied.value.message


def test_the_pod_asks_for_what_its_claim_says_and_still_names_it() -> None:
    amounts = {"capacity": {"requests": {"memory": "8Gi", "cores": 50}}}
    pod = admitted(a_pod(), a_claim(**amounts))
    demand = read(Pod.model_validate(pod), CLAIMS)
    assert demand is not None
    assert demand.spec is not None
    (request,) = demand.spec.requests
    assert (request.name, request.count, request.memory, request.cores) == ("main", 1, "8Gi", 50)
    assert pod["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "mine"}]
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": "gpu"}]
    assert not container["resources"]["limits"]
    assert pod["metadata"]["annotations"][ANNOTATION_RESOURCE_CLAIM] == f"gpu:{UID}"
    assert claim_of_pod(Pod.model_validate(pod)) == "mine"


def test_a_second_review_finds_that_the_pod_asks_for_what_its_claim_says() -> None:
    memory = {"capacity": {"requests": {"memory": "8Gi"}}}
    claim, larger = a_claim(**memory), a_claim(capacity={"requests": {"memory": "9Gi"}})
    pod = admitted(a_pod(), claim)
    assert asks_as_described(pod, claim, CLAIMS)
    assert not asks_as_described(pod, larger, CLAIMS)
    other = a_claim(**memory)
    other["metadata"]["uid"] = UID.replace("c", "d")
    assert not asks_as_described(pod, other, CLAIMS)
    assert not asks_as_described(pod, a_claim(class_name="gpu.nvidia.com", **memory), CLAIMS)
    selected = a_claim(**memory, selectors=[{"cel": {"expression": A100}}])
    assert not asks_as_described(pod, selected, CLAIMS)
    assert asks_as_described(admitted(a_pod(), selected), selected, CLAIMS)


def test_a_second_review_changes_nothing_and_reads_no_claim() -> None:
    amounts = {"capacity": {"requests": {"memory": "8Gi"}}}
    pod = admitted(a_pod(), a_claim(**amounts))
    assert objects_named_by(pod) == ({}, {})
    assert mutate_pod(pod, CLAIMS, None, token="f" * 12) == []


def test_each_container_has_its_request() -> None:
    pod = admitted(
        a_pod(using("one", request="a"), using("two", request="b")), a_claim("a", "b", count=2)
    )
    assert requests_of(Pod.model_validate(pod)) == {"one": "a", "two": "b"}


def test_selectors_are_read_too() -> None:
    cel = {"expression": 'device.attributes["vgpu.dev"].uuid in ["GPU-1", "GPU-2"]'}
    pod = admitted(a_pod(), a_claim(selectors=[{"cel": cel}]))
    assert pod["metadata"]["annotations"][ANNOTATION_DEVICE_SELECTOR] == cel["expression"]


def test_claims_of_other_classes_are_left_alone() -> None:
    pod = a_pod()
    assert admitted(pod, a_claim(class_name="nics.example.com")) == pod


@pytest.mark.parametrize(
    ("pod", "claim", "sentence"),
    [
        (
            a_pod(),
            a_claim(allocationMode="All"),
            "resourceclaims/mine: spec.devices.requests[0].exactly.allocationMode: Unsupported",
        ),
        (
            a_pod(),
            a_claim(adminAccess=True),
            "resourceclaims/mine: spec.devices.requests[0].exactly.adminAccess: Forbidden",
        ),
        (
            a_pod(using("one"), using("two")),
            a_claim(),
            'resourceclaims/mine: spec.devices.requests[0]: Invalid value: "one, two"',
        ),
        (
            a_pod(entries={"gpu": "mine", "more": "another"}),
            a_claim(),
            "spec.resourceClaims: Forbidden: gpu, more all ask for GPUs",
        ),
        (
            a_pod(
                {"name": "main", "resources": {"claims": [{"name": "vgpu"}]}},
                entries={"vgpu": "mine"},
            ),
            a_claim(),
            'spec.resourceClaims: Duplicate value: "vgpu"',
        ),
        (
            a_pod(using("main"), {"name": "b", "resources": {"limits": {"nvidia.com/gpu": 1}}}),
            a_claim(),
            "container b asks by resources, and the GPUs of the pod come through ResourceClaim",
        ),
        (
            a_pod(entries={}, **{ANNOTATION_RESOURCE_CLAIM: "gpu:1"}),
            a_claim(),
            f"metadata.annotations[{ANNOTATION_RESOURCE_CLAIM}]: Invalid value",
        ),
        (
            a_pod(entries={"gpu": f"vgpu-{'a' * 12}"}, **{ANNOTATION_RESOURCE_CLAIM: "gpu:1"}),
            a_claim(),
            f"metadata.annotations[{ANNOTATION_RESOURCE_CLAIM}]: Invalid value",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_field(
    pod: Raw, claim: Raw, sentence: str
) -> None:
    assert sentence in refused(pod, claim)


def a_template(*requests: str, **exactly: Any) -> Raw:
    claim = a_claim(*requests, class_name="scheduler.vgpu.dev", **exactly)
    return {"metadata": {"name": "gpus"}, "spec": {"spec": claim["spec"]}}


def a_pod_by_template(*containers: Raw, **annotations: str) -> Raw:
    pod = a_pod(*containers, **annotations)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    return pod


def admitted_by_template(pod: Raw, template: Raw) -> Any:
    found = NamedObjects(dict.fromkeys(objects_named_by(pod).templates, template), {})
    asking = jsonpatch.apply_patch(copy.deepcopy(pod), ask_by_claims(pod, found, CLAIMS))
    return jsonpatch.apply_patch(asking, mutate_pod(asking, CLAIMS, None, token="0" * 12))


def test_a_claim_that_kube_scheduler_allocates_stays_in_the_pod_as_its_author_wrote_it() -> None:
    cel = {"expression": 'device.attributes["vgpu.dev"].numa == 0'}
    amounts = {"capacity": {"requests": {"memory": "8Gi", "cores": 50}}}
    written = a_pod_by_template()
    pod = admitted_by_template(written, a_template(selectors=[{"cel": cel}], **amounts))
    assert pod["spec"]["resourceClaims"] == written["spec"]["resourceClaims"]
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": "gpu"}]
    assert not container["resources"]["limits"]
    assert pod["metadata"]["annotations"][ANNOTATION_SCHEDULER_CLAIM] == "gpu"
    demand = read(Pod.model_validate(pod), CLAIMS)
    assert demand is not None
    assert demand.spec is not None
    (request,) = demand.spec.requests
    assert (request.name, request.count, request.memory, request.cores) == ("main", 1, "8Gi", 50)
    assert admitted_by_template(pod, a_template(**amounts)) == pod  # a second review


@pytest.mark.parametrize(
    ("pod", "template", "sentence"),
    [
        (a_pod_by_template(), a_template(allocationMode="All"), "exactly.allocationMode: Unsupp"),
        (
            a_pod_by_template(),
            a_template(tolerations=[{"key": "vgpu.dev/unhealthy"}]),
            "exactly.tolerations: Forbidden",
        ),
        (
            a_pod_by_template(),
            a_template(capacity={"requests": {"memory": "8Gi", "shares": 2}}),
            'capacity.requests: Unsupported value: "shares"',
        ),
        (
            a_pod_by_template(
                using("main"), {"name": "b", "resources": {"limits": {"nvidia.com/gpu": 1}}}
            ),
            a_template(),
            "container b asks by resources, and the GPUs of the pod come through ResourceClaim gpu",
        ),
        (
            a_pod_by_template(**{"vgpu.dev/group": "ring", "vgpu.dev/group-min": "4"}),
            a_template(),
            "metadata.annotations[vgpu.dev/group]: Forbidden: kube-scheduler allocates",
        ),
        (
            a_pod_by_template(**{"nvidia.com/use-gputype": "A100"}),
            a_template(),
            "metadata.annotations[nvidia.com/use-gputype]: Forbidden: kube-scheduler chooses",
        ),
        (
            a_pod_by_template(**{ANNOTATION_SCHEDULER_CLAIM: "gpu"}),
            {"metadata": {"name": "gpus"}, "spec": {"spec": a_claim()["spec"]}},
            f"metadata.annotations[{ANNOTATION_SCHEDULER_CLAIM}]: Invalid value",
        ),
    ],
)
def test_what_kube_scheduler_would_give_and_nobody_could_enforce_is_refused(
    pod: Raw, template: Raw, sentence: str
) -> None:
    with pytest.raises(Denied) as denied:
        admitted_by_template(pod, template)
    assert sentence in denied.value.message


def test_a_preference_that_kube_scheduler_does_not_read_gets_a_warning() -> None:
    policy = "hami.io/gpu-scheduler-policy"
    pod = admitted_by_template(a_pod_by_template(**{policy: "binpack"}), a_template())
    assert without_effect(pod, CLAIMS) == [
        f"metadata.annotations[{policy}]: has no effect: kube-scheduler chooses this pod's GPUs, "
        "by its ResourceClaim"
    ]


def test_devices_of_an_init_container_are_not_asked_of_kube_scheduler() -> None:
    pod = a_pod_by_template({"name": "main"})
    pod["spec"]["initContainers"] = [using("first")]
    with pytest.raises(Denied, match=r"kube-scheduler keeps devices for as long as the pod lives"):
        admitted_by_template(pod, a_template())


def test_in_another_mode_no_pod_says_that_kube_scheduler_allocates() -> None:
    pod = a_pod({"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}, entries={})
    pod["metadata"]["annotations"] = {ANNOTATION_SCHEDULER_CLAIM: "gpu"}
    with pytest.raises(Denied, match=r"scheduler-claim\]: Forbidden: admission writes it"):
        mutate_pod(pod, GATE, None)
