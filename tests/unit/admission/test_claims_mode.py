"""Claims mode at admission: pods get a ResourceClaim and keep no resources that nodes count."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest

from builders import CLAIMS, a_claim, a_request
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_RESOURCES
from vgpu_operator.admission.rules import (
    Denied,
    copied_claim,
    mutate_pod,
    resource_claim_named_by,
)
from vgpu_operator.dialects import read

TOKEN = "0123456789ab"
NAME = f"vgpu-{TOKEN}"
SLICE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 30}


def a_pod(limits: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "pod-1"},
        "spec": {
            "containers": [
                {"name": "main", "resources": {"limits": limits}},
                {"name": "side", "resources": {"limits": {"cpu": 1}}},
            ],
            **spec,
        },
    }


def mutated(pod: dict[str, Any], config: ClusterConfig = CLAIMS) -> Any:
    return jsonpatch.apply_patch(copy.deepcopy(pod), mutate_pod(pod, config, None, token=TOKEN))


def refused(pod: dict[str, Any], claim: Any = None) -> str:
    with pytest.raises(Denied) as denied:
        mutate_pod(pod, CLAIMS, claim, token=TOKEN)
    return denied.value.message


REQUESTS: list[dict[str, Any]] = [
    {"nvidia.com/gpu": 2, "nvidia.com/gpumem": "16Gi", "nvidia.com/gpucores": 30},
    {"nvidia.com/gpumem-percentage": 25},
    {"nvidia.com/gpu": 1},
    {"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": 20},
    {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 2048},
]


@pytest.mark.parametrize("limits", REQUESTS)
def test_a_pod_asks_for_the_same_as_in_mode_extender(limits: dict[str, Any]) -> None:
    claimed, plain = mutated(a_pod(limits)), mutated(a_pod(limits), ClusterConfig())
    again = mutate_pod(claimed, CLAIMS, None, token="f" * 12)
    assert jsonpatch.apply_patch(claimed, again) == claimed
    asks, expected = (
        read(Pod.model_validate(pod), config)
        for pod, config in ((claimed, CLAIMS), (plain, ClusterConfig()))
    )
    assert asks is not None
    assert asks == expected


@pytest.mark.parametrize("limits", REQUESTS)
def test_nothing_is_left_that_a_node_would_count(limits: dict[str, Any]) -> None:
    main, side = mutated(a_pod(limits))["spec"]["containers"]
    assert not main["resources"]["limits"]
    assert not main["resources"].get("requests")
    assert side["resources"] == {"limits": {"cpu": 1}}


def test_the_container_that_asks_uses_a_request_of_its_own_name() -> None:
    pod = mutated(a_pod(SLICE))
    assert pod["spec"]["resourceClaims"] == [{"name": "vgpu", "resourceClaimName": NAME}]
    main, side = pod["spec"]["containers"]
    assert main["resources"]["claims"] == [{"name": "vgpu", "request": "main"}]
    assert "claims" not in side["resources"]
    assert json.loads(pod["metadata"]["annotations"][ANNOTATION_RESOURCES]) == {"main": SLICE}


def test_claims_of_other_drivers_stay() -> None:
    other = {"name": "nic", "resourceClaimName": "mine"}
    pod = a_pod(SLICE, resourceClaims=[other])
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    claimed = mutated(pod)
    assert claimed["spec"]["resourceClaims"] == [other, {"name": "vgpu", "resourceClaimName": NAME}]
    assert claimed["spec"]["containers"][0]["resources"]["claims"] == [
        {"name": "nic"},
        {"name": "vgpu", "request": "main"},
    ]


def test_a_second_review_changes_nothing() -> None:
    claimed = mutated(a_pod(SLICE))
    assert mutate_pod(claimed, CLAIMS, None, token="f" * 12) == []


def test_init_containers_have_requests_too() -> None:
    pod = a_pod(SLICE, initContainers=[{"name": "load", "resources": {"limits": dict(SLICE)}}])
    (load,) = mutated(pod)["spec"]["initContainers"]
    assert load["resources"]["claims"] == [{"name": "vgpu", "request": "load"}]


def test_the_containers_of_a_named_claim_are_recorded_without_slots() -> None:
    pod = a_pod({})
    pod["metadata"]["annotations"] = {ANNOTATION_CLAIM: "mine"}
    claim = a_claim("mine", requests=[a_request(name="main")])
    claimed = jsonpatch.apply_patch(copy.deepcopy(pod), mutate_pod(pod, CLAIMS, claim, token=TOKEN))
    (main, _) = claimed["spec"]["containers"]
    assert main["resources"]["claims"] == [{"name": "vgpu", "request": "main"}]
    assert not main["resources"]["limits"]
    again = mutate_pod(claimed, CLAIMS, claim, token="f" * 12)
    assert jsonpatch.apply_patch(claimed, again) == claimed
    demand = read(Pod.model_validate(claimed), CLAIMS)
    assert demand is not None
    assert demand.containers == ("main",)


@pytest.mark.parametrize("chosen", ["vgpu-scheduler", "hami-scheduler"])
def test_a_scheduler_of_ours_does_not_run(chosen: str) -> None:
    pod = mutated(a_pod(SLICE, schedulerName=chosen))
    assert pod["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("chosen", ["default-scheduler", "volcano", "kai-scheduler"])
def test_any_other_scheduler_is_left(chosen: str) -> None:
    assert mutated(a_pod(SLICE, schedulerName=chosen))["spec"]["schedulerName"] == chosen


def test_a_pod_that_asks_for_no_gpu_is_left_alone() -> None:
    pod = a_pod({"cpu": 1}, resourceClaims=[{"name": "nic", "resourceClaimName": "mine"}])
    assert mutate_pod(pod, CLAIMS, None, token=TOKEN) == []


def test_devices_of_other_vendors_are_refused_with_the_modes_that_serve_them() -> None:
    message = refused(a_pod({"huawei.com/Ascend910A": 1}))
    assert message.startswith("spec.containers: Forbidden: container main asks for devices of")
    assert "Extender and Gate" in message


@pytest.mark.parametrize(
    ("labels", "gates", "field"),
    [
        ({"kueue.x-k8s.io/managed": "true"}, [], "metadata.labels[kueue.x-k8s.io/managed]"),
        ({}, [{"name": "kueue.x-k8s.io/admission"}], "spec.schedulingGates"),
    ],
)
def test_a_pod_that_kueue_admits_itself_is_refused(
    labels: dict[str, str], gates: list[dict[str, str]], field: str
) -> None:
    pod = a_pod(SLICE, schedulingGates=gates)
    pod["metadata"]["labels"] = labels
    message = refused(pod)
    assert message.startswith(f"{field}: Forbidden: Kueue admits no pod")
    assert "as a Job" in message


def test_a_job_that_kueue_has_admitted_has_pods_that_pass() -> None:
    pod = a_pod(SLICE)
    pod["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    assert mutated(pod)["spec"]["resourceClaims"]


def test_more_devices_than_a_resource_claim_may_have_are_refused() -> None:
    assert refused(a_pod({"nvidia.com/gpu": 33})) == (
        "spec.containers: Too many: 33: must have at most 32 devices in one ResourceClaim"
    )


def test_an_entry_of_the_users_with_our_name_is_refused() -> None:
    pod = a_pod(SLICE, resourceClaims=[{"name": "vgpu", "resourceClaimName": "mine"}])
    assert refused(pod).startswith('spec.resourceClaims: Duplicate value: "vgpu"')


def test_the_resource_claim_of_a_copied_pod_is_found_to_be_refused() -> None:
    assert resource_claim_named_by(mutated(a_pod(SLICE))) == NAME
    assert resource_claim_named_by(a_pod(SLICE)) == ""
    assert copied_claim(NAME).startswith(f'spec.resourceClaims: Invalid value: "{NAME}": belongs')


def test_the_resource_claim_of_another_pod_is_refused_under_any_entry() -> None:
    pod = a_pod(SLICE, resourceClaims=[{"name": "gpu", "resourceClaimName": NAME}])
    with pytest.raises(Denied) as denied:
        resource_claim_named_by(pod)
    assert denied.value.message.startswith(
        f'spec.resourceClaims[0].resourceClaimName: Invalid value: "{NAME}": the operator makes'
    )
    assert "leave out the entry gpu" in denied.value.message


def test_the_count_is_read_from_the_annotation_only_with_a_resource_claim() -> None:
    """Without one, the kubelet would have to count a slot that nobody has asked for."""
    pod = a_pod({})
    amounts = json.dumps({"main": {"nvidia.com/gpu": 1}})
    pod["metadata"]["annotations"] = {ANNOTATION_RESOURCES: amounts}
    for config in (CLAIMS, ClusterConfig()):
        with pytest.raises(Denied, match="Unsupported value"):
            mutate_pod(pod, config, None, token=TOKEN)
