"""The columns of `kubectl get` show the numbers that placement uses."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]


def cell(column: str, obj: dict[str, Any]) -> Any:
    """Return the cell of a column of the generated CRD, as kubectl finds it."""
    crd = yaml.safe_load((ROOT / "crds/vgpu.dev_gpudevices.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    (path,) = (
        each["jsonPath"] for each in version["additionalPrinterColumns"] if each["name"] == column
    )
    return reduce(lambda found, key: found[key], path.removeprefix(".").split("."), obj)


def test_the_total_of_a_device_whose_memory_is_oversubscribed_is_what_may_be_allocated() -> None:
    device = {
        "status": {
            "capacity": {"memory": "16Gi"},
            "allocatable": {"memory": "32Gi"},
            "allocated": {"memory": "20Gi"},
        }
    }
    assert (cell("MEM-USED", device), cell("MEM-TOTAL", device)) == ("20Gi", "32Gi")
