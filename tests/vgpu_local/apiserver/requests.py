"""Decodes requests: the object and its kind, the verb, and the options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import yaml
from aiohttp import web

from vgpu_local.apiserver import errors, protobuf
from vgpu_local.apiserver.calls import Call
from vgpu_local.apiserver.discovery import subresources
from vgpu_local.apiserver.kinds import Obj, Registry, Resource

_ON_NAMESPACE = frozenset({"status", "finalize"})
_VERB_OF_OBJECT = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_VERB_OF_COLLECTION = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_TRUE = frozenset({"1", "true", "True"})
_DEFAULT_USER = "kubernetes-admin"


@dataclass(frozen=True, slots=True)
class Target:
    """The object or collection behind a URL. `namespace` is None where all are meant."""

    resource: Resource
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def fault_key(self) -> str:
        """Return the name in faults, such as `pods/binding` or `vgpuclaims.vgpu.dev/status`."""
        qualified = self.resource.qualified
        return f"{qualified}/{self.subresource}" if self.subresource else qualified

    @property
    def space(self) -> str:
        """Return the namespace of a single object; "" for cluster-scoped kinds."""
        return self.namespace or ""


def target(registry: Registry, path: str) -> Target | None:
    """Return the target of `/api/…` or `/apis/…`; None for any other path, and for discovery.

    Raises:
        UnknownPathError: for a kind or subresource that is not served.
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _ON_NAMESPACE:
        namespace, rest = rest[1], rest[2:]
    resource = registry.by_path(group, version, rest[0])
    if resource is None or len(rest) > 3 or (namespace is not None and not resource.namespaced):
        raise errors.UnknownPathError
    name, subresource = [*rest[1:], "", ""][:2]
    if subresource and subresource not in subresources(resource):
        raise errors.UnknownPathError
    if name and namespace is None and resource.namespaced:
        raise errors.UnknownPathError
    return Target(resource, namespace if resource.namespaced else None, name, subresource)


@dataclass(slots=True)
class Asked:
    """A decoded request: its target, verb and parameters. The body is read when it is needed."""

    request: web.BaseRequest
    target: Target
    query: dict[str, str] = field(default_factory=dict)
    verb: str = ""

    @classmethod
    def of(cls, request: web.BaseRequest, found: Target) -> Asked:
        """Work out the verb.

        Raises:
            StatusError: 405 where the method makes no sense.
        """
        query = dict(request.query)
        if found.subresource and request.method == "POST":
            verb = "create"
        else:
            verbs = _VERB_OF_OBJECT if found.name else _VERB_OF_COLLECTION
            verb = verbs.get(request.method, "")
        if verb == "list" and query.get("watch") in _TRUE:
            verb = "watch"
        if not verb:
            raise errors.StatusError(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
        return cls(request, found, query, verb)

    def call(self) -> Call:
        """Return the user and the manner of the write.

        The user is the bearer token itself: the stand-in does not authenticate.
        """
        query, headers = self.query, self.request.headers
        agent = headers.get("User-Agent", "unknown").partition("/")[0]
        validation = query.get("fieldValidation") or "Warn"
        if validation not in ("Ignore", "Warn", "Strict"):
            raise errors.bad_request(f"invalid fieldValidation {validation!r}")
        return Call(
            manager=query.get("fieldManager") or agent,
            user=headers.get("Authorization", "").removeprefix("Bearer ") or _DEFAULT_USER,
            dry_run="dryRun" in query,
            field_validation=validation,
            force=query.get("force") in _TRUE,
            from_patch=self.verb == "patch",
        )

    def flag(self, name: str) -> bool:
        """Return a boolean parameter."""
        return self.query.get(name) in _TRUE

    @property
    def media_type(self) -> str:
        """Return the body's type, without parameters."""
        return self.request.headers.get("Content-Type", "").partition(";")[0].strip()

    async def body(self) -> Any:
        """Return the decoded body, JSON or YAML; None for an empty one.

        Raises:
            StatusError: 400 for what cannot be decoded, 415 for protobuf.
        """
        raw = await self.request.read()
        if not raw:
            return None
        if self.media_type == protobuf.MEDIA_TYPE:
            try:
                return protobuf.decode(raw)
            except protobuf.UnknownKindError as error:
                raise errors.StatusError(
                    415,
                    "UnsupportedMediaType",
                    "the body of the request was in an unknown format - accepted media types"
                    f" include: application/json, application/yaml ({error})",
                ) from error
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            if "yaml" not in self.media_type:
                raise errors.bad_request(f"error decoding body: {error}") from error
        try:
            return orjson.loads(orjson.dumps(yaml.safe_load(raw)))
        except (yaml.YAMLError, TypeError) as error:
            raise errors.bad_request(f"error decoding YAML: {error}") from error

    async def object(self) -> Obj:
        """Return the body, which must be an object.

        Raises:
            StatusError: 400.
        """
        body = await self.body()
        if not isinstance(body, dict):
            raise errors.bad_request("the body of the request is not an object")
        return body
