"""HAMi's event reasons are recorded next to ours if the configuration enables them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import a_container, a_pod, create, running, until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    options = ClusterOptions(config={"views": {"hamiEvents": True}}, lease_s=4)
    with whole_cluster([t4_node("one")], options) as cluster:
        yield cluster


def told(cluster: LocalCluster, pod: str) -> dict[str, str]:
    """Return the notes of a pod's events, by reason."""
    return {
        event["reason"]: event["message"]
        for event in cluster.objects("events", "default")
        if event["involvedObject"]["name"] == pod
    }


def test_hamis_own_overcommitted_pod_is_refused_in_the_words_that_its_test_waits_for(
    cluster: LocalCluster,
) -> None:
    """Three containers of 40 % compute each on one device: its e2e test, by reason and message."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 300, "nvidia.com/gpucores": 40}
    create(cluster, a_pod("over", *(a_container(f"c{number}", limits) for number in range(3))))
    until(cluster, lambda: "FilteringFailed" in told(cluster, "over"))
    assert told(cluster, "over")["FilteringFailed"] == "no available node, 1 nodes do not meet"


def test_a_pod_that_is_bound_has_both_events_of_success(cluster: LocalCluster) -> None:
    create(cluster, a_pod("fits", a_container(limits={"nvidia.com/gpumem": 300})))
    running(cluster, "fits")
    until(cluster, lambda: "BindingSucceed" in told(cluster, "fits"))
    found = told(cluster, "fits")
    assert found["BindingSucceed"] == "Successfully binding node [one] to default/fits"
    assert found["FilteringSucceed"] == "find fit node(one)"
    assert "FilteringFailed" not in found
