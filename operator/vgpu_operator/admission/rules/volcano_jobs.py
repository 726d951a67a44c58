"""Volcano Jobs: the pods of their tasks, checked when the Job is created.

Volcano's job controller makes the pods later. What admission answers then reaches the controller
and not the author: a refusal shows as a Job that stays without pods, and a warning nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_operator.admission.rules.denial import Denied
from vgpu_operator.admission.rules.json_patch import applied
from vgpu_operator.admission.rules.no_effect import unanswered, without_effect
from vgpu_operator.admission.rules.pod_mutation import mutate_pod, switched_off
from vgpu_operator.admission.rules.pod_validation import validate_pod
from vgpu_operator.admission.rules.raw_pod import RawPod
from vgpu_operator.admission.rules.warnings import misspelt, unasked

_VOLCANO = "volcano"
"""The scheduler of a Job that names none."""


def check_volcano_job(raw_job: dict[str, Any], config: ClusterConfig) -> list[str]:
    """The warnings for the pods that a Volcano Job asks for, each with the path of its task.

    Whether its namespace may switch limits off is left to the creation of the pods.

    Raises:
        Denied: Its pods would be refused; the path is that in the Job.
    """
    return [
        f"{path}.{warning}"
        for path, pod in _pods_of(raw_job)
        for warning in _checked(path, pod, config)
    ]


def _checked(path: str, pod: RawPod, config: ClusterConfig) -> list[str]:
    try:
        operations = mutate_pod(pod, config, None, may_disable_control=True)
        admitted = RawPod(applied(pod, operations))
        validate_pod(admitted, config, may_disable_control=True)
        warnings = [*switched_off(pod, config), *unasked(admitted, config)]
        warnings += without_effect(admitted, config)
        return [*warnings, *misspelt(admitted, config), *unanswered(admitted, config)]
    except Denied as refusal:
        raise Denied(f"{path}.{refusal.message}") from refusal


def _pods_of(raw_job: dict[str, Any]) -> Iterator[tuple[str, RawPod]]:
    """A pod of each task, as the job controller makes it: in the Job's group, for its scheduler.

    What has not the shape of a Job is left to the Job's own schema.
    """
    spec = _object(raw_job.get("spec"))
    tasks = spec.get("tasks")
    for at, task in enumerate(tasks if isinstance(tasks, list) else []):
        template = _object(_object(task).get("template"))
        metadata = _object(template.get("metadata"))
        group = {names.VOLCANO_GROUP: str(_object(raw_job.get("metadata")).get("name", ""))}
        yield (
            f"spec.tasks[{at}].template",
            RawPod(
                metadata={
                    **metadata,
                    "annotations": {**_object(metadata.get("annotations")), **group},
                },
                spec={
                    "schedulerName": spec.get("schedulerName") or _VOLCANO,
                    **_object(template.get("spec")),
                },
            ),
        )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
