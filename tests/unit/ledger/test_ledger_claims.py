"""The ledger counts observed claims, assumptions, and late news."""

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
from vgpu_api.effective import Use
from vgpu_operator.ledger import ClaimKey, Ledger
from vgpu_operator.placement import Plan, place

KEY = ("default", "claim-1")
SPEC = a_spec([a_request(memory="1Gi")])


def a_ledger(*uuids: str, **fields) -> Ledger:
    ledger = Ledger(config=ClusterConfig(), **fields)
    ledger.apply_node(a_node())
    for index, uuid in enumerate(uuids or ("GPU-0",)):
        ledger.apply_device(a_device(uuid=uuid, index=index))
    return ledger


def a_plan(ledger: Ledger, *requests, **placement) -> Plan:
    return place(ledger.columns, an_ask(*(requests or SPEC.requests), **placement))


def held(memory_mib: int = 1024, uuid: str = "GPU-0"):
    return an_allocation(an_allocated_device(uuid=uuid, memory_mib=memory_mib))


def used_mib(ledger: Ledger, uuid: str = "GPU-0") -> int:
    return ledger.columns.state()[uuid.lower()][2]


def test_an_allocation_is_held_from_the_moment_it_is_seen():
    ledger = a_ledger()
    ledger.apply_claim(a_claim(allocation=held()))
    assert use_of(ledger, "GPU-0") == Use(1024, 0, 1)
    assert used_mib(ledger) == 1024


def test_a_claim_counts_before_its_device_is_known_and_after_it_went():
    ledger = Ledger(config=ClusterConfig())
    ledger.apply_claim(a_claim(allocation=held()))
    ledger.apply_device(a_device())
    assert used_mib(ledger) == 1024
    ledger.remove_device("gpu-0")
    assert use_of(ledger, "GPU-0") == Use(1024, 0, 1)
    ledger.apply_device(a_device(resource_version=2))
    assert used_mib(ledger) == 1024


def test_init_and_app_containers_count_by_their_worst_moment():
    ledger = a_ledger()
    requests = [
        a_request(name="prepare", memory="4Gi", phase="Init"),
        a_request(name="a", memory="3Gi"),
        a_request(name="b", memory="2Gi"),
    ]
    devices = [
        an_allocated_device(request="prepare", memory_mib=4096),
        an_allocated_device(request="a", memory_mib=3072),
        an_allocated_device(request="b", memory_mib=2048),
    ]
    ledger.apply_claim(a_claim(requests=requests, allocation=an_allocation(*devices)))
    assert use_of(ledger, "GPU-0") == Use(5120, 0, 2)


def test_an_init_container_counts_with_the_sidecar_that_was_started_before_it():
    ledger = a_ledger()
    requests = [
        a_request(name="side", memory="3Gi"),
        a_request(name="prepare", memory="4Gi", phase="Init"),
        a_request(name="main", memory="2Gi"),
    ]
    devices = [
        an_allocated_device(request="side", memory_mib=3072),
        an_allocated_device(request="prepare", memory_mib=4096),
        an_allocated_device(request="main", memory_mib=2048),
    ]
    ledger.apply_claim(a_claim(requests=requests, allocation=an_allocation(*devices)))
    assert use_of(ledger, "GPU-0") == Use(7168, 0, 2)


def test_a_released_allocation_is_free():
    ledger = a_ledger()
    ledger.apply_claim(a_claim(allocation=held()))
    ledger.apply_claim(a_claim(resource_version=2))
    assert used_mib(ledger) == 0


def test_the_newest_version_wins_whatever_the_order():
    ledger = a_ledger()
    ledger.apply_claim(a_claim(resource_version=10))
    ledger.apply_claim(a_claim(resource_version=9, allocation=held()))
    assert used_mib(ledger) == 0


def test_a_claim_seen_twice_counts_once():
    ledger = a_ledger()
    for version in (1, 1, 2):
        ledger.apply_claim(a_claim(resource_version=version, allocation=held()))
    assert use_of(ledger, "GPU-0") == Use(1024, 0, 1)


def test_a_removed_claim_stays_removed_when_an_old_answer_comes_late():
    ledger = a_ledger()
    assumption = ledger.assume(KEY, SPEC, a_plan(ledger).allocation())
    ledger.apply_claim(a_claim(resource_version=5))
    ledger.remove_claim("uid-of-claim-1")
    ledger.confirm(assumption, a_claim(resource_version=6, allocation=held()))
    assert used_mib(ledger) == 0


def test_another_claim_of_the_same_name_is_another_claim():
    ledger = a_ledger()
    ledger.apply_claim(a_claim(uid="first", allocation=held()))
    ledger.apply_claim(a_claim(uid="second", resource_version=2, allocation=held(2048)))
    assert use_of(ledger, "GPU-0") == Use(2048, 0, 1)
    ledger.remove_claim("first")
    assert use_of(ledger, "GPU-0") == Use(2048, 0, 1)


def test_the_next_decision_sees_an_assumption():
    ledger = a_ledger()
    whole = a_spec([a_request()])
    plan = a_plan(ledger, *whole.requests)
    ledger.assume(KEY, whole, plan.allocation())
    assert a_plan(ledger).refused


def test_an_assumption_outlives_events_that_show_the_claim_unallocated():
    ledger = a_ledger()
    ledger.apply_claim(a_claim(resource_version=5))
    ledger.assume(KEY, SPEC, a_plan(ledger).allocation())
    ledger.apply_claim(a_claim(resource_version=4))
    ledger.apply_claim(a_claim(resource_version=6))  # the finalizer, written before the status
    assert used_mib(ledger) == 1024


def test_an_allocation_that_is_seen_and_assumed_counts_once():
    ledger = a_ledger()
    assumption = ledger.assume(KEY, SPEC, a_plan(ledger).allocation())
    ledger.apply_claim(a_claim(resource_version=6, allocation=held()))
    assert use_of(ledger, "GPU-0") == Use(1024, 0, 1)
    ledger.confirm(assumption, a_claim(resource_version=6, allocation=held()))
    assert use_of(ledger, "GPU-0") == Use(1024, 0, 1)


def test_a_write_that_is_tried_again_after_a_release_is_still_assumed():
    ledger = a_ledger()
    ledger.apply_claim(a_claim(allocation=held()))
    with ledger.without(KEY):
        plan = a_plan(ledger)
    ledger.assume(KEY, SPEC, plan.allocation())  # by chance the same as the claim holds already
    ledger.apply_claim(a_claim(resource_version=2, allocation=held()))
    ledger.apply_claim(a_claim(resource_version=3))
    assert used_mib(ledger) == 1024


def test_a_forgotten_assumption_is_free_and_may_be_forgotten_twice():
    ledger = a_ledger()
    assumption = ledger.assume(KEY, SPEC, a_plan(ledger).allocation())
    ledger.forget(assumption)
    ledger.forget(assumption)
    assert used_mib(ledger) == 0


def test_what_a_confirmation_shows_is_the_truth_also_when_it_is_not_the_plan():
    ledger = a_ledger()
    assumption = ledger.assume(KEY, SPEC, a_plan(ledger).allocation())
    ledger.confirm(assumption, a_claim(resource_version=7, allocation=held(2048)))
    assert use_of(ledger, "GPU-0") == Use(2048, 0, 1)


def test_a_moving_reservation_holds_both_places_until_the_write_is_known():
    ledger = a_ledger("GPU-0", "GPU-1")
    ledger.apply_claim(a_claim(allocation=held(uuid="GPU-0")))
    with ledger.without(KEY):
        plan = a_plan(ledger, a_request(memory="1Gi", selector={"uuids": ["GPU-1"]}))
    assumption = ledger.assume(KEY, SPEC, plan.allocation())
    assert (used_mib(ledger, "GPU-0"), used_mib(ledger, "GPU-1")) == (1024, 1024)
    ledger.confirm(assumption, a_claim(resource_version=2, allocation=held(uuid="GPU-1")))
    assert (used_mib(ledger, "GPU-0"), used_mib(ledger, "GPU-1")) == (0, 1024)


def test_the_outcome_of_an_older_write_does_not_end_a_newer_assumption():
    ledger = a_ledger("GPU-0", "GPU-1")
    first = ledger.assume(KEY, SPEC, a_plan(ledger).allocation())  # takes GPU-1
    with ledger.without(KEY):
        moved = a_plan(ledger, a_request(memory="1Gi", selector={"uuids": ["GPU-0"]}))
    ledger.assume(KEY, SPEC, moved.allocation())
    ledger.confirm(first, a_claim(resource_version=2, allocation=held(uuid="GPU-1")))
    assert (used_mib(ledger, "GPU-0"), used_mib(ledger, "GPU-1")) == (1024, 1024)


def test_a_claim_planned_anew_does_not_stand_in_its_own_way():
    ledger = a_ledger()
    whole = a_spec([a_request()])
    ledger.assume(KEY, whole, a_plan(ledger, *whole.requests).allocation())
    assert a_plan(ledger, *whole.requests).refused
    before = ledger.columns.state()
    with ledger.without(KEY):
        assert not a_plan(ledger, *whole.requests).refused
    assert ledger.columns.state() == before


def test_planning_a_claim_anew_is_no_change_that_readers_of_the_log_see():
    ledger = a_ledger()
    ledger.apply_claim(a_claim(allocation=held()))
    cursor, _ = ledger.changed_since(0)
    with ledger.without(KEY), ledger.without(("default", "nobody")):
        assert used_mib(ledger) == 0
    assert ledger.changed_since(cursor) == (cursor, frozenset())
    ledger.remove_claim(a_claim().metadata.uid)
    assert ledger.changed_since(cursor)[1] == {"node-1"}


def test_planning_without_an_unknown_claim_changes_nothing():
    ledger = a_ledger()
    with ledger.without(("default", "nobody")):
        assert not a_plan(ledger).refused


def test_a_claim_for_a_device_alone_reserves_all_cores_however_they_are_scaled():
    ledger = Ledger(config=ClusterConfig())
    ledger.apply_node(a_node())
    ledger.apply_device(a_device(cores=200))
    alone = an_allocation(an_allocated_device(cores=100))
    ledger.apply_claim(a_claim(allocation=alone))
    refused = a_plan(ledger, a_request(memory="1Gi", cores=50))
    assert refused.text == "1/1 CardInsufficientCore"
    assert use_of(ledger, "GPU-0").cores == 100


def unreadable(devices: object, node: object = "node-1", resource_version: int = 2) -> dict:
    return {
        "metadata": {
            "namespace": "default",
            "name": "claim-1",
            "resourceVersion": str(resource_version),
        },
        "spec": {"requests": "?"},
        "status": {"allocation": {"nodeName": node, "devices": devices}},
    }


def test_devices_of_an_unreadable_claim_are_full_until_it_can_be_read():
    ledger = a_ledger("GPU-0", "GPU-1")
    ledger.mark_unreadable("uid-of-claim-1", unreadable([{"uuid": "GPU-0", "memory": "?"}]))
    requests = [a_request(memory="1Gi", selector={"uuids": ["GPU-0"]})]
    assert a_plan(ledger, *requests).refused
    assert not a_plan(ledger).refused
    ledger.apply_claim(a_claim(resource_version=3, allocation=held()))
    assert not a_plan(ledger, *requests).refused


def test_an_unreadable_claim_that_does_not_name_its_devices_fills_its_node():
    ledger = a_ledger("GPU-0", "GPU-1")
    ledger.mark_unreadable("uid-of-claim-1", unreadable([{"memory": "1Gi"}]))
    assert a_plan(ledger).text == "2/2 CardTimeSlicingExhausted"
    ledger.apply_device(a_device(uuid="GPU-2"))
    assert a_plan(ledger).text == "3/3 CardTimeSlicingExhausted"
    ledger.remove_claim("uid-of-claim-1")
    assert not a_plan(ledger).refused


def test_an_unreadable_claim_without_an_allocation_holds_nothing():
    ledger = a_ledger()
    raw = unreadable([])
    raw["status"] = {}
    ledger.mark_unreadable("uid-of-claim-1", raw)
    assert used_mib(ledger) == 0


def test_what_was_known_of_a_ruined_allocation_counts_as_full():
    ledger = a_ledger()
    ledger.apply_claim(a_claim(allocation=held()))
    raw = unreadable([])
    raw["status"]["allocation"] = "?"
    ledger.mark_unreadable("uid-of-claim-1", raw)
    assert used_mib(ledger) == 16_384


def test_the_holders_of_a_device_are_named_with_what_they_hold():
    ledger = a_ledger()
    ledger.apply_claim(a_claim("b", allocation=held(2048)))
    ledger.apply_claim(a_claim("a", allocation=held(1024)))
    assert [(holder.key, holder.use.memory_mib) for holder in ledger.holders("GPU-0")] == [
        (ClaimKey("default", "a"), 1024),
        (ClaimKey("default", "b"), 2048),
    ]
