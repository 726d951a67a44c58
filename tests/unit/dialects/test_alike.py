"""Pods with equal requests are parsed once; any difference in the parsed parts counts."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_operator.dialects import PodDemand, read
from vgpu_operator.dialects.alike import Alike, question_of

CONFIG = ClusterConfig()


def a_pod(number: int = 0) -> dict[str, Any]:
    """Return a pod of a Job, as the API server completes it."""
    volume = f"kube-api-access-{number}"
    limits = {"aliyun.com/gpu-mem": "8"}
    return {
        "metadata": {
            "name": f"train-{number}",
            "uid": f"uid-{number}",
            "labels": {"batch.kubernetes.io/job-completion-index": str(number)},
            "annotations": {
                "batch.kubernetes.io/job-completion-index": str(number),
                names.NVIDIA_USE_TYPE: "A100",
            },
        },
        "spec": {
            "initContainers": [{"name": "fetch"}],
            "containers": [
                {
                    "name": "main",
                    "env": [{"name": names.ENV_CORE_POLICY, "value": "force"}],
                    "resources": {"limits": limits, "requests": dict(limits)},
                    "volumeMounts": [{"name": volume, "mountPath": "/var/run/secrets"}],
                }
            ],
            "volumes": [{"name": volume, "projected": {}}],
        },
    }


def test_the_pods_of_a_workload_are_read_once() -> None:
    first = read(Pod.model_validate(a_pod(0)), CONFIG)
    assert first is not None
    assert read(Pod.model_validate(a_pod(1)), CONFIG) is first


def test_what_binding_records_on_a_pod_makes_no_other_question() -> None:
    first = read(Pod.model_validate(a_pod(0)), CONFIG)
    bound = a_pod(1)
    bound["metadata"]["annotations"] |= dict.fromkeys(names.HAMI_RECORDS, "GPU-1,NVIDIA,8000,10:;")
    assert first is not None
    assert read(Pod.model_validate(bound), CONFIG) is first


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "labels", names.ACK_GPU_COUNT_LABEL), "2"),
        (("metadata", "annotations", names.NVIDIA_USE_TYPE), "H100"),
        (("metadata", "annotations", names.HAMI_NODE_POLICY), "spread"),
        (("spec", "containers", 0, "name"), "other"),
        (("spec", "containers", 0, "env", 0, "value"), "disable"),
        (("spec", "containers", 0, "resources", "limits", "aliyun.com/gpu-mem"), "9"),
        (("spec", "initContainers", 0, "resources"), {"limits": {"aliyun.com/gpu-mem": "1"}}),
    ],
)
def test_a_word_that_is_read_makes_another_question(path: tuple[Any, ...], value: object) -> None:
    changed = copy.deepcopy(a_pod())
    *way, last = path
    place: Any = changed
    for step in way:
        place = place[step]
    place[last] = value
    pod, other = Pod.model_validate(a_pod()), Pod.model_validate(changed)
    assert question_of(pod) != question_of(other)
    assert read(pod, CONFIG) != read(other, CONFIG)


def test_when_an_init_container_runs_is_part_of_the_question() -> None:
    runs_before, runs_beside = a_pod(), a_pod()
    for pod in (runs_before, runs_beside):
        pod["spec"]["initContainers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": "1"}}
    runs_beside["spec"]["initContainers"][0]["restartPolicy"] = "Always"
    before = read(Pod.model_validate(runs_before), CONFIG)
    beside = read(Pod.model_validate(runs_beside), CONFIG)
    assert before is not None
    assert before.spec is not None
    assert beside is not None
    assert beside.spec is not None
    assert (before.spec.requests[0].phase, beside.spec.requests[0].phase) == ("Init", "App")


class Reading:
    """Counts how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> PodDemand:
        self.calls += 1
        found = read(Pod.model_validate(a_pod()), CONFIG)
        assert found is not None
        return found


def ask(alike: Alike, pod: Pod, config: ClusterConfig, reading: Reading) -> None:
    """Look up the demand, and read and remember it if it is unknown, as `read` does."""
    question = question_of(pod)
    if alike.known(question, config) is None:
        alike.remember(question, reading())


def test_another_configuration_reads_everything_anew() -> None:
    alike, reading, pod = Alike(), Reading(), Pod.model_validate(a_pod())
    for config in (CONFIG, CONFIG, ClusterConfig(), CONFIG):
        ask(alike, pod, config, reading)
    assert reading.calls == 3


def test_only_so_many_are_remembered() -> None:
    alike, reading = Alike(kept=2), Reading()
    pods = [a_pod() for _ in range(3)]
    for number, pod in enumerate(pods):
        pod["spec"]["containers"][0]["name"] = f"c{number}"
    first, second, third = (Pod.model_validate(pod) for pod in pods)
    for pod_read in (first, second, second, first):
        ask(alike, pod_read, CONFIG, reading)
    assert reading.calls == 2
    for pod_read in (third, first):
        ask(alike, pod_read, CONFIG, reading)
    assert reading.calls == 4


def test_what_is_refused_is_refused_again() -> None:
    broken = a_pod()
    broken["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = "lots"
    for number in range(2):
        broken["metadata"]["name"] = f"train-{number}"
        with pytest.raises(BadInput, match=r"aliyun\.com/gpu-mem"):
            read(Pod.model_validate(broken), CONFIG)
