"""The subset of kubectl's JSONPath that printer columns use: fields, indices, `[*]`, filters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

_STEP = re.compile(
    r"""\.(?P<field>(?:\\.|[^.\[\\])+)"""
    r"""|\[\s*(?P<index>-?\d+)\s*\]"""
    r"""|\[\s*(?P<all>\*)\s*\]"""
    r"""|\[\s*['"](?P<quoted>[^'"]*)['"]\s*\]"""
    r"""|\[\?\(\s*@(?P<path>[^=!<>]*?)\s*(?P<op>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\s*\)\]"""
)


@dataclass(frozen=True, slots=True)
class _Filter:
    path: str
    equal: bool
    value: Any


@lru_cache(maxsize=1024)
def _parsed(path: str) -> tuple[str | int | _Filter | None, ...]:
    """Return the steps: a field's name, a list index, None for every item, or a filter.

    Raises:
        ValueError: the path uses what is not supported.
    """
    steps: list[str | int | _Filter | None] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise ValueError(f"unsupported JSONPath {path!r} at {path[at:]!r}")
        if match["index"] is not None:
            steps.append(int(match["index"]))
        elif match["all"]:
            steps.append(None)
        elif match["op"]:
            text = match["value"]
            value = text[1:-1] if text[0] in "'\"" else orjson.loads(text)
            steps.append(_Filter(match["path"], match["op"] == "==", value))
        elif match["quoted"] is not None:
            steps.append(match["quoted"])
        else:
            steps.append(re.sub(r"\\(.)", r"\1", match["field"]))
        at = match.end()
    return tuple(steps)


def find(obj: Any, path: str) -> list[Any]:
    """Return every value that `path` (`.status.conditions[?(@.type=="Ready")].status`) selects.

    Raises:
        ValueError: the path uses what is not supported.
    """
    found = [obj]
    for step in _parsed(path):
        found = [value for item in found for value in _one(item, step)]
    return found


def _one(value: Any, step: str | int | _Filter | None) -> list[Any]:
    if isinstance(step, str):
        if step == "*" and isinstance(value, dict):
            return list(value.values())
        return [value[step]] if isinstance(value, dict) and step in value else []
    if not isinstance(value, list):
        return []
    if step is None:
        return value
    if isinstance(step, int):
        return [value[step]] if -len(value) <= step < len(value) else []
    return [item for item in value if (step.value in find(item, step.path)) == step.equal]
