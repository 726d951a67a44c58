"""JSON as it is on the wire: by orjson where that is installed, else by the standard library.

Servers decode thousands of objects and need orjson; `kubectl vgpu` is installed without it. With
both, a text that is not JSON is a `ValueError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _chosen() -> tuple[Callable[[object], bytes], Callable[[bytes], Any]]:
    try:
        import orjson
    except ModuleNotFoundError:
        return _dumps, json.loads
    return orjson.dumps, orjson.loads


dumps, loads = _chosen()
