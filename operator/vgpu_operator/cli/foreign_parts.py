"""Leaves out of a document what is not a configuration of HAMi's or ours, and names it.

`kubectl get configmaps -o yaml` lists the ConfigMaps of many programs, and one of HAMi's own has a
configuration of kube-scheduler. None of these is a reason to refuse the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_api.config.hami import NVIDIA, VENDOR_SECTIONS, parsed
from vgpu_api.errors import BadInput
from vgpu_operator.cli.hami_values import is_values, read_values

_LISTS = ("List", "ConfigMapList")
_DOCUMENTS = (".yaml", ".yml", ".json")
_HAMIS = ("device-config.yaml",)
"""Keys of ConfigMaps that hold a configuration of HAMi's whatever it says: its errors count."""
_SECTIONS = frozenset(
    {
        *(NVIDIA, *VENDOR_SECTIONS, "nodeconfig", "scheduler"),
        *(field.alias or name for name, field in ClusterConfig.model_fields.items()),
    }
)


def without_foreign_parts(document: Any, left: list[str], at: str = "") -> Any:
    """Return the document without foreign parts; None if nothing else is in it.

    Args:
        document: A parsed document.
        left: Gets a line for each part that is left out.
        at: Its path, for lines; empty for a whole file.

    Raises:
        BadInput: A text in a ConfigMap is not a YAML document.
    """
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind in _LISTS:
        return _list(document, left)
    if kind == "ConfigMap":
        return _config_map(document, at, left)
    if kind is not None:
        left.append(_line(at, f"a {kind} is not a configuration"))
        return None
    if is_values(document):
        document, lines = read_values(document)
        left += [_line(at, line) for line in lines]
    return document


def _list(document: Mapping[str, Any], left: list[str]) -> Any:
    items = document.get("items")
    if not isinstance(items, list):
        raise BadInput(field="items", value=items, expected="a list")
    read = [
        without_foreign_parts(item, left, f"items[{number}]") for number, item in enumerate(items)
    ]
    # Items that are left out keep their place, so that paths in errors stay those of the document.
    own = [{} if item is None else item for item in read]
    return {"kind": "List", "items": own} if any(own) else None


def _config_map(document: Mapping[str, Any], at: str, left: list[str]) -> Any:
    data = document.get("data")
    if not isinstance(data, dict):
        return dict(document)
    texts = {key: text for key, text in data.items() if str(key).endswith(_DOCUMENTS)}
    own = {key: text for key, text in data.items() if key not in texts and _is_flat(str(key))}
    name = (document.get("metadata") or {}).get("name", "")
    for key, text in texts.items():
        why = _foreign(f"{at}.data[{key}]".lstrip("."), str(key), text)
        if why:
            left.append(_line(at, f"ConfigMap {name}: data[{key}]: {why}"))
        else:
            own[key] = text
    if not own:
        if not texts:
            left.append(_line(at, f"ConfigMap {name}: it has no configuration of HAMi's"))
        return None
    return {**document, "data": own}


def _foreign(field: str, key: str, text: Any) -> str:
    """Return what a text in a ConfigMap is, if it is no configuration of HAMi's or ours."""
    if key in _HAMIS or not isinstance(text, str):
        return ""
    try:
        document = parsed(text, field)
    except BadInput:
        if _SECTIONS.isdisjoint(_first_words(text)):
            return "it is not a configuration"
        raise
    if not isinstance(document, dict):
        return "it is not a configuration" if document is not None else ""
    if "kind" in document:
        return f"a {document['kind']} is not a configuration"
    if not document or not _SECTIONS.isdisjoint(document):
        return ""
    return "it is not a configuration of HAMi's"


def _first_words(text: str) -> set[str]:
    """Return the words that may be the sections of a text that cannot be parsed."""
    return {line.partition(":")[0].strip(' "{') for line in text.splitlines()}


def _is_flat(key: str) -> bool:
    return key.partition(".")[0] in (NVIDIA, *VENDOR_SECTIONS)


def _line(at: str, text: str) -> str:
    return f"{at}: {text}" if at else text
