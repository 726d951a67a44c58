"""A pod's request for its node's CPU is counted as kube-scheduler counts it."""

from __future__ import annotations

import pytest

from builders import a_node, a_pod
from vgpu_api.core import Container, Pod
from vgpu_api.core.pod import ResourceRequirements
from vgpu_api.host import allocatable_cpu_milli, cpu_milli_of, requests_of


def a_worker(cpu: str | int | None, *, sidecar: bool = False) -> Container:
    return Container(
        resources=ResourceRequirements(requests={} if cpu is None else {"cpu": cpu}),
        restart_policy="Always" if sidecar else None,
    )


def asking(*containers: Container, init: tuple[Container, ...] = (), **fields) -> Pod:
    return a_pod(containers=containers, init_containers=init, **fields)


@pytest.mark.parametrize(
    ("written", "milli"),
    [("500m", 500), ("2", 2000), (4, 4000), ("1.5", 1500), ("1500u", 2), (None, 0)],
)
def test_every_spelling_is_read_and_rounded_up(written, milli):
    assert cpu_milli_of(asking(a_worker(written))) == milli


@pytest.mark.parametrize("written", ["much", "-1", ""])
def test_what_is_no_amount_counts_as_nothing(written):
    assert cpu_milli_of(asking(a_worker(written), a_worker("1"))) == 1000


def test_containers_add_up():
    assert cpu_milli_of(asking(a_worker("500m"), a_worker("250m"))) == 750


def test_an_init_container_counts_where_it_asks_for_more_than_all_that_come_after_it():
    pod = asking(a_worker("1"), a_worker("1"), init=(a_worker("3"), a_worker("500m")))
    assert cpu_milli_of(pod) == 3000


def test_sidecars_count_beside_the_containers_and_beside_later_init_containers():
    init = (a_worker("2"), a_worker("1", sidecar=True), a_worker("2"))
    assert cpu_milli_of(asking(a_worker("1"), init=init)) == 3000
    assert cpu_milli_of(asking(a_worker("4"), init=init)) == 5000


def test_what_a_pod_asks_for_as_a_whole_goes_before_its_containers_and_overhead_comes_on_top():
    more = {"cpu": "100m"}
    whole = ResourceRequirements(requests={"cpu": "3"})
    assert cpu_milli_of(asking(a_worker("1"), overhead=more)) == 1100
    assert cpu_milli_of(asking(a_worker("1"), overhead=more, resources=whole)) == 3100


def test_a_node_says_what_pods_may_have_or_nothing_yet():
    assert allocatable_cpu_milli(a_node()) is None
    assert allocatable_cpu_milli(a_node(allocatable={"cpu": "63920m"})) == 63_920


RESIZED = {
    "requests": {"cpu": "60"},
    "status": {"resources": {"requests": {"cpu": "8"}}, "allocatedResources": {"cpu": "4"}},
}


@pytest.mark.parametrize(
    ("reason", "section", "policy", "milli"),
    [
        ("", "containers", None, 60_000),
        ("Deferred", "containers", None, 60_000),
        ("Infeasible", "containers", None, 8_000),
        ("Infeasible", "initContainers", "Always", 8_000),
        ("Infeasible", "initContainers", None, 60_000),
    ],
    ids=["asked", "deferred", "refused", "sidecar", "ordinary init"],
)
def test_of_a_resize_in_place_the_greatest_size_counts(reason, section, policy, milli):
    """The spec no longer counts once it is infeasible; init containers cannot be resized."""
    container = {"name": "a", "resources": {"requests": RESIZED["requests"]}}
    spec = {"containers": [], section: [{**container, "restartPolicy": policy}]}
    status = {
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
        f"{section.removesuffix('s')}Statuses": [{"name": "a", **RESIZED["status"]}],
    }
    pod = Pod.model_validate({"metadata": {"name": "p"}, "spec": spec, "status": status})
    assert cpu_milli_of(pod) == milli
    assert requests_of(pod) == {"cpu": milli, "pods": 1}


def test_of_a_pod_resized_as_a_whole_the_greatest_size_counts_too():
    """By KEP-5419, the containers' own sizes do not matter if the pod has its own."""
    spec = {"containers": [], "resources": {"requests": {"cpu": "60"}}}
    pod = Pod.model_validate({"metadata": {"name": "p"}, "spec": spec, "status": RESIZED["status"]})
    assert cpu_milli_of(pod) == 60_000
    pending = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
    status = {**RESIZED["status"], "conditions": pending}
    pod = Pod.model_validate({"metadata": {"name": "p"}, "spec": spec, "status": status})
    assert requests_of(pod) == {"cpu": 8_000, "pods": 1}
