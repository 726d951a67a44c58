"""The native dialect: a pod names a claim, or a template from which a claim is made for each pod.

Admission adds a slot (the count resource) to each container of the claim, so that the kubelet calls
our device plugin, and records these containers. For recorded containers no other dialect applies.
"""

from __future__ import annotations

import re

from vgpu_api import names
from vgpu_api.core import Pod
from vgpu_api.effective import out_of_order
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPUClaimSpec, VGPURequest
from vgpu_operator.dialects.containers import PodContainer, each_container
from vgpu_operator.dialects.pod_demand import NamedClaim

SLOTS_ADDED_FIELD = f"metadata.annotations[{names.ANNOTATION_SLOTS_ADDED}]"
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_OBJECT_NAME_LENGTH = 253


def claim_field(named: NamedClaim) -> str:
    """Return the field path of the annotation that names the claim."""
    key = names.ANNOTATION_CLAIM_TEMPLATE if named.is_template else names.ANNOTATION_CLAIM
    return f"metadata.annotations[{key}]"


def named_claim(pod: Pod) -> NamedClaim | None:
    """Return the claim or template that the pod names, or None.

    Raises:
        BadInput: The pod names both, or the value is not the name of a claim in its namespace.
    """
    annotations = pod.metadata.annotations
    claim = annotations.get(names.ANNOTATION_CLAIM)
    template = annotations.get(names.ANNOTATION_CLAIM_TEMPLATE)
    if claim is None and template is None:
        return None
    if claim is not None and template is not None:
        raise BadInput.forbidden(
            f"metadata.annotations[{names.ANNOTATION_CLAIM_TEMPLATE}]",
            f"the pod has {names.ANNOTATION_CLAIM}: name a claim or a template",
        )
    name = claim if claim is not None else template or ""
    named = NamedClaim(name=name, is_template=claim is None)
    if "/" in name:
        raise BadInput(
            field=claim_field(named),
            value=name,
            expected="the name of a claim in the pod's own namespace; "
            "a claim of another namespace cannot be used",
        )
    if len(name) > _OBJECT_NAME_LENGTH or not _OBJECT_NAME.fullmatch(name):
        raise BadInput(field=claim_field(named), value=name, expected="the name of a claim")
    return named


def slots_added(pod: Pod) -> tuple[str, ...]:
    """Return the containers to which admission added a slot."""
    text = pod.metadata.annotations.get(names.ANNOTATION_SLOTS_ADDED, "")
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def containers_of_claim(pod: Pod, spec: VGPUClaimSpec) -> tuple[str, ...]:
    """Return the container for each request of the claim, in the order of the requests.

    A single request without a name belongs to the first recorded container of its phase, or else to
    the first container of its phase. So a sidecar that is injected in front after admission does
    not get the devices.

    Raises:
        BadInput: A request names no container of the pod, or one of another phase.
    """
    by_name = {place.name: place for place in each_container(pod)}
    containers = tuple(_container_of(pod, by_name, request) for request in spec.requests)
    if (turned := out_of_order(spec, containers, pod)) is not None:
        first, second = turned
        raise BadInput(
            field=by_name[first].path,
            value=first,
            detail=f"must start after container {second}, whose request stands before its own: "
            "write the claim's requests in the order in which the pod starts its containers, "
            "init containers first",
        )
    return containers


def _container_of(pod: Pod, by_name: dict[str, PodContainer], request: VGPURequest) -> str:
    if not request.name:
        return _unnamed(pod, by_name, request)
    place = by_name.get(request.name)
    if place is None:
        raise BadInput(
            field="spec.containers",
            value=sorted(by_name),
            detail=f"must have container {request.name}: the claim has a request for it",
        )
    if place.phase != request.phase:
        raise BadInput(
            field=place.path,
            value=request.name,
            expected=f"a container of phase {request.phase}, as the claim's request is",
        )
    return place.name


def _unnamed(pod: Pod, by_name: dict[str, PodContainer], request: VGPURequest) -> str:
    """Return the container for a single request without a name."""
    candidates = [place for place in by_name.values() if place.phase == request.phase]
    names_recorded = slots_added(pod)
    recorded = [place for place in candidates if place.name in names_recorded]
    section = "containers" if request.phase == "App" else "initContainers"
    usual = [place for place in recorded or candidates if place.section == section]
    first = next(iter(usual or recorded), None)
    if first is None:
        raise BadInput(
            field=f"spec.{section}",
            value=[],
            detail=f"must have a container: the claim's request is of phase {request.phase}",
        )
    return first.name
