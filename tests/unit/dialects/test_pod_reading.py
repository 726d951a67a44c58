"""One request per pod: containers and phases, opt-out, and pods that cannot become one claim."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPUClaimSpec
from vgpu_operator.dialects import PodDemand, read

GPU = {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}}


def a_pod(spec: dict[str, Any], **metadata: Any) -> Pod:
    return Pod.model_validate({"metadata": metadata, "spec": spec})


def test_only_asking_containers_become_requests_init_containers_first() -> None:
    pod = a_pod(
        {
            "initContainers": [
                {"name": "fetch", "resources": GPU},
                {"name": "proxy", "restartPolicy": "Always", "resources": GPU},
                {"name": "chown"},
            ],
            "containers": [{"name": "log"}, {"name": "train", "resources": GPU}],
        }
    )
    demand = read(pod, ClusterConfig())
    assert demand is not None
    assert demand.spec is not None
    phases = [(request.name, request.phase) for request in demand.spec.requests]
    assert phases == [("fetch", "Init"), ("proxy", "App"), ("train", "App")]
    assert demand.containers == ("fetch", "proxy", "train")


def test_a_pod_that_asks_nothing_is_none() -> None:
    assert read(a_pod({"containers": [{"name": "web"}]}), ClusterConfig()) is None


def test_the_opt_out_label_makes_a_pod_ask_for_nothing() -> None:
    pod = a_pod(
        {"containers": [{"name": "main", "resources": GPU}]}, labels={"hami.io/webhook": "ignore"}
    )
    assert read(pod, ClusterConfig()) is None


def test_an_error_in_an_init_container_names_it() -> None:
    broken = {"limits": {"nvidia.com/gpumem": "lots"}}
    pod = a_pod({"initContainers": [{"name": "i", "resources": broken}], "containers": []})
    with pytest.raises(BadInput, match=r"^spec.initContainers\[0\].resources.limits\["):
        read(pod, ClusterConfig())


@pytest.mark.parametrize("names", [["a", "a"], [""], ["x" * 64]])
def test_containers_that_cannot_be_told_apart_are_refused(names: list[str]) -> None:
    pod = a_pod({"containers": [{"name": name, "resources": GPU} for name in names]})
    with pytest.raises(BadInput, match=r"spec.containers\[\d\].name"):
        read(pod, ClusterConfig())


def test_more_asking_containers_than_a_claim_can_hold_are_refused() -> None:
    pod = a_pod({"containers": [{"name": f"c{i}", "resources": GPU} for i in range(17)]})
    with pytest.raises(BadInput, match="at most 16 containers"):
        read(pod, ClusterConfig())


def test_an_ask_is_either_a_named_claim_or_a_spec() -> None:
    spec = VGPUClaimSpec.model_validate({"requests": [{}]})
    assert PodDemand(spec=spec).native is None
    with pytest.raises(ValueError, match="either"):
        PodDemand()
