"""The reasons for which a node's devices do not serve a request, in HAMi's order and words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_api.reasons import Tally
from vgpu_operator.placement import DeviceFacts
from vgpu_operator.placement.fit_node import Preferences, choose, refusal


@dataclass(frozen=True, slots=True)
class Fitted:
    """The devices that a request gets, by number, or the reasons why it gets none."""

    devices: tuple[int, ...]
    refusal: Tally | None = None


def fitted(
    *devices: DeviceFacts,
    used: dict[str, Use] | None = None,
    policies: tuple[Any, ...] = ("Spread",),
    numa: Any = "None",
    **request: Any,
) -> Fitted:
    columns = some_columns(*devices, used=used)
    node = columns.node_id(devices[0].node)
    assert node is not None
    preferences = Preferences(policies, numa, (1, 1, 1))
    asked = an_ask(a_request(**request)).requests[0]
    devices = choose(columns, node, asked, preferences, None)
    return Fitted(devices, None if devices else refusal(columns, node, asked, preferences))


def words(result: Fitted) -> str:
    assert result.refusal is not None
    assert not result.devices
    return str(result.refusal)


USED = {"GPU-0": Use(memory_mib=1000, cores=20, slots=1)}


@pytest.mark.parametrize(
    ("device", "request_fields", "reason"),
    [
        ({"duplicate": True}, {}, "CardUuidDuplicate"),
        ({"healthy": False}, {}, "CardNotHealth"),
        ({"cordoned": True}, {}, "CardCordoned"),
        ({"mode": "Exclusive"}, {"mode": "Shared"}, "CardTypeMismatch"),
        ({}, {"selector": {"models": ["A100"]}}, "CardTypeMismatch"),
        ({}, {"selector": {"exclude_models": ["T4"]}}, "CardTypeMismatch"),
        ({}, {"selector": {"uuids": ["GPU-9"]}}, "CardUuidMismatch"),
        ({}, {"selector": {"exclude_uuids": ["GPU-0"]}}, "CardUuidMismatch"),
        ({"slots": 0}, {}, "CardTimeSlicingExhausted"),
        ({"memory_mib": 1023}, {}, "CardInsufficientMemory"),
        ({"cores": 50}, {"cores": 60}, "CardInsufficientCore"),
        ({"mode": "MIG"}, {}, "CardMigTopologyInfeasible"),
    ],
)
def test_a_single_device_names_the_check_that_it_fails(device, request_fields, reason):
    refused = fitted(device_facts(**device), **{"memory": "1Gi", **request_fields})
    assert words(refused) == f"1/1 {reason}"


@pytest.mark.parametrize(
    ("used", "request_fields", "policies", "reason"),
    [
        (Use(1000, 20, 10), {}, ("Spread",), "CardTimeSlicingExhausted"),
        (Use(1000, 20, 1), {}, ("Mutex",), "ExclusiveDeviceAllocateConflict"),
        (Use(16000, 20, 1), {}, ("Spread",), "CardInsufficientMemory"),
        (Use(1000, 20, 1), {"cores": 81}, ("Spread",), "CardInsufficientCore"),
        (Use(1000, 0, 1), {"cores": 100}, ("Spread",), "ExclusiveDeviceAllocateConflict"),
        (Use(1000, 100, 1), {"cores": 0}, ("Spread",), "CardComputeUnitsExhausted"),
    ],
)
def test_a_used_device_names_the_check_that_it_fails(used, request_fields, policies, reason):
    refused = fitted(
        device_facts(),
        used={"GPU-0": used},
        policies=policies,
        **{"memory": "1Gi", **request_fields},
    )
    assert words(refused) == f"1/1 {reason}"


def test_all_cores_of_a_used_device_conflict_also_when_cores_are_scaled():
    refused = fitted(device_facts(cores=200), used=USED, memory="1Gi", cores=100)
    assert words(refused) == "1/1 ExclusiveDeviceAllocateConflict"


def test_a_device_that_fails_several_checks_names_the_first_of_the_order():
    refused = fitted(device_facts(healthy=False, cordoned=True, memory_mib=1), memory="1Gi")
    assert words(refused) == "1/1 CardNotHealth"


def test_a_part_of_the_model_is_enough_whatever_the_case():
    assert fitted(device_facts(model="nvidia a100-sxm4-80gb"), selector={"models": ["A10"]}).devices


def test_exclusion_wins_over_selection():
    selector = {"models": ["t4"], "exclude_models": ["tesla"]}
    assert words(fitted(device_facts(), selector=selector)) == "1/1 CardTypeMismatch"


def test_a_percentage_that_comes_to_nothing_is_refused_rather_than_unlimited():
    assert (
        words(fitted(device_facts(memory_mib=50), memory_percent=1)) == "1/1 CardInsufficientMemory"
    )


def test_more_devices_than_the_node_has_of_the_vendor_is_the_nodes_fault():
    refused = fitted(device_facts(), device_facts("GPU-1", vendor="amd"), count=2)
    assert words(refused) == "1/1 NodeInsufficientDevice"


def test_some_devices_but_too_few_says_how_many_there_were():
    devices = [device_facts(f"GPU-{i}", index=i) for i in range(3)]
    refused = fitted(*devices, used={"GPU-0": Use(16384, 0, 1)}, count=3, memory="1Gi")
    assert words(refused) == "1/3 CardInsufficientMemory, 2/3 AllocatedCardsInsufficientRequest"


def test_devices_of_a_request_are_distinct():
    devices = [device_facts(f"GPU-{i}", index=i) for i in range(4)]
    assert len(set(fitted(*devices, count=3, memory="1Gi").devices)) == 3


def test_required_numa_drops_the_devices_of_another_node_and_goes_on():
    devices = [device_facts("GPU-0", index=0, numa=0), device_facts("GPU-1", index=1, numa=1)]
    refused = fitted(*devices, count=2, memory="1Gi", numa="Require")
    assert words(refused) == "1/2 AllocatedCardsInsufficientRequest, 1/2 NumaNotFit"


def test_required_numa_takes_both_devices_of_the_node_that_has_two():
    devices = [device_facts(f"GPU-{i}", index=i, numa=numa) for i, numa in enumerate((1, 0, 1))]
    assert sorted(fitted(*devices, count=2, memory="1Gi", numa="Require").devices) == [0, 2]


def test_preferred_numa_leaves_the_emptier_node_whole():
    numa = (0, 0, 0, 1, 1)
    devices = [device_facts(f"GPU-{i}", index=i, numa=numa) for i, numa in enumerate(numa)]
    assert sorted(fitted(*devices, count=2, memory="1Gi", numa="Prefer").devices) == [3, 4]


def test_preferred_numa_is_soft():
    devices = [device_facts("GPU-0", index=0, numa=0), device_facts("GPU-1", index=1, numa=1)]
    assert len(fitted(*devices, count=2, memory="1Gi", policies=("NUMAFirst",)).devices) == 2
