from __future__ import annotations

from typing import Any

import pytest

from vgpu_local.apiserver import jsonpath, protobuf, selectors
from vgpu_local.apiserver.errors import StatusError
from vgpu_local.apiserver.kinds import Registry
from vgpu_local.apiserver.tables import age

CONDITIONS = {"status": {"conditions": [{"type": "A", "n": 1}, {"type": "B", "n": 2}]}}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".status.conditions[?(@.type=='B')].n", [2]),
        ('.status.conditions[?(@.type != "B")].n', [1]),
        (".status.conditions[*].type", ["A", "B"]),
        (".status.conditions[-1].n", [2]),
        (".status.conditions[7].n", []),
        (".nothing.here", []),
    ],
)
def test_a_printer_columns_path_selects(path: str, found: list[Any]):
    assert jsonpath.find(CONDITIONS, path) == found


def test_a_path_reaches_names_with_dots_by_quotes_or_backslash():
    obj = {"metadata": {"annotations": {"a.b/c": "x"}}}
    assert jsonpath.find(obj, ".metadata.annotations['a.b/c']") == ["x"]
    assert jsonpath.find(obj, r".metadata.annotations.a\.b/c") == ["x"]


def test_a_path_that_is_not_understood_is_an_error():
    with pytest.raises(ValueError, match="unsupported JSONPath"):
        jsonpath.find({}, ".items[1:2]")


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        ("a=1", {"a": "1"}, True),
        ("a==1,b!=2", {"a": "1"}, True),
        ("a==1,b!=2", {"a": "1", "b": "2"}, False),
        ("a in (1, 2)", {"a": "2"}, True),
        ("a notin (1,2)", {"a": "2"}, False),
        ("a notin (1,2)", {}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("!a", {"a": ""}, False),
        ("x.dev/a=1", {"x.dev/a": "1"}, True),
    ],
)
def test_a_label_selector_selects(selector: str, labels: dict[str, str], selected: bool):
    match = selectors.of_request(Registry().get("pods"), selector, "")
    assert match({"metadata": {"labels": labels}}) is selected


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("spec.nodeName=n1", True),
        ("spec.nodeName!=n1", False),
        ("spec.nodeName=n1,status.phase=Running", False),
        ("metadata.name=p,spec.hostNetwork!=true", True),
        ("status.phase=", True),
    ],
)
def test_a_field_selector_selects(selector: str, selected: bool):
    match = selectors.of_request(Registry().get("pods"), "", selector)
    assert match({"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}}) is selected


@pytest.mark.parametrize(("labels", "fields"), [("a in 1", ""), ("", "spec.image=x"), ("", "=")])
def test_a_selector_that_the_server_does_not_take_is_400(labels: str, fields: str):
    with pytest.raises(StatusError) as refused:
        selectors.of_request(Registry().get("pods"), labels, fields)
    assert refused.value.code == 400


def test_a_selector_object_with_expressions_selects():
    wants = selectors.label_selector(
        {
            "matchLabels": {"a": "1"},
            "matchExpressions": [
                {"key": "b", "operator": "Exists"},
                {"key": "c", "operator": "DoesNotExist"},
                {"key": "d", "operator": "In", "values": ["x", "y"]},
                {"key": "e", "operator": "NotIn", "values": ["z"]},
            ],
        }
    )
    assert wants({"a": "1", "b": "", "d": "x"})
    assert not wants({"a": "1", "b": "", "d": "x", "e": "z"})
    assert not wants({"a": "1", "b": "", "d": "x", "c": ""})


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (119, "119s"), (200, "3m20s"), (3000, "50m"), (7500, "125m"), (4 * 3600, "4h"),
     (40 * 3600, "40h"), (3 * 86400, "3d"), (300 * 86400, "300d"), (-60, "<invalid>")],
)  # fmt: skip
def test_an_age_is_shown_as_kubectl_shows_it(seconds: int, shown: str):
    assert age("2026-01-01T00:00:00Z", 1767225600 + seconds) == shown


def test_a_protobuf_namespace_is_read():
    meta = b"\x0a\x03foo" + b"\x5a\x06\x0a\x01a\x12\x01b"  # name: foo, labels: {a: b}
    body = b"\x0a" + bytes([len(meta)]) + meta + b"\x12\x00\x1a\x00"
    about = b"\x0a\x02v1\x12\x09Namespace"
    raw = b"k8s\0\x0a" + bytes([len(about)]) + about + b"\x12" + bytes([len(body)]) + body
    assert protobuf.decode(raw) == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "foo", "labels": {"a": "b"}},
    }


@pytest.mark.parametrize("raw", [b"{}", b"k8s\0\x0a\x06\x0a\x02v1\x12\x00", b"k8s\0\xff"])
def test_protobuf_of_another_kind_or_cut_short_is_refused(raw: bytes):
    with pytest.raises(protobuf.UnknownKindError):
        protobuf.decode(raw)
