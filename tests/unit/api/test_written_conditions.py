"""Whatever Kubernetes' programs write as a condition, the pod or node can be read."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_api.core import Node, Pod


@pytest.mark.parametrize("kind", [Pod, Node])
@pytest.mark.parametrize(
    ("written", "status"),
    [
        ({"type": "PodScheduled", "message": "only this was changed"}, "Unknown"),
        ({"type": "PodScheduled", "status": ""}, "Unknown"),
        ({"type": "Ready", "status": "perhaps"}, "Unknown"),
        ({"type": "Ready", "status": "True", "message": "x" * 5000}, "True"),
        ({"type": "x" * 300, "status": "False", "reason": "y" * 300}, "False"),
        ({"type": "Ready", "status": "True", "lastTransitionTime": None}, "True"),
    ],
)
def test_a_condition_that_no_schema_has_checked_can_be_read(
    kind: Any, written: dict[str, Any], status: str
) -> None:
    raw = {"metadata": {"name": "a"}, "spec": {}, "status": {"conditions": [written]}}
    (found,) = kind.model_validate(raw).status.conditions
    assert found.status == status
    assert written["type"].startswith(found.type)
    assert (written.get("message") or "").startswith(found.message)
