"""A pod that names a claim: valid names, and the containers that the claim means."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPUClaimSpec
from vgpu_operator.dialects import NamedClaim, PodDemand, containers_of_claim, read


def a_pod(annotations: dict[str, str], **spec: Any) -> Pod:
    return Pod.model_validate(
        {
            "metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "app"}, {"name": "side"}], **spec},
        }
    )


def a_spec(*requests: dict[str, Any]) -> VGPUClaimSpec:
    return VGPUClaimSpec.model_validate({"requests": list(requests)})


@pytest.mark.parametrize(
    ("key", "is_template"), [("vgpu.dev/claim", False), ("vgpu.dev/claim-template", True)]
)
def test_a_pod_names_a_claim_or_a_template(key: str, is_template: bool) -> None:
    assert read(a_pod({key: "small"}), ClusterConfig()) == PodDemand(
        native=NamedClaim(name="small", is_template=is_template)
    )


def test_the_ask_carries_the_containers_that_admission_recorded() -> None:
    pod = a_pod({"vgpu.dev/claim": "small", "vgpu.dev/slots-added": "app, side"})
    demand = read(pod, ClusterConfig())
    assert demand is not None
    assert demand.containers == ("app", "side")


def test_a_claim_of_another_namespace_is_refused_in_those_words() -> None:
    with pytest.raises(BadInput, match="a claim of another namespace cannot be used") as refusal:
        read(a_pod({"vgpu.dev/claim": "other/small"}), ClusterConfig())
    assert refusal.value.field == "metadata.annotations[vgpu.dev/claim]"


@pytest.mark.parametrize("name", ["", "Small", "-small", "a..b", "small\n", "x" * 254, "a b"])
def test_what_cannot_be_a_claims_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="must be the name of a claim"):
        read(a_pod({"vgpu.dev/claim": name}), ClusterConfig())


def test_a_claim_and_a_template_at_once_are_refused() -> None:
    both = {"vgpu.dev/claim": "a", "vgpu.dev/claim-template": "b"}
    with pytest.raises(BadInput, match="name a claim or a template"):
        read(a_pod(both), ClusterConfig())


def test_a_pod_cannot_name_a_claim_and_ask_by_resources() -> None:
    asking = {"name": "app", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod = a_pod({"vgpu.dev/claim": "small"}, containers=[asking])
    with pytest.raises(BadInput, match=r"spec.containers\[0\].resources.*the pod names a claim"):
        read(pod, ClusterConfig())


def test_a_recorded_container_is_not_read_as_hami() -> None:
    slot = {"name": "app", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = a_pod({"vgpu.dev/claim": "small", "vgpu.dev/slots-added": "app"}, containers=[slot])
    demand = read(pod, ClusterConfig())
    assert demand is not None
    assert demand.spec is None


def test_a_forged_record_without_a_claim_is_refused() -> None:
    slot = {"name": "app", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = a_pod({"vgpu.dev/slots-added": "app"}, containers=[slot])
    with pytest.raises(BadInput, match="admission alone writes it"):
        read(pod, ClusterConfig())


def test_requests_mean_the_containers_of_their_names() -> None:
    spec = a_spec({"name": "side"}, {"name": "app"})
    assert containers_of_claim(a_pod({}), spec) == ("side", "app")


def test_a_request_without_a_name_means_the_first_container() -> None:
    pod = a_pod({}, initContainers=[{"name": "proxy", "restartPolicy": "Always"}])
    assert containers_of_claim(pod, a_spec({})) == ("app",)


def test_a_request_without_a_name_keeps_its_container_when_a_sidecar_is_injected_in_front() -> None:
    pod = a_pod({"vgpu.dev/slots-added": "side"})
    assert containers_of_claim(pod, a_spec({})) == ("side",)


def test_an_init_request_without_a_name_means_the_first_ordinary_init_container() -> None:
    inits = [{"name": "proxy", "restartPolicy": "Always"}, {"name": "fetch"}]
    pod = a_pod({}, initContainers=inits)
    assert containers_of_claim(pod, a_spec({"phase": "Init"})) == ("fetch",)
    with pytest.raises(BadInput, match="phase Init"):
        containers_of_claim(a_pod({}), a_spec({"phase": "Init"}))


def test_a_request_for_a_container_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match="must have container trainer"):
        containers_of_claim(a_pod({}), a_spec({"name": "trainer"}))


def test_a_request_for_another_phase_than_its_containers_is_refused() -> None:
    pod = a_pod({}, initContainers=[{"name": "fetch"}])
    with pytest.raises(BadInput, match=r"spec.initContainers\[0\].*phase App"):
        containers_of_claim(pod, a_spec({"name": "fetch"}))


def test_a_restartable_init_container_is_app() -> None:
    pod = a_pod({}, initContainers=[{"name": "proxy", "restartPolicy": "Always"}])
    assert containers_of_claim(pod, a_spec({"name": "proxy"})) == ("proxy",)


INITS = [{"name": "proxy", "restartPolicy": "Always"}, {"name": "fetch"}]


def test_requests_stand_in_the_order_in_which_their_containers_start() -> None:
    """An init container counts together with the sidecars before it, so the order matters."""
    pod = a_pod({}, initContainers=INITS)
    proxy, fetch, app = {"name": "proxy"}, {"name": "fetch", "phase": "Init"}, {"name": "app"}
    assert containers_of_claim(pod, a_spec(proxy, fetch, app)) == ("proxy", "fetch", "app")
    for requests, first in (
        ((fetch, proxy, app), r"initContainers\[0\].*proxy"),
        ((proxy, app, fetch), r"initContainers\[1\].*fetch"),
    ):
        with pytest.raises(BadInput, match=first):
            containers_of_claim(pod, a_spec(*requests))


@pytest.mark.parametrize("recorded", ["gone", "fetch", "side,app"])
def test_a_record_that_cannot_be_the_sole_requests_container_does_not_count(recorded: str) -> None:
    pod = a_pod({"vgpu.dev/slots-added": recorded}, initContainers=[{"name": "fetch"}])
    assert containers_of_claim(pod, a_spec({})) == ("app",)
