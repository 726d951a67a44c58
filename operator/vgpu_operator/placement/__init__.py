"""Decides which devices on which node serve a claim. Pure: no I/O, no clock, no randomness.

Read `best_node.place` first.

    best_node          chooses the best node for a claim
    fit_node           places all requests of a claim on one node
    fit_device         checks whether a request fits on a device, and takes the device
    hami_selection     takes and refuses a node's devices in HAMi's order
    plan               the outcome: a node and its devices, or the reasons for a refusal

    columns            the state of all devices and nodes
    device_conditions  assigns equal numbers to devices that are alike
    constraints        restricts a decision: node filters, quotas, capacity kept for others
    fleet              the columns, and queries over all devices at once
    ranking_cache      remembers which nodes may serve a class of equal claims

    device_policies    orders the devices of a node by policy
    usage_scores       scores nodes and devices by usage, for Binpack and Spread
    topology           chooses devices by their links
    fragmentation      scores nodes and devices by the idle share that becomes useless
    target_workload    learns the typical requests by which fragmentation is measured
    mig_geometry       finds a place for an instance on a device in MIG mode
    part_requests      resolves requests for a part of a device on a node

    refusal_counts     counts the reasons of nodes that cannot serve
    refusal_amounts    compares a refused request with the most that is free
"""

from typing import TYPE_CHECKING

from vgpu_api.lazy import lazily

if TYPE_CHECKING:
    from vgpu_operator.placement.best_node import best_of, place, refusals_on
    from vgpu_operator.placement.columns import Columns, DeviceFacts
    from vgpu_operator.placement.constraints import (
        EVERY_NODE,
        NOTHING_KEPT,
        Budget,
        Kept,
        NodeFilter,
        Share,
    )
    from vgpu_operator.placement.fleet import Fleet
    from vgpu_operator.placement.plan import Grant, Plan, in_words
    from vgpu_operator.placement.refusal_amounts import amounts, impossible, impossible_together
else:
    __getattr__ = lazily(
        __name__,
        {
            "Budget": "constraints",
            "Columns": "columns",
            "DeviceFacts": "columns",
            "EVERY_NODE": "constraints",
            "Fleet": "fleet",
            "Grant": "plan",
            "Kept": "constraints",
            "NOTHING_KEPT": "constraints",
            "NodeFilter": "constraints",
            "Plan": "plan",
            "Share": "constraints",
            "amounts": "refusal_amounts",
            "best_of": "best_node",
            "impossible": "refusal_amounts",
            "impossible_together": "refusal_amounts",
            "in_words": "plan",
            "place": "best_node",
            "refusals_on": "best_node",
        },
    )

__all__ = [
    "EVERY_NODE",
    "NOTHING_KEPT",
    "Budget",
    "Columns",
    "DeviceFacts",
    "Fleet",
    "Grant",
    "Kept",
    "NodeFilter",
    "Plan",
    "Share",
    "amounts",
    "best_of",
    "impossible",
    "impossible_together",
    "in_words",
    "place",
    "refusals_on",
]
