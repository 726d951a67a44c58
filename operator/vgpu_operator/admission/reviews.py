"""Reviews pods, Jobs and claims, without going through Kopf.

A rollout creates pods in rapid succession, and each of them waits for its review. Kopf would copy
and compare the object and start a handler with its own logger and state, which costs more CPU than
the rules (docs/design/admission-and-kopf.md). It also reviews only kinds that existed when it
started, and Volcano may be installed later. Objects that people write by hand are reviewed in
`kopf_handlers`.

A pod that asks for a device is reviewed once: it is mutated or refused, and the answer has all
warnings about the result. The API server asks again if a webhook of somebody else changes the pod
afterwards (`reinvocationPolicy: IfNeeded`), so the rules hold for that pod as well.
"""

from __future__ import annotations

import contextlib
import secrets
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import kopf
import orjson

from vgpu_api.config import ConfigFile
from vgpu_api.names import DISABLE_CONTROL_ALLOWED, LABEL_DISABLE_CONTROL
from vgpu_api.resources import (
    NAMESPACES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_operator.admission.outcomes import answering
from vgpu_operator.admission.quotas import refuse_over_quota
from vgpu_operator.admission.rules import (
    Denied,
    NamedObjects,
    RawPod,
    ask_by_claims,
    asks_as_described,
    check_volcano_job,
    claim_named_by,
    claim_without_effect,
    copied_claim,
    disables_control,
    misspelt,
    mutate_claim,
    mutate_pod,
    objects_named_by,
    pod_warnings,
    resource_claim_named_by,
    too_many_containers,
    unanswered,
    validate_claim,
    waits_for_claim,
)
from vgpu_operator.admission.rules.json_patch import Operation, applied

PATHS = (
    "mutate-pods",
    "warn-pods",
    "check-volcano-jobs",
    "mutate-claims",
    "validate-claims",
)
"""The paths to which the webhook configurations send these reviews."""

Verdict = tuple[list[Operation], list[str]]
"""The operations that change an admitted object, and warnings for its author."""


class ReviewRequest(NamedTuple):
    """The parts of a review besides the object itself.

    Attributes:
        namespace: The namespace of the object.
        old: The stored object; None if the object is being created.
        user: The account that sent the request.
    """

    namespace: str
    old: dict[str, Any] | None
    user: str


Rule = Callable[[RawPod, ReviewRequest], Awaitable[Verdict]]
"""Returns the verdict on an object. Jobs and claims are passed as JSON."""


class Reviews:
    """Answers reviews, each with the configuration that is current at that time.

    Attributes:
        answers: The function that answers reviews, by webhook path.
    """

    def __init__(self, api: Api, source: ConfigFile) -> None:
        self._api = api
        self._source = source
        rules = (
            (self._mutate, "pod"),
            (self._warn, "pod"),
            (self._check_job, "job"),
            (self._mutate_claim, "claim"),
            (self._validate_claim, "claim"),
        )
        self.answers = {
            path: _answering_by(rule, kind) for path, (rule, kind) in zip(PATHS, rules, strict=True)
        }

    async def _mutate(self, pod: RawPod, request: ReviewRequest) -> Verdict:
        excess, config = too_many_containers(pod), self._source.config
        if excess is not None:
            raise Denied(excess)
        await self._refuse_copied(pod, request.namespace)
        asking = await self._ask_by_claims(pod, request.namespace)
        pod = RawPod(applied(pod, asking)) if asking else pod
        named = claim_named_by(pod)
        claim = None if named is None else await self._read_claim(request.namespace, named.name)
        may = await self._may_disable_control(pod, request.namespace)
        token = secrets.token_hex(6)
        operations = mutate_pod(pod, config, claim, may_disable_control=may, token=token)
        admitted = RawPod(applied(pod, operations)) if operations else pod
        if config.scheduling.quota_at == "Admission":
            await refuse_over_quota(admitted, request.namespace, api=self._api, config=config)
        waits = waits_for_claim(admitted) if named is not None and claim is None else []
        return [*asking, *operations], [*waits, *pod_warnings(pod, admitted, config)]

    async def _ask_by_claims(self, pod: RawPod, namespace: str) -> list[Operation]:
        """Return the patch that makes a pod request what its ResourceClaims and templates describe.

        One that does not exist yet may be of any class, so it is left to Kubernetes. If it turns
        out to be of ours, the operator tells the pod.
        """
        if self._source.config.scheduling.mode != "Claims":
            return []
        named = objects_named_by(pod)
        found = NamedObjects(
            await self._existing(RESOURCE_CLAIM_TEMPLATES, named.templates, namespace),
            await self._existing(RESOURCE_CLAIMS, named.claims, namespace),
        )
        return ask_by_claims(pod, found, self._source.config)

    async def _existing(
        self, resource: Resource, names: Mapping[str, str], namespace: str
    ) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for entry, name in names.items():
            with contextlib.suppress(NotFound):
                found[entry] = await self._api.get(resource, name, namespace=namespace)
        return found

    async def _warn(self, pod: RawPod, _: ReviewRequest) -> Verdict:
        config, excess = self._source.config, too_many_containers(pod)
        if excess is not None:
            return [], [f"{excess}: vgpu did not check for settings without effect"]
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
        """Return True if the namespace allows its pods to disable limits.

        The namespace is read only for a pod that asks for this.
        """
        if not disables_control(pod):
            return False
        try:
            found = await self._api.get(NAMESPACES, namespace)
        except NotFound:
            return False
        labels = found["metadata"].get("labels") or {}
        return bool(labels.get(LABEL_DISABLE_CONTROL) == DISABLE_CONTROL_ALLOWED)

    async def _refuse_copied(self, pod: RawPod, namespace: str) -> None:
        """Refuse a pod that was copied from another with the ResourceClaim of that one.

        It would share the other's devices. A claim of the operator's is made after the pod, so none
        exists when the API server calls a second time for a new pod. One of the author's own making
        exists, and then the pod asks for what it describes.
        """
        name = resource_claim_named_by(pod)
        if name:
            with contextlib.suppress(NotFound):
                found = await self._api.get(RESOURCE_CLAIMS, name, namespace=namespace)
                if not asks_as_described(pod, found, self._source.config):
                    raise Denied(copied_claim(name))

    async def _read_claim(self, namespace: str, name: str) -> VGPUClaim | None:
        """Read the claim from the API server, because a cache could lag behind the last command."""
        try:
            return VGPUClaim.read(await self._api.get(VGPU_CLAIMS, name, namespace=namespace))
        except NotFound:
            return None


def _answering_by(rule: Rule, kind: str) -> Callable[[Any], Awaitable[Any]]:
    """Return a function that answers AdmissionReviews by applying a rule.

    Args:
        rule: Decides about the object.
        kind: The kind of the object, for the log.
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
