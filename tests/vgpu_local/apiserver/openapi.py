"""OpenAPI v3 documents: what `kubectl explain` prints and what lets the server validate for it.

Custom kinds carry their CRD's schema, docstrings included; built-in kinds are open objects, so
that kubectl falls back on the types compiled into it.
"""

from __future__ import annotations

from typing import Any

from vgpu_local.apiserver.discovery import VERSION
from vgpu_local.apiserver.kinds import Obj, Registry, Resource

_PATCH_TYPES = (
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",
)
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_API_VERSION = {
    "type": "string",
    "description": ("The version of the schema of this object, for example vgpu.dev/v1alpha1."),
}
_KIND = {"type": "string", "description": "The kind of this object, in CamelCase."}
_OBJECT_META: Obj = {
    "description": "Metadata that all objects have: name, namespace, labels, annotations, owners.",
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Unique within the namespace and kind."},
        "namespace": {"type": "string", "description": "The space that names are unique in."},
        "labels": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Pairs that selectors can ask for.",
        },
        "annotations": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Pairs that selectors cannot ask for.",
        },
        "finalizers": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Who must let go before the object may go.",
        },
        "ownerReferences": {
            "type": "array",
            "items": {"type": "object"},
            "description": "The objects whose deletion deletes this one.",
        },
    },
}


def index(registry: Registry) -> Obj:
    """Return `/openapi/v3`: the location of each group-version's document."""
    paths = {_path(resource) for resource in registry}
    return {
        "paths": {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={registry.version}"}
            for path in sorted(paths)
        }
    }


def document(registry: Registry, path: str) -> Obj | None:
    """Return the document of `api/v1` or `apis/GROUP/VERSION`; None if nothing is served."""
    served = [resource for resource in registry if _path(resource) == path]
    if not served:
        return None
    schemas: Obj = {_META: _OBJECT_META}
    paths: Obj = {}
    for resource in served:
        schemas[_schema_name(resource)] = _schema(resource)
        paths |= _operations(resource)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes stand-in", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def swagger() -> Obj:
    """Return an empty document; clients that request it fall back on what they know."""
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes stand-in", "version": VERSION["gitVersion"]},
        "paths": {},
        "definitions": {},
    }


def _path(resource: Resource) -> str:
    prefix = "apis" if resource.group else "api"
    return f"{prefix}/{resource.api_version}"


def _schema_name(resource: Resource) -> str:
    domain = ".".join(reversed(resource.group.split("."))) if resource.group else "io.k8s.api.core"
    return f"{domain}.{resource.version}.{resource.kind}"


def _group_version_kind(resource: Resource) -> Obj:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _schema(resource: Resource) -> Obj:
    schema = dict(
        resource.schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    )
    schema["properties"] = {
        **schema.get("properties", {}),
        "apiVersion": _API_VERSION,
        "kind": _KIND,
        "metadata": {
            "description": _OBJECT_META["description"],
            "allOf": [{"$ref": f"#/components/schemas/{_META}"}],
        },
    }
    schema["x-kubernetes-group-version-kind"] = [_group_version_kind(resource)]
    return schema


def _operations(resource: Resource) -> Obj:
    base = f"/{_path(resource)}"
    if resource.namespaced:
        base += "/namespaces/{namespace}"
    collection, single = f"{base}/{resource.plural}", f"{base}/{resource.plural}/{{name}}"
    reference = {"$ref": f"#/components/schemas/{_schema_name(resource)}"}
    answer = {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}}

    def operation(action: str, parameters: tuple[str, ...], types: tuple[str, ...] = ()) -> Obj:
        described: Obj = {
            "operationId": f"{action}{resource.kind}",
            "parameters": [_parameter(name) for name in parameters],
            "responses": answer,
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _group_version_kind(resource),
        }
        if types:
            content = {media: {"schema": reference} for media in types}
            described["requestBody"] = {"content": content}
        return described

    writing = ("dryRun", "fieldManager", "fieldValidation")
    json = ("application/json",)
    return {
        collection: {
            "get": operation("list", ("labelSelector", "fieldSelector", "limit", "continue")),
            "post": operation("post", writing, json),
        },
        single: {
            "get": operation("get", ()),
            "put": operation("put", writing, json),
            "patch": operation("patch", (*writing, "force"), _PATCH_TYPES),
            "delete": operation("delete", ("dryRun", "gracePeriodSeconds", "propagationPolicy")),
        },
    }


def _parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
