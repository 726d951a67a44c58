"""All warnings about a pod that is being created, for the webhook, Volcano Jobs and the CLI."""

from __future__ import annotations

from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_operator.admission.rules.no_effect import unanswered, without_effect
from vgpu_operator.admission.rules.pod_mutation import switched_off
from vgpu_operator.admission.rules.warnings import misspelt, unasked


def pod_warnings(
    raw_pod: dict[str, Any], admitted: dict[str, Any], config: ClusterConfig
) -> list[str]:
    """Return the warnings about a pod, except the one about a claim that does not exist yet.

    Args:
        raw_pod: The pod as its author wrote it.
        admitted: The pod after mutation.
        config: Names and defaults.

    Raises:
        Denied: The pod is invalid.
    """
    found = [*switched_off(raw_pod, config), *unasked(admitted, config)]
    found += without_effect(admitted, config)
    return [*found, *misspelt(admitted, config), *unanswered(admitted, config)]
