"""Every pod of the public guides in `examples/` gets the expected request or refusal at admission.

The documents are HAMi's guide and configuration reference and Alibaba's guide, section by section,
with names and images filled in where a section has only a fragment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_operator.admission.rules import Denied, mutate_pod
from vgpu_operator.admission.rules.json_patch import applied
from vgpu_operator.dialects import read
from vgpu_operator.insight.workloads import pods_of

EXAMPLES = Path(__file__).parents[3] / "examples"
FOLDERS = ("hami-guide", "hami-configuration", "ack", "dialects")

SERVED: dict[str, list[str]] = {
    "ack/2.3-memory.yaml": [
        "ack-fragment: 1 × 3Gi, 0 %; device ['Binpack']",
    ],
    "ack/3.2-numa.yaml": [
        "ack-numa: 2 × 100 %, 100 %; device ['Binpack']; numa Require",
    ],
    "ack/6.3-job.yaml": [
        "gpu-share-sample-0: 1 × 3Gi, 0 %; device ['Binpack']",
    ],
    "ack/several-devices.yaml": [
        "multi-gpu-sample-0: 2 × 4Gi, 0 %; device ['Binpack']",
    ],
    "dialects/ack.yaml": [
        "ack-memory: 1 × 3Gi, 0 %; device ['Binpack']",
        "ack-memory-and-cores: 1 × 8Gi, 40 %; device ['Binpack']; numa Require",
    ],
    "dialects/volcano-job.yaml": [
        "gang-worker-0: 1 × 2Gi, 0 %",
        "gang-worker-1: 1 × 2Gi, 0 %",
    ],
    "dialects/volcano-scheduler.yaml": [
        "volcano-mode: 1 × 3000Mi, 50 %, Shared",
        "volcano-deployment-0: 1 × 1Gi, 0 %",
        "volcano-deployment-1: 1 × 1Gi, 0 %",
    ],
    "dialects/volcano.yaml": [
        "volcano-slice: 1 × 4Gi, 30 %",
    ],
    "hami-configuration/4.3-pod.yaml": [
        "gpu-pod-example: 1 × 8000Mi, 50 %",
    ],
    "hami-configuration/6.4-annotations.yaml": [
        "gpu-pod-single-type: 1 × 8000Mi, 0 %, models Tesla V100-PCIE-32GB; device ['Binpack']",
        "gpu-pod-multi-type: 1 × 8000Mi, 0 %, models NVIDIA-GeForce-RTX-4090 "
        "NVIDIA-GeForce-RTX-5090; device ['Binpack']",
        "gpu-pod-blacklist: 1 × 8000Mi, 0 %, excludeModels NVIDIA-H20 NVIDIA-H200",
    ],
    "hami-configuration/6.1-other-vendors.yaml": [
        "ascend-test: 1 × 16Gi, 0 %",
        "mlu-test: 1 × 2000Gi, 50 %",
        "dcu-test: 1 × 16000Mi, 80 %",
    ],
    "hami-configuration/6.5-variables.yaml": [
        "gpu-pod: 1 × 8000Mi, 50 %, Force",
    ],
    "hami-guide/1.2-common-patterns.yaml": [
        "pattern-exclusive: 1 × 100 %, 100 %",
        "pattern-shared: 1 × 4000Mi, 50 %",
        "pattern-dense: 1 × 25 %, 25 %",
    ],
    "hami-guide/2.4-percentage.yaml": [
        "half-a-card: 1 × 50 %, 50 %",
    ],
    "hami-guide/4.1-exclusive.yaml": [
        "exclusive: 2 × 100 %, 100 %",
    ],
    "hami-guide/4.2-shared.yaml": [
        "shared-1: 1 × 50 %, 50 %",
        "shared-2: 1 × 50 %, 50 %",
    ],
    "hami-guide/5.3-pod-choices.yaml": [
        "pod-choices: 1 × 100 %, 100 %, Shared, models GeForce-RTX-3080, uuids GPU-12345678",
    ],
    "hami-guide/6.1-device-policies.yaml": [
        "policy-spread: 1 × 1000Mi, 0 %; device ['Spread']",
        "policy-best-fit: 1 × 1000Mi, 0 %; device ['BestFit']",
        "policy-idle-first: 1 × 1000Mi, 0 %; device ['IdleFirst']",
        "policy-numa-first: 1 × 1000Mi, 0 %; device ['NUMAFirst']",
    ],
    "hami-guide/6.2-types.yaml": [
        "types: 1 × 100 %, 100 %, models GeForce-RTX-3080 Tesla-V100, "
        "excludeModels GeForce-GTX-1080",
    ],
    "hami-guide/6.2-uuids.yaml": [
        "uuids: 1 × 100 %, 100 %, uuids GPU-12345678-1234-1234-1234-123456789012, "
        "excludeUUIDs GPU-87654321-4321-4321-4321-210987654321",
    ],
    "hami-guide/6.3-numa.yaml": [
        "numa: 2 × 100 %, 100 %; numa Require",
    ],
    "hami-guide/6.4-mig.yaml": [
        "mig: 1 × 5000Mi, 0 %, MIG",
    ],
    "hami-guide/6.5-modes.yaml": [
        "mode-shared: 1 × 1000Mi, 0 %, Shared",
        "mode-hami-core: 1 × 1000Mi, 0 %, Shared, Force",
        "mode-mig: 1 × 1000Mi, 0 %, MIG, Disable",
    ],
    "hami-guide/6.5-runtime-class.yaml": [
        "runtime-class: 1 × 100 %, 100 %",
    ],
    "hami-guide/7.1-force.yaml": [
        "force: 1 × 4000Mi, 50 %, Shared, Force",
    ],
    "hami-guide/7.2-amounts.yaml": [
        "fixed-memory: 1 × 4000Mi, 0 %",
        "large-memory: 1 × 100 %, 100 %",
        "training: 1 × 100 %, 80 %",
        "inference: 1 × 100 %, 25 %",
    ],
    "hami-guide/7.2-policies.yaml": [
        "performance: 2 × 100 %, 100 %; device ['NUMAFirst']; numa Require",
        "availability: 1 × 100 %, 100 %; device ['Spread']",
    ],
    "hami-guide/7.4-migration.yaml": [
        "old: 1 × 4000Mi, 0 %",
        "new: 1 × 50 %, 50 %",
    ],
    "hami-guide/8.2-nvidia.yaml": [
        "ai-nvidia: 1 × 4000Mi, 0 %",
    ],
}
"""By file: each pod's request: devices × memory of each, percent of compute."""

REFUSED = {
    "hami-guide/6.5-mode-mps.yaml": (
        'metadata.annotations[nvidia.com/vgpu-mode]: Unsupported value: "mps": no MPS daemon runs '
        "here; write shared, whose limits of memory and compute need none, or mig"
    ),
    "hami-configuration/6.5-disable-control.yaml": (
        "spec.containers[0].env[CUDA_DISABLE_CONTROL]: Forbidden: limits cannot be "
        "switched off in this namespace; its label vgpu.dev/disable-control: allowed would allow it"
    ),
}

GANG = "dialects/volcano-job.yaml"
"""Only Volcano starts its pods together."""

OTHER_VENDORS = ("hami-guide/8.2-other-vendors.yaml",)
"""Words of those vendors' own plugins, not of HAMi's."""


def documents(file: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all((EXAMPLES / file).read_text()) if found]


def pods(file: str) -> list[dict[str, Any]]:
    return [dict(pod) for document in documents(file) for pod in pods_of(document, ["node"])]


def admitted(pod: dict[str, Any]) -> dict[str, Any]:
    config = ClusterConfig()
    once = applied(pod, mutate_pod(pod, config, None))
    assert mutate_pod(once, config, None) == []
    return once


def in_words(raw: dict[str, Any]) -> str:
    demand = read(Pod.model_validate(raw), ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    requests = " + ".join(map(request_in_words, demand.spec.requests))
    placement = demand.spec.placement
    plans = {} if placement is None else placement.to_wire()
    choice = "".join(f"; {key} {shown}" for key, shown in plans.items() if shown)
    return f"{raw['metadata']['name']}: {requests}{choice}"


def request_in_words(request: VGPURequest) -> str:
    memory = request.memory or f"{request.memory_percent or 100} %"
    marks = [f"{request.count} × {memory}, {request.cores} %"]
    marks += [request.mode] if request.mode != "Any" else []
    marks += [request.core_policy] if request.core_policy != "Default" else []
    chosen = {} if request.selector is None else request.selector.to_wire()
    marks += [f"{key} {' '.join(values)}" for key, values in chosen.items() if values]
    return ", ".join(marks)


def test_every_file_of_pods_has_its_row() -> None:
    files = {
        f"{folder}/{path.name}" for folder in FOLDERS for path in (EXAMPLES / folder).glob("*.yaml")
    }
    with_pods = {file for file in files if pods(file)}
    assert with_pods == {*SERVED, *REFUSED, *OTHER_VENDORS}


@pytest.mark.parametrize("file", SERVED)
def test_each_pod_is_admitted_and_asks_for_this(file: str) -> None:
    after = [admitted(pod) for pod in pods(file)]
    assert [in_words(pod) for pod in after] == SERVED[file]
    schedulers = {pod["spec"]["schedulerName"] for pod in after}
    ours = {"vgpu-scheduler", "hami-scheduler"}
    assert schedulers <= ({"volcano"} if file == GANG else ours)


@pytest.mark.parametrize("file", REFUSED)
def test_each_of_these_is_refused_in_these_words(file: str) -> None:
    (pod,) = pods(file)
    with pytest.raises(Denied) as refusal:
        admitted(pod)
    assert refusal.value.message == REFUSED[file]


@pytest.mark.parametrize("file", OTHER_VENDORS)
def test_a_pod_in_another_vendors_words_never_gets_an_nvidia_device(file: str) -> None:
    for pod in pods(file):
        demand = read(Pod.model_validate(pod), ClusterConfig())
        assert demand is None or all(
            request.vendor.lower() != "nvidia"
            for request in (demand.spec.requests if demand.spec is not None else [])
        )
