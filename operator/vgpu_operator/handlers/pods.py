"""Reviews of pods that are created, and of Jobs that make them, without kopf's part of a review.

They come as fast as a rollout makes pods, and each pod waits for two of them. Kopf copies and
compares an object, and starts a handler with a log and a state of its own, which costs more CPU
than the rules themselves (decision 85); and it reviews only kinds that it has found at its start,
which Volcano's need not be. What people write by hand stays with kopf's handlers
(`admission`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
import orjson

from vgpu_api.config import ConfigFile
from vgpu_api.names import DISABLE_CONTROL_ALLOWED, LABEL_DISABLE_CONTROL
from vgpu_api.resources import NAMESPACES, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_operator.admission import (
    RawPod,
    check_volcano_job,
    claim_named_by,
    disables_control,
    misspelt,
    mutate_pod,
    unanswered,
    unasked,
    validate_pod,
    waits_for_claim,
    without_effect,
)
from vgpu_operator.admission.jsonpatch import Operation, applied
from vgpu_operator.handlers.outcomes import answering
from vgpu_operator.handlers.quotas import refuse_over_quota

POD_PATHS = ("mutate-pods", "validate-pods", "warn-pods", "check-volcano-jobs")
"""Where the webhook configurations send these reviews."""

Verdict = tuple[list[Operation], list[str]]
"""What changes in a pod that is admitted, and the warnings that its author gets."""


class PodReviews:
    """Answers reviews by the configuration that is in force when each comes.

    Attributes:
        answers: By the path of the webhook, what makes the answer to a review.
    """

    def __init__(self, api: Api, source: ConfigFile) -> None:
        self._api = api
        self._source = source
        rules = (self._mutate, self._validate, self._warn, self._check_job)
        kinds = ("pod", "pod", "pod", "job")
        self.answers = {
            path: _answering_by(rule, kind)
            for path, rule, kind in zip(POD_PATHS, rules, kinds, strict=True)
        }

    async def _mutate(self, pod: RawPod, namespace: str) -> Verdict:
        named = claim_named_by(pod)
        claim = None if named is None else await self._read_claim(namespace, named.name)
        may = await self._may_disable_control(pod, namespace)
        operations = mutate_pod(pod, self._source.config, claim, may_disable_control=may)
        if named is not None and claim is None:
            return operations, waits_for_claim(applied(pod, operations))
        return operations, []

    async def _validate(self, pod: RawPod, namespace: str) -> Verdict:
        config = self._source.config
        may = await self._may_disable_control(pod, namespace)
        validate_pod(pod, config, may_disable_control=may)
        if config.scheduling.quota_at == "Admission":
            await refuse_over_quota(pod, namespace, api=self._api, config=config)
        return [], [*unasked(pod, config), *without_effect(pod, config)]

    async def _warn(self, pod: RawPod, _: str) -> Verdict:
        config = self._source.config
        return [], [*misspelt(pod, config), *unanswered(pod, config)]

    async def _check_job(self, job: dict[str, Any], _: str) -> Verdict:
        return [], check_volcano_job(job, self._source.config)

    async def _may_disable_control(self, pod: RawPod, namespace: str) -> bool:
        """Whether the namespace allows it; only a pod that does it costs a read."""
        if not disables_control(pod):
            return False
        try:
            found = await self._api.get(NAMESPACES, namespace)
        except NotFound:
            return False
        labels = found["metadata"].get("labels") or {}
        return bool(labels.get(LABEL_DISABLE_CONTROL) == DISABLE_CONTROL_ALLOWED)

    async def _read_claim(self, namespace: str, name: str) -> VGPUClaim | None:
        """The claim as it stands now: a cache could be behind the user's last command."""
        try:
            return VGPUClaim.read(await self._api.get(VGPU_CLAIMS, name, namespace=namespace))
        except NotFound:
            return None


def _answering_by(
    rule: Callable[[RawPod, str], Awaitable[Verdict]], kind: str
) -> Callable[[Any], Awaitable[Any]]:
    """Answers reviews in the API server's form, by `rule`; a refusal is an answer too.

    Args:
        rule: The verdict on an object of a namespace; of a Job the JSON alone is read.
        kind: What logs call the object.
    """

    async def answer(review: Any) -> Any:
        request = review["request"]
        response = {"uid": request.get("uid", ""), **await reviewed(request)}
        return {
            "apiVersion": review.get("apiVersion", "admission.k8s.io/v1"),
            "kind": review.get("kind", "AdmissionReview"),
            "response": response,
        }

    async def reviewed(request: Any) -> dict[str, Any]:
        if not isinstance(request.get("object"), dict):
            return _refused("request.object: Required value: an object", 400)
        pod, namespace = RawPod(request["object"]), str(request.get("namespace") or "")
        try:
            with answering(kind, pod, namespace):
                operations, warnings = await rule(pod, namespace)
        except kopf.AdmissionError as refusal:
            return _refused(str(refusal), refusal.code)
        admitted: dict[str, Any] = {"allowed": True}
        if warnings:
            admitted["warnings"] = warnings
        if operations:
            patch = b64encode(orjson.dumps(operations)).decode("ascii")
            admitted |= {"patch": patch, "patchType": "JSONPatch"}
        return admitted

    return answer


def _refused(message: str, code: int | None) -> dict[str, Any]:
    return {"allowed": False, "status": {"message": message, "code": code}}
