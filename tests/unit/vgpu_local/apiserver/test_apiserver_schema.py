from __future__ import annotations

from typing import Any

import pytest

from rest import a_thing, thing_definition
from vgpu_local.apiserver import crd
from vgpu_local.apiserver.schema import fill_defaults, prune, violations

Json = dict[str, Any]


def the_schema() -> Json:
    schema = crd.resource_of(thing_definition()).schema
    assert schema is not None
    return schema


def sentences(**spec: Any) -> list[str]:
    return [str(cause) for cause in violations(a_thing(**spec), the_schema())]


def test_a_right_object_has_no_violations():
    assert sentences(mode="B", uuids=["GPU-1"], requests=[{"name": "a", "memory": "8Gi"}]) == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"size": 0}, "spec.size: Invalid value: 0: spec.size in body should be greater than or"),
        ({"size": 65}, "spec.size: Invalid value: 65: spec.size in body should be less than or"),
        (
            {"size": "1"},
            'spec.size: Invalid value: "string": spec.size in body must be of type int',
        ),
        ({"size": True}, 'spec.size: Invalid value: "boolean": spec.size in body must be of type'),
        ({"size": 1.5}, 'spec.size: Invalid value: "number": spec.size in body must be of type'),
        ({"mode": "C"}, 'spec.mode: Unsupported value: "C": supported values: "A", "B"'),
        ({"uuids": ["x"]}, 'spec.uuids[0]: Invalid value: "x": spec.uuids[0] in body should match'),
        ({"requests": [{}] * 5}, "spec.requests: Too many: 5: must have at most 4 items"),
        ({"requests": [{"name": "123456789"}]}, "spec.requests[0].name: Too long: may not be more"),
        ({"requests": [{"name": "a", "memory": []}]}, "spec.requests[0].memory: Invalid value"),
        (
            {"requests": [{"name": "a"}, {"name": "a"}]},
            'spec.requests[1]: Duplicate value: {"name"',
        ),
    ],
)
def test_a_violation_names_its_field_in_the_servers_words(spec: Json, said: str):
    assert any(sentence.startswith(said) for sentence in sentences(**spec)), sentences(**spec)


def test_an_absent_required_field_is_named():
    thing = a_thing()
    del thing["spec"]["size"]
    assert [str(cause) for cause in violations(thing, the_schema())] == [
        "spec.size: Required value"
    ]


def test_unknown_fields_are_pruned_and_named_but_metadata_is_not_looked_at():
    thing = a_thing(bogus=1, requests=[{"name": "a", "extra": {"x": 1}}])
    thing["metadata"]["anything"] = "kept"
    unknown: list[str] = []
    prune(thing, the_schema(), unknown=unknown)
    assert sorted(unknown) == ["spec.bogus", "spec.requests[0].extra"]
    assert thing["spec"]["requests"] == [{"name": "a"}]
    assert thing["metadata"]["anything"] == "kept"


def test_defaults_are_filled_in_also_in_list_items_and_for_null():
    thing = a_thing(mode=None, requests=[{}])
    fill_defaults(thing, the_schema())
    assert thing["spec"]["mode"] == "A"
    assert thing["spec"]["requests"] == [{"name": ""}]


def test_defaults_of_different_objects_are_not_shared():
    schema = {"type": "object", "properties": {"a": {"type": "array", "default": []}}}
    first: Json = {}
    second: Json = {}
    fill_defaults(first, schema)
    fill_defaults(second, schema)
    first["a"].append(1)
    assert second["a"] == []


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("2026-01-01T00:00:00Z", True),
        ("2026-01-01t23:59:59.123456+02:00", True),
        ("now", False),
        ("", False),
        ("2026-01-01", False),
        ("2026-02-30T00:00:00Z", False),
        ("2026-01-01T24:00:00Z", False),
        ("2026-01-01T00:00:00", False),
    ],
)
def test_a_time_is_one_by_rfc_3339(text: str, is_one: bool):
    found = violations(text, {"type": "string", "format": "date-time"}, "status.time")
    said = [f'Invalid value: "{text}": status.time in body must be of type date-time: "{text}"']
    assert [cause.message for cause in found] == ([] if is_one else said)


def test_any_one_and_not_are_evaluated():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "oneOf": [{"minimum": 5}, {"maximum": 7}]}},
        "not": {"required": ["b"]},
        "anyOf": [{"required": ["a"]}, {"required": ["c"]}],
    }
    assert violations({"a": 9}, schema, "x") == []
    assert "(oneOf)" in str(violations({"a": 6}, schema, "x")[0])
    assert "(not)" in str(violations({"a": 9, "b": 1}, schema, "x")[0])
    assert "(anyOf)" in str(violations({}, schema, "x")[0])


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"$ref": "#/x", "type": "object"}, "$ref"),
        ({}, "type"),
        ({"type": "object", "additionalProperties": False}, "additionalProperties"),
        (
            {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}}},
            },
            "default",
        ),
    ],
)
def test_a_schema_that_is_not_structural_is_found_out(part: Json, where: str):
    definition = thing_definition()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["odd"] = part
    (cause,) = crd.causes(definition)
    assert "[odd]" in cause.field
    assert cause.field.endswith(where)
