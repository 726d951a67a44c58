"""Objects share one empty list and one empty dictionary as defaults; both stay empty."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from vgpu_api.core import Pod
from vgpu_api.empties import no_entries, no_items


def test_all_values_share_them() -> None:
    one, other = Pod.model_validate({}), Pod.model_validate({"metadata": {"name": "other"}})
    entries: list[object] = [one.metadata.labels, other.spec.node_selector]
    assert all(found is no_entries() for found in entries)
    items: list[object] = [one.spec.volumes, other.metadata.finalizers]
    assert all(found is no_items() for found in items)
    assert one.to_wire()["metadata"]["labels"] == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.append("x"),
        lambda found: found.extend("x"),
        lambda found: found.insert(0, "x"),
        lambda found: found.__iadd__("x"),
        lambda found: found.__setitem__(slice(None), "x"),
    ],
)
def test_the_list_refuses_to_grow(change: Callable[[list[Any]], object]) -> None:
    with pytest.raises(TypeError, match="make a new one"):
        change(no_items())
    assert no_items() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(x="y"),
        lambda found: found.setdefault("x", "y"),
        lambda found: found.__setitem__("x", "y"),
        lambda found: found.__ior__({"x": "y"}),
    ],
)
def test_the_dictionary_refuses_entries(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(TypeError, match="make a new one"):
        change(no_entries())
    assert no_entries() == {}


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda found: pickle.loads(pickle.dumps(found)),
    ],
)
def test_a_copy_is_like_any_other(copied: Callable[[Any], Any]) -> None:
    items, entries = copied(no_items()), copied(no_entries())
    items.append("x")
    entries["x"] = "y"
    assert (items, entries, no_items(), no_entries()) == (["x"], {"x": "y"}, [], {})
