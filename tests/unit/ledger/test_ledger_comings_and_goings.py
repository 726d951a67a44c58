"""Objects that come late, twice or again, or leave, are remembered for as long as needed."""

from __future__ import annotations

from builders import (
    a_claim,
    a_device,
    a_node,
    a_request,
    a_spec,
    an_allocated_device,
    an_allocation,
    an_ask,
    use_of,
)
from vgpu_api.config import ClusterConfig
from vgpu_api.v1alpha1 import OwnerReference
from vgpu_operator.ledger import Ledger
from vgpu_operator.placement import Plan, place

KEY = ("default", "claim-1")
SPEC = a_spec([a_request(memory="1Gi")])


def a_ledger(**fields) -> Ledger:
    ledger = Ledger(config=ClusterConfig(), **fields)
    ledger.apply_node(a_node())
    ledger.apply_device(a_device())
    return ledger


def a_plan(ledger: Ledger, memory: str = "1Gi") -> Plan:
    return place(ledger.columns, an_ask(a_request(memory=memory)))


def held(memory_mib: int, uuid: str = "GPU-0"):
    return an_allocation(an_allocated_device(uuid=uuid, memory_mib=memory_mib))


def used_mib(ledger: Ledger, uuid: str = "GPU-0") -> int:
    return use_of(ledger, uuid).memory_mib


# Devices and nodes.


def test_a_device_that_was_never_seen_leaves_without_a_trace():
    ledger = a_ledger()
    cursor, _ = ledger.changed_since(0)
    ledger.remove_device("never-seen")
    assert ledger.changed_since(cursor) == (cursor, frozenset())


def test_the_same_version_of_a_device_or_node_told_twice_is_no_news():
    ledger = a_ledger()
    ledger.apply_device(a_device(cordoned=True))
    ledger.apply_node(a_node(ready=False))
    assert not a_plan(ledger).refused


def test_a_device_that_goes_is_a_change_of_its_node():
    ledger = a_ledger()
    cursor, _ = ledger.changed_since(0)
    ledger.remove_device("gpu-0")
    assert ledger.changed_since(cursor)[1] == {"node-1"}


def test_a_node_whose_last_device_went_takes_pods_again_with_the_next_one():
    ledger = a_ledger()
    ledger.remove_device("gpu-0")
    ledger.apply_device(a_device(uuid="GPU-1"))
    assert a_plan(ledger).node == "node-1"


def test_of_a_node_that_was_only_named_by_its_devices_nothing_is_left_when_they_go():
    ledger = a_ledger()
    ledger.apply_device(a_device(uuid="GPU-2", node="only-named"))
    assert ledger.columns.node_id("only-named") is not None
    ledger.remove_device("gpu-2")
    assert ledger.columns.node_id("only-named") is None


def test_a_device_that_moves_changes_both_nodes():
    ledger = a_ledger()
    cursor, _ = ledger.changed_since(0)
    ledger.apply_device(a_device(node="node-2", resource_version=2))
    assert ledger.changed_since(cursor)[1] == {"node-1", "node-2"}
    assert ledger.nodes() == ("node-2",)


def test_an_unreadable_claim_may_fill_a_node_that_nobody_knows_yet():
    ledger = a_ledger()
    raw = {
        "metadata": {"namespace": "default", "name": "ruin", "resourceVersion": "2"},
        "status": {"allocation": {"nodeName": "node-2", "devices": [{}]}},
    }
    ledger.mark_unreadable("uid-of-ruin", raw)
    ledger.apply_node(a_node("node-2"))
    ledger.apply_device(a_device(uuid="GPU-2", node="node-2"))
    assert a_plan(ledger).node == "node-1"
    ledger.remove_device("gpu-0")
    assert a_plan(ledger).text == "1/1 CardTimeSlicingExhausted"
    ledger.remove_claim("uid-of-ruin")
    assert a_plan(ledger).node == "node-2"


def test_a_node_that_is_cordoned_as_a_whole_gets_nothing():
    ledger = a_ledger()
    ledger.apply_node(a_node(unschedulable=True, resource_version=2))
    assert a_plan(ledger).text == "1/1 NodeUnschedulable"


def test_where_a_node_says_nothing_of_policies_the_configuration_does():
    config = ClusterConfig.model_validate({"scheduling": {"devicePolicy": "Binpack"}})
    ledger = Ledger(config=config)
    for name, written in (("silent", ""), ("unknown", "nonsense"), ("known", "mutex")):
        ledger.apply_node(a_node(name, device_policy=written))
    said = dict(zip(ledger.columns.node_name, ledger.columns.node_policies, strict=True))
    assert said == {"silent": ("Binpack",), "unknown": ("Spread",), "known": ("Mutex",)}


# Claims.


def test_an_allocated_device_without_a_uuid_fills_its_node():
    """It is unknown which device it is."""
    ledger = a_ledger()
    ledger.apply_claim(a_claim(allocation=held(1024, uuid="")))
    assert a_plan(ledger).text == "1/1 CardTimeSlicingExhausted"
    ledger.apply_claim(a_claim(resource_version=2))
    assert not a_plan(ledger).refused


def test_a_claim_made_anew_counts_though_its_version_is_an_old_one():
    """This happens after the server's data was restored."""
    ledger = a_ledger()
    ledger.apply_claim(a_claim(uid="first", resource_version=9, allocation=held(1024)))
    ledger.remove_claim("first")
    ledger.apply_claim(a_claim(uid="second", resource_version=3, allocation=held(2048)))
    assert used_mib(ledger) == 2048


def test_an_unreadable_claim_is_not_charged_for_its_predecessor_of_the_same_name():
    ledger = a_ledger()
    ledger.apply_device(a_device(uuid="GPU-1", index=1))
    ledger.apply_claim(a_claim(uid="first", allocation=held(1024, "GPU-1")))
    raw = {
        "metadata": {"namespace": "default", "name": "claim-1", "resourceVersion": "2"},
        "status": "?",
    }
    ledger.mark_unreadable("second", raw)
    assert ledger.columns.state()["gpu-1"] == (0, 0, 0)


def test_the_claims_that_were_removed_last_stay_removed_however_many_went_before():
    ledger = a_ledger()
    for number in range(10_050):
        ledger.remove_claim(f"uid-{number}")
    for number in (60, 10_049):
        ledger.apply_claim(a_claim(f"late-{number}", uid=f"uid-{number}", allocation=held(1024)))
    assert used_mib(ledger) == 0


def test_an_assumption_that_has_ended_is_not_ended_again_in_anothers_stead():
    ledger = a_ledger()
    first = ledger.assume(KEY, SPEC, a_plan(ledger).allocation())
    ledger.assume(KEY, SPEC, a_plan(ledger, memory="2Gi").allocation())
    ledger.forget(first)
    ledger.forget(first)
    assert used_mib(ledger) == 2048


def test_a_claim_that_is_made_for_a_pod_is_not_counted_beside_it():
    ledger = a_ledger()
    owners = {"owner_references": [OwnerReference(kind="Pod", name="pod-1", uid="uid-of-pod-1")]}
    ledger.apply_claim(a_claim("a", metadata=owners))
    assert ledger.columns.mix.types == ()
    owners = {"owner_references": [OwnerReference(kind="Job", name="job-1", uid="uid-of-job-1")]}
    ledger.apply_claim(a_claim("b", metadata=owners))
    assert len(ledger.columns.mix.types) == 1


def test_the_typical_mix_learns_from_each_claim_once():
    ledger = a_ledger()
    for version in (1, 2, 3):
        ledger.apply_claim(a_claim("a", resource_version=version))
    ledger.apply_claim(a_claim("b", requests=[a_request(memory="2Gi")]))
    assert [frequency for frequency, _ in ledger.columns.mix.types] == [0.5, 0.5]
