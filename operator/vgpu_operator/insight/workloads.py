"""Derives the pods that a cluster's controllers would create for workloads.

A Deployment, a Job or a list is not placed itself, but its pods are. A table maps each kind to a
function that yields its pod templates, each with the number of pods that run at the same time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vgpu_api import names
from vgpu_api.errors import BadInput

MOST_PODS = 10_000
"""The most pods in one document; a larger number is probably a mistake."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Template:
    """A pod template of a workload.

    Attributes:
        name: The name of its pods, without the ordinal.
        field: The field path of the template's parent.
        template: The pod template itself.
        pods: The number of pods that run at the same time.
    """

    name: str
    field: str
    template: Document
    pods: int


def holds_pods(document: Document) -> bool:
    """Return True for a pod, a claim, a workload, or a list that contains one of these."""
    items = _items(document)
    if items is not None:
        return any(isinstance(item, dict) and holds_pods(item) for item in items)
    kind = document.get("kind")
    return kind in ("Pod", "VGPUClaim") or (isinstance(kind, str) and kind in _TEMPLATES)


def objects_of(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield the objects in documents, with those in lists one by one.

    Raises:
        BadInput: An item of a list is no object.
    """
    for document in documents:
        items = _items(document)
        if items is None:
            yield document
        else:
            yield from objects_of(_object(item, f"items[{at}]") for at, item in enumerate(items))


def pods_of(document: Document, nodes: Sequence[str]) -> Iterator[Document]:
    """Yield the pods and claims in a document; other objects, such as Services, are skipped.

    The pods of a workload have its namespace, and its name followed by an ordinal.

    Args:
        document: An object as a user would apply it.
        nodes: The nodes of the cluster. A DaemonSet has a pod on each, bound to it by affinity.

    Raises:
        BadInput: The object is invalid; the message names the field.
    """
    items = _items(document)
    if items is not None:
        for each in objects_of([document]):
            yield from pods_of(each, nodes)
        return
    kind = document.get("kind")
    if kind in ("Pod", "VGPUClaim"):
        yield document
        return
    find = _TEMPLATES.get(kind) if isinstance(kind, str) else None
    if find is None:
        return
    for found in find(document):
        if kind == "DaemonSet":
            for node in nodes:
                yield _pinned(_pod(document, found, node), node)
        else:
            for number in range(found.pods):
                yield _pod(document, found, str(number))


def _items(document: Document) -> list[Any] | None:
    kind, items = document.get("kind"), document.get("items")
    is_list = isinstance(kind, str) and kind.endswith("List")
    return items if is_list and isinstance(items, list) else None


def _plain(document: Document) -> Iterator[Template]:
    """Yield the template of a workload that has one, such as a Deployment."""
    spec = _object(document.get("spec"), "spec")
    yield _template(document, spec, "spec", _number(spec, "replicas", "spec.replicas"))


def _job(document: Document) -> Iterator[Template]:
    """Yield the template of a batch/v1 Job, or of each task of a Volcano Job."""
    spec = _object(document.get("spec"), "spec")
    if not str(document.get("apiVersion", "")).startswith("batch.volcano.sh/"):
        yield _template(document, spec, "spec", _at_once(spec, "spec"))
        return
    tasks = spec.get("tasks")
    if not isinstance(tasks, list):
        raise BadInput(field="spec.tasks", value=tasks, expected="a list of tasks")
    for at, task in enumerate(tasks):
        path = f"spec.tasks[{at}]"
        body = _object(task, path)
        name = f"{_name(document)}-{body.get('name', at)}"
        replicas = _number(body, "replicas", f"{path}.replicas")
        template = _object(body.get("template"), f"{path}.template")
        yield Template(name, path, _of_group(template, document, path), replicas)


def _of_group(template: Document, job: Document, path: str) -> Document:
    """Return the template with the scheduler and PodGroup that Volcano's controller would set."""
    spec = _object(template.get("spec"), f"{path}.template.spec")
    metadata = _object(template.get("metadata") or {}, f"{path}.template.metadata")
    written = metadata.get("annotations")
    annotations = written if isinstance(written, dict) else {}
    group = {**annotations, names.VOLCANO_GROUP: _name(job)}
    scheduler = _object(job.get("spec"), "spec").get("schedulerName") or "volcano"
    return {
        **template,
        "metadata": {**metadata, "annotations": group},
        "spec": {"schedulerName": scheduler, **spec},
    }


def _cron_job(document: Document) -> Iterator[Template]:
    """Yield the template for one run of a CronJob."""
    spec = _object(document.get("spec"), "spec")
    path = "spec.jobTemplate.spec"
    job = _object(_object(spec.get("jobTemplate"), "spec.jobTemplate").get("spec"), path)
    yield _template(document, job, path, _at_once(job, path))


_TEMPLATES: Mapping[str, Callable[[Document], Iterator[Template]]] = {
    "Deployment": _plain,
    "ReplicaSet": _plain,
    "ReplicationController": _plain,
    "StatefulSet": _plain,
    "DaemonSet": _plain,
    "Job": _job,
    "CronJob": _cron_job,
}


def _template(document: Document, holder: Document, path: str, pods: int) -> Template:
    template = _object(holder.get("template"), f"{path}.template")
    return Template(_name(document), path, template, pods)


def _at_once(job: Document, path: str) -> int:
    """Return how many pods of a Job run at once: `parallelism`, but at most `completions`."""
    parallelism = _number(job, "parallelism", f"{path}.parallelism")
    completions = job.get("completions")
    if completions is None:
        return parallelism
    return min(parallelism, _number(job, "completions", f"{path}.completions"))


def _pod(document: Document, found: Template, suffix: str) -> dict[str, Any]:
    raw_metadata = found.template.get("metadata")
    metadata = dict(
        _object({} if raw_metadata is None else raw_metadata, f"{found.field}.template.metadata")
    )
    metadata["name"] = f"{found.name}-{suffix}"
    owner = document.get("metadata")
    namespace = owner.get("namespace") if isinstance(owner, dict) else None
    if namespace is not None:
        metadata["namespace"] = namespace
    return {**found.template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def _pinned(pod: dict[str, Any], node: str) -> dict[str, Any]:
    """Return the pod with the affinity by which the DaemonSet controller binds it to its node."""
    pod = copy.deepcopy(pod)
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return pod
    affinity = spec.setdefault("affinity", {})
    if not isinstance(affinity, dict):
        return pod  # the pod is refused later, with the name of the field
    node_affinity = affinity.setdefault("nodeAffinity", {})
    if isinstance(node_affinity, dict):
        required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        terms = (required.get("nodeSelectorTerms") if isinstance(required, dict) else None) or [{}]
        here = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
            "nodeSelectorTerms": [
                {**term, "matchFields": here} if isinstance(term, dict) else term for term in terms
            ]
        }
    return pod


def _name(document: Document) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) and name else str(document.get("kind")).lower()


def _object(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(field=field, value=value, expected="an object")
    return value


def _number(holder: Document, key: str, field: str) -> int:
    """Return a number of pods; 1 if none is given."""
    number = holder.get(key)
    if number is None:
        return 1
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MOST_PODS:
        raise BadInput(field=field, value=number, expected=f"a number of pods, 0 to {MOST_PODS}")
    return number
