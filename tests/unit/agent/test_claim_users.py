"""The agent finds the pod of a ResourceClaim and the container of each request."""

from __future__ import annotations

import pytest

from builders import a_pod
from dra_bench import RESOURCE_CLAIM, RESOURCE_CLAIM_UID, a_claiming_pod
from vgpu_api.core.pod import Pod, UsedClaim
from vgpu_nodeagent.draplugin.consumers import ClaimRef, find_users, joins
from vgpu_nodeagent.errors import Refused, Why

REF = ClaimRef("default", RESOURCE_CLAIM, RESOURCE_CLAIM_UID)


def refused(*pods: Pod) -> Refused:
    with pytest.raises(Refused) as error:
        find_users(REF, pods)
    return error.value


def test_each_container_is_found_with_its_request() -> None:
    pod = a_claiming_pod(containers={"a": "x", "b": "y", "web": None}, init={"first": "z"})
    users = find_users(REF, [a_pod("other", node="n1"), pod])
    assert users.pod is pod
    assert users.requests == {"first": "z", "a": "x", "b": "y"}


def test_a_claim_of_the_same_name_in_another_namespace_is_another() -> None:
    pod = a_claiming_pod()
    metadata = pod.metadata.model_copy(update={"namespace": "elsewhere"})
    assert refused(pod.model_copy(update={"metadata": metadata})).reason is Why.POD_UNKNOWN


def test_pods_that_have_ended_do_not_count() -> None:
    ended = a_claiming_pod("job-1").model_copy(update={"status": a_pod(phase="Succeeded").status})
    pod = a_claiming_pod("job-2")
    assert find_users(REF, [ended, pod]).pod is pod
    assert not joins(pod, ended)
    assert joins(pod, a_claiming_pod("job-3"))


def test_several_pods_are_refused_by_name() -> None:
    error = refused(a_claiming_pod("b"), a_claiming_pod("a"))
    assert error.reason is Why.RESOURCE_CLAIM_SHARED
    assert "several pods (a, b)" in str(error)


@pytest.mark.parametrize(
    ("containers", "field", "word"),
    [
        ({"a": "x", "b": "x"}, "spec.containers[1].resources.claims[0].request", "container a"),
        ({"a": "", "b": "x"}, "spec.containers[1].resources.claims[0].request", "container a"),
        ({"a": "x", "b": ""}, "spec.containers[1].resources.claims[0].request", "container a"),
    ],
)
def test_containers_that_share_devices_are_refused_with_the_field(
    containers: dict[str, str | None], field: str, word: str
) -> None:
    error = refused(a_claiming_pod(containers=containers))
    assert error.reason is Why.REQUEST_MISMATCH
    assert str(error).startswith(f"{field}: Invalid value: ")
    assert word in str(error)


def test_a_container_with_two_requests_is_told_what_to_write() -> None:
    pod = a_claiming_pod()
    (container,) = pod.spec.containers
    uses = [UsedClaim(name="vgpu", request=each) for each in ("x", "y")]
    both = container.resources.model_copy(update={"claims": uses})
    container = container.model_copy(update={"resources": both})
    spec = pod.spec.model_copy(update={"containers": [container]})
    error = refused(pod.model_copy(update={"spec": spec}))
    assert "spec.containers[0].resources.claims[1].request" in str(error)
    assert "leave the request out" in str(error)


def test_a_pod_whose_containers_leave_the_claim_alone_is_told_so() -> None:
    error = refused(a_claiming_pod(containers={"web": None}))
    assert error.reason is Why.REQUEST_MISMATCH
    assert "set resources.claims" in str(error)
