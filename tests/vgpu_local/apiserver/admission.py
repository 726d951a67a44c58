"""Admission webhooks, called for real over HTTPS: mutating ones first, then validating ones.

It deliberately does not evaluate match conditions beyond a comparison of the user's name,
re-invocation, and admission policies; code that depends on them is tested on a real control plane.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson

from vgpu_api.names import OPERATOR_USER
from vgpu_local.apiserver import errors
from vgpu_local.apiserver.calls import Call
from vgpu_local.apiserver.errors import StatusError
from vgpu_local.apiserver.kinds import Obj, Registry, Resource
from vgpu_local.apiserver.patch import json_patch
from vgpu_local.apiserver.selectors import label_selector
from vgpu_local.apiserver.storage import Store

_GROUP = "admissionregistration.k8s.io"
_EXEMPT = frozenset(
    f"{plural}.{_GROUP}"
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
)
_USER_IS = re.compile(
    r"""^\s*(?P<no>!?)\(?\s*request\.userInfo\.username\s*(?P<op>==|!=)\s*['"](?P<user>[^'"]*)['"]\s*\)?\s*$"""
)


_REPLICA_OF_OPERATOR = re.compile(r"operator-\d+")


def _username(call: Call) -> str:
    """Return the account of a caller.

    Replicas have names of their own, so that faults can target one.
    """
    return OPERATOR_USER if _REPLICA_OF_OPERATOR.fullmatch(call.user) else call.user


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write as webhooks see it: CREATE, UPDATE, DELETE or CONNECT of an object or subresource."""

    resource: Resource
    subresource: str
    operation: str
    namespace: str
    name: str
    obj: Obj | None
    old: Obj | None
    call: Call

    @property
    def kind(self) -> Obj:
        """Return the kind of `object`: a Binding for `pods/binding`, else the resource's own."""
        if self.subresource == "binding":
            return {"group": "", "version": "v1", "kind": "Binding"}
        return {
            "group": self.resource.group,
            "version": self.resource.version,
            "kind": self.resource.kind,
        }


class Admission:
    """The webhooks registered at this moment.

    Args:
        services: The address behind a reference: `NAMESPACE/NAME` → `https://127.0.0.1:PORT`.
    """

    def __init__(self, store: Store, registry: Registry, services: Mapping[str, str]) -> None:
        self._store = store
        self._registry = registry
        self._services = services
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def close(self) -> None:
        """Close the connections to the webhooks."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def hooks(self, plural: str, attempt: Attempt) -> list[Obj]:
        """Return the webhooks of `plural` (a configuration kind) for this attempt, in order."""
        resource = self._registry.by_path(_GROUP, "v1", plural)
        assert resource is not None  # built in
        table = self._store.table(resource)
        if not len(table) or attempt.resource.qualified in _EXEMPT:
            return []
        return [
            webhook
            for stored in table.listed(None)
            for webhook in stored.obj.get("webhooks") or ()
            if self._concerned(webhook, attempt)
        ]

    async def mutate(self, attempt: Attempt) -> Obj | None:
        """Return the object as the mutating webhooks changed it; None if they did not.

        Raises:
            StatusError: one of them denied it, or could not be reached and must not be skipped.
        """
        changed: Obj | None = None
        for webhook in self.hooks("mutatingwebhookconfigurations", attempt):
            response = await self._call(webhook, attempt)
            if response and response.get("patch"):
                operations = orjson.loads(base64.b64decode(response["patch"]))
                if operations:
                    document = orjson.loads(orjson.dumps(attempt.obj))
                    changed = json_patch(document, operations)
                    attempt = replace(attempt, obj=changed)
        return changed

    async def validate(self, attempt: Attempt) -> None:
        """Ask the validating webhooks, all at once.

        Raises:
            StatusError: as for `mutate`.
        """
        webhooks = self.hooks("validatingwebhookconfigurations", attempt)
        if webhooks:
            await asyncio.gather(*(self._call(hook, attempt) for hook in webhooks))

    def _concerned(self, webhook: Obj, attempt: Attempt) -> bool:
        return (
            any(_rule_matches(rule, attempt) for rule in webhook.get("rules") or ())
            and self._namespace_selected(webhook.get("namespaceSelector"), attempt)
            and _object_selected(webhook.get("objectSelector"), attempt)
            and all(_condition(item, attempt) for item in webhook.get("matchConditions") or ())
        )

    def _namespace_selected(self, selector: Mapping[str, Any] | None, attempt: Attempt) -> bool:
        if not selector:
            return True
        name = attempt.name if attempt.resource.plural == "namespaces" else attempt.namespace
        if not name:
            return True  # cluster-scoped objects are never excluded by it
        stored = self._store.table(self._registry.get("namespaces")).get("", name)
        labels = stored.obj["metadata"].get("labels", {}) if stored else {}
        return label_selector(selector)(labels)

    async def _call(self, webhook: Obj, attempt: Attempt) -> Obj | None:
        name = webhook["name"]
        try:
            answer = await self._post(webhook, _review(attempt))
            response: Obj = answer["response"]
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, OSError) as error:
            if webhook.get("failurePolicy") == "Ignore":
                return None
            why = f'failed calling webhook "{name}": failed to call webhook: {error or "timeout"}'
            raise errors.internal(why) from error
        attempt.call.warnings += response.get("warnings") or ()
        if response.get("allowed"):
            return response
        raise _denial(name, response.get("status") or {})

    async def _post(self, webhook: Obj, review: Obj) -> Obj:
        config = webhook.get("clientConfig") or {}
        if self._session is None:
            self._session = aiohttp.ClientSession()
        url, verified_as = self._address(config)
        async with self._session.post(
            url,
            data=orjson.dumps(review),
            headers={"Content-Type": "application/json"},
            ssl=self._context(config.get("caBundle", "")) if url.startswith("https") else False,
            server_hostname=verified_as if url.startswith("https") else None,
            timeout=aiohttp.ClientTimeout(total=webhook.get("timeoutSeconds", 10)),
        ) as answer:
            body = await answer.read()
            if answer.status != 200:
                raise ValueError(f'Post "{url}": answered {answer.status}: {body[:200]!r}')
            decoded: Obj = orjson.loads(body)
            return decoded

    def _address(self, config: Obj) -> tuple[str, str | None]:
        """Return the URL to call, and the certificate's name if it differs from the URL's host."""
        if config.get("url"):
            return str(config["url"]), None
        service = config["service"]
        key = f"{service['namespace']}/{service['name']}"
        if key not in self._services:
            raise ValueError(f'service "{service["name"]}" not found')
        path = service.get("path", "/")
        return self._services[key].rstrip(
            "/"
        ) + path, f"{service['name']}.{service['namespace']}.svc"

    def _context(self, bundle: str) -> ssl.SSLContext:
        context = self._contexts.get(bundle)
        if context is None:
            authorities = base64.b64decode(bundle).decode() if bundle else None
            context = ssl.create_default_context(cadata=authorities)
            self._contexts[bundle] = context
        return context


def _rule_matches(rule: Obj, attempt: Attempt) -> bool:
    plural = attempt.resource.plural
    full = f"{plural}/{attempt.subresource}" if attempt.subresource else plural
    accepted = {full, "*/*", f"{plural}/*"}
    if attempt.subresource:
        accepted.add(f"*/{attempt.subresource}")
    else:
        accepted.add("*")
    scope = "Namespaced" if attempt.resource.namespaced else "Cluster"
    return (
        bool({"*", attempt.operation} & set(rule.get("operations") or ()))
        and bool({"*", attempt.resource.group} & set(rule.get("apiGroups") or ()))
        and bool({"*", attempt.resource.version} & set(rule.get("apiVersions") or ()))
        and bool(accepted & set(rule.get("resources") or ()))
        and rule.get("scope", "*") in ("*", scope)
    )


def _object_selected(selector: Mapping[str, Any] | None, attempt: Attempt) -> bool:
    if not selector:
        return True
    matches = label_selector(selector)
    return any(
        matches(obj.get("metadata", {}).get("labels") or {})
        for obj in (attempt.obj, attempt.old)
        if obj is not None
    )


def _condition(condition: Obj, attempt: Attempt) -> bool:
    match = _USER_IS.match(condition.get("expression", ""))
    if match is None:
        return True
    same = _username(attempt.call) == match["user"]
    holds = same if match["op"] == "==" else not same
    return not holds if match["no"] else holds


def _review(attempt: Attempt) -> Obj:
    resource = {
        "group": attempt.resource.group,
        "version": attempt.resource.version,
        "resource": attempt.resource.plural,
    }
    request: Obj = {
        "uid": str(uuid.uuid4()),
        "kind": attempt.kind,
        "resource": resource,
        "requestKind": attempt.kind,
        "requestResource": resource,
        "name": attempt.name,
        "operation": attempt.operation,
        "userInfo": {"username": _username(attempt.call), "groups": ["system:authenticated"]},
        "object": attempt.obj,
        "oldObject": attempt.old,
        "dryRun": attempt.call.dry_run,
        "options": None,
    }
    if attempt.namespace:
        request["namespace"] = attempt.namespace
    if attempt.subresource:
        request["subResource"] = request["requestSubResource"] = attempt.subresource
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _denial(name: str, status: Obj) -> StatusError:
    said = f'admission webhook "{name}" denied the request'
    text = status.get("message") or status.get("reason")
    code = status.get("code") or 0
    return StatusError(
        code if code >= 400 else 400,
        status.get("reason") or "",
        f"{said}: {text}" if text else f"{said} without explanation",
        details=status.get("details"),
    )
