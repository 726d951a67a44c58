"""Claims mode on Kubernetes' own control plane, with limited containers on simulated nodes.

The kubelets are the stand-in's. They have our agents prepare ResourceClaims, as real ones do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from vgpu_api.resources import PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_local.chaos import handed_over
from vgpu_local.chaos.remains import remains
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.readiness import plural
from vgpu_local.real_cluster import real_cluster
from vgpu_local.steps import a_container, a_pod, memory_seen

SLICE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048}
WHOLE = {"nvidia.com/gpu": 1}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    options = ClusterOptions(config={"scheduling": {"mode": "Claims"}})
    with real_cluster([t4_node("one")], options) as running:
        yield running


def test_a_container_is_limited_by_its_resource_claim_and_leaves_nothing(
    cluster: LocalCluster,
) -> None:
    init = a_container("prepare", limits=WHOLE, command=["true"])
    pod = a_pod("a", a_container(limits=SLICE), initContainers=[init])
    cluster.apply_object(pod)
    cluster.wait_for(PODS, "a", lambda p: p["status"].get("phase") == "Running", limit=90)
    assert memory_seen(cluster, "a") == [2048]
    kinds = (RESOURCE_CLAIMS, VGPU_CLAIMS, PODS)
    assert handed_over.disagreements(*(cluster.objects(plural(kind)) for kind in kinds)) == []
    cluster.run(cluster.api.delete(PODS, "a", namespace="default", grace_s=1))
    deadline = time.monotonic() + 60
    while left := remains(cluster):
        cluster.check()
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert handed_over.breaches(cluster.server.history()) == []
