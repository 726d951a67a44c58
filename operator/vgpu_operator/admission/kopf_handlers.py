"""Reviews objects that people write by hand, by calling the rules from Kopf handlers.

The id of a handler is the path to which the webhook configurations send its reviews. Objects that
controllers create in large numbers are reviewed in `reviews`, without Kopf.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import jsonpatch
import kopf

from vgpu_operator.admission.outcomes import answering
from vgpu_operator.admission.rules import mutate_ephemeral_containers, validate_configuration

PATHS = ("mutate-ephemeral-containers", "validate-configuration")
"""The ids of the handlers."""


def register(registry: kopf.OperatorRegistry) -> None:
    """Register the admission handlers."""
    logging.getLogger("kopf.objects").addFilter(_is_no_refusal)

    @kopf.on.mutate(
        "",
        "v1",
        "pods",
        id="mutate-ephemeral-containers",
        operations=["UPDATE"],
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
    """Make Kopf respond with these JSON patch operations."""

    def apply(mutated: Any) -> None:
        jsonpatch.apply_patch(mutated, operations, in_place=True)

    if operations:
        patch.fns.append(apply)


def _is_no_refusal(_: logging.LogRecord) -> bool:
    """Return False for Kopf's log record of a refusal, which `answering` has already logged.

    Kopf logs every refusal as a handler error. It does so while it handles the exception, and
    nothing else in the record distinguishes a refusal from a fault.
    """
    return not isinstance(sys.exception(), kopf.AdmissionError)
