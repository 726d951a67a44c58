"""The typical mix counts requests, changes in steps, and is cached."""

from __future__ import annotations

import pytest

from builders import a_request, an_ask, give_mix
from vgpu_operator.demand import RequestDemand
from vgpu_operator.placement.target_workload import Mix, View, type_of

VIEW = View(1.0, 0.0, ())


def a_type(memory: str = "1Gi", *, cpu_milli: int = 0, **fields) -> RequestDemand:
    demand = an_ask(a_request(memory=memory, **fields), cpu_milli=cpu_milli, node="Fragmentation")
    return demand.requests[0]


def a_given_mix(*types: RequestDemand) -> Mix:
    mix = Mix()
    give_mix(mix, [(1.0 / len(types), kind) for kind in types])
    return mix


def test_what_does_not_decide_where_a_request_fits_makes_no_type_of_its_own():
    selector = {"uuids": ["GPU-1"], "exclude_uuids": ["GPU-2"]}
    special = a_type(
        name="main",
        phase="Init",
        core_policy="Force",
        compute_priority=3,
        selector=selector,
    )
    assert type_of(special) == type_of(a_type())
    assert type_of(a_type(selector={"models": ["A100"]})) != type_of(a_type())


def test_free_cpu_counts_in_the_amounts_that_types_ask_for():
    mix = a_given_mix(a_type(cpu_milli=2000), a_type("2Gi", cpu_milli=500), a_type("3Gi"))
    assert mix.knows_cpu
    assert [mix.level(milli) for milli in (-1, 499, 500, 1999, 2000, 9000)] == [0, 0, 1, 1, 2, 2]
    assert mix.cpu_levels == (2, 1, 0)


def test_a_mix_that_asks_for_no_cpu_does_not_look_at_it():
    mix = a_given_mix(a_type())
    assert not mix.knows_cpu
    assert mix.level(10_000) == 0
    assert mix.cpu_levels == (0,)


def test_of_many_claims_one_in_eight_is_looked_at():
    mix = Mix()
    wanted = [mix.wants_next() for _ in range(1_016)]
    assert all(wanted[:1_000])
    assert [number for number, yes in enumerate(wanted[1_000:], start=1_001) if yes] == [
        1_008,
        1_016,
    ]


def test_the_mix_is_learned_quickly_at_first_and_then_in_steps():
    """Every claim has a different type, so each look at the claims finds a different mix."""
    mix, changed_at = Mix(), []
    for number in range(1, 2_100):
        version = mix.version
        mix.observe(an_ask(a_request(memory=f"{number}Mi")))
        if mix.version != version:
            changed_at.append(number)
    assert changed_at == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_024]


def test_all_requests_of_a_claim_are_counted():
    mix = Mix()
    mix.observe(
        an_ask(
            *(a_request(name=name, memory="1Gi") for name in "abc"),
            a_request(name="d", memory="2Gi"),
        )
    )
    assert [frequency for frequency, _ in mix.types] == [0.75, 0.25]
    assert mix.total == 1.0


@pytest.mark.parametrize("order", [("1Gi", "2Gi"), ("2Gi", "1Gi")])
def test_equally_frequent_types_stand_in_an_order_of_their_own(order):
    mix = Mix()
    for memory in order:
        mix.observe(an_ask(a_request(memory=memory)))
    first, second = (kind for _, kind in mix.types)
    assert repr(first) < repr(second)


def test_pods_without_devices_count_in_the_total_only_where_they_are_frequent():
    mix = Mix()
    for number in range(64):
        mix.observe(None if number == 63 else an_ask(a_request(memory="1Gi")))
    assert mix.total == 63 / 64
    for _ in range(64):
        mix.observe(None)
    assert mix.total == 1.0
    assert [frequency for frequency, _ in mix.types] == [63 / 128]


def test_what_is_remembered_of_devices_holds_until_the_types_change():
    mix = a_given_mix(a_type())
    state = (0, 0, 0, 0, 0)
    mix.views[state] = VIEW
    mix.rises.of(a_type())[state] = 1.5
    assert mix.views == {state: VIEW}
    assert mix.rises.of(a_type()) == {state: 1.5}
    assert mix.rises.of(a_type("2Gi")) == {}
    give_mix(mix, [(1.0, a_type())])  # unchanged
    assert mix.views == {state: VIEW}
    version = mix.version
    give_mix(mix, [(1.0, a_type())], without_devices=0.5)
    assert mix.version == version + 1
    assert mix.views == {}
    assert mix.rises.of(a_type()) == {}


def test_no_more_is_remembered_than_there_is_room_for():
    mix = a_given_mix(a_type())
    states = [(0, 0, 0, 0, number) for number in range(65_537)]
    mix.views.update(dict.fromkeys(states[:-1], VIEW))
    assert len(mix.views) == 65_536
    mix.views[states[-1]] = VIEW
    assert mix.views == {}
    rises = mix.rises.of(a_type())
    rises.update(dict.fromkeys(states[:-1], 0.0))
    assert mix.rises.of(a_type()) is rises
    rises[states[-1]] = 0.0
    assert mix.rises.of(a_type()) == {}
    for number in range(1, 65):
        mix.rises.of(a_type(f"{number}Mi"))[states[0]] = 0.0
    assert mix.rises.of(a_type("1Mi")) != {}
    mix.rises.of(a_type("65Mi"))
    assert mix.rises.of(a_type("64Mi")) != {}
    assert mix.rises.of(a_type("1Mi")) == {}
