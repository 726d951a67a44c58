"""Devices, nodes, and the subscribers of their changes."""

from __future__ import annotations

import pytest

from builders import (
    a_claim,
    a_device,
    a_node,
    a_request,
    a_spec,
    an_allocated_device,
    an_allocation,
    an_ask,
)
from vgpu_api.config import ClusterConfig
from vgpu_api.names import published_model
from vgpu_operator.ledger import Ledger
from vgpu_operator.ledger.device_facts import type_of
from vgpu_operator.ledger.device_table import ChangeLog
from vgpu_operator.placement import Plan, place

SPEC = a_spec([a_request(memory="1Gi")])


def a_ledger(**fields) -> Ledger:
    ledger = Ledger(config=ClusterConfig(), **fields)
    ledger.apply_node(a_node())
    ledger.apply_device(a_device())
    return ledger


def a_plan(ledger: Ledger, **request) -> Plan:
    return place(ledger.columns, an_ask(a_request(**{"memory": "1Gi", **request})))


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ({"healthy": False}, "1/1 CardNotHealth"),
        ({"ready": False}, "1/1 CardNotHealth"),
        ({"cordoned": True}, "1/1 CardCordoned"),
        ({"memory_mib": 512}, "1/1 CardInsufficientMemory"),
    ],
)
def test_a_device_that_changed_is_judged_as_it_is_now(device, text):
    ledger = a_ledger()
    ledger.apply_device(a_device(**device, resource_version=2))
    assert a_plan(ledger).text == text
    ledger.apply_device(a_device(resource_version=3))
    assert not a_plan(ledger).refused


def test_an_older_version_of_a_device_is_ignored():
    ledger = a_ledger()
    ledger.apply_device(a_device(cordoned=True, resource_version=3))
    ledger.apply_device(a_device(resource_version=2))
    assert a_plan(ledger).refused


def test_a_device_without_allocatable_gives_nothing():
    device = a_device(resource_version=2)
    status = device.status.model_copy(update={"allocatable": None})
    ledger = a_ledger()
    ledger.apply_device(device.model_copy(update={"status": status}))
    assert a_plan(ledger).text == "1/1 CardNotHealth"


def test_a_device_without_a_uuid_is_no_device_yet():
    ledger = Ledger(config=ClusterConfig())
    ledger.apply_node(a_node())
    ledger.apply_device(a_device(uuid="", name="gpu-0"))
    assert ledger.nodes() == ()
    ledger.apply_device(a_device(uuid="GPU-0", name="gpu-0", resource_version=2))
    assert ledger.nodes() == ("node-1",)


def test_slots_come_from_the_device_before_the_configuration():
    ledger = a_ledger()
    assert ledger.columns.slots == [10]
    ledger.apply_device(a_device(slots=3, resource_version=2))
    assert ledger.columns.slots == [3]


def test_an_exclusive_device_serves_one_request():
    ledger = a_ledger()
    ledger.apply_device(a_device(mode="Exclusive", resource_version=2))
    ledger.apply_claim(a_claim(allocation=an_allocation()))
    assert a_plan(ledger).text == "1/1 CardTimeSlicingExhausted"


def test_a_nodes_annotation_cordons_its_devices():
    ledger = a_ledger()
    ledger.apply_node(a_node(cordoned_uuids=["GPU-0"], resource_version=2))
    assert a_plan(ledger).text == "1/1 CardCordoned"
    ledger.apply_node(a_node(resource_version=3))
    assert not a_plan(ledger).refused


@pytest.mark.parametrize(
    ("written", "policies"),
    [
        ("", ("Spread",)),
        ("binpack", ("Binpack",)),
        ("numa, binpack", ("NUMA", "Binpack")),
        ("nonsense,best-fit", ("BestFit",)),
        ("nonsense", ("Spread",)),
    ],
)
def test_a_nodes_annotation_sets_the_policy_for_its_devices(written, policies):
    ledger = a_ledger()
    ledger.apply_node(a_node(device_policy=written, resource_version=2))
    assert ledger.columns.node_policies == [policies]


@pytest.mark.parametrize(
    ("written", "policy"),
    [("", None), (" Spread ", "Spread"), ("numa-first", "NUMAFirst"), ("nonsense", None)],
)
def test_a_nodes_annotation_sets_its_own_place_among_nodes(written, policy):
    ledger = a_ledger()
    ledger.apply_node(a_node(node_policy=written, resource_version=2))
    assert ledger.columns.node_policy == [policy]


@pytest.mark.parametrize("node", [a_node(ready=False, resource_version=2), None])
def test_a_node_that_is_not_ready_or_gone_gets_nothing(node):
    ledger = a_ledger()
    if node is None:
        ledger.remove_node("node-1")
    else:
        ledger.apply_node(node)
    assert a_plan(ledger).text == "1/1 NodeNotReady"


def test_a_node_may_come_after_its_devices_and_come_back():
    ledger = Ledger(config=ClusterConfig())
    ledger.apply_device(a_device())
    assert a_plan(ledger).text == "1/1 NodeNotReady"
    ledger.apply_node(a_node())
    ledger.remove_node("node-1")
    ledger.apply_node(a_node(resource_version=2))
    assert not a_plan(ledger).refused


def a_copy(*, name: str = "gpu-0.node-2", created: str = "2026-01-02T00:00:00Z", **fields):
    """Return another object of the same UUID, on node-2."""
    device = a_device(node="node-2", name=name, **fields)
    metadata = device.metadata.model_copy(update={"creation_timestamp": created})
    return device.model_copy(update={"metadata": metadata})


def test_an_object_that_repeats_anothers_uuid_takes_nothing_out_of_service_but_itself():
    ledger = a_ledger()
    ledger.apply_node(a_node("node-2"))
    ledger.apply_device(a_copy())
    assert a_plan(ledger).node == "node-1"
    assert ledger.duplicates() == {"gpu-0.node-2"}
    ledger.apply_node(a_node("node-1", ready=False, resource_version=9))
    assert "CardUuidDuplicate" in a_plan(ledger).text
    ledger.remove_device("gpu-0")
    assert a_plan(ledger).node == "node-2"
    assert ledger.duplicates() == frozenset()


def test_the_older_object_serves_in_whatever_order_they_are_observed():
    ledger = Ledger(config=ClusterConfig())
    for node in ("node-1", "node-2"):
        ledger.apply_node(a_node(node))
    ledger.apply_device(a_copy(name="gpu-0.node-2", created="2026-01-02T00:00:00Z"))
    ledger.apply_device(a_copy(name="gpu-0", created="2026-01-01T00:00:00Z"))
    assert ledger.duplicates() == {"gpu-0.node-2"}


def test_a_device_that_moved_serves_where_its_agent_shows_it():
    ledger = a_ledger()
    ledger.apply_node(a_node("node-2"))
    ledger.apply_device(a_copy())
    ledger.apply_device(a_device(ready=False, resource_version=2))
    assert a_plan(ledger).node == "node-2"
    assert ledger.duplicates() == {"gpu-0"}
    ledger.apply_device(a_device(resource_version=3))  # it is back
    assert a_plan(ledger).node == "node-1"


def test_a_device_whose_uuid_changes_takes_its_uses_from_the_new_one():
    ledger = a_ledger()
    ledger.apply_claim(a_claim(allocation=an_allocation()))
    ledger.apply_device(a_device(uuid="GPU-9", name="gpu-0", resource_version=2))
    assert ledger.columns.state() == {"gpu-0": (0, 0, 0)}
    ledger.apply_device(a_device(uuid="GPU-0", name="gpu-0", resource_version=3))
    assert ledger.columns.state() == {"gpu-0": (1, 0, 1024)}


def test_only_nodes_with_devices_are_looked_at():
    ledger = a_ledger()
    ledger.apply_node(a_node("cpu-only"))
    assert ledger.nodes() == ("node-1",)
    ledger.remove_device("gpu-0")
    assert a_plan(ledger).text == "NoGPUNodes"


def test_the_change_log_names_the_nodes_touched_since_a_cursor():
    ledger = a_ledger()
    ledger.apply_device(a_device(uuid="GPU-2", node="node-2"))
    cursor, nodes = ledger.changed_since(0)
    assert nodes == {"node-1", "node-2"}
    ledger.apply_claim(a_claim(allocation=an_allocation()))
    cursor, nodes = ledger.changed_since(cursor)
    assert nodes == {"node-1"}
    assert ledger.changed_since(cursor) == (cursor, frozenset())


def test_an_event_that_changes_nothing_for_placement_touches_nothing():
    ledger = a_ledger()
    before = ledger.cursors
    ledger.apply_device(a_device(resource_version=2))
    ledger.apply_node(a_node(resource_version=2))
    ledger.apply_claim(a_claim())
    assert ledger.cursors == before


def test_what_is_taken_is_a_change_but_nothing_is_freed_by_it():
    ledger = a_ledger()
    freed, _ = ledger.freed_since(0)
    changed, _ = ledger.changed_since(0)
    key = ("default", "claim-1")
    assumption = ledger.assume(key, SPEC, a_plan(ledger).allocation())
    with ledger.without(key):
        pass
    ledger.apply_claim(a_claim("claim-2", allocation=an_allocation()))
    assert ledger.freed_since(freed) == (freed, frozenset())
    assert ledger.changed_since(changed)[1] == {"node-1"}
    ledger.forget(assumption)
    freed, nodes = ledger.freed_since(freed)
    assert nodes == {"node-1"}
    ledger.remove_claim("uid-of-claim-2")
    assert ledger.freed_since(freed)[1] == {"node-1"}


@pytest.mark.parametrize("part", [{"memory_mib": 1023}, {"cores": 9}])
def test_a_claim_that_gives_back_a_part_frees_a_node(part):
    ledger = a_ledger()
    held = an_allocated_device(**{"memory_mib": 1024, "cores": 10})
    less = an_allocated_device(**{"memory_mib": 1024, "cores": 10, **part})
    ledger.apply_claim(a_claim(allocation=an_allocation(held)))
    freed, _ = ledger.freed_since(0)
    ledger.apply_claim(a_claim(resource_version=2, allocation=an_allocation(less)))
    assert ledger.freed_since(freed)[1] == {"node-1"}


def test_a_node_whose_labels_or_taints_change_may_serve_others():
    ledger = a_ledger()
    freed, _ = ledger.freed_since(0)
    ledger.apply_node(a_node(labels={"zone": "a"}, resource_version=2))
    assert ledger.freed_since(freed)[1] == {"node-1"}


def test_a_reader_that_fell_behind_the_log_is_told_every_node():
    log = ChangeLog(keep=2)
    for node in "abcd":
        log.touch(node)
    assert log.since(0, ["x"]) == (4, frozenset("xcd"))
    assert log.since(3, ["x"]) == (4, frozenset("d"))


def test_a_reader_that_has_missed_nothing_is_not_told_every_node():
    log = ChangeLog(keep=2)
    assert log.since(0, ["x"]) == (0, frozenset())
    for node in "abcd":
        log.touch(node)
    assert log.since(2, ["x"]) == (4, frozenset("cd"))


def test_a_node_that_goes_is_a_change_and_one_that_never_came_is_none():
    ledger = a_ledger()
    cursor, _ = ledger.changed_since(0)
    ledger.remove_node("nobody")
    assert ledger.changed_since(cursor) == (cursor, frozenset())
    ledger.remove_node("node-1")
    assert ledger.changed_since(cursor)[1] == {"node-1"}


def test_a_node_without_devices_comes_and_goes():
    ledger = a_ledger()
    ledger.apply_node(a_node("cpu-only"))
    ledger.remove_node("cpu-only")
    assert ledger.nodes() == ("node-1",)
    assert not a_plan(ledger).refused


def test_a_cordon_does_not_outlive_its_node():
    ledger = a_ledger()
    ledger.apply_node(a_node(cordoned_uuids=["GPU-0"], resource_version=2))
    ledger.remove_node("node-1")
    ledger.apply_node(a_node())
    assert not a_plan(ledger).refused


def test_the_devices_of_a_node_are_told_by_name_whether_they_are_devices_or_not():
    ledger = a_ledger()
    ledger.apply_device(a_device(uuid="", name="a-new-one"))
    ledger.apply_device(a_device(uuid="GPU-2", node="node-2"))
    assert [device.metadata.name for device in ledger.devices("node-1")] == ["a-new-one", "gpu-0"]
    assert ledger.devices("nobody") == ()


@pytest.mark.parametrize("model", ["Tesla T4", "NVIDIA T4"])
@pytest.mark.parametrize("published", ["{}", "nvidia", "t4"])
def test_a_type_is_excluded_by_the_words_that_it_is_published_with(model, published):
    words = published.format(published_model(model))
    ledger = a_ledger()
    ledger.apply_device(a_device(model=model, resource_version=2))
    refused = a_plan(ledger, selector={"excludeModels": [words]})
    assert refused.text == "1/1 CardTypeMismatch"
    assert not a_plan(ledger, selector={"models": [words]}).refused


def test_the_makers_name_is_no_part_of_another_makers_type():
    assert type_of("huawei", "Ascend910B") == "ascend910b"


@pytest.mark.parametrize(
    ("numas", "is_refused"),
    [((None, None), True), ((None, 0), True), ((0, 1), True), ((0, 0), False), ((1, 1), False)],
)
def test_an_unknown_numa_node_is_never_that_of_another_device(numas, is_refused):
    ledger = a_ledger()
    for index, numa in enumerate(numas):
        device = a_device(uuid=f"GPU-{index}", index=index, numa=numa, resource_version=2)
        ledger.apply_device(device)
    demand = an_ask(a_request(count=2, memory="1Gi"), numa="Require")
    assert place(ledger.columns, demand).refused == is_refused


def test_one_device_of_an_unknown_numa_node_serves_one_that_must_be_on_one_node():
    ledger = a_ledger()
    ledger.apply_device(a_device(numa=None, resource_version=2))
    assert not place(ledger.columns, an_ask(a_request(memory="1Gi"), numa="Require")).refused
