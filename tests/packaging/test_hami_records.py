"""Recording rules replace the metrics of HAMi's scheduler, so that HAMi's dashboard has data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from manual.words import ROOT, metrics
from promtool import rule_file, run_cases

pytestmark = pytest.mark.tools

RECORDS = ROOT / "manifests" / "components" / "hami-records" / "records.yaml"
PAGE = ROOT / "docs" / "operations" / "monitoring.md"
DEVICE = 'node="n",device_uuid="u"'
SERIES = {
    f'vgpu_device_info{{{DEVICE},index="3",model="A",driver_version="d",pod="agent"}}': 1,
    f'vgpu_device_memory_allocatable_bytes{{{DEVICE},pod="agent"}}': 1000,
    f'vgpu_allocated_memory_bytes{{{DEVICE},namespace="a"}}': 200,
    f'vgpu_allocated_memory_bytes{{{DEVICE},namespace="b"}}': 50,
    f'vgpu_allocated_cores_ratio{{{DEVICE},namespace="a"}}': 0.3,
    f'vgpu_claim_memory_limit_bytes{{{DEVICE},namespace="a",claim="c",container="m"}}': 200,
    f'vgpu_claim_memory_limit_bytes{{{DEVICE},namespace="b",claim="d",container="m"}}': 50,
    'vgpu_device_info{node="n",device_uuid="free",index="0",model="A",driver_version="d"}': 1,
    'vgpu_device_memory_allocatable_bytes{node="n",device_uuid="free"}': 1000,
}
VALUES = {
    "hami_gpu_memory_limit_bytes": (1000, 1000),
    "hami_gpu_core_limit_ratio": (100, 100),
    "hami_gpu_memory_allocated_bytes": (250, 0),
    "hami_gpu_shared_count": (2, 0),
    "hami_gpu_core_allocated_ratio": (30, 0),
    "hami_node_gpu_memory_allocated_ratio": (0.25, 0),
    "GPUDeviceMemoryLimit": (1000, 1000),
    "GPUDeviceCoreLimit": (100, 100),
    "GPUDeviceMemoryAllocated": (250, 0),
    "GPUDeviceSharedNum": (2, 0),
    "GPUDeviceCoreAllocated": (30, 0),
    "nodeGPUMemoryPercentage": (0.25, 0),
}
"""HAMi's records of a device that two claims share and of a free device."""
CORES = {
    "hami_gpu_memory_allocated_bytes": "device_cores",
    "GPUDeviceMemoryAllocated": "devicecores",
}
OF_THE_DASHBOARD = {
    "hami_gpu_memory_limit_bytes",
    "hami_gpu_memory_allocated_bytes",
    "hami_gpu_shared_count",
    "hami_gpu_core_allocated_ratio",
    "hami_node_gpu_memory_allocated_ratio",
    "hami_host_gpu_memory_used_bytes",
    "hami_host_gpu_utilization_ratio",
    "hami_vgpu_memory_used_bytes",
    "hami_vgpu_memory_limit_bytes",
    "hami_container_device_utilization_ratio",
}
"""The metrics in the queries of HAMi's `dashboards/hami-vgpu-dashboard.json`, November 2026."""


def labels_of(name: str, uuid: str, index: str) -> str:
    """Return all labels of a record, with HAMi's present or former names."""
    if name.startswith("hami_"):
        found = {"device_index": index, "device_type": "A", "device_uuid": uuid, "node": "n"}
    else:
        found = {"deviceidx": index, "devicetype": "A", "deviceuuid": uuid, "nodeid": "n"}
    if name == "nodeGPUMemoryPercentage":
        del found["devicetype"]
    if name in CORES:
        found[CORES[name]] = "100"
    return ",".join(f'{key}="{value}"' for key, value in {**found, "zone": "vGPU"}.items())


@pytest.mark.parametrize("name", VALUES)
def test_a_record_has_the_labels_and_the_value_that_hami_gives(tmp_path: Path, name: str) -> None:
    shared, free = VALUES[name]
    samples = [
        {"labels": f"{name}{{{labels_of(name, 'u', '3')}}}", "value": shared},
        {"labels": f"{name}{{{labels_of(name, 'free', '0')}}}", "value": free},
    ]
    given = [{"series": series, "values": f"{value}x5"} for series, value in SERIES.items()]
    asked = [{"expr": name, "eval_time": "5m", "exp_samples": samples}]
    case = {"interval": "1m", "input_series": given, "promql_expr_test": asked}
    rule = yaml.safe_load(RECORDS.read_text())
    run_cases(tmp_path, [rule_file(tmp_path, rule)], [case])


def test_what_hamis_dashboard_asks_for_is_recorded_or_exposed() -> None:
    assert VALUES.keys() | metrics().keys() >= OF_THE_DASHBOARD


def test_every_record_is_tested_and_in_the_manual() -> None:
    records = set(re.findall(r"- record: (\S+)", RECORDS.read_text()))
    assert records == VALUES.keys() | {"vgpu:hami_device:info"}
    page = PAGE.read_text()
    assert not [name for name in VALUES if f"`{name}`" not in page]
