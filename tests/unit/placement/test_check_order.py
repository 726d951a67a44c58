"""If a device has several faults, the first check in HAMi's order gives the reason."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_operator.placement import Budget
from vgpu_operator.placement.constraints import UNLIMITED, Charge
from vgpu_operator.placement.fit_node import Preferences, choose, refusal

CHECKS: list[tuple[str, dict[str, Any]]] = [
    ("CardNotHealth", {"card": {"healthy": False}}),
    ("CardCordoned", {"card": {"cordoned": True}}),
    ("CardTypeMismatch", {"selector": {"exclude_models": ["t4"]}}),
    ("CardUuidMismatch", {"selector": {"uuids": ["GPU-0"], "exclude_uuids": ["GPU-0"]}}),
    ("CardTimeSlicingExhausted", {"used": {"slots": 10}}),
    ("ExclusiveDeviceAllocateConflict", {"policies": ("Mutex",), "used": {"slots": 1}}),
    ("ResourceQuotaNotFit", {"budget": Budget(memory_mib=0)}),
    ("CardInsufficientMemory", {"used": {"memory_mib": 16_384}}),
    ("CardInsufficientCore", {"used": {"cores": 50}, "cores": 60}),
    ("ExclusiveDeviceAllocateConflict", {"used": {"slots": 1}, "cores": 100}),
    ("CardComputeUnitsExhausted", {"used": {"cores": 100}, "cores": 0}),
    ("CardMigTopologyInfeasible", {"card": {"mode": "MIG"}}),
]
"""Cases that fail each check, in order; check 4 (NUMA) needs several devices."""
ASKS_FOR_NO_CORES = 10


def together(*wrong: dict[str, Any]) -> dict[str, Any]:
    """Return the given faults combined, with the greater of two amounts in use."""
    joined: dict[str, Any] = {"card": {}, "selector": {}, "used": {}}
    for one in wrong:
        for key, value in one.items():
            if key == "used":
                for amount, much in value.items():
                    joined[key][amount] = max(much, joined[key].get(amount, 0))
            elif isinstance(value, dict):
                joined[key] |= value
            else:
                joined[key] = value
    return joined


def reason(wrong: dict[str, Any]) -> str:
    columns = some_columns(device_facts(**wrong["card"]), used={"GPU-0": Use(**wrong["used"])})
    demand = an_ask(
        a_request(memory="1Gi", cores=wrong.get("cores", 0), selector=wrong["selector"] or None)
    )
    (request,) = demand.requests
    preferences = Preferences(wrong.get("policies", ("Spread",)), "None", (1, 1, 1))
    charge = Charge(wrong.get("budget", UNLIMITED))
    assert not choose(columns, 0, request, preferences, charge)
    return str(refusal(columns, 0, request, preferences, charge)).removeprefix("1/1 ")


@pytest.mark.parametrize("at", range(len(CHECKS)))
def test_each_check_alone_names_its_reason(at):
    assert reason(together(CHECKS[at][1])) == CHECKS[at][0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pair
        for pair in combinations(range(len(CHECKS)), 2)
        if not {8, 9} & {*pair} or ASKS_FOR_NO_CORES not in pair
    ],
)
def test_of_two_checks_that_fail_the_first_names_the_reason(first, second):
    assert reason(together(CHECKS[first][1], CHECKS[second][1])) == CHECKS[first][0]
