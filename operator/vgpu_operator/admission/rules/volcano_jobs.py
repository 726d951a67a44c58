"""Checks the pods of a Volcano Job when the Job is created.

Volcano's job controller creates the pods later. Responses to pod reviews reach only the controller
and not the author: a refusal would show as a Job without pods, and a warning would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_operator.admission.rules.denial import Denied
from vgpu_operator.admission.rules.json_patch import applied
from vgpu_operator.admission.rules.pod_mutation import mutate_pod
from vgpu_operator.admission.rules.pod_warnings import pod_warnings
from vgpu_operator.admission.rules.raw_pod import RawPod

_VOLCANO = "volcano"
"""The scheduler of a Job that does not name one."""


def check_volcano_job(raw_job: dict[str, Any], config: ClusterConfig) -> list[str]:
    """Return warnings about the pods of a Volcano Job, each with the path of its task.

    If the namespace may disable limits is checked only when the pods are created.

    Raises:
        Denied: A pod would be refused. The path in the message starts at the Job.
    """
    return [
        f"{path}.{warning}"
        for path, pod in _pods_of(raw_job)
        for warning in _checked(path, pod, config)
    ]


def _checked(path: str, pod: RawPod, config: ClusterConfig) -> list[str]:
    try:
        operations = mutate_pod(pod, config, None, may_disable_control=True)
        return pod_warnings(pod, RawPod(applied(pod, operations)), config)
    except Denied as refusal:
        raise Denied(f"{path}.{refusal.message}") from refusal


def _pods_of(raw_job: dict[str, Any]) -> Iterator[tuple[str, RawPod]]:
    """Yield one pod per task as the job controller would create it, in the Job's group.

    Tasks with an invalid shape are skipped; the schema of Jobs rejects them.
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
