"""Volcano Jobs: requests of their pods are checked before Volcano creates the pods."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_api.config import ClusterConfig
from vgpu_operator.admission.rules import Denied, check_volcano_job

CONFIG = ClusterConfig()
PATH = "spec.tasks[1].template"


def a_job(limits: dict[str, Any], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a job with a task that requests nothing, and one with these requests."""
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    idle = {"template": {"spec": {"containers": [{"name": "main", "image": "none"}]}}}
    template = {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [container]},
    }
    return {
        "metadata": {"name": "gang"},
        "spec": {"schedulerName": "volcano", "tasks": [idle, {"template": template}]},
    }


def test_what_its_pods_would_be_refused_for_refuses_the_job_by_its_path() -> None:
    with pytest.raises(Denied) as refusal:
        check_volcano_job(
            a_job({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-cores": 150}), CONFIG
        )
    assert refusal.value.message == (
        f"{PATH}.spec.containers[0].resources.limits[volcano.sh/vgpu-cores]: Invalid value: 150: "
        "must be a whole percentage, 0 to 100"
    )


def test_amounts_of_a_gang_are_warned_about_to_the_author_of_the_job() -> None:
    warnings = check_volcano_job(a_job({"volcano.sh/vgpu-number": 1}), CONFIG)
    assert [each for each in warnings if "vgpu.dev/claim-template" in each] == [
        f"{PATH}.metadata.annotations[scheduling.k8s.io/group-name]: Volcano counts every resource "
        "of a container against its node's, and a node shows the number of GPUs alone: where "
        "memory or compute is asked for, name a vgpu.dev/claim-template instead"
    ]


def test_words_that_do_nothing_in_its_pods_are_named() -> None:
    alone = check_volcano_job(a_job({"hygon.com/dcumem": 4000}), CONFIG)
    assert alone == [
        f"{PATH}.spec.containers[0].resources.limits[hygon.com/dcumem]: has no effect: the "
        "container does not ask for hygon.com/dcunum"
    ]
    (near,) = check_volcano_job(a_job({"volcano.sh/vgpu-core": 10}), CONFIG)
    assert near == (
        f"{PATH}.spec.containers[0].resources.limits[volcano.sh/vgpu-core]: vgpu has no such "
        "resource: did you mean volcano.sh/vgpu-cores?"
    )


def test_a_template_of_claims_gets_the_warning_of_its_scheduler_alone() -> None:
    (warning,) = check_volcano_job(a_job({}, {"vgpu.dev/claim-template": "slice"}), CONFIG)
    assert warning.startswith(f"{PATH}.spec.schedulerName: volcano: ")


@pytest.mark.parametrize(
    "job", [{}, {"spec": []}, {"spec": {"tasks": "all"}}, {"spec": {"tasks": ["one", {}]}}]
)
def test_what_is_no_job_is_left_to_the_schema_of_jobs(job: dict[str, Any]) -> None:
    assert check_volcano_job(job, CONFIG) == []
