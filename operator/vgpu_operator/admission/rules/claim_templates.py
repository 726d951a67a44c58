"""Changes pods that name ResourceClaimTemplates of our classes to ask in HAMi's words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from vgpu_api.config import ClusterConfig
from vgpu_api.core.resource_claim import DeviceRequests, ResourceClaimSpec
from vgpu_api.field_errors import describe
from vgpu_operator.admission.rules.denial import Denied, denying
from vgpu_operator.admission.rules.json_patch import JsonPatch, Operation
from vgpu_operator.admission.rules.raw_pod import read_pod, without_nulls
from vgpu_operator.dialects.claim_templates import asked_by, is_ours
from vgpu_operator.dialects.containers import PodContainer, each_container


def templates_named_by(raw_pod: dict[str, Any]) -> dict[str, str]:
    """Return the templates that a pod names, by the entry of its `resourceClaims`.

    Raises:
        Denied: The pod is invalid.
    """
    with denying():
        entries = read_pod(raw_pod).spec.resource_claims
    return {
        entry.name: entry.resource_claim_template_name
        for entry in entries
        if entry.resource_claim_template_name
    }


def ask_by_templates(
    raw_pod: dict[str, Any], templates: Mapping[str, dict[str, Any]], config: ClusterConfig
) -> list[Operation]:
    """Return the JSON patch with which a pod asks in HAMi's words for what its templates say.

    Templates of other classes stay as they are.

    Args:
        raw_pod: The pod as the API server sent it.
        templates: The ResourceClaimTemplates that exist, by the entry that names them.
        config: The resource names.

    Raises:
        Denied: A template asks for something that cannot be honoured.
    """
    with denying():
        pod = read_pod(raw_pod)
        ours = {
            entry: (template["metadata"]["name"], devices)
            for entry, template in templates.items()
            if is_ours(devices := _devices(template))
        }
        if not ours:
            return []
        asked = asked_by(pod, ours, config)
    patch = JsonPatch(raw_pod)
    kept = [each for each in patch.get("spec", "resourceClaims") or [] if each["name"] not in ours]
    patch.set("spec", "resourceClaims", value=kept)
    for place in each_container(pod):
        _ask(place, asked.amounts.get(place.name, {}), ours, patch)
    for key, value in asked.annotations.items():
        patch.set("metadata", "annotations", key, value=value)
    return patch.operations


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


def _devices(template: dict[str, Any]) -> DeviceRequests:
    name, spec = template["metadata"]["name"], template.get("spec") or {}
    try:
        return ResourceClaimSpec.model_validate(without_nulls(spec.get("spec") or {})).devices
    except ValidationError as error:
        raise Denied(f"resourceclaimtemplates/{name}: {describe(error)}") from error
