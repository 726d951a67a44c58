"""Vendors' rules that rank nodes before their use is compared."""

from __future__ import annotations

import pytest

from builders import device_facts, some_columns
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.plan import Grant
from vgpu_operator.vendors.neighbours import OFFLINE, ONLINE, joined
from vgpu_operator.vendors.node_ranking import fewest_online, links_kept


def a_node(groups: str) -> Columns:
    """Return a device for each letter; devices with the same letter are linked."""
    devices = [
        device_facts(
            f"GPU-{at}",
            index=at,
            links={
                f"GPU-{peer}": 10 for peer, its in enumerate(groups) if its == group and peer != at
            },
        )
        for at, group in enumerate(groups)
    ]
    return some_columns(*devices)


def given(columns: Columns, *devices: int, cores: int = 100) -> list[Grant]:
    return [
        Grant("main", columns.name[each], columns.uuid[each], each, 1, cores, neighbours=ONLINE)
        for each in devices
    ]


@pytest.mark.parametrize(
    ("devices", "score"),
    [
        ((0, 1), 100 - 40),  # one link remains, four of six are cut
        ((0, 1, 2, 3), 600),
        ((4, 5), 100),
        ((6,), 0),
        ((0,), -30),
        ((0, 4), -30 - 10),
    ],
)
def test_links_among_the_devices_count_less_those_that_are_cut(
    devices: tuple[int, ...], score: int
) -> None:
    columns = a_node("aaaabbc")
    assert links_kept(columns, 0, given(columns, *devices)) == score


def test_links_to_devices_in_use_are_not_cut() -> None:
    columns = a_node("aaaa")
    columns.set_used(3, slots=1, cores=0, memory=0)
    assert links_kept(columns, 0, given(columns, 0, 1)) == 100 - 20
    assert links_kept(columns, 0, given(columns, 0, 1, cores=50)) == 0


def test_online_pods_count_against_a_node_and_offline_ones_alone_count_most() -> None:
    columns = a_node("aaaa")
    for device, (online, offline) in enumerate(((2, 0), (0, 2), (1, 3))):
        marks = joined(joined(0, ONLINE, online), OFFLINE, offline)
        columns.set_used(device, slots=online + offline, cores=0, memory=0, slices=marks)
    scores = [fewest_online(columns, 0, given(columns, at, cores=0)) for at in range(4)]
    assert scores == [-40, -200, -26, 0]
    assert fewest_online(columns, 0, given(columns, 0, 0, 2, cores=0)) == -66
