"""What admission answers about a ConfigMap with our configuration: a wrong one never rolls."""

from __future__ import annotations

from typing import Any

from vgpu_api.config import Notice, read_cluster_config
from vgpu_operator.admission.denial import denying


def validate_configuration(raw: dict[str, Any]) -> list[str]:
    """The keys that do nothing, each with what to use: as warnings.

    Args:
        raw: The ConfigMap.

    Raises:
        Denied: A document in it is no YAML, has an unknown key or a wrong value.
    """
    found: list[Notice] = []
    with denying():
        read_cluster_config({"kind": "ConfigMap", "data": raw.get("data") or {}}, found.append)
    return [str(notice) for notice in found]
