"""Pods of HAMi's and Alibaba's public guides in `examples/`, and what becomes of each.

For a cluster with a server of eight A100s, a node whose two A100s are in MIG mode, and one T4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from vgpu_local.programs import ROOT
from vgpu_operator.insight.workloads import pods_of

EXAMPLES = ROOT / "examples"

RUN = (
    *("ack/2.3-memory", "ack/3.2-numa", "ack/6.3-job", "ack/several-devices"),
    *("dialects/ack", "dialects/volcano", "dialects/volcano-scheduler"),
    *("hami-configuration/4.3-pod", "hami-configuration/6.5-variables"),
    *("hami-guide/1.2-common-patterns", "hami-guide/2.4-percentage", "hami-guide/4.1-exclusive"),
    *("hami-guide/4.2-shared", "hami-guide/6.1-device-policies", "hami-guide/6.3-numa"),
    *("hami-guide/6.4-mig", "hami-guide/6.5-modes", "hami-guide/6.5-runtime-class"),
    *("hami-guide/7.1-force", "hami-guide/7.2-amounts", "hami-guide/7.2-policies"),
    *("hami-guide/7.4-migration", "hami-guide/8.2-nvidia"),
)
WAIT = {
    "hami-guide/5.3-pod-choices": ["CardTypeMismatch"],
    "hami-guide/6.2-types": ["CardTypeMismatch"],
    "hami-guide/6.2-uuids": ["CardUuidMismatch"],
    "hami-configuration/6.4-annotations": ["CardTypeMismatch", "CardTypeMismatch", None],
}
"""By file: why each of its pods waits in a cluster without such devices, or None if it runs."""
REFUSED = {
    "hami-guide/6.5-mode-mps": "metadata.annotations[nvidia.com/vgpu-mode]: Unsupported "
    'value: "mps"',
    "hami-configuration/6.5-disable-control": "env[CUDA_DISABLE_CONTROL]: Forbidden",
}

RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
"""The RuntimeClass that one of the documents names."""


def pods(file: str) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((EXAMPLES / f"{file}.yaml").read_text())
    return [dict(pod) for document in documents for pod in pods_of(document, ["server"])]


def says(why: str) -> Callable[[dict[str, Any]], bool]:
    """Return a predicate: a condition of the claim has these words."""
    return lambda claim: any(
        why in condition["message"]
        for condition in (claim.get("status") or {}).get("conditions", [])
    )
