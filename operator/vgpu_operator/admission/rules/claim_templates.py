"""Rewrites pods that name ResourceClaims or templates of our classes to HAMi's resource names."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from vgpu_api import dra
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.core.resource_claim import DeviceRequests, ResourceClaimSpec
from vgpu_api.errors import BadInput, Fault
from vgpu_api.field_errors import describe
from vgpu_api.names import (
    ANNOTATION_GROUP,
    ANNOTATION_GROUP_MIN,
    ANNOTATION_RESOURCE_CLAIM,
    ANNOTATION_RESOURCES,
    ANNOTATION_SCHEDULER_CLAIM,
)
from vgpu_operator.admission.rules.denial import Denied, denying
from vgpu_operator.admission.rules.json_patch import JsonPatch, Operation
from vgpu_operator.admission.rules.no_effect import CHOOSING, PREFERRING
from vgpu_operator.admission.rules.raw_pod import read_pod, without_nulls
from vgpu_operator.dialects import read
from vgpu_operator.dialects.claim_templates import (
    ClaimText,
    asked_by,
    asked_of_scheduler,
    is_of_scheduler,
    is_ours,
    of_claim,
    of_template,
)
from vgpu_operator.dialects.containers import PodContainer, each_container
from vgpu_operator.dialects.hami_annotations import annotation_field
from vgpu_operator.dialects.moved import moved
from vgpu_operator.dialects.resource_claims import (
    claim_of_pod,
    entry_of,
    note_of,
    scheduler_entry,
)

_FIELD = f"metadata.annotations[{ANNOTATION_RESOURCE_CLAIM}]"
_OF_THE_OPERATOR: Mapping[str, str] = {
    **dict.fromkeys(
        (ANNOTATION_GROUP, ANNOTATION_GROUP_MIN),
        "kube-scheduler allocates this pod's GPUs, so it alone can start a group together: name a "
        "PodGroup of Kubernetes in spec.schedulingGroup",
    ),
    **dict.fromkeys(
        (key for key in CHOOSING if key not in PREFERRING),
        "kube-scheduler chooses this pod's GPUs: write a selector or a constraint in its "
        "ResourceClaim or template",
    ),
}
"""Annotations that kube-scheduler does not read, and what to write in their place."""


class NamedObjects(NamedTuple):
    """The names or the objects that the entries of a pod's `resourceClaims` name, by entry."""

    templates: Mapping[str, Any]
    claims: Mapping[str, Any]


def objects_named_by(raw_pod: dict[str, Any]) -> NamedObjects:
    """Return the names of the templates and ResourceClaims that a pod's author has written.

    There are no claims if admission has read them before.

    Raises:
        Denied: The pod is invalid.
    """
    with denying():
        pod = read_pod(raw_pod)
        entries = pod.spec.resource_claims
        templates = {
            entry.name: entry.resource_claim_template_name
            for entry in entries
            if entry.resource_claim_template_name
        }
        if ANNOTATION_RESOURCE_CLAIM in pod.metadata.annotations:
            _refuse_forged(pod)
            return NamedObjects(templates, {})
        claims = {
            entry.name: entry.resource_claim_name
            for entry in entries
            if entry.resource_claim_name and not dra.is_made_name(entry.resource_claim_name)
        }
    return NamedObjects(templates, claims)


def _refuse_forged(pod: Pod) -> None:
    noted = pod.metadata.annotations[ANNOTATION_RESOURCE_CLAIM]
    if not claim_of_pod(pod):
        raise BadInput(
            field=_FIELD,
            value=noted,
            detail="no entry of spec.resourceClaims names such a ResourceClaim: leave it out, "
            "admission writes it",
        )


def ask_by_claims(
    raw_pod: dict[str, Any], found: NamedObjects, config: ClusterConfig
) -> list[Operation]:
    """Return the JSON patch that requests what a pod's claims describe, with HAMi's resource names.

    An entry for a template goes away, since the operator makes a ResourceClaim in its place. One
    for a ResourceClaim stays, and is noted. Those of other classes stay as they are.

    Args:
        raw_pod: The pod as the API server sent it.
        found: The ResourceClaims and templates that exist, by the entry that names them.
        config: The resource names.

    Raises:
        Denied: Something is asked for that cannot be honoured.
    """
    with denying():
        pod = read_pod(raw_pod)
        templates = _ours(found.templates, are_templates=True)
        claims = _ours(found.claims, are_templates=False)
        named = {**templates, **claims}
        _refuse_forged_note(pod, named)
        if not named:
            return []
        _refuse_several(pod, templates, claims)
        entry = next((each for each, of in named.items() if is_of_scheduler(of.devices)), "")
        if entry:
            return _ask_scheduler(raw_pod, pod, entry, named, config)
        asked = asked_by(pod, named, config)
    patch = JsonPatch(raw_pod)
    if templates:
        entries = patch.get("spec", "resourceClaims") or []
        kept = [each for each in entries if each["name"] not in templates]
        patch.set("spec", "resourceClaims", value=kept)
    for place in each_container(pod):
        _ask(place, asked.amounts.get(place.name, {}), templates, patch)
    for key, value in asked.annotations.items():
        patch.set("metadata", "annotations", key, value=value)
    for entry in claims:
        noted = note_of(entry, found.claims[entry]["metadata"]["uid"])
        patch.set("metadata", "annotations", ANNOTATION_RESOURCE_CLAIM, value=noted)
    return patch.operations


def asks_as_described(
    raw_pod: dict[str, Any], claim: dict[str, Any], config: ClusterConfig
) -> bool:
    """Return True if `ask_by_claims` has made a pod ask for what its author's ResourceClaim says.

    Args:
        raw_pod: A pod that admission has reviewed before.
        claim: The ResourceClaim through which it is served.
        config: The resource names.

    Raises:
        Denied: The ResourceClaim asks for something that cannot be honoured.
    """
    with denying():
        pod, named = read_pod(raw_pod), claim["metadata"]
        if scheduler_entry(pod):
            return True  # `ask_by_claims` compares it
        entry = entry_of(pod)
        described = _ours({entry: claim}, are_templates=False)
        noted = pod.metadata.annotations.get(ANNOTATION_RESOURCE_CLAIM)
        is_noted = noted == note_of(entry, named["uid"])
        if not described or dra.is_made_name(named["name"]) or not is_noted:
            return False
        asked = asked_by(pod, described, config)
        annotations = {
            **pod.metadata.annotations,
            **asked.annotations,
            ANNOTATION_RESOURCES: json.dumps(dict(asked.amounts)),
        }
        metadata = pod.metadata.model_copy(update={"annotations": annotations})
        anew = pod.model_copy(update={"metadata": metadata})
        return read(pod, config) == read(anew, config)


def _refuse_forged_note(pod: Pod, named: Mapping[str, ClaimText]) -> None:
    """Refuse a note of an entry for kube-scheduler where the pod has none."""
    noted = pod.metadata.annotations.get(ANNOTATION_SCHEDULER_CLAIM, "")
    if noted and not any(is_of_scheduler(each.devices) for each in named.values()):
        raise BadInput(
            field=f"metadata.annotations[{ANNOTATION_SCHEDULER_CLAIM}]",
            value=noted,
            detail="no entry of spec.resourceClaims names a ResourceClaim or template of class "
            f"{dra.SCHEDULER_CLASS}: leave it out, admission writes it",
        )


def _ask_scheduler(
    raw_pod: dict[str, Any],
    pod: Pod,
    entry: str,
    named: Mapping[str, ClaimText],
    config: ClusterConfig,
) -> list[Operation]:
    """Return the patch of a pod whose devices kube-scheduler allocates: its claim stays as it is.

    Raises:
        BadInput: Something cannot be honoured.
    """
    if len(named) > 1:
        raise _several(named)
    _refuse_choices(pod)
    amounts = asked_of_scheduler(pod, entry, named[entry], config)
    noted = pod.metadata.annotations.get(ANNOTATION_SCHEDULER_CLAIM)
    if noted == entry and moved(pod, config).keys() == amounts.keys():
        return []  # it was reviewed before; what is allocated is compared with the amounts later
    patch = JsonPatch(raw_pod)
    for place in each_container(pod):
        _ask(place, amounts.get(place.name, {}), (), patch)
    patch.set("metadata", "annotations", ANNOTATION_SCHEDULER_CLAIM, value=entry)
    return patch.operations


def _refuse_choices(pod: Pod) -> None:
    """Refuse annotations that only the operator could honour; preferences get a warning."""
    for key, instead in _OF_THE_OPERATOR.items():
        if key in pod.metadata.annotations:
            raise BadInput.forbidden(annotation_field(key), instead)


def _several(entries: Collection[str]) -> BadInput:
    return BadInput.forbidden(
        "spec.resourceClaims",
        f"{', '.join(entries)} all ask for GPUs, and a pod gets them through one ResourceClaim: "
        "write a request for each container in one",
    )


def _refuse_several(pod: Pod, templates: Collection[str], claims: Collection[str]) -> None:
    """Refuse a ResourceClaim next to any other request for devices: a pod may use only one way."""
    if claims and (len(claims) > 1 or templates):
        raise _several([*claims, *templates])
    if dra.POD_ENTRY in claims:
        raise BadInput(
            field="spec.resourceClaims",
            value=dra.POD_ENTRY,
            fault=Fault.DUPLICATE,
            detail="admission uses an entry of this name: give yours another",
        )


def _ask(
    place: PodContainer, amounts: Mapping[str, str], entries: Collection[str], patch: JsonPatch
) -> None:
    """Let a container ask for amounts in place of the claims with these entries."""
    steps = ("spec", place.section, place.index, "resources")
    used = patch.get(*steps, "claims") or []
    rest = [each for each in used if each.get("name") not in entries]
    if rest != used:
        patch.set(*steps, "claims", value=rest)
    for resource, amount in amounts.items():
        for kind in ("limits", "requests"):
            patch.set(*steps, kind, resource, value=amount)


def _ours(objects: Mapping[str, dict[str, Any]], *, are_templates: bool) -> dict[str, ClaimText]:
    """Return what the objects of our classes say, by entry."""
    read = {}
    for entry, obj in objects.items():
        spec = obj.get("spec") or {}
        devices = _devices(obj, (spec.get("spec") or {}) if are_templates else spec)
        if is_ours(devices) or is_of_scheduler(devices):
            name = obj["metadata"]["name"]
            read[entry] = of_template(name, devices) if are_templates else of_claim(name, devices)
    return read


def _devices(obj: dict[str, Any], spec: dict[str, Any]) -> DeviceRequests:
    try:
        return ResourceClaimSpec.model_validate(without_nulls(spec)).devices
    except ValidationError as error:
        kind = obj.get("kind", "object")
        raise Denied(f"{kind} {obj['metadata']['name']}: {describe(error)}") from error
