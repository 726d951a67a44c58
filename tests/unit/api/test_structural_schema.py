"""Models become structural schemas; a model without a structural form is refused."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel, Field

from vgpu_api.crd import KINDS, crd_files
from vgpu_api.schema import NotStructural, structural_schema
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim


class Inner(BaseModel):
    """The description of the inner model."""

    size: int = 1


class Outer(BaseModel):
    """A model with parts that pydantic spells in its own way."""

    inner: Inner
    """The field's description, beside the reference."""
    maybe: Inner | None = None
    word: Literal["one"] = "one"
    either: int | str = 1
    above: Annotated[int, Field(gt=0)] = 1


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("6fa459ea-ee8a-4ca4-894e-db77e160355e", True),
        ("6FA459EA-EE8A-4CA4-894E-DB77E160355E", False),
        ("6fa459eaee8a4ca4894edb77e160355e", False),
        ("2026-01-01T00:00:00.000000Z", False),
        ("", False),
    ],
)
def test_an_allocation_is_named_by_a_uuid_wherever_one_is_named(name: str, fits: bool) -> None:
    status = structural_schema(VGPUClaim)["properties"]["status"]["properties"]
    schemas = [
        status["allocation"]["properties"]["id"],
        *(
            status[field]["properties"]["allocationID"]
            for field in ("released", "initReleased", "initWanted")
        ),
    ]
    for schema in schemas:
        assert schema["maxLength"] == len("6fa459ea-ee8a-4ca4-894e-db77e160355e")
        assert bool(re.search(schema["pattern"], name)) is fits


def test_references_are_inlined_and_nulls_are_gone() -> None:
    properties = structural_schema(Outer)["properties"]
    assert properties["inner"]["properties"]["size"] == {"default": 1, "type": "integer"}
    assert properties["maybe"]["type"] == "object"
    assert "default" not in properties["maybe"]


def test_constants_bounds_and_int_or_string_are_spelled_as_kubernetes_does() -> None:
    properties = structural_schema(Outer)["properties"]
    assert properties["word"]["enum"] == ["one"]
    assert properties["either"] == {"x-kubernetes-int-or-string": True}
    assert (properties["above"]["minimum"], properties["above"]["exclusiveMinimum"]) == (0, True)


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Node(BaseModel):
    child: Node | None = None


@pytest.mark.parametrize(
    ("annotation", "what"),
    [
        (Annotated[Cat | Dog, Field(discriminator="kind")], "oneOf"),
        (tuple[int, str], "prefixItems"),
        (set[str], "set"),
        (int | list[int], "union"),
        (Any, "any type"),
        (Node, "recursion"),
    ],
)
def test_what_has_no_structural_form_is_refused_by_its_path(annotation: Any, what: str) -> None:
    model = type("Model", (BaseModel,), {"__annotations__": {"field": annotation}})
    with pytest.raises(NotStructural, match=what) as error:
        structural_schema(model)
    assert "field" in str(error.value)


@pytest.mark.parametrize("version", ["1.31", "1.36"])
@pytest.mark.parametrize("name", [name for name in crd_files() if name.startswith("vgpu")])
def test_the_crds_are_what_kubernetes_takes_for_crds(name: str, version: str) -> None:
    document = yaml.safe_load(crd_files()[name])
    kubernetes_validate.validate(document, version, strict=True)


def properties_of(schema: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Return every schema below this one by its path."""
    found = {path: schema}
    for name, child in schema.get("properties", {}).items():
        found |= properties_of(child, f"{path}.{name}")
    if "items" in schema:
        found |= properties_of(schema["items"], f"{path}[]")
    return found


@pytest.mark.parametrize("model", [GPUDevice, VGPUClaim])
def test_every_list_and_string_is_bounded_and_nothing_is_a_float(model: Any) -> None:
    root = structural_schema(model)["properties"]
    for part in ("spec", "status"):
        for path, schema in properties_of(root[part], part).items():
            kind = schema["type"]
            assert kind != "number", path
            assert kind != "array" or "maxItems" in schema, path
            assert kind != "string" or "maxLength" in schema or "enum" in schema, path


@pytest.mark.parametrize("model", [GPUDevice, VGPUClaim])
def test_every_field_is_explained(model: Any) -> None:
    root = structural_schema(model)["properties"]
    for part in ("spec", "status"):
        for path, schema in properties_of(root[part], part).items():
            assert schema.get("description") or path.endswith("[]"), path


@pytest.mark.parametrize("model", [GPUDevice, VGPUClaim])
def test_a_status_may_be_written_in_parts(model: Any) -> None:
    assert "required" not in structural_schema(model)["properties"]["status"]


@pytest.mark.parametrize("model", [GPUDevice, VGPUClaim])
def test_keyed_lists_have_keys_that_are_always_there(model: Any) -> None:
    root = structural_schema(model)["properties"]
    for part in ("spec", "status"):
        for path, schema in properties_of(root[part], part).items():
            for key in schema.get("x-kubernetes-list-map-keys", ()):
                item = schema["items"]
                assert key in item.get("required", ()) or "default" in item["properties"][key], path


@pytest.mark.parametrize("model", [GPUDevice, VGPUClaim])
def test_nothing_in_a_list_has_a_default_that_would_be_stored_but_its_keys(model: Any) -> None:
    root = structural_schema(model)["properties"]
    keys = {
        f"{path}[].{key}"
        for part in ("spec", "status")
        for path, schema in properties_of(root[part], part).items()
        for key in schema.get("x-kubernetes-list-map-keys", ())
    }
    stored = {
        path
        for part in ("spec", "status")
        for path, schema in properties_of(root[part], part).items()
        if "[]" in path and "default" in schema
    }
    assert stored <= keys
    assert not any(path.startswith("spec.") for path in keys)


def test_a_default_in_a_list_is_documented() -> None:
    request = structural_schema(VGPUClaim)["properties"]["spec"]["properties"]["requests"]
    described = {name: each["description"] for name, each in request["items"]["properties"].items()}
    assert described["count"] == "The number of distinct devices. Default: 1."
    assert described["vendor"].endswith("Default: nvidia.")
    assert "Default" not in described["memory"]


def test_columns_and_short_names_are_those_of_the_design() -> None:
    columns = {kind.plural: [column.name for column in kind.columns] for kind in KINDS}
    assert columns["vgpuclaims"] == [
        "STATE",
        "REQUEST",
        "NODE",
        "POD",
        "PREPARED",
        "REASON",
        "RESIZE",
        "AGE",
        "DEVICES",
        "MESSAGE",
    ]
    assert columns["gpudevices"][:3] == ["NODE", "INDEX", "MODEL"]
    assert [kind.short_names for kind in KINDS] == [("gpudev",), ("vgc",)]
