"""Admission of what people write by hand, as kopf handlers around the rules of `admission`.

Each handler is served at a path that is its id (`PATHS`); the webhook configurations name these.
Pods that are created are reviewed in `pods`.
"""

from __future__ import annotations

import logging
from typing import Any

import jsonpatch
import kopf

from vgpu_api.config import ConfigFile
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_operator.admission import (
    mutate_claim,
    mutate_ephemeral_containers,
    validate_claim,
    validate_configuration,
)
from vgpu_operator.handlers.outcomes import answering

PATHS = (
    "mutate-ephemeral-containers",
    "mutate-claims",
    "validate-claims",
    "validate-configuration",
)
"""The handlers' ids."""


def register(registry: kopf.OperatorRegistry, *, source: ConfigFile) -> None:
    """Put the admission handlers into a registry.

    Each review is answered by the configuration that is in force when it comes.
    """
    logging.getLogger("kopf.objects").addFilter(_is_no_refusal)

    @kopf.on.mutate(
        "",
        "v1",
        "pods",
        id="mutate-ephemeral-containers",
        operation="UPDATE",
        subresource="ephemeralcontainers",
        registry=registry,
    )
    async def mutate_debugged(
        body: kopf.Body, patch: kopf.Patch, namespace: str | None, **more: Any
    ) -> None:
        pod = dict(body)
        with answering("pod", pod, namespace):
            _patch(patch, mutate_ephemeral_containers(pod, dict(more["old"])))

    @kopf.on.mutate(
        VGPU_CLAIMS.group,
        VGPU_CLAIMS.version,
        VGPU_CLAIMS.plural,
        id="mutate-claims",
        operation="CREATE",
        registry=registry,
    )
    async def mutate_claims(
        body: kopf.Body, patch: kopf.Patch, namespace: str | None, **_: Any
    ) -> None:
        with answering("claim", dict(body), namespace):
            _patch(patch, mutate_claim(dict(body)))

    @kopf.on.validate(
        VGPU_CLAIMS.group,
        VGPU_CLAIMS.version,
        VGPU_CLAIMS.plural,
        id="validate-claims",
        operations=["CREATE", "UPDATE"],
        registry=registry,
    )
    async def validate_claims(body: kopf.Body, **more: Any) -> None:
        old = more["old"]
        with answering("claim", dict(body), more["namespace"]):
            validate_claim(
                dict(body),
                None if old is None else dict(old),
                max_priority=source.config.scheduling.max_claim_priority,
            )

    @kopf.on.validate(
        "",
        "v1",
        "configmaps",
        id="validate-configuration",
        operations=["CREATE", "UPDATE"],
        registry=registry,
    )
    async def validate_configurations(
        body: kopf.Body, warnings: list[str], namespace: str | None, **_: Any
    ) -> None:
        with answering("configuration", dict(body), namespace):
            warnings += validate_configuration(dict(body))


def _patch(patch: kopf.Patch, operations: list[dict[str, Any]]) -> None:
    """Have kopf answer with these operations."""

    def apply(mutated: Any) -> None:
        jsonpatch.apply_patch(mutated, operations, in_place=True)

    if operations:
        patch.fns.append(apply)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Kopf logs each refusal as an error of its handler; `answering` has logged it already."""
    return "failed permanently" not in record.getMessage()
