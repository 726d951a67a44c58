"""Discovery: the lists of served kinds, in the legacy and in the aggregated form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vgpu_local.apiserver.kinds import Obj, Registry, Resource

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERSION: Obj = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0+stand-in",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCES: dict[str, tuple[str, str, str, list[str]]] = {
    "status": ("", "", "", ["get", "patch", "update"]),
    "binding": ("", "v1", "Binding", ["create"]),
    "eviction": ("policy", "v1", "Eviction", ["create"]),
    "finalize": ("", "", "", ["update"]),
}


def core_versions() -> Obj:
    """Return the document of `/api`."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(registry: Registry) -> Obj:
    """Return the document of `/apis`."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [group(registry, name) for name in sorted(_grouped(registry)) if name],
    }


def group(registry: Registry, name: str) -> Obj:
    """Return the document of `/apis/GROUP`."""
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version}
        for version in _grouped(registry).get(name, {})
    ]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": versions,
        "preferredVersion": versions[0] if versions else {},
    }


def resources(registry: Registry, group_name: str, version: str) -> Obj:
    """Return the document of `/api/v1` or `/apis/GROUP/VERSION`."""
    served = _grouped(registry).get(group_name, {}).get(version, [])
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group_name}/{version}" if group_name else version,
        "resources": [entry for resource in served for entry in _entries(resource)],
    }


def aggregated(registry: Registry, *, core: bool) -> Obj:
    """Return `/api` and `/apis` for clients that accept the aggregated form."""
    items = [
        {
            "metadata": {"name": name} if name else {},
            "versions": [
                {
                    "version": version,
                    "freshness": "Current",
                    "resources": [_discovered(resource) for resource in served],
                }
                for version, served in versions.items()
            ],
        }
        for name, versions in sorted(_grouped(registry).items())
        if (name == "") == core
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _grouped(registry: Iterable[Resource]) -> dict[str, dict[str, list[Resource]]]:
    found: dict[str, dict[str, list[Resource]]] = {}
    for resource in registry:
        found.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
    return found


def subresources(resource: Resource) -> list[str]:
    """Return the names of a kind's subresources."""
    return [*(["status"] if resource.has_status else []), *resource.subresources]


def _entries(resource: Resource) -> list[Obj]:
    entry: Obj = {
        "name": resource.plural,
        "singularName": resource.singular or resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _VERBS,
        "storageVersionHash": "",
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    entries = [entry]
    for name in subresources(resource):
        group_name, version, kind, verbs = _SUBRESOURCES[name]
        below: Obj = {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind or resource.kind,
            "verbs": verbs,
        }
        if version:
            below |= {"group": group_name, "version": version}
        entries.append(below)
    return entries


def _discovered(resource: Resource) -> Obj:
    found: Obj = {
        "resource": resource.plural,
        "responseKind": _kind(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular or resource.kind.lower(),
        "verbs": _VERBS,
    }
    if resource.short_names:
        found["shortNames"] = list(resource.short_names)
    if resource.categories:
        found["categories"] = list(resource.categories)
    below: list[Any] = []
    for name in subresources(resource):
        group_name, version, kind, verbs = _SUBRESOURCES[name]
        response = (
            _kind(group_name, version, kind)
            if version
            else _kind(resource.group, resource.version, resource.kind)
        )
        below.append({"subresource": name, "responseKind": response, "verbs": verbs})
    if below:
        found["subresources"] = below
    return found


def _kind(group_name: str, version: str, kind: str) -> Obj:
    return {"group": group_name, "version": version, "kind": kind}
