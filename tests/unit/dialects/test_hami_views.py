"""HAMi's records of an allocation, in the shape that its readers parse."""

from __future__ import annotations

from typing import Any

from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import Allocation, VGPUClaimSpec
from vgpu_operator.dialects import binding_annotations

DEVICE_A = {"uuid": "GPU-a", "memory": "8Gi", "cores": 50}
DEVICE_B = {"uuid": "GPU-b", "memory": "4095Mi", "cores": 0}


def views(
    containers: list[str], requests: list[dict[str, Any]], devices: list[dict[str, Any]]
) -> dict[str, str]:
    pod = Pod.model_validate(
        {
            "spec": {
                "initContainers": [{"name": "init"}],
                "containers": [{"name": name} for name in containers],
            }
        }
    )
    return binding_annotations(
        pod,
        VGPUClaimSpec.model_validate({"requests": requests}),
        Allocation.model_validate({"nodeName": "node-1", "devices": devices}),
        node=None,
        unix_time=1_700_000_000,
    )


def test_every_container_has_its_place_also_an_empty_one() -> None:
    written = views(["main", "side"], [{"name": "main"}], [{"request": "main", **DEVICE_A}])
    assert written == {
        "hami.io/vgpu-devices-allocated": ";GPU-a,NVIDIA,8192,50:;;",
        "hami.io/vgpu-node": "node-1",
        "hami.io/vgpu-time": "1700000000",
    }


def test_several_devices_of_a_container_stand_together() -> None:
    devices = [
        {"request": "side", **DEVICE_B},
        {"request": "main", **DEVICE_A},
        {"request": "main", **DEVICE_B},
    ]
    written = views(["main", "side"], [{"name": "main"}, {"name": "side"}], devices)
    assert written["hami.io/vgpu-devices-allocated"] == (
        ";GPU-a,NVIDIA,8192,50:GPU-b,NVIDIA,4095,0:;GPU-b,NVIDIA,4095,0:;"
    )


def test_a_request_without_a_name_stands_at_its_container() -> None:
    written = views(["main"], [{}], [{"request": "", **DEVICE_A}])
    assert written["hami.io/vgpu-devices-allocated"] == ";GPU-a,NVIDIA,8192,50:;"


def test_a_device_of_a_request_that_the_claim_no_longer_has_stands_at_its_container() -> None:
    devices = [{"request": "main", **DEVICE_A}, {"request": "side", **DEVICE_B}]
    written = views(["main", "side"], [{"name": "main"}], devices)
    assert written["hami.io/vgpu-devices-allocated"] == (
        ";GPU-a,NVIDIA,8192,50:;GPU-b,NVIDIA,4095,0:;"
    )
