"""HAMi's records of a pod's binding: its final state, in the shape that its readers parse."""

from __future__ import annotations

import json
from typing import Any

from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import Allocation, VGPUClaimSpec
from vgpu_operator.dialects import bind_records


def records(requests: list[str], devices: list[dict[str, Any]]) -> dict[str, str]:
    pod = Pod.model_validate(
        {
            "spec": {
                "initContainers": [{"name": "init"}],
                "containers": [{"name": "main"}, {"name": "side"}],
            }
        }
    )
    spec = VGPUClaimSpec.model_validate({"requests": [{"name": name} for name in requests]})
    allocation = Allocation.model_validate({"nodeName": "n", "devices": devices})
    return bind_records(pod, spec, allocation, unix_time=1_700_000_000)


def a_device(request: str, uuid: str, start: int | None = None) -> dict[str, Any]:
    device: dict[str, Any] = {"request": request, "uuid": uuid, "memory": "4864Mi", "cores": 14}
    if start is not None:
        device["mig"] = {"profile": "1g.5gb", "start": start, "size": 1}
    return device


def test_the_phase_is_that_of_an_allocation_that_succeeded_and_nothing_is_left_to_allocate() -> (
    None
):
    assert records(["main"], [a_device("main", "GPU-a")]) == {
        "hami.io/bind-phase": "success",
        "hami.io/bind-time": "1700000000",
        "hami.io/vgpu-devices-to-allocate": ";;;",
    }


def test_each_mig_instance_stands_by_its_container_and_its_place_in_it() -> None:
    devices = [
        a_device("side", "GPU-a", 4),
        a_device("main", "GPU-a"),
        a_device("main", "GPU-b", 0),
    ]
    written = records(["main", "side"], devices)["hami.io/vgpu-mig-allocations"]
    assert json.loads(written) == [
        {
            "containerIndex": 2,
            "deviceIndex": 0,
            "gpuUUID": "GPU-a",
            "profile": "1g.5gb",
            "placement": {"start": 4, "size": 1},
        },
        {
            "containerIndex": 1,
            "deviceIndex": 1,
            "gpuUUID": "GPU-b",
            "profile": "1g.5gb",
            "placement": {"start": 0, "size": 1},
        },
    ]
