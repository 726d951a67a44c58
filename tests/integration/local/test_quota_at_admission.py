"""A pod above its namespace's quota is rejected if the configuration enables that check."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_CLAIM_TEMPLATE
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubectl import Kubectl
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import a_claim, a_container, a_pod, create, running

pytestmark = pytest.mark.timeout(120)

QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "slices", "namespace": "default"},
    "spec": {"hard": {"limits.nvidia.com/gpumem": 8192}},
}


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    options = ClusterOptions(config={"scheduling": {"quotaAt": "Admission"}}, lease_s=4)
    with whole_cluster([t4_node("one")], options) as cluster:
        assert applied(cluster, QUOTA) == ""
        yield cluster


def applied(cluster: LocalCluster, obj: Any) -> str:
    """Return kubectl's message if it is refused, or an empty string if it is accepted."""
    done = Kubectl.find(cluster.kubeconfig).run("apply", "-f", "-", stdin=json.dumps(obj))
    return done.stderr if done.returncode else ""


def a_slice(name: str, mib: int, **more: Any) -> dict[str, Any]:
    return a_pod(name, a_container(limits={"nvidia.com/gpumem": mib}), **more)


def test_a_pod_is_refused_by_what_is_held_already_in_hamis_words_and_with_numbers(
    cluster: LocalCluster,
) -> None:
    assert applied(cluster, a_slice("first", 6144)) == ""
    running(cluster, "first")
    said = applied(cluster, a_slice("second", 4096))
    assert "denied the request: exceeding resource quota: exceeded quota: slices, " in said
    limit = "limits.nvidia.com/gpumem"
    assert f"requested: {limit}=4096, used: {limit}=6144, limited: {limit}=8192" in said
    assert applied(cluster, a_slice("third", 2048)) == ""
    running(cluster, "third")


def test_a_template_counts_as_what_it_asks_for_and_a_claim_that_holds_it_already_as_nothing(
    cluster: LocalCluster,
) -> None:
    create(cluster, a_claim("large", {"memory": "9Gi"}))
    large = a_pod("large", a_container(), annotations={ANNOTATION_CLAIM_TEMPLATE: "large"})
    assert "exceeding resource quota" in applied(cluster, large)
    create(cluster, a_claim("held", {"memory": "8Gi"}, bindingMode="Immediate"))
    cluster.wait_for(
        VGPU_CLAIMS, "held", lambda claim: (claim.get("status") or {}).get("allocation") is not None
    )
    user = a_pod("user", a_container(), annotations={ANNOTATION_CLAIM: "held"})
    assert applied(cluster, user) == ""
    running(cluster, "user")


def test_a_percentage_has_no_size_yet_and_waits_where_it_is_too_much(cluster: LocalCluster) -> None:
    half = a_pod("half", a_container(limits={"nvidia.com/gpumem-percentage": 60}))
    assert applied(cluster, half) == ""


def test_a_quota_with_a_scope_counts_the_pods_of_its_scope_alone(cluster: LocalCluster) -> None:
    jobs = {
        **QUOTA,
        "metadata": {"name": "jobs", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": 2048}, "scopes": ["Terminating"]},
    }
    assert applied(cluster, jobs) == ""
    try:
        assert applied(cluster, a_slice("service", 2560)) == ""
        assert applied(cluster, a_slice("job", 1024, activeDeadlineSeconds=600)) == ""
        for name in ("service", "job"):
            running(cluster, name)
        said = applied(cluster, a_slice("large-job", 1536, activeDeadlineSeconds=600))
        limit = "limits.nvidia.com/gpumem"
        assert f"exceeded quota: jobs, requested: {limit}=1536, used: {limit}=1024, " in said
        assert "slices" not in said
        assert applied(cluster, a_slice("other", 1536)) == ""
    finally:
        Kubectl.find(cluster.kubeconfig).run("delete", "resourcequota", "jobs")
