"""Reviews of what programs make, pods, Jobs and claims, without kopf's part of a review.

They come as fast as a rollout makes pods, and each object waits for two of them. Kopf copies and
compares an object, and starts a handler with a log and a state of its own, which costs more CPU
than the rules themselves (docs/design/admission-and-kopf.md); and it reviews only kinds that it has
found at its start, which Volcano's need not be. What people write by hand stays with kopf's
handlers (`admission`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import kopf
import orjson

from vgpu_api.config import ConfigFile
from vgpu_api.names import DISABLE_CONTROL_ALLOWED, LABEL_DISABLE_CONTROL
from vgpu_api.resources import NAMESPACES, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_operator.admission.outcomes import answering
from vgpu_operator.admission.quotas import refuse_over_quota
from vgpu_operator.admission.rules import (
    Denied,
    RawPod,
    check_volcano_job,
    claim_named_by,
    claim_without_effect,
    disables_control,
    misspelt,
    mutate_claim,
    mutate_pod,
    switched_off,
    too_many_containers,
    unanswered,
    unasked,
    validate_claim,
    validate_pod,
    waits_for_claim,
    without_effect,
)
from vgpu_operator.admission.rules.json_patch import Operation, applied

PATHS = (
    "mutate-pods",
    "validate-pods",
    "warn-pods",
    "check-volcano-jobs",
    "mutate-claims",
    "validate-claims",
)
"""Where the webhook configurations send these reviews."""

Verdict = tuple[list[Operation], list[str]]
"""What changes in an object that is admitted, and the warnings that its author gets."""


class ReviewRequest(NamedTuple):
    """What a review has beside its object.

    Attributes:
        namespace: Where that is to be.
        old: As it is stored; None: it is created.
        user: The account that writes it.
    """

    namespace: str
    old: dict[str, Any] | None
    user: str


Rule = Callable[[RawPod, ReviewRequest], Awaitable[Verdict]]
"""The verdict on an object; of a Job and of a claim the JSON alone is read."""


class Reviews:
    """Answers reviews by the configuration that is in force when each comes.

    Attributes:
        answers: By the path of the webhook, what makes the answer to a review.
    """

    def __init__(self, api: Api, source: ConfigFile) -> None:
        self._api = api
        self._source = source
        rules = (
            (self._mutate, "pod"),
            (self._validate, "pod"),
            (self._warn, "pod"),
            (self._check_job, "job"),
            (self._mutate_claim, "claim"),
            (self._validate_claim, "claim"),
        )
        self.answers = {
            path: _answering_by(rule, kind) for path, (rule, kind) in zip(PATHS, rules, strict=True)
        }

    async def _mutate(self, pod: RawPod, request: ReviewRequest) -> Verdict:
        _refuse_many_containers(pod)
        named = claim_named_by(pod)
        claim = None if named is None else await self._read_claim(request.namespace, named.name)
        may = await self._may_disable_control(pod, request.namespace)
        operations = mutate_pod(pod, self._source.config, claim, may_disable_control=may)
        warnings = switched_off(pod, self._source.config)
        if named is not None and claim is None:
            warnings += waits_for_claim(applied(pod, operations))
        return operations, warnings

    async def _validate(self, pod: RawPod, request: ReviewRequest) -> Verdict:
        _refuse_many_containers(pod)
        config = self._source.config
        may = await self._may_disable_control(pod, request.namespace)
        validate_pod(pod, config, may_disable_control=may)
        if config.scheduling.quota_at == "Admission":
            await refuse_over_quota(pod, request.namespace, api=self._api, config=config)
        return [], [*unasked(pod, config), *without_effect(pod, config)]

    async def _warn(self, pod: RawPod, _: ReviewRequest) -> Verdict:
        config, excess = self._source.config, too_many_containers(pod)
        if excess is not None:
            return [], [f"{excess}: vgpu has not looked for words without effect"]
        return [], [*misspelt(pod, config), *unanswered(pod, config)]

    async def _check_job(self, job: dict[str, Any], _: ReviewRequest) -> Verdict:
        return [], check_volcano_job(job, self._source.config)

    async def _mutate_claim(self, claim: dict[str, Any], _: ReviewRequest) -> Verdict:
        return mutate_claim(claim), []

    async def _validate_claim(self, claim: dict[str, Any], request: ReviewRequest) -> Verdict:
        most = self._source.config.scheduling.max_claim_priority
        validate_claim(claim, request.old, max_priority=most, user=request.user)
        return [], claim_without_effect(claim, request.old)

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


def _refuse_many_containers(pod: RawPod) -> None:
    excess = too_many_containers(pod)
    if excess is not None:
        raise Denied(excess)


def _answering_by(rule: Rule, kind: str) -> Callable[[Any], Awaitable[Any]]:
    """Answers reviews in the API server's form, by `rule`; a refusal is an answer too.

    Args:
        rule: The verdict.
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

    async def reviewed(sent: Any) -> dict[str, Any]:
        given, old = sent.get("object"), sent.get("oldObject")
        for key, what in (("object", given), ("oldObject", {} if old is None else old)):
            if not isinstance(what, dict):
                return _refused(f"request.{key}: Required value: an object", 400)
        user = sent.get("userInfo")
        request = ReviewRequest(
            str(sent.get("namespace") or ""),
            old,
            str(user.get("username", "")) if isinstance(user, dict) else "",
        )
        raw = RawPod(given)
        try:
            with answering(kind, raw, request.namespace):
                operations, warnings = await rule(raw, request)
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
