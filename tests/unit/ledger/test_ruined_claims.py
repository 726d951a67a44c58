"""An unreadable claim never counts for less than it may hold."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_api.effective import Use
from vgpu_operator.ledger.shares import (
    NOTHING,
    ClaimShares,
    DeviceShare,
    peak_of,
    shares_of_unreadable,
)

KNOWN = ClaimShares({"GPU-7": DeviceShare(Use(1024, 100, 1), alone=True)}, frozenset({"node-7"}))
KNOWN_IN_FULL = ClaimShares(
    {"GPU-7": DeviceShare(Use(1024, 100, 1), alone=True, full=True)}, frozenset({"node-7"})
)
FULL = DeviceShare(full=True)


def ruin(**allocation: Any) -> dict[str, Any]:
    return {"status": {"allocation": {"nodeName": "node-1", **allocation}}}


@pytest.mark.parametrize(
    "raw", [{}, {"status": None}, {"status": {}}, {"status": {"allocation": None}}]
)
def test_without_an_allocation_nothing_is_held(raw):
    assert shares_of_unreadable(raw, known=KNOWN) == NOTHING


@pytest.mark.parametrize(
    "raw", [{"status": "?"}, {"status": ["?"]}, {"status": {"allocation": "?"}}]
)
def test_of_a_status_that_is_none_at_all_only_what_was_known_is_held_in_full(raw):
    assert shares_of_unreadable(raw, known=KNOWN) == KNOWN_IN_FULL


def test_devices_that_are_named_are_held_in_full_and_no_others():
    raw = ruin(devices=[{"uuid": "GPU-0"}, {"uuid": "GPU-1", "memory": "?"}])
    assert shares_of_unreadable(raw, known=KNOWN) == ClaimShares({"GPU-0": FULL, "GPU-1": FULL})


@pytest.mark.parametrize(
    "nameless", ["?", None, {}, {"uuid": ""}, {"uuid": 7}, {"uuid": ["GPU-1"]}]
)
def test_beside_a_device_without_a_name_the_node_and_what_was_known_are_held_too(nameless):
    raw = ruin(devices=[{"uuid": "GPU-0"}, nameless])
    held = shares_of_unreadable(raw, known=KNOWN)
    assert held.devices == {"GPU-0": FULL, **KNOWN_IN_FULL.devices}
    assert held.full_nodes == {"node-1", "node-7"}


@pytest.mark.parametrize("devices", [None, "GPU-0", {"uuid": "GPU-0"}, 7])
def test_a_list_of_devices_that_is_none_names_no_device(devices):
    held = shares_of_unreadable(ruin(devices=devices), known=NOTHING)
    assert held == ClaimShares({}, frozenset({"node-1"}))


@pytest.mark.parametrize("node", [None, "", 7, ["node-1"]])
def test_without_a_nodes_name_what_was_known_must_do(node):
    raw = ruin(devices=[{}], nodeName=node)
    assert shares_of_unreadable(raw, known=KNOWN) == KNOWN_IN_FULL


def test_of_several_possible_truths_each_device_keeps_the_greatest_of_each_amount():
    small = ClaimShares(
        {"GPU-0": DeviceShare(Use(1, 9, 1)), "GPU-1": DeviceShare(alone=True)}, frozenset("a")
    )
    large = ClaimShares(
        {"GPU-0": DeviceShare(Use(5, 2, 1), full=True), "GPU-1": DeviceShare()}, frozenset("b")
    )
    greatest = ClaimShares(
        {"GPU-0": DeviceShare(Use(5, 9, 1), full=True), "GPU-1": DeviceShare(alone=True)},
        frozenset("ab"),
    )
    assert peak_of((small, large)) == peak_of((large, small)) == greatest
