"""Each policy and chain of two has the order of a plain table, with and without one NUMA node."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

import plain_placement as plain
from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_operator.placement.device_policies import in_order

POLICIES = (
    *("Binpack", "Spread", "BestFit", "IdleFirst", "NUMAFirst", "NUMA", "Mutex", "Topology"),
    "Fragmentation",
)
CHAINS = [*((policy,) for policy in POLICIES), *permutations(POLICIES, 2)]
USED = (Use(), Use(4000, 30, 1), Use(4000, 30, 3))
DEVICES = [
    device_facts(f"GPU-{at:02}", index=at, numa=(1, 0, 1, 0)[at // 3], memory_mib=16_000)
    for at in range(12)
]
"""Each use occurs twice on both NUMA nodes in turn, so that every tie occurs."""


@pytest.mark.parametrize("numa", ["None", "Require"])
@pytest.mark.parametrize("chain", CHAINS, ids=",".join)
def test_devices_stand_in_the_order_that_the_table_gives(chain: tuple[Any, ...], numa: Any) -> None:
    used = {device.uuid: USED[at % 3] for at, device in enumerate(DEVICES)}
    columns = some_columns(*DEVICES, used=used)
    demand = an_ask(a_request(memory="1Gi", cores=10), device=list(chain), numa=numa)
    ordered = in_order(
        columns,
        columns.node_devices[0],
        request=demand.requests[0],
        policies=chain,
        one_numa_node=numa == "Require",
        weights=demand.weights,
    )
    in_use = {
        uuid: plain.Used(slots=use.slots, cores=use.cores, memory=use.memory_mib)
        for uuid, use in used.items()
    }
    fleet = plain.Fleet.of(DEVICES, in_use)
    expected = plain.in_order(fleet, DEVICES, in_use, demand.requests[0], chain, demand)
    assert [columns.uuid[device] for device in ordered] == [device.uuid for device in expected]
