"""CustomResourceDefinitions: a kind is served as soon as its definition is stored.

One version of a kind is served: the storage version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vgpu_local.apiserver import errors
from vgpu_local.apiserver.errors import Cause
from vgpu_local.apiserver.kinds import Column, Obj, Resource

AGE = Column("Age", ".metadata.creationTimestamp", type="date")


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a CRD defines, with defaults filled in."""

    plural: str
    singular: str
    kind: str
    list_kind: str
    short_names: tuple[str, ...]
    categories: tuple[str, ...]

    @classmethod
    def of(cls, spec: Obj) -> Names:
        """Read `spec.names`."""
        names = spec["names"]
        kind = names["kind"]
        return cls(
            plural=names["plural"],
            singular=names.get("singular") or kind.lower(),
            kind=kind,
            list_kind=names.get("listKind") or f"{kind}List",
            short_names=tuple(names.get("shortNames", ())),
            categories=tuple(names.get("categories", ())),
        )


def resource_of(definition: Obj) -> Resource:
    """Return the kind that a (valid) CRD defines."""
    spec = definition["spec"]
    names = Names.of(spec)
    version = next(entry for entry in spec["versions"] if entry.get("storage"))
    subresources = version.get("subresources") or {}
    columns = [
        Column(
            name=entry["name"],
            json_path=entry["jsonPath"],
            type=entry["type"],
            format=entry.get("format", ""),
            description=entry.get("description", ""),
            priority=entry.get("priority", 0),
        )
        for entry in version.get("additionalPrinterColumns") or ()
    ]
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=names.plural,
        kind=names.kind,
        namespaced=spec["scope"] == "Namespaced",
        short_names=names.short_names,
        categories=names.categories,
        has_status="status" in subresources,
        selectable=tuple(
            entry["jsonPath"].removeprefix(".") for entry in version.get("selectableFields") or ()
        ),
        columns=tuple(columns) or (AGE,),
        schema=version["schema"]["openAPIV3Schema"],
        custom=True,
        singular=names.singular,
        needs_version=True,
    )


def causes(definition: Obj) -> list[Cause]:
    """Return the faults of a CRD: missing parts, a wrong name, no structural schema."""
    spec = definition.get("spec")
    if not isinstance(spec, dict):
        return [Cause("spec", "FieldValueRequired", "Required value")]
    found = [
        Cause(f"spec.{key}", "FieldValueRequired", "Required value")
        for key in ("group", "names", "scope", "versions")
        if not spec.get(key)
    ]
    if found:
        return found
    wanted = f"{spec['names'].get('plural', '')}.{spec['group']}"
    if definition["metadata"]["name"] != wanted:
        name = definition["metadata"]["name"]
        text = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        found.append(Cause("metadata.name", "FieldValueInvalid", text))
    if sum(bool(entry.get("storage")) for entry in spec["versions"]) != 1:
        text = "Invalid value: must have exactly one version marked as storage version"
        found.append(Cause("spec.versions", "FieldValueInvalid", text))
    for at, entry in enumerate(spec["versions"]):
        path = f"spec.versions[{at}].schema.openAPIV3Schema"
        schema = (entry.get("schema") or {}).get("openAPIV3Schema")
        if not isinstance(schema, dict):
            found.append(Cause(path, "FieldValueRequired", "schemas are required"))
        else:
            found += _not_structural(schema, path)
    return found


def _not_structural(schema: Obj, path: str) -> list[Cause]:
    """Return violations of rules of structural schemas that generated schemas may break."""
    found: list[Cause] = []
    free = schema.get("x-kubernetes-int-or-string") or schema.get(
        "x-kubernetes-preserve-unknown-fields"
    )
    if not schema.get("type") and not free:
        found.append(
            Cause(
                f"{path}.type",
                "FieldValueRequired",
                "must not be empty for specified object fields",
            )
        )
    if schema.get("properties") and schema.get("additionalProperties"):
        text = "Forbidden: additionalProperties and properties are mutual exclusive"
        found.append(Cause(f"{path}.additionalProperties", "FieldValueForbidden", text))
    if schema.get("x-kubernetes-list-type") == "map":
        found += _list_map_keys(schema, path)
    for key, below in (schema.get("properties") or {}).items():
        found += _not_structural(below, f"{path}.properties[{key}]")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found += _not_structural(schema[key], f"{path}.{key}")
    return found


def _list_map_keys(schema: Obj, path: str) -> list[Cause]:
    """Check that keys of a list-map are required or have a default, and so identify items."""
    items = schema.get("items") or {}
    required = items.get("required", ())
    properties = items.get("properties") or {}
    text = (
        "Required value: this property is in x-kubernetes-list-map-keys, so it must have a"
        " default or be a required property"
    )
    return [
        Cause(f"{path}.items.properties[{key}].default", "FieldValueRequired", text)
        for key in schema.get("x-kubernetes-list-map-keys", ())
        if key not in required and "default" not in properties.get(key, {})
    ]


def established(definition: Obj, now: str) -> None:
    """Write the status of a CRD that is served in place: accepted names, Established."""
    names = Names.of(definition["spec"])
    accepted: Obj = {
        "plural": names.plural,
        "singular": names.singular,
        "kind": names.kind,
        "listKind": names.list_kind,
    }
    if names.short_names:
        accepted["shortNames"] = list(names.short_names)
    if names.categories:
        accepted["categories"] = list(names.categories)
    old: dict[str, Any] = {
        condition["type"]: condition
        for condition in (definition.get("status") or {}).get("conditions", ())
    }
    conditions = [
        old.get(kind)
        or {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
        }
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    definition["spec"]["names"] = accepted
    definition["spec"].setdefault("conversion", {"strategy": "None"})
    definition["status"] = {
        "acceptedNames": accepted,
        "conditions": conditions,
        "storedVersions": [
            entry["name"] for entry in definition["spec"]["versions"] if entry.get("storage")
        ],
    }


def check(resource: Resource, definition: Obj) -> None:
    """Refuse a CRD that the real server would refuse.

    Raises:
        StatusError: 422 with a cause for each fault.
    """
    found = causes(definition)
    if found:
        raise errors.invalid(resource, definition["metadata"]["name"], found)
