"""`kubectl vgpu simulate` of pods that name ResourceClaims and templates of the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_operator.cli.__main__ import main

Raw = dict[str, Any]
MEMORY = 'device.capacity["vgpu.dev"].memory'
DEVICES = [
    {"uuid": "GPU-0", "model": "Tesla T4", "memoryMiB": 16384},
    {"uuid": "GPU-1", "model": "NVIDIA A100-SXM4-80GB", "memoryMiB": 81920},
]


def a_claim(name: str, *, template: bool = False, **exactly: Any) -> Raw:
    request = {"name": "gpu", "exactly": {"deviceClassName": "vgpu.dev", **exactly}}
    spec: Raw = {"devices": {"requests": [request]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate" if template else "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"spec": spec} if template else spec,
    }


def a_pod(name: str, **named: str) -> Raw:
    resources = {"claims": [{"name": "gpu"}]}
    container = {"name": "main", "image": "i", "resources": resources}
    spec = {"containers": [container], "resourceClaims": [{"name": "gpu", **named}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Simulate:
    """Runs simulate on a file; the cluster has a small and a large device."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def __call__(self, *documents: Raw, mode: str = "Claims", status: int = 0) -> list[Raw]:
        config = {"scheduling": {"mode": mode}}
        state = {"config": config, "nodes": [{"name": "node", "devices": DEVICES}]}
        (self._folder / "state").write_text(json.dumps(state))
        file = self._folder / "file"
        file.write_text(yaml.safe_dump_all(documents))
        arguments = ["--state", str(self._folder / "state"), "-f", str(file), "--admit"]
        assert main(["simulate", *arguments, "-o", "json"]) == status
        out, self.error = self._capsys.readouterr()
        return (
            [json.loads(line) for line in out.splitlines()]
            if len(documents) > 2
            else [*([json.loads(out)] if out else [])]
        )


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulate:
    return Simulate(tmp_path, capsys)


LARGE: Raw = {
    "capacity": {"requests": {"memory": "2Gi", "cores": 30}},
    "selectors": [{"cel": {"expression": f'{MEMORY}.compareTo(quantity("20Gi")) >= 0'}}],
}


@pytest.mark.parametrize("template", [True, False])
def test_a_pod_gets_what_its_claim_or_template_says(simulate: Simulate, template: bool) -> None:
    named = "resourceClaimTemplateName" if template else "resourceClaimName"
    (found,) = simulate(a_claim("one", template=template, **LARGE), a_pod("pod", **{named: "one"}))
    (device,) = found["devices"]
    assert (device["uuid"], device["memoryMiB"], device["cores"]) == ("GPU-1", 2048, 30)
    assert found.get("warnings", []) == []


def test_the_pods_of_a_workload_share_a_template_and_not_a_claim(simulate: Simulate) -> None:
    pods = [a_pod(name, resourceClaimTemplateName="one") for name in ("a", "b")]
    *found, summary = simulate(a_claim("one", template=True, **LARGE), *pods)
    assert summary["placed"] == len(found) == 2

    pods = [a_pod(name, resourceClaimName="one") for name in ("a", "b")]
    first, second, _ = simulate(a_claim("one", **LARGE), *pods)
    assert first["refused"] is None
    assert second["refused"] == (
        'spec.resourceClaims[gpu]: Invalid value: "one": it serves pod a, and one pod at a time; '
        "name a ResourceClaimTemplate, and each pod gets a claim of its own"
    )


@pytest.mark.parametrize(
    ("exactly", "field", "remedy"),
    [
        ({"allocationMode": "All"}, 'allocationMode: Unsupported value: "All"', '"ExactCount"'),
        ({"adminAccess": True}, "adminAccess: Forbidden", "agents' metrics"),
        (
            {"selectors": [{"cel": {"expression": f'{MEMORY} > quantity("1Gi")'}}]},
            "selectors[0].cel.expression: Unsupported value",
            "compareTo",
        ),
    ],
)
def test_a_form_that_is_not_served_is_refused_with_field_value_and_remedy(
    simulate: Simulate, exactly: Raw, field: str, remedy: str
) -> None:
    claim, pod = a_claim("one", **exactly), a_pod("pod", resourceClaimName="one")
    assert simulate(claim, pod, status=2) == []
    assert "resourceclaims/one: spec.devices.requests[0].exactly." in simulate.error
    assert field in simulate.error
    assert remedy in simulate.error


def test_another_mode_serves_no_claims(simulate: Simulate) -> None:
    pod = a_pod("pod", resourceClaimName="one")
    assert simulate(a_claim("one"), pod, mode="Extender", status=2) == []
    assert "spec.resourceClaims[gpu]: Forbidden" in simulate.error
    assert "the mode is Extender; ask with nvidia.com/gpu" in simulate.error


def test_claims_of_other_classes_are_left_to_others(simulate: Simulate) -> None:
    claim = a_claim("one", deviceClassName="nics.example.com")
    (found,) = simulate(claim, a_pod("pod", resourceClaimName="one"))
    assert found["refused"] == "the pod asks for no GPU"


def test_a_claim_that_the_file_lacks_is_warned_about(simulate: Simulate) -> None:
    (found,) = simulate(a_pod("pod", resourceClaimName="elsewhere"))
    assert found["warnings"] == [
        "spec.resourceClaims[gpu]: the devices of this ResourceClaim are not judged: add it to the "
        "file"
    ]


def test_what_admission_warns_of_is_shown(simulate: Simulate) -> None:
    pod = a_pod("pod", resourceClaimName="one")
    pod["metadata"]["annotations"] = {"nvidia.com/use-gputyp": "T4"}
    (found,) = simulate(a_claim("one"), pod)
    assert any("nvidia.com/use-gputype" in each for each in found["warnings"])


def test_another_version_of_the_api_is_refused(simulate: Simulate) -> None:
    claim = {**a_claim("one"), "apiVersion": "resource.k8s.io/v1beta1"}
    assert simulate(claim, a_pod("pod", resourceClaimName="one"), status=2) == []
    assert 'apiVersion: Unsupported value: "resource.k8s.io/v1beta1"' in simulate.error


def test_a_pod_that_asks_by_resources_is_answered_in_mode_claims_too(simulate: Simulate) -> None:
    pod = a_pod("pod")
    pod["spec"] = {
        "containers": [
            {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}
        ]
    }
    (found,) = simulate(pod)
    assert found["node"] == "node"


@pytest.mark.parametrize("mode", ["Claims", "Extender"])
def test_what_kube_scheduler_allocates_is_not_simulated(simulate: Simulate, mode: str) -> None:
    theirs = a_claim("one", template=True, deviceClassName="scheduler.vgpu.dev")
    simulate(theirs, a_pod("pod", resourceClaimTemplateName="one"), mode=mode, status=2)
    assert "spec.resourceClaims[gpu]: Forbidden: kube-scheduler allocates" in simulate.error
