"""The ResourceClaims and ResourceClaimTemplates of a manifest, for the pods that name them.

Admission reads them when a pod is created, in Claims mode, and lets it ask for the same by resource
names. Only objects of the manifest are read, not those of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vgpu_api import dra
from vgpu_api.config import ClusterConfig
from vgpu_api.core.resource_claim import DeviceRequests, ResourceClaimSpec
from vgpu_api.errors import BadInput
from vgpu_api.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from vgpu_operator.admission.rules import NamedObjects, ask_by_claims, objects_named_by
from vgpu_operator.admission.rules.json_patch import applied
from vgpu_operator.admission.rules.raw_pod import without_nulls
from vgpu_operator.dialects.claim_templates import is_of_scheduler, is_ours

Document = Mapping[str, Any]
KINDS = (RESOURCE_CLAIMS.kind, RESOURCE_CLAIM_TEMPLATES.kind)
_UID = "of-the-manifest"
"""Stands for the UID that the API server would give to a ResourceClaim."""


class DeviceClaims:
    """ResourceClaims and templates by kind, namespace and name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._serves: dict[tuple[str, str], str] = {}

    def add(self, document: Document, namespace: str, name: str) -> None:
        """Add an object.

        Raises:
            BadInput: It is of another API version, or its spec cannot be read.
            pydantic.ValidationError: The same.
        """
        kind, version = str(document["kind"]), document.get("apiVersion")
        if version != RESOURCE_CLAIMS.api_version:
            raise BadInput.unsupported("apiVersion", version, [RESOURCE_CLAIMS.api_version])
        _devices(document)
        # Objects are keyed by namespace, which is `default` if the document has none.
        metadata = {"name": name, "namespace": namespace, "uid": _UID}
        self._known[kind, namespace, name] = {**document, "metadata": metadata}

    def asked_by(self, pod: Document, namespace: str, config: ClusterConfig) -> dict[str, Any]:
        """Return a pod that requests what its claims and templates describe, by resource names.

        Raises:
            BadInput: The mode serves none, kube-scheduler would, or another pod has the
                ResourceClaim already.
            Denied: Something in them cannot be honoured.
        """
        raw = dict(pod)
        if not self._known:
            return raw
        found = NamedObjects(
            *(
                {entry: known for entry, known in self._named(raw, namespace, kind) if known}
                for kind in reversed(KINDS)
            )
        )
        for entry, known in (*found.templates.items(), *found.claims.items()):
            if is_of_scheduler(_devices(known)):
                raise BadInput.forbidden(
                    f"spec.resourceClaims[{entry}]",
                    f"kube-scheduler allocates devices of class {dra.SCHEDULER_CLASS}, and its "
                    "decisions are not simulated",
                )
            if is_ours(_devices(known)):
                self._refuse(entry, known, config)
        return applied(raw, ask_by_claims(raw, found, config))

    def not_found(self, pod: Document, namespace: str) -> Iterator[str]:
        """Yield a warning for each claim or template that a pod names and the manifest lacks.

        Raises:
            Denied: The pod is invalid.
        """
        for kind in KINDS:
            for entry, known in self._named(dict(pod), namespace, kind):
                if known is None:
                    yield (
                        f"spec.resourceClaims[{entry}]: the devices of this {kind} are not judged: "
                        "add it to the file"
                    )

    def serve(self, pod: Document, namespace: str, name: str) -> Callable[[], None]:
        """Give the pod the ResourceClaim that it names, until the returned function is called."""
        taken = [
            (namespace, known["metadata"]["name"])
            for _, known in self._named(dict(pod), namespace, RESOURCE_CLAIMS.kind)
            if known is not None
        ]
        self._serves.update(dict.fromkeys(taken, name))

        def undo() -> None:
            for key in taken:
                del self._serves[key]

        return undo

    def _named(
        self, pod: dict[str, Any], namespace: str, kind: str
    ) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Yield the entries of a pod that name objects of a kind, with those that are known."""
        named = objects_named_by(pod)
        entries = named.claims if kind == RESOURCE_CLAIMS.kind else named.templates
        for entry, name in entries.items():
            yield entry, self._known.get((kind, namespace, name))

    def _refuse(self, entry: str, known: Document, config: ClusterConfig) -> None:
        field, mode = f"spec.resourceClaims[{entry}]", config.scheduling.mode
        metadata = known["metadata"]
        if mode != "Claims":
            raise BadInput.forbidden(
                field,
                f"claims of {' and '.join(sorted(dra.CLASSES))} are served in scheduling.mode "
                f"Claims, and the mode is {mode}; ask with {config.nvidia.resource_count_name}",
            )
        served = self._serves.get((metadata["namespace"], metadata["name"]))
        if served is not None and known["kind"] == RESOURCE_CLAIMS.kind:
            raise BadInput(
                field=field,
                value=metadata["name"],
                detail=f"it serves pod {served}, and one pod at a time; name a "
                "ResourceClaimTemplate, and each pod gets a claim of its own",
            )


def _devices(document: Document) -> DeviceRequests:
    """Return the devices that a claim or template asks for."""
    spec = document.get("spec")
    if document["kind"] == RESOURCE_CLAIM_TEMPLATES.kind and isinstance(spec, dict):
        spec = spec.get("spec")
    if not isinstance(spec, dict):
        raise BadInput(field="spec", value=spec, expected="an object with devices")
    return ResourceClaimSpec.model_validate(without_nulls(spec)).devices
