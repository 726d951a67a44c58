"""Claims that make no sense are refused, and so are updates that an allocation forbids."""

from __future__ import annotations

import copy
import re
from typing import Any

import jsonpatch
import pytest

from vgpu_api.names import FINALIZER_IN_USE
from vgpu_operator.admission.rules import Denied, claim_without_effect, mutate_claim, validate_claim


def a_claim(*requests: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "vgpu.dev/v1alpha1",
        "kind": "VGPUClaim",
        "metadata": {"name": "small", "creationTimestamp": None},
        "spec": {"requests": list(requests) or [{"memory": "8Gi"}], **spec},
    }


def denial_of(claim: Any, old: Any = None) -> str:
    with pytest.raises(Denied) as denial:
        validate_claim(claim, old)
    assert denial.value.code == 422
    return denial.value.message


@pytest.mark.parametrize("memory", ["8Gi", "8192Mi", "1048576", "1Mi", "1.5Gi"])
def test_a_size_in_whole_mib_passes(memory: str) -> None:
    validate_claim(a_claim({"memory": memory}))


@pytest.mark.parametrize("memory", ["8 GiB", "8gb", "0.5Mi", "1500k", "4000", "0", "-1Gi", 8192])
def test_a_malformed_size_is_refused_with_field_value_and_an_example(memory: Any) -> None:
    message = denial_of(a_claim({}, {"memory": memory}))
    shown = f'"{memory}"' if isinstance(memory, str) else str(memory)
    assert f"spec.requests[1].memory: Invalid value: {shown}: must be " in message
    assert "8Gi" in message or "text" in message


@pytest.mark.parametrize(
    ("placement", "field"),
    [
        ({"node": "Tight"}, "spec.placement.node"),
        ({"device": ["Binpack", "Tight"]}, "spec.placement.device[1]"),
        ({"numa": "Always"}, "spec.placement.numa"),
    ],
)
def test_an_unknown_policy_is_refused_with_the_policies_there_are(
    placement: dict[str, Any], field: str
) -> None:
    message = denial_of(a_claim(placement=placement))
    assert message.startswith(f"{field}: ")
    assert ": supported values: " in message


def test_both_memory_forms_are_refused() -> None:
    message = denial_of(a_claim({"memory": "8Gi", "memoryPercent": 50}))
    assert message.startswith("spec.requests[0]: ")
    assert message.endswith("give memory or memoryPercent, not both")


def test_two_requests_of_one_name_are_refused() -> None:
    assert "two requests have the same name" in denial_of(a_claim({"name": "a"}, {"name": "a"}))


def test_a_request_without_a_name_must_be_alone() -> None:
    assert "must be the only one" in denial_of(a_claim({"name": "a"}, {}))


@pytest.mark.parametrize("name", ["a,b", "Main", "a/b", "-a"])
def test_a_name_that_no_container_can_have_is_refused(name: str) -> None:
    assert f'spec.requests[0].name: Invalid value: "{name}": must be' in denial_of(
        a_claim({"name": name})
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("count", 0), ("count", 65), ("count", "2"), ("cores", 101), ("memoryPercent", 0)],
)
def test_a_number_out_of_range_is_refused(field: str, value: Any) -> None:
    assert denial_of(a_claim({field: value})).startswith(f"spec.requests[0].{field}: ")


def test_weights_that_weigh_nothing_are_refused() -> None:
    weights = {"slots": 0, "cores": 0, "memory": 0}
    assert denial_of(a_claim(placement={"weights": weights})).startswith("spec.placement.weights")


@pytest.mark.parametrize("claim", [{}, {"spec": None}, {"spec": {}}, {"spec": {"requests": []}}])
def test_a_claim_without_requests_is_refused(claim: dict[str, Any]) -> None:
    assert denial_of(claim).startswith("spec")


def test_several_errors_are_told_at_once_but_not_without_end() -> None:
    message = denial_of(a_claim(*[{"name": f"c{i}", "count": 0} for i in range(7)]))
    assert message.count("must be 1 or more") == 5
    assert message.endswith("and 2 more")


HELD = {"allocation": {"nodeName": "node-1", "devices": []}}


def allocated(*requests: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {**a_claim(*requests, **spec), "status": HELD}


@pytest.mark.parametrize(
    "changed",
    [
        a_claim({"name": "a", "memory": "4Gi"}, {"name": "b"}),
        a_claim({"name": "a", "memory": "8Gi", "cores": 20}, {"name": "b"}),
        a_claim({"name": "b"}, {"name": "a", "memory": "8Gi"}),
        a_claim({"name": "a", "memory": "8Gi"}, {"name": "b"}, ttlSecondsAfterUnused=60),
    ],
)
def test_memory_cores_and_ttl_may_change_while_devices_are_held(changed: dict[str, Any]) -> None:
    validate_claim(changed, allocated({"name": "a", "memory": "8Gi"}, {"name": "b"}))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        (a_claim({"name": "a", "count": 2}), "spec.requests[0].count"),
        (a_claim({"name": "a", "phase": "Init"}), "spec.requests[0].phase"),
        (a_claim({"name": "a", "selector": {"uuids": ["x"]}}), "spec.requests[0].selector"),
        (a_claim({"name": "b"}), "spec.requests"),
        (a_claim({"name": "a"}, {"name": "b"}), "spec.requests"),
        (a_claim({"name": "a"}, bindingMode="Immediate"), "spec.bindingMode"),
        (a_claim({"name": "a"}, placement={"node": "Spread"}), "spec.placement"),
        (a_claim({"name": "a"}, schedulingPriority=3), "spec.schedulingPriority"),
    ],
)
def test_everything_else_is_frozen_while_devices_are_held(
    changed: dict[str, Any], field: str
) -> None:
    message = denial_of(changed, allocated({"name": "a"}))
    assert message.startswith(f"{field}: ")
    assert message.endswith("while the claim has an allocation")


def test_the_order_that_says_what_runs_beside_an_init_container_is_frozen_too() -> None:
    side, prepare = {"name": "side"}, {"name": "prepare", "phase": "Init"}
    validate_claim(a_claim(side, {**prepare, "memory": "1Gi"}), allocated(side, prepare))
    message = denial_of(a_claim(prepare, side), allocated(side, prepare))
    assert message.startswith("spec.requests: ")
    assert 'in the order ["side", "prepare"]' in message


def given(*, request: str = "a", **device: Any) -> dict[str, Any]:
    """Return a claim for 50 percent of a device's memory that has a device allocated."""
    held = {"nodeName": "node-1", "devices": [{"request": request, "memory": "8Gi", **device}]}
    claim = a_claim({"name": "a", "memoryPercent": 50})
    return {**claim, "status": {"allocation": held}}


@pytest.mark.parametrize("amounts", [{"memoryPercent": 25}, {"memory": "1Gi"}, {}])
def test_a_percentage_may_change_where_the_allocation_has_what_it_is_of(
    amounts: dict[str, Any],
) -> None:
    validate_claim(a_claim({"name": "a", **amounts}), given(deviceMemory="16Gi"))


@pytest.mark.parametrize("old", [given(), given(request="b", deviceMemory="16Gi")])
def test_a_percentage_of_a_device_of_unrecorded_memory_is_refused(old: dict[str, Any]) -> None:
    validate_claim(a_claim({"name": "a", "memory": "1Gi"}), old)
    validate_claim(a_claim({"name": "a", "memoryPercent": 50, "cores": 5}), old)
    assert denial_of(a_claim({"name": "a", "memoryPercent": 25}), old) == (
        "spec.requests[0].memoryPercent: Invalid value: 25: must be given as memory while the "
        "claim has an allocation, which records the memory of devices only if they were requested "
        "by percentage"
    )


@pytest.mark.parametrize("allocation", [5, {"devices": 5}, {"devices": [5]}, {"devices": []}])
def test_a_percentage_is_refused_whatever_nonsense_the_allocation_is(allocation: Any) -> None:
    old = {**a_claim({"name": "a"}), "status": {"allocation": allocation}}
    assert "memoryPercent" in denial_of(a_claim({"name": "a", "memoryPercent": 5}), old)


def test_without_an_allocation_everything_may_change() -> None:
    old = a_claim({"name": "a"})
    for status in ({}, {"allocation": None}, {"conditions": []}):
        validate_claim(a_claim({"name": "b", "count": 3}), {**old, "status": status})


def test_a_removed_allocation_in_the_new_object_does_not_thaw_the_spec() -> None:
    new = {**a_claim({"name": "a", "count": 2}), "status": {}}
    assert "has an allocation" in denial_of(new, allocated({"name": "a"}))


def test_an_update_that_leaves_the_spec_alone_passes_even_for_an_invalid_claim() -> None:
    old = a_claim({"memory": "0.5Mi"})
    new = copy.deepcopy(old)
    new["metadata"]["finalizers"] = ["vgpu.dev/in-use"]
    validate_claim(new, old)


def test_an_unreadable_spec_cannot_be_replaced_while_devices_are_held() -> None:
    assert "delete the claim" in denial_of(a_claim({}), allocated({"memory": "0.5Mi"}))


def test_a_priority_above_what_the_administrator_allows_is_refused() -> None:
    with pytest.raises(Denied) as denial:
        validate_claim(a_claim(schedulingPriority=1001), max_priority=1000)
    assert denial.value.message == (
        "spec.schedulingPriority: Invalid value: 1001: must be no more than 1000, "
        "the scheduling.maxClaimPriority of this cluster"
    )
    validate_claim(a_claim(schedulingPriority=1000), max_priority=1000)


def test_a_claim_keeps_the_priority_that_it_had_before_the_bound_was_lowered() -> None:
    old = a_claim(schedulingPriority=1000)
    validate_claim(a_claim({"memory": "1Gi"}, schedulingPriority=1000), old, max_priority=10)
    with pytest.raises(Denied, match=r"^spec\.schedulingPriority: Invalid value: 1001"):
        validate_claim(a_claim(schedulingPriority=1001), old, max_priority=10)


def large(count: int) -> dict[str, Any]:
    """Return a claim of `count` requests, each with selector lists of the maximum length."""
    selector = {
        "models": ["m" * 128] * 32,
        "excludeModels": ["e" * 128] * 32,
        "uuids": ["u" * 128] * 64,
        "excludeUUIDs": ["x" * 128] * 64,
    }
    return a_claim(*({"name": f"c{number}", "selector": selector} for number in range(count)))


def test_a_claim_of_more_than_32_kib_is_refused_with_its_size_and_the_bound() -> None:
    validate_claim(large(1))
    message = denial_of(large(2))
    assert re.fullmatch(
        r"object: Too long: 5\d{4} bytes of metadata and spec, may not be more than 32768 bytes",
        message,
    )


def test_what_is_written_beside_the_spec_counts_and_what_the_server_keeps_of_it_does_not() -> None:
    noted = a_claim()
    noted["metadata"]["annotations"] = {"note": "x" * (33 << 10)}
    assert denial_of(noted, a_claim()).startswith("object: Too long: ")
    kept = a_claim()
    kept["metadata"]["managedFields"] = [{"fieldsV1": {"f:spec": "x" * (33 << 10)}}]
    validate_claim(kept, a_claim())


def test_a_large_claim_of_former_times_may_be_written_again_and_become_smaller() -> None:
    validate_claim(large(3), large(3))
    validate_claim(large(2), large(3))
    assert denial_of(large(4), large(3)).startswith("object: Too long: ")


def test_a_claim_of_17_requests_is_refused() -> None:
    validate_claim(a_claim(*({"name": f"c{number}"} for number in range(16))))
    message = denial_of(a_claim(*({"name": f"c{number}"} for number in range(17))))
    assert message.startswith("spec.requests: ")
    assert message == "spec.requests: Too many: 17: must have at most 16 items"


def held(claim: dict[str, Any]) -> list[str]:
    """Return the finalizers of a claim as it is stored."""
    stored = jsonpatch.apply_patch(claim, mutate_claim(claim))
    assert mutate_claim(stored) == []
    return list(stored["metadata"].get("finalizers", []))


def test_a_claim_that_gets_devices_at_once_is_made_with_the_operators_finalizer() -> None:
    assert held(a_claim(bindingMode="Immediate")) == [FINALIZER_IN_USE]


def test_finalizers_of_others_stay_before_the_operators() -> None:
    claim = a_claim(bindingMode="Immediate")
    claim["metadata"]["finalizers"] = ["example.com/mine"]
    assert held(claim) == ["example.com/mine", FINALIZER_IN_USE]


@pytest.mark.parametrize("spec", [{}, {"bindingMode": "WaitForFirstConsumer"}])
def test_a_claim_that_waits_for_a_pod_can_be_deleted_without_the_operator(
    spec: dict[str, Any],
) -> None:
    assert held(a_claim(**spec)) == []


def test_devices_of_other_vendors_are_asked_for_by_pods_alone() -> None:
    claim = {"spec": {"requests": [{"vendor": "hygon"}]}}
    with pytest.raises(Denied) as refusal:
        validate_claim(claim)
    assert refusal.value.message == (
        'spec.requests[0].vendor: Unsupported value: "hygon": the vendor\'s device plugin only '
        "serves pods that ask by hygon.com/dcunum, not claims that a pod names"
    )


def of_hygons(memory: str = "1Gi") -> dict[str, Any]:
    """Return a claim in the form of those that the operator makes for pods."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod-1", "uid": "u"}
    spec = {"requests": [{"name": "main", "vendor": "hygon", "memory": memory}]}
    return {"metadata": {"ownerReferences": [owner]}, "spec": spec}


def test_the_operator_makes_such_claims_for_pods() -> None:
    validate_claim(of_hygons(), user="system:serviceaccount:vgpu-system:vgpu-operator")


def test_an_owner_that_anyone_can_write_makes_no_claim_the_operators() -> None:
    with pytest.raises(Denied, match=r"spec\.requests\[0\]\.vendor: Unsupported value"):
        validate_claim(of_hygons(), user="jane")


def test_a_claim_that_the_operator_made_may_be_edited() -> None:
    validate_claim(of_hygons("2Gi"), of_hygons(), user="jane")


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        ({"memory": "1Gi", "corePolicy": "Force"}, ["corePolicy"]),
        ({"memory": "1Gi", "cores": 30, "corePolicy": "Force"}, []),
        ({"corePolicy": "Disable"}, []),
        (
            {"mode": "MIG", "corePolicy": "Force", "computePriority": 1},
            ["corePolicy", "computePriority"],
        ),
        ({"mode": "Exclusive", "memory": "1Gi", "cores": 10}, ["memory", "cores"]),
        ({"mode": "Exclusive"}, []),
        ({"mode": "Shared", "memoryPercent": 50, "computePriority": 0}, []),
    ],
)
def test_a_field_of_a_claim_that_does_nothing_is_named(
    request_: dict[str, Any], fields: list[str]
) -> None:
    claim = a_claim(request_)
    validate_claim(claim)
    found = claim_without_effect(claim)
    assert [each.split(": has no effect: ")[0] for each in found] == [
        f"spec.requests[0].{field}" for field in fields
    ]
    assert claim_without_effect(claim, claim) == []


def test_a_priority_of_a_claim_orders_those_that_are_decided_without_a_pod() -> None:
    (warning,) = claim_without_effect(a_claim(schedulingPriority=5))
    assert warning.startswith("spec.schedulingPriority: has no effect: ")
    immediate = a_claim(schedulingPriority=5, bindingMode="Immediate")
    assert claim_without_effect(immediate) == []


OPERATOR = "system:serviceaccount:vgpu-system:vgpu-operator"


def of_scheduler(memory: str = "8Gi") -> dict[str, Any]:
    claim = a_claim({"memory": memory})
    claim["metadata"]["annotations"] = {"vgpu.dev/scheduler-claim": "gpu"}
    return claim


def test_amounts_that_kube_scheduler_counts_cannot_be_changed_in_the_vgpuclaim() -> None:
    validate_claim(of_scheduler(), user=OPERATOR)
    validate_claim(of_scheduler(), of_scheduler(), user="jane")
    said = denial_of(of_scheduler("4Gi"), of_scheduler())
    assert "spec: Forbidden: kube-scheduler counts what the pod's ResourceClaim says" in said


@pytest.mark.parametrize(
    ("new", "old"),
    [(of_scheduler(), None), (of_scheduler(), a_claim()), (a_claim(), of_scheduler())],
)
def test_nobody_else_says_of_a_claim_that_kube_scheduler_allocates(new: Any, old: Any) -> None:
    assert "metadata.annotations[vgpu.dev/scheduler-claim]: Forbidden" in denial_of(new, old)
