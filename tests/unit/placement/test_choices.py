"""Which of several devices that fit go together, by the rules that vendors' tables name."""

from __future__ import annotations

from builders import device_facts, some_columns
from vgpu_operator.placement.choices import CHOICES, largest_groups, pairs
from vgpu_operator.placement.columns import Columns


def eight(groups: str = "") -> Columns:
    """Devices 0 to 7 of a node; those with the same letter are linked."""
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


def test_modules_are_taken_whole() -> None:
    columns = eight()
    assert pairs(columns, [6, 0, 1, 5, 4], 2) == (0, 1)
    assert pairs(columns, [6, 0, 1, 5, 4], 4) == (0, 1, 5, 4)
    assert pairs(columns, [6, 0, 1, 5, 4], 6) == ()
    assert pairs(columns, [0, 2, 4], 2) == ()


def test_every_rule_gives_devices_that_fit_each_once_or_none() -> None:
    columns = eight("abababab")
    for rule in CHOICES.values():
        for count in range(2, 9):
            taken = rule(columns, list(range(8)), count)
            assert len(set(taken)) == len(taken)
            assert len(taken) in (0, count)
