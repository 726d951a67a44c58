"""Quantities are kept as written, and a schema prunes and defaults an object."""

from __future__ import annotations

from typing import Any

import pytest

from rest import CRDS, PODS, THINGS, Json, Refused, Rest, a_thing, thing_definition

CANONICAL = {
    "4000": "4k", "16384Mi": "16Gi", "1536Mi": "1536Mi", "1.5Gi": "1536Mi", "0.5": "500m",
    "1000m": "1", "1500m": "1500m", "0Gi": "0", "Gi": "0", "512Ki": "512Ki", "0.5Ki": "512",
    "1e3": "1e3", "12000e0": "12e3", ".5": "500m", "1025": "1025", "1025.5Ki": "1050112",
    "+1.25M": "1250k", "3E-2": "30e-3",
}  # fmt: skip


def a_pod_with(*amounts: str) -> Json:
    containers = [
        {"name": f"c{at}", "image": "none", "resources": {"limits": {"memory": amount}}}
        for at, amount in enumerate(amounts)
    ]
    return {"metadata": {"name": "p"}, "spec": {"containers": containers}}


async def refusal(asked: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        await asked
    return refused.value


async def test_a_quantity_is_kept_in_its_canonical_form(rest: Rest):
    pod = await rest.create(PODS, a_pod_with(*CANONICAL))
    kept = [each["resources"]["limits"]["memory"] for each in pod["spec"]["containers"]]
    assert dict(zip(CANONICAL, kept, strict=True)) == CANONICAL


async def test_what_is_no_quantity_is_refused(rest: Rest):
    for text in ("", "8GB", "abc", "1.2.3", "8 Gi", "1e", "--1", "0x10"):
        refused = await refusal(rest.create(PODS, a_pod_with(text), dryRun="All"))
        assert refused.status == 400, text


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
        ({"size": None}, "spec.size: Required value"),
        ({"mode": "C"}, 'spec.mode: Unsupported value: "C": supported values: "A", "B"'),
        ({"uuids": ["x"]}, 'spec.uuids[0]: Invalid value: "x": spec.uuids[0] in body should match'),
        (
            {"requests": [{"name": str(at)} for at in range(5)]},
            "spec.requests: Too many: 5: must have at most 4 items",
        ),
        ({"requests": [{"name": "123456789"}]}, "spec.requests[0].name: Too long: may not be more"),
        ({"requests": [{"name": "a", "memory": []}]}, "spec.requests[0].memory: Invalid value"),
        (
            {"requests": [{"name": "a"}, {"name": "a"}]},
            'spec.requests[1]: Duplicate value: {"name"',
        ),
        ({"from": "now"}, 'Invalid value: "now": spec.from in body must be of type date-time'),
        ({"from": "2026-01-01"}, 'spec.from: Invalid value: "2026-01-01"'),
        ({"from": "2026-02-30T00:00:00Z"}, "spec.from: Invalid value"),
        ({"from": "2026-01-01T24:00:00Z"}, "spec.from: Invalid value"),
        ({"from": "2026-01-01T00:00:00"}, "spec.from: Invalid value"),
        ({"share": 6}, "(oneOf)"),
        ({"share": 3}, "(not)"),
        ({"share": 1}, "(anyOf)"),
    ],
)
async def test_a_violation_names_its_field(things: Rest, spec: Json, said: str):
    refused = await refusal(things.create(THINGS, a_thing(**spec)))
    assert refused.status == 422
    assert said in refused.message


async def test_what_the_schema_allows_is_kept_and_completed(things: Rest):
    time = "2026-01-01t23:59:59.123456+02:00"
    requests = [{"memory": "8Gi"}, {"name": "b", "memory": 8}]
    spec = {"uuids": ["GPU-1"], "requests": requests, "from": time, "share": 2, "mode": None}
    made = await things.create(THINGS, a_thing(**spec))
    completed = [{"name": "", "memory": "8Gi"}, {"name": "b", "memory": 8}]
    assert made["spec"] == {**spec, "size": 1, "mode": "A", "requests": completed}


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({}, "type"),
        (
            {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "properties": {"a": {"type": "string"}},
            },
            "additionalProperties",
        ),
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
async def test_a_schema_that_is_not_structural_is_refused(rest: Rest, part: Json, where: str):
    definition = thing_definition("widget")
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["odd"] = part
    refused = await refusal(rest.create(CRDS, definition))
    fields = [cause["field"] for cause in refused.body["details"]["causes"]]
    assert any("[odd]" in field and field.endswith(where) for field in fields), fields
