"""The devices that vendors' rules combine when several fit."""

from __future__ import annotations

import pytest

from builders import device_facts, some_columns
from vgpu_operator.placement.columns import Columns
from vgpu_operator.vendors.choices import (
    CHOICES,
    fewest_online,
    largest_groups,
    pairs,
    runs,
    smallest_groups,
    wings,
)
from vgpu_operator.vendors.neighbours import OFFLINE, ONLINE, joined


def eight(groups: str = "") -> Columns:
    """Return devices 0 to 7 of a node; those with the same letter are linked."""
    devices = [
        device_facts(
            f"NPU-{at}",
            index=at,
            links={
                f"NPU-{peer}": 10
                for peer, its in enumerate(groups)
                if its == groups[at] and peer != at
            }
            if groups
            else {},
        )
        for at in range(8)
    ]
    return some_columns(*devices)


def test_devices_come_from_the_group_of_which_most_fit() -> None:
    columns = eight("aaaabbbb")
    assert largest_groups(columns, [0, 4, 1, 5, 6], 3) == (4, 5, 6)
    assert largest_groups(columns, [0, 4, 1, 5, 6], 4) == (4, 5, 6, 0)


def test_groups_of_one_size_come_in_the_order_of_preference() -> None:
    columns = eight("aaaabbbb")
    assert largest_groups(columns, [6, 0, 1, 5], 2) == (6, 5)


def test_without_groups_preference_alone_counts() -> None:
    assert largest_groups(eight(), [6, 0, 1, 5], 2) == (6, 0)


@pytest.mark.parametrize(
    ("fitting", "count", "taken"),
    [
        # parts of devices come from the end that is far from the start of runs
        ([3, 6, 0], 1, (6,)),
        ([7, 6, 5, 4, 3, 2, 1, 0], 4, (0, 1, 2, 3)),
        ([7, 6, 5, 4, 3, 2, 1], 4, (4, 5, 6, 7)),
        ([7, 6, 5, 3, 2, 1, 0], 2, ()),
        ([7, 6, 5, 3, 2, 1], 4, ()),
    ],
)
def test_devices_apart_go_together_by_multiples(
    fitting: list[int], count: int, taken: tuple[int, ...]
) -> None:
    assert runs(eight(), fitting, count) == taken


def test_any_run_of_a_ring_goes_together() -> None:
    ring = eight("aaaaaaaa")
    assert runs(ring, [7, 6, 4, 3, 2], 3) == (2, 3, 4)
    assert runs(ring, [7, 6, 4, 2], 2) == (6, 7)
    assert runs(ring, [7, 5, 3, 1], 2) == ()


def test_modules_are_taken_whole() -> None:
    columns = eight()
    assert pairs(columns, [6, 0, 1, 5, 4], 2) == (0, 1)
    assert pairs(columns, [6, 0, 1, 5, 4], 4) == (0, 1, 5, 4)
    assert pairs(columns, [6, 0, 1, 5, 4], 6) == ()
    assert pairs(columns, [0, 2, 4], 2) == ()


@pytest.mark.parametrize(
    ("fitting", "count", "taken"),
    [
        ([7, 0, 1, 2, 3], 1, (7,)),  # one is left of its half
        ([7, 6, 0, 1, 2], 1, (0,)),  # three are better than two
        ([7, 6, 5, 4, 1, 0], 2, (1, 0)),
        ([7, 6, 5, 2, 1, 0], 2, (7, 6)),  # halves of one size: the most wanted
        ([7, 3], 2, (7, 3)),  # linked across
        ([7, 2], 2, ()),
        ([7, 6, 5, 4, 1], 4, (7, 6, 5, 4)),
        ([5, 4, 1, 0], 4, (5, 4, 1, 0)),
        ([6, 5, 4, 2, 1, 0], 4, (5, 4, 1, 0)),  # leaves 2 and 6, which are linked
        ([7, 6, 5, 2, 1, 0], 4, (6, 5, 2, 1)),  # nothing else fits
        ([7, 6, 5, 0], 4, ()),
        ([7, 6, 5, 4, 3, 2, 1, 0], 8, (7, 6, 5, 4, 3, 2, 1, 0)),
        ([7, 6, 5, 4, 3, 2, 1], 8, ()),
        ([7, 6, 5, 4, 3, 2, 1, 0], 3, ()),
    ],
)
def test_devices_of_a_server_of_two_halves(
    fitting: list[int], count: int, taken: tuple[int, ...]
) -> None:
    assert wings(eight(), fitting, count) == taken


def test_every_rule_gives_devices_that_fit_each_once_or_none() -> None:
    columns = eight("abababab")
    for rule in CHOICES.values():
        for count in range(2, 9):
            taken = rule(columns, list(range(8)), count)
            assert len(set(taken)) == len(taken)
            assert len(taken) in (0, count)


def test_devices_for_one_alone_come_from_the_smallest_group_that_is_large_enough() -> None:
    columns = eight("aaaabbcc")
    fitting = [0, 4, 1, 5, 2, 6, 3]
    assert smallest_groups(columns, fitting, 1) == (6,)
    assert smallest_groups(columns, fitting, 2) == (4, 5)
    assert smallest_groups(columns, fitting, 3) == (0, 1, 2)
    assert smallest_groups(columns, fitting, 5) == (6, 4, 5, 0, 1)


def test_devices_without_a_link_are_the_last_that_are_taken_for_one_alone() -> None:
    columns = eight("aabcdefg")
    assert smallest_groups(columns, [7, 3, 1, 0], 1) == (1,)
    assert smallest_groups(columns, [7, 3, 1, 0], 3) == (1, 0, 7)
    assert smallest_groups(eight(), [7, 3, 1, 0], 2) == (7, 3)


def test_an_online_pod_goes_to_few_others_and_not_to_offline_ones_alone() -> None:
    columns = eight()
    for device, (online, offline) in enumerate(((2, 0), (0, 1), (1, 3), (1, 2), (0, 2))):
        marks = joined(joined(0, ONLINE, online), OFFLINE, offline)
        columns.set_used(device, slots=online + offline, cores=0, memory=0, slices=marks)
    assert fewest_online(columns, [0, 1, 2, 3, 4], 5) == (3, 2, 0, 1, 4)
    assert fewest_online(columns, [5, 7, 0], 2) == (5, 7)
