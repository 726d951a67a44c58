"""Containers of a pod that must share one device, where the vendor's table requires it."""

from __future__ import annotations

from typing import Any

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_operator.placement import Plan, place
from vgpu_operator.placement.columns import Columns

VENDOR = "moore-threads"


def two_devices(*, memory_mib: int = 49_152) -> Columns:
    return some_columns(
        *(
            device_facts(
                f"MTT-{at}", index=at, vendor=VENDOR, cores=16, memory_mib=memory_mib, slots=100
            )
            for at in range(2)
        )
    )


def given(plan: Plan) -> list[str]:
    return [grant.uuid for grant in plan.grants]


def asking(name: str, *, memory: str = "8Gi", **fields: Any) -> VGPURequest:
    return a_request(name=name, vendor=VENDOR, memory=memory, cores=4, **fields)


def test_all_containers_get_the_device_of_the_first() -> None:
    """Spread alone would put each container on a different device."""
    plan = place(two_devices(), an_ask(asking("a"), asking("b"), asking("c")))
    assert len(set(given(plan))) == 1


def test_what_does_not_fit_on_that_device_is_refused_in_hamis_words() -> None:
    plan = place(two_devices(), an_ask(asking("a", memory="32Gi"), asking("b", memory="32Gi")))
    assert plan.refused
    assert plan.text == "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule"


def test_several_devices_are_shared_by_no_other_container() -> None:
    plan = place(two_devices(), an_ask(asking("a", count=2), asking("b")))
    assert plan.refused
    assert plan.text == "2/2 CardNotFoundCustomFilterRule"


def test_containers_that_run_before_have_a_device_of_their_own() -> None:
    plan = place(two_devices(), an_ask(asking("a", phase="Init"), asking("b")))
    assert not plan.refused


def test_a_plan_leaves_the_columns_as_it_found_them() -> None:
    columns = two_devices()
    place(columns, an_ask(asking("a", count=2), asking("b")))
    assert [columns.in_use(device)[:3] for device in (0, 1)] == [(0, 0, 0), (0, 0, 0)]
