"""Admission of what people write by hand, as kopf handlers around the rules of `admission`.

Each handler is served at a path that is its id (`PATHS`); the webhook configurations name these.
What programs make is reviewed in `reviews`.
"""

from __future__ import annotations

import logging
from typing import Any

import jsonpatch
import kopf

from vgpu_operator.admission import mutate_ephemeral_containers, validate_configuration
from vgpu_operator.handlers.outcomes import answering

PATHS = ("mutate-ephemeral-containers", "validate-configuration")
"""The handlers' ids."""


def register(registry: kopf.OperatorRegistry) -> None:
    """Put the admission handlers into a registry."""
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
