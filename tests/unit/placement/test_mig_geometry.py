"""Profile, place and charge of instances on devices in MIG mode."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_geometry, a_request, an_ask, device_facts, give_mix, some_columns
from vgpu_api.effective import Use
from vgpu_operator.demand import Demand
from vgpu_operator.placement import Budget, Columns, DeviceFacts, Plan, place
from vgpu_operator.placement.mig_geometry import Offer, geometry, slices_of, smallest

A100 = a_geometry(
    ("7g.40gb", 39_936, 100, 8, (0,)),
    ("1g.5gb", 4864, 14, 1, range(7)),
    ("2g.10gb", 9856, 28, 2, (0, 2, 4)),
    ("3g.20gb", 19_968, 42, 4, (0, 4)),
)
GIB = 1024


def a_cut_device(uuid: str = "GPU-0", **fields: Any) -> DeviceFacts:
    return device_facts(uuid, **{"mode": "MIG", "memory_mib": 40_960, "profiles": A100, **fields})


def asking(**request: Any) -> Demand:
    return an_ask(a_request(**request))


def cut(plan: Plan) -> list[str]:
    assert not plan.refused, plan.text
    return [f"{g.uuid} {g.instance.profile}@{g.instance.start}" for g in plan.grants if g.instance]


def hold(columns: Columns, plan: Plan) -> None:
    for grant in plan.grants:
        number = columns.number_of(grant.device)
        slots, cores, memory, slices = columns.in_use(number)
        columns.set_used(
            number,
            slots=slots + 1,
            cores=cores + grant.cores,
            memory=memory + grant.memory_mib,
            slices=slices | (grant.instance.slices if grant.instance else 0),
        )


def test_instances_of_one_and_three_slices_lie_at_the_end_and_others_at_the_start():
    """HAMi packs an A100 in the same way: 3g at 4, 2g at 0, then the remaining places."""
    columns = some_columns(a_cut_device())
    places = []
    for size in (15_000, 9000, 4000, 4000):
        plan = place(columns, asking(memory=f"{size}Mi"))
        places += cut(plan)
        hold(columns, plan)
    assert places == ["GPU-0 3g.20gb@4", "GPU-0 2g.10gb@0", "GPU-0 1g.5gb@3", "GPU-0 1g.5gb@2"]
    assert place(columns, asking(memory="1Gi")).text == "1/1 CardMigTopologyInfeasible"


def test_a_fourth_instance_of_two_slices_has_no_place_and_takes_a_larger_one_if_that_has():
    two = [(0, 2), (2, 2), (4, 2)]
    taken = sum(slices_of(start, size) for start, size in two)
    assert smallest(A100, taken, 9000) is None
    free_end = slices_of(0, 2) | slices_of(2, 2) | slices_of(4, 1)
    assert smallest(A100, free_end, 4000).start == 6
    with_larger = smallest(A100, sum(slices_of(n, 1) for n in (0, 2)) | slices_of(4, 1), 9000)
    assert with_larger is None
    with_three = smallest(A100, sum(slices_of(n, 1) for n in (0, 2)), 9000)
    assert (with_three.profile, with_three.start) == ("2g.10gb", 4)
    last = smallest(a_geometry(("1g.5gb", 5, 14, 1, (0,)), ("2g.10gb", 10, 28, 2, (2,))), 1, 5)
    assert last.profile == "2g.10gb"


def test_of_profiles_with_equal_memory_the_one_with_fewer_compute_slices_is_chosen():
    offers = (
        Offer("4g.20gb", 19_968, 57, 4, ((0, 4),)),
        Offer("3g.20gb", 19_968, 42, 3, ((0, 4), (4, 4))),
    )
    assert smallest(geometry(offers), 0, 10_000).profile == "3g.20gb"
    assert smallest(geometry(offers), slices_of(4, 4), 10_000).profile == "3g.20gb"


def test_a_device_is_charged_the_instance_and_not_what_was_asked_for():
    plan = place(some_columns(a_cut_device()), asking(memory="6Gi", cores=5))
    assert [(g.memory_mib, g.cores) for g in plan.grants] == [(9856, 28)]
    written = plan.allocation().devices[0]
    assert (written.memory_mib, written.cores) == (9856, 28)
    assert (written.mig.profile, written.mig.start, written.mig.size) == ("2g.10gb", 0, 2)


@pytest.mark.parametrize("mode", ["Any", "MIG"])
def test_several_instances_of_one_device_serve_one_request(mode):
    plan = place(some_columns(a_cut_device()), asking(memory="4Gi", count=2, mode=mode))
    assert cut(plan) == ["GPU-0 1g.5gb@6", "GPU-0 1g.5gb@5"]


def test_too_few_places_are_told_as_devices_that_were_too_few():
    only = a_geometry(("1g.5gb", 4864, 14, 1, (6,)))
    columns = some_columns(a_cut_device(profiles=only))
    refused = place(columns, asking(memory="4Gi", count=2)).text
    assert refused == "1/1 AllocatedCardsInsufficientRequest, 1/1 CardMigTopologyInfeasible"


def test_a_request_that_shuns_mig_needs_as_many_devices_as_it_asks_for():
    refused = place(some_columns(a_cut_device()), asking(memory="1Gi", count=2, mode="Shared"))
    assert refused.text == "1/1 NodeInsufficientDevice"


def test_a_device_that_lists_no_profiles_is_given_to_nobody():
    refused = place(some_columns(a_cut_device(profiles=())), asking(memory="1Gi"))
    assert refused.text == "1/1 CardMigTopologyInfeasible"


def test_a_whole_device_is_more_than_its_largest_instance():
    """Percentages refer to the device, as everywhere."""
    columns = some_columns(a_cut_device())
    assert place(columns, asking()).text == "1/1 CardMigTopologyInfeasible"
    assert cut(place(columns, asking(memory_percent=24))) == ["GPU-0 2g.10gb@0"]


def test_instances_never_exceed_what_a_device_may_give():
    """An administrator scaled memory or cores down; instances keep their own size."""
    assert place(some_columns(a_cut_device(memory_mib=4500)), asking(memory="4Gi")).refused
    columns = some_columns(a_cut_device(cores=27))
    refused = place(columns, asking(memory="4Gi", count=2)).text
    assert refused == "1/1 AllocatedCardsInsufficientRequest, 1/1 CardMigTopologyInfeasible"


def test_slots_end_what_is_taken_of_a_device():
    columns = some_columns(a_cut_device(slots=2))
    refused = place(columns, asking(memory="4Gi", count=3)).text
    assert refused == "1/1 CardTimeSlicingExhausted, 2/1 AllocatedCardsInsufficientRequest"


def test_instances_and_shares_of_devices_serve_one_request_together():
    devices = [a_cut_device(slots=1), device_facts("GPU-1", index=1)]
    plan = place(some_columns(*devices), asking(memory="4Gi", count=2))
    assert sorted((g.uuid, g.memory_mib) for g in plan.grants) == [("GPU-0", 4864), ("GPU-1", 4096)]


def test_requests_of_one_claim_do_not_lie_on_each_other():
    demand = an_ask(
        a_request(name="first", memory="15Gi"),
        a_request(name="second", memory="15Gi"),
    )
    plan = place(some_columns(a_cut_device()), demand)
    assert cut(plan) == ["GPU-0 3g.20gb@4", "GPU-0 3g.20gb@0"]
    third = an_ask(*(a_request(name=name, memory="15Gi") for name in "abc"))
    assert place(some_columns(a_cut_device()), third).text == "1/1 CardInsufficientMemory"


def test_an_init_containers_instance_keeps_its_place_beside_those_of_the_app():
    """Its memory counts by the peak, but two instances cannot lie on one slice."""
    init = a_request(name="init", phase="Init", memory="15Gi")
    two = an_ask(init, a_request(name="app", memory="15Gi"))
    assert cut(place(some_columns(a_cut_device()), two)) == ["GPU-0 3g.20gb@4", "GPU-0 3g.20gb@0"]
    three = an_ask(init, *(a_request(name=name, memory="15Gi") for name in "ab"))
    assert place(some_columns(a_cut_device()), three).refused


def test_an_init_container_gets_each_of_its_instances_on_a_device_of_its_own():
    init = an_ask(a_request(name="init", phase="Init", memory="4Gi", count=2))
    assert place(some_columns(a_cut_device()), init).text == "1/1 NodeInsufficientDevice"
    devices = a_cut_device(), a_cut_device("GPU-1", index=1)
    plan = place(some_columns(*devices), init)
    assert {grant.uuid for grant in plan.grants} == {"GPU-0", "GPU-1"}


@pytest.mark.parametrize(("budget", "fits"), [(9856, True), (9855, False)])
def test_a_quota_is_charged_the_instance(budget, fits):
    plan = place(
        some_columns(a_cut_device()), asking(memory="6Gi"), budget=Budget(memory_mib=budget)
    )
    assert plan.refused != fits
    if not fits:
        assert plan.text == "1/1 ResourceQuotaNotFit"


@pytest.mark.parametrize(("budget", "fits"), [(28, True), (27, False)])
def test_a_quota_of_cores_is_charged_the_instances_part(budget, fits):
    demand = asking(memory="4Gi", count=2)
    assert place(some_columns(a_cut_device()), demand, budget=Budget(cores=budget)).refused != fits


def test_mutex_takes_one_part_of_an_unused_device():
    demand = an_ask(a_request(memory="4Gi", count=2), device=["Mutex"])
    refused = place(some_columns(a_cut_device()), demand).text
    assert refused == "1/1 AllocatedCardsInsufficientRequest, 1/1 ExclusiveDeviceAllocateConflict"


def test_required_numa_does_not_mix_parts_of_devices_of_two_numa_nodes():
    only = a_geometry(("1g.5gb", 4864, 14, 1, (5, 6)))
    devices = [
        a_cut_device("GPU-0", numa=0, profiles=only),
        a_cut_device("GPU-1", index=1, numa=1, profiles=only),
    ]
    columns = some_columns(*devices)
    assert len(cut(place(columns, an_ask(a_request(memory="4Gi", count=2), numa="Require")))) == 2
    refused = place(columns, an_ask(a_request(memory="4Gi", count=3), numa="Require")).text
    assert "2/2 NumaNotFit" in refused


def test_a_plan_leaves_the_slices_as_it_found_them():
    columns = some_columns(
        a_cut_device(), slices={"GPU-0": (0, 1)}, used={"GPU-0": Use(9856, 28, 1)}
    )
    before = columns.in_use(0), columns.kind[0]
    for demand in (asking(memory="4Gi", count=3), asking(memory="4Gi", count=9)):
        place(columns, demand)
        assert (columns.in_use(0), columns.kind[0]) == before


@pytest.mark.parametrize("policy", ["Binpack", "Fragmentation"])
def test_what_is_remembered_of_a_node_is_void_when_an_instance_comes_or_goes(policy):
    columns = some_columns(a_cut_device())
    give_mix(columns.mix, [(0.5, asking(memory="15Gi").requests[0])])
    demand = an_ask(a_request(memory="15Gi"), node=policy, device=[policy])
    for _ in range(2):
        columns.set_used(0, slots=1, cores=14, memory=4864, slices=1 << 1 | 1 << 4)
        assert place(columns, demand).text == "1/1 CardMigTopologyInfeasible"
        columns.set_used(0, slots=1, cores=14, memory=4864, slices=1 << 4)
        assert cut(place(columns, demand)) == ["GPU-0 3g.20gb@0"]
