"""The seed's examples as they are in `examples/`, and the requests that they make."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import DeviceSelector, Placement, VGPUClaimSpec, VGPURequest
from vgpu_operator.admission.rules import mutate_pod, validate_claim
from vgpu_operator.dialects import read

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("01-two-pods-one-card", [("model-server", "8Gi", None, 50)] * 2),
        ("02-memory-only", [("inference", "4Gi", None, 0)]),
        ("03-exclusive", [("trainer", None, None, 100)]),
        ("04-percentage", [("app", None, 30, 40)]),
        ("05-policies", [("inference", "2Gi", None, 25)]),
        ("05-policies-four-pods", [("app", "2Gi", None, 20)] * 4),
        (
            "06-models",
            [
                ("training", "40Gi", None, 50),
                ("inference", "8Gi", None, 30),
                ("app", "8Gi", None, 0),
            ],
        ),
        ("07-uuids", [("benchmark", "8Gi", None, 100), ("app", "4Gi", None, 0)]),
        ("08-numa", [("training", "32Gi", None, 100)]),
    ],
)
def test_each_example_of_the_seed_asks_for_what_the_seed_says(
    file: str, expected: list[tuple[str, str | None, int | None, int]]
) -> None:
    asked = []
    for document in yaml.safe_load_all((EXAMPLES / "seeds" / f"{file}.yaml").read_text()):
        assert mutate_pod(document, ClusterConfig(), None)
        demand = read(Pod.model_validate(document), ClusterConfig())
        assert demand is not None
        assert demand.spec is not None
        asked += [_amounts(request) for request in demand.spec.requests]
    assert asked == expected


def test_the_examples_say_where_they_want_to_be() -> None:
    def specs(file: str) -> list[VGPUClaimSpec]:
        documents = yaml.safe_load_all((EXAMPLES / "seeds" / f"{file}.yaml").read_text())
        asks = [read(Pod.model_validate(document), ClusterConfig()) for document in documents]
        return [demand.spec for demand in asks if demand is not None and demand.spec is not None]

    (policies,) = specs("05-policies")
    assert policies.placement == Placement(node="Spread", device=["Binpack"])
    (four, *_) = specs("05-policies-four-pods")
    assert four.placement == Placement(device=["Binpack"])
    assert [spec.requests[0].selector for spec in specs("06-models")] == [
        DeviceSelector(models=["A100"]),
        DeviceSelector(exclude_models=["T4", "P100"]),
        DeviceSelector(models=["A100", "V100"], exclude_models=["A100-SXM"]),
    ]
    device, other = (
        "GPU-e3b5f6a0-1234-5678-abcd-ef1234567890",
        "GPU-a1b2c3d4-5678-9012-efgh-ij3456789012",
    )
    assert [spec.requests[0].selector for spec in specs("07-uuids")] == [
        DeviceSelector(uuids=[device]),
        DeviceSelector(exclude_uuids=[device, other]),
    ]
    (numa,) = specs("08-numa")
    assert (numa.placement, numa.requests[0].count) == (Placement(numa="Require"), 2)


def test_the_claim_of_the_example_is_valid_and_its_pod_names_it() -> None:
    claim, pod = yaml.safe_load_all((EXAMPLES / "claim.yaml").read_text())
    validate_claim(claim)
    demand = read(Pod.model_validate(pod), ClusterConfig())
    assert demand is not None
    assert demand.native is not None
    assert demand.native.name == claim["metadata"]["name"]


def _amounts(request: VGPURequest) -> tuple[str, str | None, int | None, int | None]:
    return request.name, request.memory, request.memory_percent, request.cores
