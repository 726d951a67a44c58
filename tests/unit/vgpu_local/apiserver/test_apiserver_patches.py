from __future__ import annotations

from typing import Any

import pytest

from vgpu_local.apiserver.errors import StatusError
from vgpu_local.apiserver.patch import json_patch, merge_patch, strategic_merge
from vgpu_local.apiserver.structure import root


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # the cases of RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_follows_its_rfc(target: Any, patch: Any, result: Any):
    assert merge_patch(target, patch) == result


def test_a_json_patch_whose_test_fails_is_422():
    with pytest.raises(StatusError) as refused:
        json_patch({"a": 1}, [{"op": "test", "path": "/a", "value": 2}])
    assert refused.value.code == 422


def test_a_json_patch_at_an_absent_path_is_422():
    with pytest.raises(StatusError) as refused:
        json_patch({"a": 1}, [{"op": "replace", "path": "/b/c", "value": 2}])
    assert refused.value.code == 422


@pytest.mark.parametrize(
    ("operations", "code"),
    [({"op": "add"}, 400), ([{"op": "fly", "path": "/a"}], 422), ([{"path": 1}], 422)],
)
def test_what_is_no_json_patch_is_refused(operations: Any, code: int):
    with pytest.raises(StatusError) as refused:
        json_patch({"a": 1}, operations)
    assert refused.value.code == code


def strategic(target: Any, patch: Any) -> Any:
    return strategic_merge(target, patch, root(None))


def test_strategic_merge_changes_one_container_by_its_name():
    pod = {"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}}
    patched = strategic(pod, {"spec": {"containers": [{"name": "b", "image": "z"}]}})
    assert [c["image"] for c in patched["spec"]["containers"]] == ["x", "z"]


def test_strategic_merge_deletes_a_keyed_item_and_replaces_an_unkeyed_list():
    pod = {"spec": {"containers": [{"name": "a", "args": ["1", "2"]}, {"name": "b"}]}}
    patch = {
        "spec": {"containers": [{"name": "a", "args": ["3"]}, {"name": "b", "$patch": "delete"}]}
    }
    assert strategic(pod, patch) == {"spec": {"containers": [{"name": "a", "args": ["3"]}]}}


def test_strategic_merge_orders_items_as_it_is_told():
    pod = {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}],
            "containers": [{"name": "c"}],
        }
    }
    names = [c["name"] for c in strategic(pod, patch)["spec"]["containers"]]
    assert names == ["c", "b", "a"]


def test_strategic_merge_replaces_a_map_on_demand():
    patched = strategic({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}})
    assert patched == {"a": {"c": 2}}


def test_strategic_merge_adds_to_and_takes_from_the_finalizers():
    meta = {"metadata": {"finalizers": ["a", "b"]}}
    added = strategic(meta, {"metadata": {"finalizers": ["c"]}})
    assert added["metadata"]["finalizers"] == ["a", "b", "c"]
    taken = strategic(meta, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}})
    assert "a" not in taken["metadata"]["finalizers"]
