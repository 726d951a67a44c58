"""The seed's examples as they stand in `examples/`: what each of them asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_operator.admission import mutate_pod, validate_claim
from vgpu_operator.dialects import read

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("01-two-pods-one-card", [("model-server", "8Gi", None, 50)] * 2),
        ("02-memory-only", [("inference", "4Gi", None, 0)]),
        ("03-exclusive", [("trainer", None, None, 100)]),
        ("04-percentage", [("app", None, 30, 40)]),
    ],
)
def test_each_example_of_the_seed_asks_for_what_the_seed_says(
    file: str, expected: list[tuple[str, str | None, int | None, int]]
) -> None:
    asked = []
    for document in yaml.safe_load_all((EXAMPLES / "seeds" / f"{file}.yaml").read_text()):
        assert mutate_pod(document, ClusterConfig(), lambda name: None)
        ask = read(Pod.model_validate(document), ClusterConfig())
        assert ask is not None
        assert ask.spec is not None
        asked += [_amounts(request) for request in ask.spec.requests]
    assert asked == expected


def test_the_claim_of_the_example_is_valid_and_its_pod_names_it() -> None:
    claim, pod = yaml.safe_load_all((EXAMPLES / "claim.yaml").read_text())
    validate_claim(claim)
    ask = read(Pod.model_validate(pod), ClusterConfig())
    assert ask is not None
    assert ask.native is not None
    assert ask.native.name == claim["metadata"]["name"]


def _amounts(request: VGPURequest) -> tuple[str, str | None, int | None, int | None]:
    return request.name, request.memory, request.memory_percent, request.cores
