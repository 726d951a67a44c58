"""The rules of `metadata`, the same for every kind: names, labels, what only the server sets."""

from __future__ import annotations

import random
import re
import uuid
from typing import Any

from vgpu_local.apiserver import errors
from vgpu_local.apiserver.errors import Cause
from vgpu_local.apiserver.kinds import Obj, Resource

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PATH_SEGMENT = re.compile(r"(?!\.\.?$)[^/%]+")
_QUALIFIED = re.compile(
    r"(?:(?P<prefix>[^/]+)/)?(?P<name>[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_ANNOTATIONS_LIMIT = 262_144
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SERVER_SET = (
    "uid",
    "creationTimestamp",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def of(obj: Any) -> Obj:
    """Return the object's metadata, which is created if it is missing.

    Raises:
        StatusError: 400 for what is not an object at all.
    """
    metadata = obj.setdefault("metadata", {}) if isinstance(obj, dict) else None
    if metadata is None and isinstance(obj, dict):
        metadata = obj["metadata"] = {}
    if not isinstance(metadata, dict):
        raise errors.bad_request("the object provided is unrecognized (must be of type Object)")
    for key in ("labels", "annotations"):
        pairs = metadata.get(key)
        if pairs is None:
            metadata.pop(key, None)
        elif not isinstance(pairs, dict) or not all(isinstance(v, str) for v in pairs.values()):
            raise errors.bad_request(
                f"json: cannot unmarshal into Go struct field ObjectMeta.metadata.{key} of type"
                " map[string]string"
            )
        elif not pairs:
            del metadata[key]
    for key in ("finalizers", "ownerReferences"):
        if key in metadata and not metadata[key]:
            del metadata[key]
    return metadata


def prepare_new(resource: Resource, obj: Obj, namespace: str, now: str) -> None:
    """Fill in a new object's name (from generateName), UID and creation time, in place."""
    metadata = of(obj)
    for key in (*_SERVER_SET, "resourceVersion", "generation"):
        metadata.pop(key, None)
    if resource.namespaced:
        metadata["namespace"] = namespace
    else:
        metadata.pop("namespace", None)
    if not metadata.get("name") and metadata.get("generateName"):
        suffix = "".join(random.choices(_SUFFIX_LETTERS, k=5))
        metadata["name"] = f"{metadata['generateName'][:58]}{suffix}"
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = now
    if resource.generation:
        metadata["generation"] = 1


def keep_server_fields(before: Obj, after: Obj) -> None:
    """Restore in place the fields that a client may not change on an update."""
    old, new = before["metadata"], after["metadata"]
    for key in (*_SERVER_SET, "name", "namespace", "generation", "generateName"):
        if key in old:
            new[key] = old[key]
        else:
            new.pop(key, None)


def causes(resource: Resource, obj: Obj) -> list[Cause]:
    """Return the faults of an object's metadata."""
    metadata = obj["metadata"]
    found: list[Cause] = []
    name = metadata.get("name")
    if not name:
        text = "Required value: name or generateName is required"
        found.append(Cause("metadata.name", "FieldValueRequired", text))
    elif not _valid_name(resource, name):
        text = (
            f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case'
            " alphanumeric characters, '-' or '.', and must start and end with an alphanumeric"
            " character"
        )
        found.append(Cause("metadata.name", "FieldValueInvalid", text))
    for key, value in metadata.get("labels", {}).items():
        found += _qualified(key, "metadata.labels")
        if len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            text = (
                f'Invalid value: "{value}": a valid label must be an empty string or consist of'
                " alphanumeric characters, '-', '_' or '.', and must start and end with an"
                " alphanumeric character, 63 characters at most"
            )
            found.append(Cause("metadata.labels", "FieldValueInvalid", text))
    annotations = metadata.get("annotations", {})
    for key in annotations:
        found += _qualified(key.lower(), "metadata.annotations")
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS_LIMIT:
        text = f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes"
        found.append(Cause("metadata.annotations", "FieldValueTooLong", text))
    for at, reference in enumerate(metadata.get("ownerReferences", ())):
        found += [
            Cause(f"metadata.ownerReferences[{at}].{key}", "FieldValueInvalid", 'Invalid value: ""')
            for key in ("apiVersion", "kind", "name", "uid")
            if not reference.get(key)
        ]
    return found


def new_finalizers(before: Obj, after: Obj) -> list[Cause]:
    """Return the finalizers added to an object that is being deleted, which is forbidden."""
    if "deletionTimestamp" not in before["metadata"]:
        return []
    old = before["metadata"].get("finalizers", [])
    added = [word for word in after["metadata"].get("finalizers", []) if word not in old]
    if not added:
        return []
    words = ", ".join(f'"{word}"' for word in added)
    text = (
        "Forbidden: no new finalizers can be added if the object is being deleted,"
        f" found new finalizers []string{{{words}}}"
    )
    return [Cause("metadata.finalizers", "FieldValueForbidden", text)]


def _valid_name(resource: Resource, name: Any) -> bool:
    if not isinstance(name, str) or len(name) > 253:
        return False
    if resource.group == "rbac.authorization.k8s.io":
        return bool(_PATH_SEGMENT.fullmatch(name))
    if resource.plural in ("namespaces", "services"):
        return len(name) <= 63 and bool(_LABEL.fullmatch(name))
    return bool(_SUBDOMAIN.fullmatch(name))


def _qualified(key: str, path: str) -> list[Cause]:
    match = _QUALIFIED.fullmatch(key)
    prefix = match["prefix"] if match else None
    if match and len(match["name"]) <= 63 and (prefix is None or _SUBDOMAIN.fullmatch(prefix)):
        return []
    text = (
        f'Invalid value: "{key}": name part must consist of alphanumeric characters,'
        " '-', '_' or '.', and must start and end with an alphanumeric character,"
        " with an optional DNS subdomain prefix"
    )
    return [Cause(path, "FieldValueInvalid", text)]
