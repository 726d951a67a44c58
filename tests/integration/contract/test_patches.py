"""Merge patches, JSON patches and strategic merges."""

from __future__ import annotations

from typing import Any

import pytest

from rest import NODES, THINGS, Json, Refused, Rest, a_thing


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # the cases of RFC 7386, appendix A, that concern objects without null
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
async def test_a_merge_patch_follows_its_rfc(things: Rest, target: Json, patch: Json, result: Json):
    await things.create(THINGS, a_thing(free=target))
    for _ in range(2):  # the second time it changes nothing
        patched = await things.merge(f"{THINGS}/t", {"spec": {"free": patch}})
        assert patched["spec"]["free"] == result


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([{"op": "test", "path": "/spec/size", "value": 2}], 422),
        ([{"op": "replace", "path": "/spec/free/c", "value": 2}], 422),
        ({"op": "add"}, 400),
        ([{"op": "fly", "path": "/spec/size"}], 422),
        ([{"op": "add", "path": 1}], 400),
    ],
)
async def test_a_json_patch_that_does_not_fit_is_refused(things: Rest, operations: Any, code: int):
    await things.create(THINGS, a_thing())
    with pytest.raises(Refused) as refused:
        await things.json_patch(f"{THINGS}/t", operations)
    assert refused.value.status == code


async def patched(rest: Rest, before: Json, patch: Json, subresource: str = "") -> Json:
    """Return a node with `before`, after a strategic merge of `patch`."""
    metadata = {"name": rest.namespace, **before.pop("metadata", {})}
    await rest.create(NODES, {**before, "metadata": metadata})
    return await rest.strategic(f"{NODES}/{rest.namespace}{subresource}", patch)


CONDITIONS = {"status": {"conditions": [{"type": t, "status": "True"} for t in ("A", "B")]}}


async def test_a_strategic_merge_changes_deletes_and_adds_items_by_their_key(rest: Rest):
    items = [
        {"type": "A", "reason": "Why"},
        {"type": "B", "$patch": "delete"},
        {"type": "C", "status": "False"},
    ]
    node = await patched(rest, CONDITIONS, {"status": {"conditions": items}}, "/status")
    found = {c["type"]: (c["status"], c.get("reason")) for c in node["status"]["conditions"]}
    assert found == {"A": ("True", "Why"), "C": ("False", None)}


async def test_a_strategic_merge_orders_items_as_it_is_told(rest: Rest):
    order = [{"type": name} for name in "CBA"]
    patch = {"$setElementOrder/conditions": order, "conditions": [{"type": "C", "status": "True"}]}
    node = await patched(rest, CONDITIONS, {"status": patch}, "/status")
    assert [c["type"] for c in node["status"]["conditions"]] == ["C", "B", "A"]


async def test_a_strategic_merge_replaces_lists_without_keys_and_maps_on_demand(rest: Rest):
    taints = [{"key": key, "effect": "NoExecute"} for key in ("a", "b")]
    before: Json = {"metadata": {"labels": {"a": "1"}}, "spec": {"taints": taints[:1]}}
    patch = {
        "metadata": {"labels": {"$patch": "replace", "b": "2"}},
        "spec": {"taints": taints[1:]},
    }
    node = await patched(rest, before, patch)
    assert node["metadata"]["labels"] == {"b": "2"}
    assert [taint["key"] for taint in node["spec"]["taints"] if taint["key"] in "ab"] == ["b"]


async def test_a_strategic_merge_adds_to_and_takes_from_the_finalizers(rest: Rest):
    before: Json = {"metadata": {"finalizers": ["x.dev/a", "x.dev/b"]}}
    added = await patched(rest, before, {"metadata": {"finalizers": ["x.dev/c"]}})
    assert sorted(added["metadata"]["finalizers"]) == ["x.dev/a", "x.dev/b", "x.dev/c"]
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.dev/a"]}}
    taken = await rest.strategic(f"{NODES}/{rest.namespace}", patch)
    assert sorted(taken["metadata"]["finalizers"]) == ["x.dev/b", "x.dev/c"]
