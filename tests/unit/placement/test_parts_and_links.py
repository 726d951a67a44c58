"""NUMA nodes or links decide among the parts of devices in MIG mode."""

from __future__ import annotations

import pytest

from builders import a_geometry, a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_operator.placement import Columns, DeviceFacts, place

HALVES = a_geometry(("3g.20gb", 20_000, 50, 4, (0, 4)))
GIB = 1024


def a_cut_device(uuid: str, *, index: int, numa: int = 0, **fields) -> DeviceFacts:
    return device_facts(
        uuid, index=index, numa=numa, mode="MIG", memory_mib=40 * GIB, profiles=HALVES, **fields
    )


def given(columns: Columns, *, count: int, **placement) -> list[str]:
    plan = place(columns, an_ask(a_request(memory="10Gi", count=count), **placement))
    assert not plan.refused, plan.text
    return [grant.uuid for grant in plan.grants]


TOGETHER = [{"numa": "Prefer", "device": ["Binpack"]}, {"device": ["NUMAFirst", "Binpack"]}]


def half_and_whole(*more: DeviceFacts) -> Columns:
    """Return a half-free device on NUMA node 0, and a device with both halves free on node 1."""
    return some_columns(
        a_cut_device("half", index=0),
        a_cut_device("whole", index=1, numa=1),
        *more,
        used={"half": Use(20_000, 50, 1)},
        slices={"half": range(4)},
    )


@pytest.mark.parametrize("placement", TOGETHER)
def test_parts_within_one_numa_node_go_before_the_fullest_device(placement):
    assert given(half_and_whole(), count=2, device=["Binpack"]) == ["half", "whole"]
    assert given(half_and_whole(), count=2, **placement) == ["whole", "whole"]


@pytest.mark.parametrize("placement", TOGETHER)
def test_parts_of_several_numa_nodes_serve_where_no_one_has_enough(placement):
    assert given(half_and_whole(), count=3, **placement) == ["half", "whole", "whole"]


@pytest.mark.parametrize("placement", [{"numa": "Prefer"}, {"device": ["NUMAFirst"]}])
def test_of_numa_nodes_with_enough_parts_the_one_left_with_the_fewest_free_devices_gives(placement):
    """Spread alone would take a part of the unused device."""
    assert given(half_and_whole(), count=1) == ["whole"]
    spare = a_cut_device("spare", index=2, numa=1)
    assert given(half_and_whole(spare), count=1, **placement) == ["half"]


def pair(uuid: str, index: int, *, linked_to: str, score: int, **fields) -> DeviceFacts:
    return a_cut_device(uuid, index=index, links={linked_to: score}, **fields)


def test_of_more_parts_than_are_asked_for_those_of_linked_devices_are_given():
    columns = some_columns(
        pair("left", 0, linked_to="right", score=100),
        pair("right", 1, linked_to="left", score=100),
        *(a_cut_device(f"lone-{index}", index=index + 2) for index in range(2)),
        used={uuid: Use(20_000, 50, 1) for uuid in ("lone-0", "lone-1", "left", "right")},
        slices={uuid: range(4) for uuid in ("lone-0", "lone-1", "left", "right")},
    )
    assert sorted(given(columns, count=2, device=["Topology"])) == ["left", "right"]
    assert len(given(columns, count=4, device=["Topology"])) == 4
    assert set(given(columns, count=2)).isdisjoint({"left", "right"})
