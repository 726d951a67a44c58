"""Patches contain only the differences, in the form of RFC 6902."""

from __future__ import annotations

from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from vgpu_operator.admission.rules.json_patch import JsonPatch

keys = st.text(alphabet="ab/~0", min_size=1, max_size=3)
documents = st.dictionaries(
    keys, st.none() | st.dictionaries(keys, st.dictionaries(keys, st.integers(), max_size=2))
)


@given(document=documents, edits=st.lists(st.tuples(keys, keys, keys, st.integers()), max_size=4))
def test_applying_the_operations_gives_the_edited_document(
    document: dict[str, Any], edits: list[tuple[str, str, str, int]]
) -> None:
    """Invariant: `get` returns the same after the edits as the server makes of the operations."""
    patch = JsonPatch(document)
    for a, b, c, value in edits:
        patch.set(a, b, c, value=value)
    applied = jsonpatch.apply_patch(document, patch.operations)
    for a, b, c, _ in edits:
        assert applied[a][b][c] == patch.get(a, b, c)
    again = JsonPatch(applied)
    for a, b, c, _ in edits:
        again.set(a, b, c, value=patch.get(a, b, c))
    assert again.operations == []


def test_slashes_and_tildes_in_keys_are_escaped() -> None:
    patch = JsonPatch({"limits": {}})
    patch.set("limits", "nvidia.com/gpu~", value="1")
    assert [operation["path"] for operation in patch.operations] == ["/limits/nvidia.com~1gpu~0"]


def test_a_null_parent_is_replaced_by_an_object() -> None:
    document: dict[str, Any] = {"a": None, "list": [{"b": None}]}
    patch = JsonPatch(document)
    patch.set("a", "x", value=1)
    patch.set("list", 0, "b", "y", value=2)
    applied = jsonpatch.apply_patch(document, patch.operations)
    assert applied == {"a": {"x": 1}, "list": [{"b": {"y": 2}}]}


def test_the_document_that_was_given_is_left_as_it_was() -> None:
    document: dict[str, Any] = {"a": {"b": 1}}
    JsonPatch(document).set("a", "b", value=2)
    assert document == {"a": {"b": 1}}
