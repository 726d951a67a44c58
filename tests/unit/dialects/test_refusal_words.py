"""Refusals of a request name the field, the value and a valid value.

The tests also show the other side of each limit: the last value that is accepted.
"""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPUClaimSpec, VGPURequest
from vgpu_operator.dialects import containers_of_claim, read

ONE = {"gpu": 1, "gpumem": 1024}


def a_pod(
    limits: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    *,
    name: str = "main",
    **spec: Any,
) -> Pod:
    resources = {"limits": {f"nvidia.com/{key}": value for key, value in (limits or {}).items()}}
    return Pod.model_validate(
        {
            "metadata": {"annotations": annotations or {}},
            "spec": {"containers": [{"name": name, "resources": resources}], **spec},
        }
    )


def a_spec(*requests: dict[str, Any]) -> VGPUClaimSpec:
    return VGPUClaimSpec.model_validate({"requests": list(requests)})


def request_of(pod: Pod) -> VGPURequest:
    demand = read(pod, ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    return demand.spec.requests[0]


def words(pod: Pod) -> str:
    with pytest.raises(BadInput) as refusal:
        read(pod, ClusterConfig())
    return str(refusal.value)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"gpu": "half"}, 'gpu]: Invalid value: "half": must be a number of GPUs, 1 to 64'),
        ({"gpu": 65}, "gpu]: Invalid value: 65: must be a number of GPUs, 1 to 64"),
        (
            {"gpumem": "much"},
            'gpumem]: Invalid value: "much": must be a size per device: a whole number of MiB '
            "such as 8192, "
            "or with its unit such as 8Gi",
        ),
        (
            {"gpumem": "1Ei"},
            'gpumem]: Invalid value: "1Ei": must be a size per device: a whole number of MiB '
            "such as 8192, "
            "or with its unit such as 8Gi",
        ),
        (
            {"gpumem-percentage": "half"},
            'gpumem-percentage]: Invalid value: "half": must be a whole percentage, 0 to 100',
        ),
        (
            {"gpumem-percentage": "0.5"},
            'gpumem-percentage]: Invalid value: "0.5": must be a whole percentage, 0 to 100',
        ),
        (
            {"gpucores": "half"},
            'gpucores]: Invalid value: "half": must be a whole percentage, 0 to 100',
        ),
        ({"gpucores": -1}, "gpucores]: Invalid value: -1: must be a whole percentage, 0 to 100"),
        (
            {"gpu": 1, "priority": "top"},
            'priority]: Invalid value: "top": must be a priority, 0 (highest) to 10',
        ),
        (
            {"gpu": 1, "priority": 11},
            "priority]: Invalid value: 11: must be a priority, 0 (highest) to 10",
        ),
    ],
)
def test_an_amount_is_refused_in_these_words(limits, said):
    assert words(a_pod(limits)) == f"spec.containers[0].resources.limits[nvidia.com/{said}"


@pytest.mark.parametrize(
    ("key", "written", "said"),
    [
        (
            "nvidia.com/vgpu-mode",
            "whole",
            'Unsupported value: "whole": supported values: "shared", "hami-core", "mig"',
        ),
        (
            "nvidia.com/vgpu-mode",
            "MPS",
            'Unsupported value: "MPS": no MPS daemon runs here; write shared, whose limits of '
            "memory and compute need none, or mig",
        ),
        (
            "hami.io/node-scheduler-policy",
            "packed",
            'Unsupported value: "packed": supported values: "binpack", "spread", "numa-first"',
        ),
        (
            "hami.io/gpu-scheduler-policy",
            "binpack,packed",
            'Unsupported value: "packed": supported values: "binpack", "spread", '
            '"numa", "numa-first", "best-fit", "idle-first", "mutex", "topology", '
            '"topology-aware"',
        ),
        (
            "hami.io/device-scoring-weights",
            "slot=1",
            'Invalid value: "slot=1": must be three whole numbers such as slot=1,core=1,memory=3, '
            "each 0 to 1000 and not all 0",
        ),
        (
            "nvidia.com/use-gputype",
            ",".join("x" * 33),
            f'Invalid value: "{",".join("x" * 33)}": must have at most 32 items of at most '
            "128 characters",
        ),
        (
            "nvidia.com/nouse-gputype",
            "y" * 129,
            f'Invalid value: "{"y" * 128}…": must have at most 32 items of at most 128 characters',
        ),
        (
            "nvidia.com/use-gpuuuid",
            ",".join("x" * 65),
            f'Invalid value: "{"x," * 64}…": must have at most 64 items of at most 128 characters',
        ),
        (
            "nvidia.com/nouse-gpuuuid",
            ",".join("x" * 65),
            f'Invalid value: "{"x," * 64}…": must have at most 64 items of at most 128 characters',
        ),
        (
            "vgpu.dev/claim",
            "a/b",
            'Invalid value: "a/b": must be the name of a claim in the pod\'s own namespace; '
            "a claim of another namespace cannot be used",
        ),
        ("vgpu.dev/claim", "A", 'Invalid value: "A": must be the name of a claim'),
        ("vgpu.dev/claim-template", "A", 'Invalid value: "A": must be the name of a claim'),
        (
            "vgpu.dev/slots-added",
            "x, y",
            "Forbidden: admission alone writes it, on a pod that names a claim",
        ),
    ],
)
def test_an_annotation_is_refused_in_these_words(key, written, said):
    assert words(a_pod(ONE, {key: written})) == f"metadata.annotations[{key}]: {said}"


def test_what_does_not_go_together_is_refused_in_these_words():
    both = {"vgpu.dev/claim": "a", "vgpu.dev/claim-template": "b"}
    assert words(a_pod({}, both)) == (
        "metadata.annotations[vgpu.dev/claim-template]: Forbidden: the pod has vgpu.dev/claim: "
        "name a claim or a template"
    )
    assert words(a_pod(ONE, {"vgpu.dev/claim": "a"})) == (
        "spec.containers[0].resources: Forbidden: the pod names a claim, "
        "and the claim's requests are what each container gets"
    )


def test_a_claim_that_means_no_container_of_the_pod_is_refused_in_these_words():
    def said(pod: Pod, request: dict[str, Any]) -> str:
        with pytest.raises(BadInput) as refusal:
            containers_of_claim(pod, a_spec(request))
        return str(refusal.value)

    assert said(a_pod(), {"name": "train"}) == (
        'spec.containers: Invalid value: ["main"]: must have container train: '
        "the claim has a request for it"
    )
    assert said(a_pod(initContainers=[{"name": "i"}]), {"name": "i"}) == (
        'spec.initContainers[0]: Invalid value: "i": must be a container of phase App, '
        "as the claim's request is"
    )
    assert said(a_pod(), {"phase": "Init"}) == (
        "spec.initContainers: Invalid value: []: must have a container: "
        "the claim's request is of phase Init"
    )
    assert said(a_pod(containers=[]), {}) == (
        "spec.containers: Invalid value: []: must have a container: "
        "the claim's request is of phase App"
    )
    init_first = a_pod(initContainers=[{"name": "i"}])
    with pytest.raises(BadInput) as refusal:
        containers_of_claim(init_first, a_spec({"name": "main"}, {"name": "i", "phase": "Init"}))
    assert str(refusal.value) == (
        'spec.initContainers[0]: Invalid value: "i": must start after container main, whose '
        "request stands before its own: write the claim's requests in the order in which the pod "
        "starts its containers, init containers first"
    )


def test_containers_that_cannot_be_requests_are_refused_in_these_words():
    gpu = {"limits": {"nvidia.com/gpu": 1}}
    many = [{"name": f"c{number}", "resources": gpu} for number in range(17)]
    assert words(a_pod(containers=many)) == (
        "spec.containers: Too many: 17: must have at most 16 containers that ask for a GPU"
    )
    twins = [{"name": "a", "resources": gpu}] * 2
    assert words(a_pod(containers=twins)) == (
        'spec.containers[1].name: Invalid value: "a": must be 1 to 63 characters and the '
        "name of one container only"
    )


# The last value that is accepted.


@pytest.mark.parametrize(
    ("limits", "field", "meant"),
    [
        ({"gpu": 64}, "count", 64),
        ({"gpu": 1, "gpumem": "1Pi"}, "memory", "1Pi"),
        ({"gpu": 1, "gpumem": 1}, "memory", "1Mi"),
        ({"gpu": 1, "gpumem": 0}, "memory", None),
        ({"gpu": 1, "gpumem-percentage": 1}, "memory_percent", 1),
        ({"gpu": 1, "gpumem-percentage": 101}, "memory_percent", 100),
        ({"gpu": 1, "gpumem": 1, "gpucores": 1}, "cores", 1),
        ({"gpu": 1, "gpumem": 1, "gpucores": 101}, "cores", 100),
        ({"gpu": 1, "priority": 0}, "compute_priority", 0),
        ({"gpu": 1, "priority": 10}, "compute_priority", 10),
    ],
)
def test_the_ends_of_each_amounts_range_are_in_it(limits, field, meant):
    assert getattr(request_of(a_pod(limits)), field) == meant


def test_the_longest_lists_and_names_are_taken():
    annotations = {
        "nvidia.com/use-gputype": ",".join(["y" * 128] * 32),
        "nvidia.com/use-gpuuuid": ",".join(f"GPU-{number}" for number in range(64)),
        "hami.io/device-scoring-weights": "slot=1000,core=0,memory=0",
    }
    pod = a_pod(ONE, annotations, name="x" * 63)
    selector = request_of(pod).selector
    assert selector is not None
    assert (len(selector.models), len(selector.uuids)) == (32, 64)
    assert request_of(pod).name == "x" * 63
    demand = read(a_pod({}, {"vgpu.dev/claim": "x" * 253}), ClusterConfig())
    assert demand is not None


def test_lists_that_would_make_a_large_claim_are_refused_in_these_words():
    """The lists of a pod are copied into each request of its claim."""
    gpu = {"limits": {"nvidia.com/gpu": 1}}
    containers = [{"name": name, "resources": gpu} for name in ("a", "b")]
    models = {"nvidia.com/use-gputype": ",".join(["y" * 128] * 32)}
    uuids = {"nvidia.com/use-gpuuuid": ",".join(["z" * 128] * 64)}
    others = {"nvidia.com/nouse-gpuuuid": "z"}
    assert read(a_pod(containers=containers, annotations={**models, **uuids}), ClusterConfig())
    assert words(a_pod(containers=containers, annotations={**models, **uuids, **others})) == (
        "metadata.annotations: Too long: 24578 bytes of models and UUIDs in 2 requests, "
        "may not be more than 24576 bytes"
    )


def test_as_many_containers_as_a_claim_can_hold_may_ask():
    gpu = {"limits": {"nvidia.com/gpu": 1}}
    many = [{"name": f"c{number}", "resources": gpu} for number in range(16)]
    demand = read(a_pod(containers=many), ClusterConfig())
    assert demand is not None
    assert len(demand.containers) == 16


@pytest.mark.parametrize(
    "limits", [{"gpu": "?"}, {"gpumem": "?"}, {"gpumem-percentage": "?"}, {"gpucores": "?"}]
)
def test_whoever_asks_in_a_way_that_cannot_be_read_is_refused_and_not_overlooked(limits):
    assert 'Invalid value: "?": must be' in words(a_pod(limits))
