"""Validates a ConfigMap with our configuration, so that no invalid one is rolled out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vgpu_api.config import Notice, read_cluster_config
from vgpu_operator.admission.rules.denial import denying


def validate_configuration(raw: dict[str, Any]) -> list[str]:
    """Return warnings about keys without effect, and about names that other files must list, too.

    Args:
        raw: The ConfigMap.

    Raises:
        Denied: A document in it is not valid YAML, or has an unknown key or an invalid value.
    """
    found: list[Notice] = []
    with denying():
        document = {"kind": "ConfigMap", "data": raw.get("data") or {}}
        config = read_cluster_config(document, found.append)
    added = config.added_resources()
    return [*(str(notice) for notice in found), *([unlisted(added)] if added else ())]


def unlisted(names: Iterable[str]) -> str:
    """Return a warning about resource names that the shipped manifests do not list."""
    return (
        f"{', '.join(names)}: not in the manifests as shipped: pods that ask by these names alone "
        "are seen once manifests/base/webhook/expressions.yaml and managedResources of the "
        "scheduler name them"
    )
