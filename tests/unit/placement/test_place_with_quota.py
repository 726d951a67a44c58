"""Under a quota, placement takes the best devices that the namespace may still use."""

from __future__ import annotations

import pytest

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_operator.placement import Budget, Columns, Plan, place, refusals_on


def small_and_large() -> Columns:
    """Return two devices; the larger one is preferred, and a percentage of it is more."""
    return some_columns(device_facts("small", memory_mib=8_000), device_facts("large", index=1))


def uuids(plan: Plan) -> list[str]:
    return [grant.uuid for grant in plan.grants]


HALF = a_request(memory_percent=50)


@pytest.mark.parametrize(
    ("budget", "device"),
    [
        (Budget(), "large"),
        (Budget(8_192), "large"),
        (Budget(8_191), "small"),
        (Budget(4_000), "small"),
    ],
)
def test_a_smaller_device_serves_where_the_preferred_one_would_be_too_much(budget, device):
    assert uuids(place(small_and_large(), an_ask(HALF), budget=budget)) == [device]


def test_what_no_device_brings_within_the_quota_is_refused_with_that_reason():
    plan = place(small_and_large(), an_ask(HALF), budget=Budget(3_999))
    assert plan.text == "2/2 ResourceQuotaNotFit"


@pytest.mark.parametrize(("cores", "refused"), [(100, False), (99, True)])
def test_all_containers_of_a_pod_are_charged_together(cores, refused):
    both = [a_request(name=name, memory="1Gi", cores=50) for name in "ab"]
    plan = place(small_and_large(), an_ask(*both), budget=Budget(None, cores))
    assert plan.refused == refused


@pytest.mark.parametrize(("mib", "refused"), [(2_048, False), (2_047, True)])
def test_each_device_of_a_request_is_charged(mib, refused):
    plan = place(small_and_large(), an_ask(a_request(memory="1Gi", count=2)), budget=Budget(mib))
    assert plan.refused == refused


@pytest.mark.parametrize(("mib", "refused"), [(3_072, False), (3_071, True)])
def test_init_containers_are_charged_beyond_what_the_others_hold_of_their_device(mib, refused):
    requests = [
        a_request(name="prepare", memory="3Gi", phase="Init"),
        a_request(name="main", memory="1Gi"),
    ]
    plan = place(some_columns(device_facts()), an_ask(*requests), budget=Budget(mib))
    assert plan.refused == refused


@pytest.mark.parametrize(("mib", "refused"), [(4_096, False), (4_095, True)])
def test_an_init_container_beside_a_sidecar_is_charged_with_it(mib, refused):
    requests = [
        a_request(name="side", memory="1Gi"),
        a_request(name="prepare", memory="3Gi", phase="Init"),
        a_request(name="main", memory="1Gi"),
    ]
    plan = place(some_columns(device_facts()), an_ask(*requests), budget=Budget(mib))
    assert plan.refused == refused


def test_a_node_that_is_better_but_too_dear_gives_way_to_another():
    columns = some_columns(
        device_facts("dear", node="a"), device_facts("cheap", node="b", memory_mib=8_000)
    )
    assert place(columns, an_ask(HALF)).node == "a"
    plan = place(columns, an_ask(HALF), budget=Budget(4_000))
    assert plan.node == "b"
    (why,) = refusals_on(columns, an_ask(HALF), ["a", "b"], budget=Budget(4_000)).items()
    assert (why[0], str(why[1])) == ("a", "1/1 ResourceQuotaNotFit")


@pytest.mark.parametrize(
    ("budget", "refused"),
    [(Budget(16_384, 100), False), (Budget(16_383), True), (Budget(None, 99), True)],
)
@pytest.mark.parametrize("asked", [{"memory": "1Gi", "cores": 1}, {"memory_percent": 10}, {}])
def test_who_asks_for_a_device_of_mode_exclusive_is_charged_all_of_it(budget, refused, asked):
    columns = some_columns(device_facts(mode="Exclusive", memory_mib=16_384, slots=1))
    plan = place(columns, an_ask(a_request(mode="Exclusive", **asked)), budget=budget)
    assert plan.refused == refused
    if not refused:
        assert [(grant.memory_mib, grant.cores) for grant in plan.grants] == [(16_384, 100)]


@pytest.mark.parametrize(("memory", "refused"), [("16Gi", False), ("17Gi", True)])
def test_the_memory_that_is_asked_of_an_exclusive_device_is_the_least_that_it_must_have(
    memory, refused
):
    columns = some_columns(device_facts(mode="Exclusive", memory_mib=16_384, slots=1))
    request = a_request(mode="Exclusive", memory=memory)
    assert place(columns, an_ask(request)).refused == refused
