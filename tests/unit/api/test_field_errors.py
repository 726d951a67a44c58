"""Field errors read as those of Kubernetes: path, kind, value where it helps, and the rule."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vgpu_api.errors import BadInput, Fault, QuantityError
from vgpu_api.field_errors import describe, field_errors, path


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: Annotated[int, Field(ge=1, le=4)] = 1
    mode: Literal["a", "b"] = "a"
    name: Annotated[str, Field(max_length=3, pattern=r"^[a-z]+$")] = "x"


class Outer(BaseModel):
    items: Annotated[list[Inner], Field(min_length=1, max_length=2)]


def errors_of(document: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(document)
    return [str(error) for error in field_errors(caught.value)]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            BadInput(field="spec.cores", value=150, expected="0 to 100"),
            "spec.cores: Invalid value: 150: must be 0 to 100",
        ),
        (
            BadInput(field="spec.cores", value="x", detail="requires memory"),
            'spec.cores: Invalid value: "x": requires memory',
        ),
        (BadInput.required("spec.requests"), "spec.requests: Required value"),
        (BadInput.forbidden("spec.nodeName", "why"), "spec.nodeName: Forbidden: why"),
        (
            BadInput.unsupported("mode", "c", ("a", "b")),
            'mode: Unsupported value: "c": supported values: "a", "b"',
        ),
        (
            BadInput.too_many("spec.requests", 17, 16),
            "spec.requests: Too many: 17: must have at most 16 items",
        ),
        (
            BadInput(field="object", fault=Fault.TOO_LONG, detail="may not be more than 9 bytes"),
            "object: Too long: may not be more than 9 bytes",
        ),
        (QuantityError("8gb", "a quantity"), 'Invalid value: "8gb": must be a quantity'),
        (BadInput(field="a", value=True, detail="no"), "a: Invalid value: true: no"),
        (BadInput(field="a", value="\ud800", detail="no"), 'a: Invalid value: "\\ud800": no'),
    ],
)
def test_each_kind_of_error_reads_as_kubernetes_prints_it(error: BadInput, text: str) -> None:
    assert str(error) == text


def test_a_long_value_is_cut() -> None:
    assert len(str(BadInput(field="a", value="x" * 10_000, detail="no"))) < 200


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({}, "items: Required value"),
        ({"items": []}, "items: Required value: must have at least 1 items"),
        ({"items": [{}] * 3}, "items: Too many: 3: must have at most 2 items"),
        ({"items": [{"count": 0}]}, "items[0].count: Invalid value: 0: must be 1 or more"),
        ({"items": [{"count": 5}]}, "items[0].count: Invalid value: 5: must be 4 or less"),
        (
            {"items": [{"mode": "c"}]},
            'items[0].mode: Unsupported value: "c": supported values: "a", "b"',
        ),
        ({"items": [{"name": "A"}]}, 'items[0].name: Invalid value: "A": must match ^[a-z]+$'),
        ({"items": [{"size": 1}]}, "items[0].size: Forbidden: unknown field"),
        ({"items": 3}, "items: Invalid value: 3: must be a list"),
    ],
)
def test_pydantics_errors_become_field_errors(document: object, text: str) -> None:
    assert errors_of(document) == [text]


def test_a_document_inside_another_is_named_from_the_outer_one() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({})
    assert describe(caught.value, within=("claims", 2)) == "claims[2].items: Required value"


def test_no_more_than_five_errors_are_shown_at_once() -> None:
    class Wide(BaseModel):
        model_config = ConfigDict(extra="forbid")

    with pytest.raises(ValidationError) as caught:
        Wide.model_validate({f"k{number}": 1 for number in range(7)})
    text = describe(caught.value)
    assert text.count("Forbidden") == 5
    assert text.endswith("and 2 more")


def test_a_key_that_is_no_plain_word_stands_in_brackets() -> None:
    assert path(("metadata", "annotations", "a.b/c")) == "metadata.annotations[a.b/c]"
    assert path(()) == "object"
