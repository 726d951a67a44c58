"""The admission webhooks, as kopf handlers around the pure functions of `admission`.

Each handler is served at a path that is its id (`PATHS`); the webhook configurations name these.
"""

from __future__ import annotations

import logging
from typing import Any

import jsonpatch
import kopf

from vgpu_api.config import ConfigFile
from vgpu_api.names import DISABLE_CONTROL_ALLOWED, LABEL_DISABLE_CONTROL
from vgpu_api.resources import NAMESPACES, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.errors import ClientError, NotFound
from vgpu_operator.admission import (
    Denied,
    RawPod,
    claim_named_by,
    disables_control,
    misspelt,
    mutate_claim,
    mutate_ephemeral_containers,
    mutate_pod,
    unasked,
    validate_claim,
    validate_configuration,
    validate_pod,
    waits_for_claim,
    without_effect,
)
from vgpu_operator.admission.jsonpatch import applied
from vgpu_operator.handlers.quotas import refuse_over_quota
from vgpu_operator.metrics import WEBHOOK_REQUESTS

logger = logging.getLogger(__name__)

PATHS = (
    "mutate-pods",
    "mutate-ephemeral-containers",
    "mutate-claims",
    "validate-pods",
    "warn-pods",
    "validate-claims",
    "validate-configuration",
)
"""The handlers' ids."""

_UNAVAILABLE = 503


def register(registry: kopf.OperatorRegistry, *, api: Api, source: ConfigFile) -> None:
    """Put the admission handlers into a registry.

    Each review is answered by the configuration that is in force when it comes.
    """
    logging.getLogger("kopf.objects").addFilter(_is_no_refusal)

    @kopf.on.mutate("", "v1", "pods", id="mutate-pods", operation="CREATE", registry=registry)
    async def mutate_pods(
        body: kopf.Body, patch: kopf.Patch, warnings: list[str], namespace: str | None, **_: Any
    ) -> None:
        pod, config = RawPod(body), source.config
        with _answering("pod", pod, namespace):
            named = claim_named_by(pod)
            claim = None if named is None else await _read_claim(api, namespace or "", named.name)
            may = await _may_disable_control(pod, namespace or "", api)
            operations = mutate_pod(pod, config, claim, may_disable_control=may)
            if named is not None and claim is None:
                warnings += waits_for_claim(applied(pod, operations))
        _patch(patch, operations)

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
        with _answering("pod", pod, namespace):
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
        with _answering("claim", dict(body), namespace):
            _patch(patch, mutate_claim(dict(body)))

    @kopf.on.validate("", "v1", "pods", id="validate-pods", operation="CREATE", registry=registry)
    async def validate_pods(
        body: kopf.Body, warnings: list[str], namespace: str | None, **_: Any
    ) -> None:
        pod, config = RawPod(body), source.config
        with _answering("pod", pod, namespace):
            may = await _may_disable_control(pod, namespace or "", api)
            validate_pod(pod, config, may_disable_control=may)
            if config.scheduling.quota_at == "Admission":
                await refuse_over_quota(pod, namespace or "", api=api, config=config)
            warnings += [*unasked(pod, config), *without_effect(pod, config)]

    @kopf.on.validate("", "v1", "pods", id="warn-pods", operation="CREATE", registry=registry)
    async def warn_pods(
        body: kopf.Body, warnings: list[str], namespace: str | None, **_: Any
    ) -> None:
        pod = RawPod(body)
        with _answering("pod", pod, namespace):
            warnings += misspelt(pod, source.config)

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
        with _answering("claim", dict(body), more["namespace"]):
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
        with _answering("configuration", dict(body), namespace):
            warnings += validate_configuration(dict(body))


def _patch(patch: kopf.Patch, operations: list[dict[str, Any]]) -> None:
    """Have kopf answer with these operations."""

    def apply(mutated: Any) -> None:
        jsonpatch.apply_patch(mutated, operations, in_place=True)

    if operations:
        patch.fns.append(apply)


class _answering:  # noqa: N801 - reads as a statement
    """What the pure functions refuse becomes kopf's refusal, is counted by its code, and logged.

    At INFO: a user's mistake is none of the administrator's.

    Args:
        kind: What is reviewed: `pod`, `claim` or `configuration`.
        body: The object; one of a controller has no name yet.
        namespace: The request's.
    """

    def __init__(self, kind: str, body: dict[str, Any], namespace: str | None) -> None:
        self._kind = kind
        metadata = body.get("metadata") or {}
        self._name = f"{namespace}/{metadata.get('name') or metadata.get('generateName', '')}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Denied):
            WEBHOOK_REQUESTS.labels(code=error.code).inc()
            logger.info("%s %s refused: %s", self._kind, self._name, error.message,
                        extra={self._kind: self._name, "code": error.code})  # fmt: skip
            raise kopf.AdmissionError(error.message, code=error.code) from error
        if isinstance(error, ClientError):
            # Fail closed, with a message that it is not the user's fault.
            WEBHOOK_REQUESTS.labels(code=_UNAVAILABLE).inc()
            text = f"what decides about it cannot be read now, try again: {error}"
            logger.warning("%s %s refused: %s", self._kind, self._name, text)
            raise kopf.AdmissionError(text, code=_UNAVAILABLE) from error
        if error is None:
            WEBHOOK_REQUESTS.labels(code=200).inc()


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Kopf logs each refusal as an error of its handler; `_answering` has logged it already."""
    return "failed permanently" not in record.getMessage()


async def _may_disable_control(pod: dict[str, Any], namespace: str, api: Api) -> bool:
    """Whether the namespace allows it; only a pod that does it costs a read."""
    if not disables_control(pod):
        return False
    try:
        found = await api.get(NAMESPACES, namespace)
    except NotFound:
        return False
    labels = found["metadata"].get("labels") or {}
    return bool(labels.get(LABEL_DISABLE_CONTROL) == DISABLE_CONTROL_ALLOWED)


async def _read_claim(api: Api, namespace: str, name: str) -> VGPUClaim | None:
    """The claim as it stands now: a cache could be behind the user's last command."""
    try:
        return VGPUClaim.read(await api.get(VGPU_CLAIMS, name, namespace=namespace))
    except NotFound:
        return None
