"""The annotations with which a pod names its group; each refusal names field, value and rule."""

from __future__ import annotations

from typing import Any

import jsonpatch
import pytest

from builders import GATE
from vgpu_api.config import ClusterConfig
from vgpu_operator.admission.rules import Denied, mutate_pod

NAME, LEAST = (f"metadata.annotations[vgpu.dev/group{end}]" for end in ("", "-min"))
A_NUMBER = "a whole number from 1 to 99999: how many pods of the group start together"


def admit(annotations: dict[str, str], config: ClusterConfig = GATE, **spec: Any) -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": [container], **spec},
    }
    once = jsonpatch.apply_patch(pod, mutate_pod(pod, config, None))
    assert mutate_pod(once, config, None) == []


@pytest.mark.parametrize("least", ["1", "8", "99999"])
def test_a_group_with_a_minimum_is_accepted(least: str) -> None:
    admit({"vgpu.dev/group": "train.a-1", "vgpu.dev/group-min": least})


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"group": "g"}, f"{LEAST}: Required value: {A_NUMBER}"),
        ({"group-min": "2"}, f"{NAME}: Required value: vgpu.dev/group-min counts the pods of a gr"),
        *(
            (
                {"group": "g", "group-min": wrong},
                f'{LEAST}: Invalid value: "{wrong}": must be {A_NUMBER}',
            )
            for wrong in ("0", "-1", "two", "", "1.5", "02", "100000", "٣")
        ),
        *(
            (
                {"group": wrong, "group-min": "2"},
                f'{NAME}: Invalid value: "{wrong}": must be at most 253 lower-case letters, digits',
            )
            for wrong in ("", "Train", "a b", "-a", "a/b", "a" * 254)
        ),
    ],
)
def test_a_wrong_group_is_refused(annotations: dict[str, str], message: str) -> None:
    with pytest.raises(Denied) as denial:
        admit({f"vgpu.dev/{name}": value for name, value in annotations.items()})
    assert denial.value.code == 422
    shown = denial.value.message
    assert shown.startswith(message) or "…" in shown  # a long value is shortened


def test_a_pod_of_a_pod_group_names_no_second_group() -> None:
    with pytest.raises(Denied, match=r"Forbidden: spec\.schedulingGroup names the pod's gro"):
        admit(
            {"vgpu.dev/group": "g", "vgpu.dev/group-min": "2"},
            schedulingGroup={"podGroupName": "g"},
        )


def test_where_kube_scheduler_decides_our_words_are_refused_with_the_right_ones() -> None:
    with pytest.raises(Denied) as denial:
        admit({"vgpu.dev/group": "g", "vgpu.dev/group-min": "2"}, ClusterConfig())
    assert denial.value.message == (
        f'{NAME}: Unsupported value: "g": scheduling.mode is Extender, where kube-scheduler starts '
        "the pods; name a PodGroup of scheduling.k8s.io in spec.schedulingGroup"
    )
