"""The selection of devices by the links between them."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_operator.placement import Columns, place
from vgpu_operator.placement.topology import choose, pair_score


def a_node(scores: dict[tuple[int, int], int], count: int) -> Columns:
    """Return a node of devices; a score holds in both directions unless both are given."""
    said = {(b, a): score for (a, b), score in scores.items()} | scores
    return some_columns(
        *(
            device_facts(
                f"g{at:02d}",
                index=at,
                links={f"g{to:02d}": score for (of, to), score in said.items() if of == at},
            )
            for at in range(count)
        )
    )


def taken(columns: Columns, count: int) -> set[str]:
    demand = an_ask(a_request(memory="1Gi", count=count), device=["Topology"])
    return {grant.uuid for grant in place(columns, demand).grants}


def test_several_devices_are_those_that_are_connected_best():
    assert taken(a_node({(0, 1): 10, (0, 2): 20, (1, 2): 150}, 3), 2) == {"g01", "g02"}


def test_one_device_is_the_one_whose_links_are_missed_least():
    assert taken(a_node({(0, 1): 100, (1, 2): 100, (0, 2): 10, (2, 3): 10}, 4), 1) == {"g03"}


def test_links_to_a_device_that_is_full_are_not_missed():
    columns = a_node({(0, 1): 200, (2, 3): 100, (0, 2): 10, (0, 3): 10}, 4)
    assert taken(columns, 1) != {"g00"}
    columns.set_used(1, slots=10, cores=100, memory=0)
    assert taken(columns, 1) == {"g00"}


def test_links_decide_against_the_order_in_which_devices_are_taken_otherwise():
    """Without links the last devices would be taken first."""
    assert taken(a_node({(0, 1): 150, (0, 2): 10, (1, 2): 20}, 3), 2) == {"g00", "g01"}
    assert taken(a_node({(0, 1): 10, (1, 2): 100, (2, 3): 100, (1, 3): 100}, 4), 1) == {"g00"}


def test_a_link_of_which_the_devices_disagree_counts_nothing():
    columns = a_node({(0, 1): 200, (1, 0): 100, (1, 2): 10}, 3)
    assert pair_score(columns, 0, 1) == 0
    assert taken(columns, 2) == {"g01", "g02"}


def test_devices_that_are_in_no_table_count_nothing_and_are_no_error():
    assert taken(a_node({}, 3), 2) == {"g02", "g01"}


def test_exactly_as_many_as_fit_are_taken_as_they_are():
    assert taken(a_node({(0, 1): 10}, 2), 2) == {"g00", "g01"}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_the_best_combination_is_found_and_of_equals_the_first(seed, count):
    chance = random.Random(seed)
    scores = {pair: chance.choice((0, 10, 100, 250)) for pair in combinations(range(9), 2)}
    columns = a_node(scores, 9)
    fitting = list(range(9))
    chance.shuffle(fitting)
    expected = max(combinations(fitting, count), key=lambda chosen: total(columns, chosen))
    assert choose(columns, fitting, count) == expected


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [2, 3, 5])
def test_of_many_equal_combinations_the_first_is_taken(seed, count):
    chance = random.Random(seed)
    columns = a_node({pair: chance.randrange(2) for pair in combinations(range(8), 2)}, 8)
    fitting = chance.sample(range(8), 7)
    expected = max(combinations(fitting, count), key=lambda chosen: total(columns, chosen))
    assert choose(columns, fitting, count) == expected


@pytest.mark.parametrize(
    ("said", "counts"), [({}, 0), ({(0, 1): 1, (1, 0): 0}, 0), ({(0, 1): 0, (1, 0): 1}, 0)]
)
def test_a_link_of_which_one_device_says_nothing_counts_nothing(said, counts):
    devices = [
        device_facts(
            f"g0{at}", links={f"g0{to}": score for (of, to), score in said.items() if of == at}
        )
        for at in range(2)
    ]
    assert pair_score(some_columns(*devices), 0, 1) == counts
    lonely = some_columns(device_facts("g00", links={"g01": 1}), device_facts("g01"))
    assert pair_score(lonely, 0, 1) == pair_score(lonely, 1, 0) == 0
    agreed = some_columns(
        device_facts("g00", links={"g01": 1}), device_facts("g01", links={"g00": 1})
    )
    assert pair_score(agreed, 0, 1) == pair_score(agreed, 1, 0) == 1


def total(columns: Columns, chosen: tuple[int, ...]) -> int:
    return sum(pair_score(columns, a, b) for a, b in combinations(chosen, 2))


def test_a_node_of_64_devices_is_decided_in_bounded_time_and_no_worse_than_greedily():
    chance = random.Random(1)
    scores = {pair: chance.randrange(300) for pair in combinations(range(64), 2)}
    columns = a_node(scores, 64)
    chosen = choose(columns, range(64), 8)
    assert len(set(chosen)) == 8
    assert total(columns, chosen) >= max(greedily(columns, start, 64, 8) for start in range(64))


def greedily(columns: Columns, start: int, devices: int, count: int) -> int:
    """Return the devices found by repeatedly adding the device that raises the score most."""
    chosen = (start,)
    while len(chosen) < count:
        rest = [device for device in range(devices) if device not in chosen]
        chosen = max(
            ((*chosen, device) for device in rest), key=lambda those: total(columns, those)
        )
    return total(columns, chosen)
