"""Resize in place on a whole cluster: a running container sees its new limits within a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vgpu_api.names import ANNOTATION_CLAIM
from vgpu_api.quantity import format_mib
from vgpu_api.resize import is_resized
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import ApiError
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.steps import (
    a_claim,
    a_container,
    a_pod,
    claim,
    create,
    empty,
    is_prepared,
    memory_seen,
    running,
)
from vgpu_nodeagent.enforcement.page import read_page

pytestmark = pytest.mark.timeout(180)

SOON_S = 1.0


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([gpu_node("one", [T4])]) as cluster:
        yield cluster
        assert excesses(cluster.server.history()) == []


@pytest.fixture
def cluster(module_cluster: LocalCluster) -> Iterator[LocalCluster]:
    yield module_cluster
    empty(module_cluster)


def uses(cluster: LocalCluster, name: str, memory: str | None = None, **request: Any) -> None:
    """Create a claim and a running pod that uses it; both have the same name."""
    create(cluster, a_claim(name, {"memory": memory} if memory else request))
    create(cluster, a_pod(name, a_container(), annotations={ANNOTATION_CLAIM: name}))
    running(cluster, name)
    claim(cluster, name, is_prepared)


def ask(cluster: LocalCluster, name: str, memory: str | None = None, **request: Any) -> None:
    """Change the claim's request, as `kubectl edit` does."""
    spec = {"requests": [{"memory": memory} if memory else request]}
    cluster.run(cluster.api.merge_patch(VGPU_CLAIMS, name, {"spec": spec}, namespace="default"))


def resized(status: dict[str, Any]) -> tuple[str, str]:
    """Return status and reason of the condition, or two empty strings if there is none."""
    found = [c for c in status.get("conditions", []) if c["type"] == "Resized"]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


def page_of(cluster: LocalCluster, pod: str) -> Callable[[], int]:
    """Return a function that reads the MiB on a container's limit page from the node's file."""
    path = Path(cluster.kubelets["one"].environment("default", pod, "main")["VGPU_LIMIT_PAGE"])
    # The page shows no device while a change of it takes longer than a reader waits.
    return lambda: sum(limit.memory_bytes for limit in read_page(path).devices) >> 20


def test_a_running_container_sees_more_and_less_within_a_second(cluster: LocalCluster) -> None:
    uses(cluster, "c", "2Gi")
    page = page_of(cluster, "c")
    took = []
    for gi in (4, 8, 3, 12, 1, 6, 2, 10, 5, 7):
        began = time.monotonic()
        ask(cluster, "c", f"{gi}Gi")
        while page() != gi * 1024 and time.monotonic() - began < SOON_S:
            time.sleep(0.005)
        took.append(time.monotonic() - began)
        assert page() == gi * 1024
        found = claim(cluster, "c", lambda status: resized(status)[0] == "True")
        claim(cluster, "c", lambda status, gi=gi: held(status) == f"{gi}Gi")
        assert found["metadata"]["generation"] > 1
    assert memory_seen(cluster, "c") == [7168]
    assert max(took) < SOON_S


def test_a_running_container_sees_another_percentage_and_then_a_size(cluster: LocalCluster) -> None:
    total = T4.memory_mib
    uses(cluster, "c", memoryPercent=50, cores=30)
    assert memory_seen(cluster, "c") == [total // 2]
    for percent in (75, 10, 33):
        ask(cluster, "c", memoryPercent=percent, cores=30)
        mib = total * percent // 100
        cluster.wait_for(VGPU_CLAIMS, "c", lambda found: is_resized(VGPUClaim.read(found)))
        claim(cluster, "c", lambda status, mib=mib: held(status) == format_mib(mib))
        assert memory_seen(cluster, "c") == [mib]
    ask(cluster, "c", memory="2Gi")
    claim(cluster, "c", lambda status: held(status) == "2Gi")
    assert memory_seen(cluster, "c") == [2048]


def test_a_percentage_of_what_was_given_by_size_is_refused_by_name(cluster: LocalCluster) -> None:
    uses(cluster, "c", "2Gi")
    with pytest.raises(ApiError, match=r"spec\.requests\[0\]\.memoryPercent: Invalid value: 50"):
        ask(cluster, "c", memoryPercent=50)
    assert memory_seen(cluster, "c") == [2048]


def held(status: dict[str, Any]) -> str:
    return str(status["allocation"]["devices"][0]["memory"])


def test_what_does_not_fit_waits_and_says_so_until_a_neighbour_goes(cluster: LocalCluster) -> None:
    uses(cluster, "neighbour", "8Gi")
    uses(cluster, "c", "4Gi")
    ask(cluster, "c", "12Gi")
    waiting = claim(cluster, "c", lambda status: resized(status)[0] == "False")
    assert resized(waiting["status"]) == ("False", "WaitingForRoom")
    assert held(waiting["status"]) == "4Gi"
    assert memory_seen(cluster, "c") == [4096]
    ask(cluster, "neighbour", "1Gi")
    claim(cluster, "c", lambda status: resized(status)[0] == "True")
    assert memory_seen(cluster, "c") == [12288]
