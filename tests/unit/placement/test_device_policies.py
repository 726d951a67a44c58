"""The first device of each policy."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_operator.placement import DeviceFacts
from vgpu_operator.placement.device_policies import in_order


def best_first(
    policies: tuple[Any, ...],
    devices: list[DeviceFacts],
    used: dict[str, Use],
    *,
    one_numa_node: bool = False,
) -> list[str]:
    columns = some_columns(*devices, used=used)
    ordered = in_order(
        columns,
        columns.node_devices[0],
        request=an_ask(a_request(memory="1Gi")).requests[0],
        policies=policies,
        one_numa_node=one_numa_node,
        weights=(1, 1, 1),
    )
    return [columns.uuid[device] for device in reversed(ordered)]


DEVICES = [
    device_facts("idle", index=0, numa=0),
    device_facts("half", index=1, numa=1),
    device_facts("full", index=2, numa=0),
]
USED = {"half": Use(8000, 50, 3), "full": Use(12000, 60, 2)}


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        (("Binpack",), ["full", "half", "idle"]),
        (("Spread",), ["idle", "half", "full"]),
        (("Mutex",), ["idle", "full", "half"]),
        (("BestFit",), ["full", "half", "idle"]),
        (("IdleFirst",), ["idle", "half", "full"]),
        (("NUMA",), ["half", "full", "idle"]),
        (("NUMA", "Binpack"), ["half", "full", "idle"]),
        (("NUMA", "Spread"), ["half", "idle", "full"]),
        (("Mutex", "Binpack"), ["full", "half", "idle"]),
        (("Mutex", "NUMAFirst"), ["idle", "half", "full"]),
    ],
)
def test_the_policy_decides_which_device_goes_first(policies, expected):
    assert best_first(policies, DEVICES, USED) == expected


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        (("Binpack",), ["full", "idle", "half"]),
        (("Spread",), ["half", "idle", "full"]),
    ],
)
def test_a_required_numa_node_groups_the_devices_before_the_score(policies, expected):
    assert best_first(policies, DEVICES, USED, one_numa_node=True) == expected


EQUAL = [device_facts("low", index=1, numa=1), device_facts("high", index=2, numa=0)]


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        (("Binpack",), "low"),
        (("Spread",), "low"),
        (("IdleFirst",), "low"),
        (("Topology",), "low"),  # this policy sorts nothing itself, so the order is that of Spread
        (("Mutex", "NUMAFirst"), "low"),
        (("Mutex", "Binpack"), "high"),
        (("Spread", "Topology"), "high"),
        (("Mutex", "IdleFirst"), "high"),
        (("BestFit",), "low"),
        (("Spread", "NUMA"), "low"),
    ],
)
def test_equal_scores_go_by_numa_node_under_one_policy_and_by_index_under_a_chain(
    policies, expected
):
    """HAMi's own policies break ties by NUMA node, a chain only by index."""
    assert best_first(policies, EQUAL, {})[0] == expected


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        (("Binpack",), ["full", "idle", "half"]),
        (("Mutex", "Binpack"), ["half", "full", "idle"]),
        (("Mutex",), ["half", "idle", "full"]),
        (("NUMA",), ["half", "full", "idle"]),
        (("IdleFirst",), ["half", "idle", "full"]),
    ],
)
def test_a_chain_that_needs_one_numa_node_puts_the_numa_nodes_first(policies, expected):
    assert best_first(policies, DEVICES, USED, one_numa_node=True) == expected


def test_equal_devices_are_taken_from_the_end_as_in_hami():
    devices = [device_facts(f"GPU-{index}", index=index) for index in (2, 0, 1)]
    assert best_first(("Spread",), devices, {}) == ["GPU-2", "GPU-1", "GPU-0"]


def test_best_fit_breaks_ties_by_the_lowest_index():
    devices = [device_facts(f"GPU-{index}", index=index) for index in (2, 0, 1)]
    assert best_first(("BestFit",), devices, {}) == ["GPU-0", "GPU-1", "GPU-2"]


def test_idle_first_prefers_an_unused_device_to_an_emptier_used_one():
    devices = [device_facts("small", index=0, memory_mib=1024), device_facts("large", index=1)]
    assert best_first(("IdleFirst",), devices, {"large": Use(100, 0, 1)}) == ["small", "large"]
    assert best_first(("Spread",), devices, {"large": Use(100, 0, 1)}) == ["large", "small"]
