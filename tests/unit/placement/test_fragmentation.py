"""The fragmentation measure F, the placement by it, and the learning of the typical mix."""

from __future__ import annotations

import pytest

from builders import a_claim, a_request, an_ask, device_facts, give_mix, some_columns
from vgpu_api.config import ClusterConfig
from vgpu_api.effective import Use
from vgpu_operator.demand import RequestDemand
from vgpu_operator.ledger import Ledger
from vgpu_operator.placement import Columns, DeviceFacts, place
from vgpu_operator.placement.fragmentation import fragmentation, rises_on, score_of_rise
from vgpu_operator.placement.target_workload import Mix

HALF = Use(memory_mib=8192, slots=1)


def a_type(*, cpu_milli: int = 0, **fields) -> RequestDemand:
    return an_ask(a_request(**fields), cpu_milli=cpu_milli, node="Fragmentation").requests[0]


def columns_with(mix, *devices: DeviceFacts, used: dict[str, Use] | None = None) -> Columns:
    columns = some_columns(*devices, used=used)
    give_mix(columns.mix, mix)
    return columns


def test_nothing_is_a_fragment_while_every_typical_request_fits_everywhere():
    columns = columns_with(
        [(1.0, a_type(memory="4Gi"))], device_facts("x"), device_facts("y", index=1)
    )
    assert fragmentation(columns, 0) == 0.0


def test_what_is_left_on_a_device_that_is_too_full_is_a_fragment():
    columns = columns_with(
        [(1.0, a_type(memory="12Gi"))],
        device_facts("x"),
        device_facts("y", index=1),
        used={"y": HALF},
    )
    assert fragmentation(columns, 0) == 500.0


def test_everything_idle_is_one_where_too_few_devices_are_left_for_a_request_for_several():
    two = (0.5, a_type(memory="16Gi", count=2))
    columns = columns_with([two], device_facts("x"), device_facts("y", index=1), used={"y": HALF})
    assert fragmentation(columns, 0) == 0.5 * 1500.0


def test_what_a_request_for_several_devices_can_use_is_no_fragment_for_it():
    two, one = (0.5, a_type(memory="16Gi", count=2)), (0.25, a_type(memory="64Gi"))
    columns = columns_with([two, one], device_facts("x"), device_facts("y", index=1))
    assert fragmentation(columns, 0) == 0.25 * 2000.0


def test_a_request_that_tears_a_pair_apart_raises_f_by_all_that_the_pair_could_use():
    two = (0.5, a_type(memory="16Gi", count=2))
    columns = columns_with([two], device_facts("x"), device_facts("y", index=1))
    small = a_type(memory="2Gi")
    assert rises_on(columns, (0,), small)[0] == pytest.approx(0.5 * (875.0 + 1000.0))
    assert fragmentation(columns, 0) == 0.0  # unchanged
    columns.set_used(0, slots=1, cores=0, memory=2048)
    assert rises_on(columns, (0,), small)[0] == pytest.approx(-0.5 * 125.0)


def test_the_idle_share_is_that_of_the_scarcer_of_memory_and_compute():
    columns = columns_with(
        [(1.0, a_type(memory="16Gi"))], device_facts("x"), used={"x": Use(1638, 75, 1)}
    )
    assert fragmentation(columns, 0) == 250.0


@pytest.mark.parametrize("facts", [{"healthy": False}, {"cordoned": True}])
def test_a_device_that_is_out_of_use_is_no_fragment(facts):
    columns = columns_with([(1.0, a_type(memory="64Gi"))], device_facts("x", **facts))
    assert fragmentation(columns, 0) == 0.0


def test_a_rise_is_scored_in_the_published_whole_steps():
    assert [score_of_rise(rise) for rise in (-1000, -1e-9, 0, 1e-9, 1000)] == [73, 50, 50, 50, 26]
    assert score_of_rise(0.4) == 49


def test_a_small_request_goes_where_it_tears_no_device_open():
    """The half-used device has no room for the typical request in any case."""
    small, typical = a_request(memory="2Gi"), (1.0, a_type(memory="16Gi"))
    devices = [device_facts("idle", node="a"), device_facts("torn", node="b")]
    columns = columns_with([typical], *devices, used={"torn": HALF})
    demand = an_ask(small, node="Fragmentation", device=["Fragmentation"])
    assert place(columns, demand).node == "b"
    assert place(columns, an_ask(small, node="Spread")).node == "a"


def test_on_a_node_the_device_is_chosen_by_the_same_measure():
    columns = columns_with(
        [(1.0, a_type(memory="16Gi"))],
        device_facts("idle"),
        device_facts("torn", index=1),
        used={"torn": HALF},
    )
    demand = an_ask(a_request(memory="2Gi"), device=["Fragmentation"])
    assert place(columns, demand).grants[0].uuid == "torn"


def whole_or_torn() -> Columns:
    """Return nodes with an idle and a half-used device; on `a` the half-used one comes first."""
    devices = [
        *(device_facts("a-torn", node="a"), device_facts("a-idle", node="a", index=1)),
        *(device_facts("b-idle", node="b"), device_facts("b-torn", node="b", index=1)),
    ]
    return columns_with(
        [(1.0, a_type(memory="16Gi"))], *devices, used={"a-torn": HALF, "b-torn": HALF}
    )


@pytest.mark.parametrize(
    ("selector", "device"),
    [
        ({}, "a-torn"),
        ({"uuids": ["a-idle", "b-torn"]}, "b-torn"),
        ({"exclude_uuids": ["a-torn"]}, "b-torn"),
        ({"exclude_uuids": ["b-torn"]}, "a-torn"),
    ],
)
def test_only_devices_that_may_be_taken_count_for_a_nodes_rise(selector, device):
    demand = an_ask(
        a_request(memory="2Gi", selector=selector),
        node="Fragmentation",
        device=["Fragmentation"],
    )
    assert [grant.uuid for grant in place(whole_or_torn(), demand).grants] == [device]


def test_all_devices_and_all_containers_of_a_claim_count_for_a_nodes_rise():
    """On `a` the second would split the idle device, while `b` has two split devices already."""
    columns = whole_or_torn()
    columns.put_device(device_facts("b-also", node="b", index=2))
    columns.set_used(columns.number_of("b-also"), slots=1, cores=0, memory=8192)
    both = {"node": "Fragmentation", "device": ["Fragmentation"]}
    assert place(columns, an_ask(a_request(memory="2Gi", count=2), **both)).node == "b"
    two = [a_request(name=name, memory="5Gi") for name in "xy"]
    assert place(columns, an_ask(*two, **both)).node == "b"


def test_init_containers_end_and_raise_nothing():
    columns = columns_with(
        [(1.0, a_type(memory="16Gi"))],
        device_facts("idle", node="a"),
        device_facts("torn", node="b"),
        used={"torn": HALF},
    )
    placement = {"node": "Fragmentation", "device": ["Fragmentation"]}
    assert place(columns, an_ask(a_request(memory="2Gi"), **placement)).node == "b"
    init = a_request(memory="2Gi", phase="Init")
    assert place(columns, an_ask(init, **placement)).node == "a"


def test_a_device_is_a_fragment_where_the_cpu_for_what_usually_comes_is_gone():
    columns = columns_with([(1.0, a_type(memory="4Gi", cpu_milli=4000))], device_facts("x"))
    assert fragmentation(columns, 0) == 0.0
    columns.set_cpu_free(0, 3999)
    assert fragmentation(columns, 0) == 1000.0


def test_a_claim_goes_where_its_pod_leaves_cpu_for_what_usually_comes():
    """Both nodes have devices, but on the first the pod's CPU would make the rest unusable."""
    devices = [device_facts("tight", node="a"), device_facts("ample", node="b")]
    columns = columns_with([(1.0, a_type(memory="2Gi", cpu_milli=4000))], *devices)
    columns.set_cpu_free(0, 6000)
    columns.set_cpu_free(1, 8000)
    for cpu_milli, node in ((2000, "a"), (3000, "b")):
        demand = an_ask(
            a_request(memory="2Gi"),
            cpu_milli=cpu_milli,
            node="Fragmentation",
            device=["Fragmentation"],
        )
        assert place(columns, demand).node == node


def test_what_has_been_freed_of_a_cpu_counts_at_the_next_decision():
    devices = [device_facts("tight", node="a"), device_facts("ample", node="b")]
    columns = columns_with([(1.0, a_type(memory="2Gi", cpu_milli=4000))], *devices)
    columns.set_cpu_free(0, 5000)
    demand = an_ask(a_request(memory="2Gi"), cpu_milli=2000, node="Fragmentation")
    assert place(columns, demand).node == "b"
    columns.set_cpu_free(0, 6000)
    assert place(columns, demand).node == "a"


def test_only_fragmentation_makes_asks_differ_by_cpu():
    assert an_ask(cpu_milli=1000) == an_ask(cpu_milli=2000)
    here, there = (an_ask(cpu_milli=cpu, device=["Fragmentation"]) for cpu in (1000, 2000))
    assert here != there


def test_the_mix_is_the_most_frequent_types_up_to_95_percent():
    mix = Mix()
    for number in range(1000):
        mix.observe(an_ask(a_request(memory="1Gi" if number % 100 < 96 else f"{number}Mi")))
    assert [round(frequency, 2) for frequency, _ in mix.types] == [0.96]


def test_a_request_that_differs_only_in_name_is_of_the_same_type():
    mix = Mix()
    for name in ("a", "b"):
        mix.observe(an_ask(a_request(name=name, memory="1Gi")))
    assert [frequency for frequency, _ in mix.types] == [1.0]


def test_pods_that_ask_for_no_device_make_what_is_idle_less_useful():
    columns = some_columns(device_facts("x"))
    for demand in (an_ask(a_request(memory="1Gi")), None, None, None):
        columns.mix.observe(demand)
    assert [frequency for frequency, _ in columns.mix.types] == [0.25]
    assert fragmentation(columns, 0) == 750.0


def test_what_is_asked_now_outweighs_what_was_asked_long_ago():
    mix = Mix()
    for size, times in (("1Gi", 40_000), ("2Gi", 40_000)):
        demand = an_ask(a_request(memory=size))
        for _ in range(times):
            mix.observe(demand)
    assert mix.types[0][1].memory_mib == 2048
    assert mix.types[0][0] > 0.8


def test_the_ledger_tells_the_mix_of_each_claim_once():
    ledger = Ledger(config=ClusterConfig())
    for version in (1, 2, 3):
        ledger.apply_claim(
            a_claim("often", resource_version=version, requests=[a_request(memory="1Gi")])
        )
    ledger.apply_claim(a_claim("other", requests=[a_request(memory="2Gi")]))
    assert [frequency for frequency, _ in ledger.columns.mix.types] == [0.5, 0.5]
