"""Names that are nearly ours get a warning with the right name; names of others get none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.config import ClusterConfig
from vgpu_api.config.cluster import read_cluster_config
from vgpu_api.names import POD_ANNOTATIONS, POD_RECORDS
from vgpu_operator.admission.rules.warnings import misspelt, unasked

CONFIG = ClusterConfig()
LIMITS = "spec.containers[0].resources.limits"
ANNOTATIONS = "metadata.annotations"


def a_pod(
    limits: dict[str, Any] | None = None, annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": limits or {}}}
    return {
        "metadata": {"name": "pod", "annotations": annotations or {}},
        "spec": {"containers": [container], **spec},
    }


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("nvidia.com/gpumemory", "nvidia.com/gpumem"),
        ("nvidia.com/gpus", "nvidia.com/gpu"),
        ("nvidia.com/gpucore", "nvidia.com/gpucores"),
        ("nvidia.com/gpumem-percent", "nvidia.com/gpumem-percentage"),
        ("aliyun.com/gpu-memory", "aliyun.com/gpu-mem"),
        ("volcano.sh/vgpu-core", "volcano.sh/vgpu-cores"),
    ],
)
def test_a_resource_that_is_nearly_ours_is_warned_about_with_the_right_name(
    wrong: str, right: str
) -> None:
    assert misspelt(a_pod({wrong: 1}), CONFIG) == [
        f"{LIMITS}[{wrong}]: vgpu has no such resource: did you mean {right}?"
    ]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("nvidia.com/use-gputyp", "nvidia.com/use-gputype"),
        ("nvidia.com/use-gpu-type", "nvidia.com/use-gputype"),
        ("nvidia.com/usegpuuuid", "nvidia.com/use-gpuuuid"),
        ("hami.io/gpu-schedular-policy", "hami.io/gpu-scheduler-policy"),
        ("vgpu.dev/clam", "vgpu.dev/claim"),
        ("vgpu.dev/claimtemplate", "vgpu.dev/claim-template"),
        ("nvidia.com/gpumem", "the resource nvidia.com/gpumem"),
    ],
)
def test_an_annotation_that_is_nearly_ours_is_warned_about_with_the_right_name(
    wrong: str, right: str
) -> None:
    assert misspelt(a_pod(annotations={wrong: "x"}), CONFIG) == [
        f"{ANNOTATIONS}[{wrong}]: vgpu has no such annotation: did you mean {right}?"
    ]


def test_an_unknown_name_of_our_own_is_warned_about_even_if_nothing_resembles_it() -> None:
    (warning,) = misspelt(a_pod(annotations={"vgpu.dev/zone": "a"}), CONFIG)
    assert warning == (
        "metadata.annotations[vgpu.dev/zone]: vgpu has no such annotation: a pod's annotations are "
        "vgpu.dev/ and claim, claim-template, group, group-min, device-selector"
    )


@pytest.mark.parametrize(
    "name", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "amd.com/gpus", "example.com/claim"]
)
def test_another_vendors_resource_is_nobodys_typo(name: str) -> None:
    assert misspelt(a_pod({name: 1}), CONFIG) == []


@pytest.mark.parametrize("name", [*POD_ANNOTATIONS, *POD_RECORDS, "example.com/clam"])
def test_what_acts_and_what_copied_pods_bring_along_is_no_typo(name: str) -> None:
    assert misspelt(a_pod(annotations={name: "x"}), CONFIG) == []


def test_the_configured_names_are_the_right_ones() -> None:
    config = read_cluster_config({"nvidia": {"resourceCountName": "nvidia.com/vgpu"}})
    assert misspelt(a_pod({"nvidia.com/vgpu": 1}), config) == []
    (warning,) = misspelt(a_pod({"nvidia.com/gpu": 1}), config)
    assert warning.endswith("did you mean nvidia.com/vgpu?")


def test_init_containers_are_read_too() -> None:
    pod = a_pod(initContainers=[{"name": "i", "resources": {"requests": {"nvidia.com/gpus": 1}}}])
    (warning,) = misspelt(pod, CONFIG)
    assert warning.startswith("spec.initContainers[0].resources.requests[nvidia.com/gpus]: ")


def test_a_pod_full_of_typos_gets_eight_warnings_that_are_not_long() -> None:
    names = {f"vgpu.dev/{'x' * 200}{number}": "" for number in range(100)}
    warnings = misspelt(a_pod(annotations=names), CONFIG)
    assert len(warnings) == 9
    assert warnings[-1] == "and 92 more unknown names"
    assert max(map(len, warnings)) <= 256  # Kubernetes cuts longer ones


def test_a_scheduler_that_may_not_ask_us_is_warned_about() -> None:
    (warning,) = unasked(a_pod({"nvidia.com/gpu": 1}, schedulerName="volcano"), CONFIG)
    assert warning == (
        "spec.schedulerName: volcano: the pod gets a GPU only if this scheduler calls the "
        "extender of vgpu, as vgpu-scheduler does"
    )


def test_amounts_of_a_volcano_gang_are_warned_about_and_a_template_is_not() -> None:
    pod = a_pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}, schedulerName="volcano")
    pod["metadata"] = {"annotations": {"scheduling.k8s.io/group-name": "gang"}}
    _, warning = unasked(pod, CONFIG)
    assert warning == (
        "metadata.annotations[scheduling.k8s.io/group-name]: Volcano counts every resource of a "
        "container against its node's, and a node shows the number of GPUs alone: where memory or "
        "compute is asked for, name a vgpu.dev/claim-template instead"
    )
    native = a_pod({}, schedulerName="volcano")
    annotations = {"scheduling.k8s.io/group-name": "gang", "vgpu.dev/claim-template": "half"}
    native["metadata"] = {"annotations": annotations}
    assert len(unasked(native, CONFIG)) == 1


@pytest.mark.parametrize(
    ("limits", "scheduler", "ours"),
    [
        ({"nvidia.com/gpu": 1}, "vgpu-scheduler", "vgpu-scheduler"),
        ({"nvidia.com/gpu": 1}, "hami-scheduler", "vgpu-scheduler"),
        ({"nvidia.com/gpu": 1}, "volcano", ""),
        ({"nvidia.com/gpu": 1}, "", "vgpu-scheduler"),
        ({}, "volcano", "vgpu-scheduler"),
    ],
)
def test_a_scheduler_that_asks_us_or_whose_pod_does_not_is_nothing_to_warn_of(
    limits: dict[str, Any], scheduler: str, ours: str
) -> None:
    config = read_cluster_config({"scheduling": {"schedulerName": ours}})
    assert unasked(a_pod(limits, schedulerName=scheduler), config) == []


def test_the_manifests_send_us_every_annotation_that_is_no_known_one() -> None:
    manifests = Path(__file__).parents[3] / "manifests"
    expressions = yaml.safe_load((manifests / "base" / "webhook" / "expressions.yaml").read_text())
    _, _, known = expressions["data"]["misspelt"].rpartition("[")
    names = {text.strip(" '") for text in known.partition("]")[0].split(",")}
    assert names == {*POD_ANNOTATIONS, *POD_RECORDS}
