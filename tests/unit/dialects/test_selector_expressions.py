"""Device selectors in CEL choose the devices that Kubernetes' own library chooses by them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_pod, a_request, an_ask, device_facts
from vgpu_api.errors import BadInput
from vgpu_api.names import ANNOTATION_DEVICE_SELECTOR
from vgpu_api.v1alpha1 import DeviceKind, DeviceSelector
from vgpu_operator.dialects import hami_annotations
from vgpu_operator.dialects.selector_expressions import read_expression
from vgpu_operator.placement.device_conditions import refusal_of_facts

VECTORS = Path(__file__).parents[2] / "vectors" / "cel" / "cases.json"
MODEL = 'device.attributes["vgpu.dev"].productName'
UUID = 'device.attributes["vgpu.dev"].uuid'
MEMORY = 'device.capacity["vgpu.dev"].memory'
MIXED = "|| cannot join a uuid with anything else"


def chosen_by(expression: str) -> DeviceSelector:
    return read_expression(expression, "f").selector(expression, "f")


def serves(selector: DeviceSelector, model: str, uuid: str, memory_mib: int) -> bool:
    """Return True if placement would take the device for a request with this selector."""
    (request,) = an_ask(a_request(selector=selector)).requests
    device = device_facts(uuid, product=model, memory_mib=memory_mib)
    is_named = not request.uuids or uuid in request.uuids
    is_ours = is_named and uuid not in request.exclude_uuids
    return is_ours and refusal_of_facts(device.facts, request) is None


# As Kubernetes says.


class Case(NamedTuple):
    """An expression, and Kubernetes' answer for each device; None if it does not compile."""

    expression: str
    answers: list[bool | Literal["error"]] | None


def recorded() -> tuple[list[dict[str, Any]], list[Case]]:
    found = json.loads(VECTORS.read_text())
    return found["devices"], [Case(**each) for each in found["questions"]]


def taken() -> Iterator[tuple[Case, DeviceSelector]]:
    for case in recorded()[1]:
        try:
            yield case, chosen_by(case.expression)
        except BadInput:
            continue


def test_an_expression_chooses_the_devices_that_kubernetes_chooses() -> None:
    devices, _ = recorded()
    wrong = []
    for case, selector in taken():
        assert case.answers is not None, case.expression  # what does not compile is refused
        for device, answer in zip(devices, case.answers, strict=True):
            mib = int(device["memory"].removesuffix("Mi"))
            ours = serves(selector, device["productName"], device["uuid"], mib)
            if ours != (answer is True):
                wrong.append((case.expression, device, answer))
    assert wrong == []


def test_what_kubernetes_understands_is_refused_only_for_what_no_selector_can_say() -> None:
    _, cases = recorded()
    refused: dict[str, list[str]] = {}
    for case in cases:
        if not case.answers or "error" in case.answers or not any(case.answers):
            continue
        try:
            chosen_by(case.expression)
        except BadInput as error:
            refused.setdefault(error.detail.partition(";")[0], []).append(case.expression)
    never = {f"{name} with this value is not chosen by" for name in ("type", "driver")}
    never |= {"15360Mi1 is no quantity such as 20Gi"}  # where the rest decides
    not_ours = {"true is no text in quotes", "true is not understood here"}
    assert refused.keys() <= {MIXED} | never | not_ours
    assert len(list(taken())) > len(cases) / 2


# By an evaluator of our own, for many more expressions than are recorded.

MODELS = ("NVIDIA A100-SXM4-80GB", "Tesla T4", "tesla t4")
BYTES = st.integers(0, 40 << 20).map(lambda size: size - size % 7) | st.integers(0, 40).map(
    lambda size: size << 20
)
Tree = tuple[Any, ...]
leaves: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.just("model"), st.booleans(), st.sampled_from(MODELS)),
    st.tuples(st.just("memory"), st.sampled_from(("==", "!=", "<", "<=", ">", ">=")), BYTES),
)
trees: st.SearchStrategy[Tree] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(("&&", "||")), inner, inner), st.tuples(st.just("!"), inner)
    ),
    max_leaves=5,
)


def text_of(tree: Tree) -> str:
    match tree:
        case "model", is_equal, name:
            return f'{MODEL} {"==" if is_equal else "!="} "{name}"'
        case "memory", sign, size:
            return f'{MEMORY}.compareTo(quantity("{size}")) {sign} 0'
        case "!", inner:
            return f"!({text_of(inner)})"
        case sign, one, other:
            return f"({text_of(one)}) {sign} ({text_of(other)})"
    raise AssertionError(tree)


def holds(tree: Tree, model: str, size: int) -> bool:
    match tree:
        case "model", is_equal, name:
            return (model == name) == is_equal
        case "memory", sign, other:
            return {
                "==": size == other,
                "!=": size != other,
                "<": size < other,
                "<=": size <= other,
                ">": size > other,
                ">=": size >= other,
            }[sign]
        case "!", inner:
            return not holds(inner, model, size)
        case "&&", one, other:
            return holds(one, model, size) and holds(other, model, size)
        case "||", one, other:
            return holds(one, model, size) or holds(other, model, size)
    raise AssertionError(tree)


@given(trees, st.sampled_from((*MODELS, "other")), st.integers(1, 41))
def test_placement_takes_exactly_the_devices_for_which_the_expression_is_true(
    tree: Tree, model: str, mib: int
) -> None:
    expression = text_of(tree)
    is_true = holds(tree, model, mib << 20)
    with suppress(BadInput):  # of what no device can be
        assert serves(chosen_by(expression), model, "GPU-1", mib) == is_true
        return
    assert not is_true


@given(trees)
def test_a_double_negation_asks_for_the_same(tree: Tree) -> None:
    """Equal requests are one class, whichever way they are written."""
    try:
        once = read_expression(text_of(tree), "f")
    except BadInput:
        return
    assert read_expression(f"!(!({text_of(tree)}))", "f") == once


# Edges.


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        (f'{MEMORY}.compareTo(quantity("20Gi")) >= 0', DeviceKind(min_memory="20Gi")),
        (f'{MEMORY}.isGreaterThan(quantity("20Gi"))', DeviceKind(min_memory="20481Mi")),
        (f'{MEMORY}.isLessThan(quantity("20Gi"))', DeviceKind(max_memory="20479Mi")),
        (f'{MEMORY}.isLessThan(quantity("1.5Mi"))', DeviceKind(max_memory="1Mi")),
        (f'quantity("1.5Mi").isLessThan({MEMORY})', DeviceKind(min_memory="2Mi")),
        (f'{MEMORY} == quantity("1Gi")', DeviceKind(min_memory="1Gi", max_memory="1Gi")),
        (f'{MODEL} != "A" && {MODEL} != "B"', DeviceKind(exclude_model_names=["A", "B"])),
        (f'{MODEL} == "it\'s"', DeviceKind(model_names=["it's"])),
        (f"{MODEL} == 'it\\'s'", DeviceKind(model_names=["it's"])),
    ],
)
def test_an_expression_is_a_kind_of_devices(expression: str, kind: DeviceKind) -> None:
    assert chosen_by(expression) == DeviceSelector(kinds=[kind])


def test_alternatives_of_one_attribute_are_one_kind() -> None:
    many = " || ".join(f'{MODEL} == "{number}"' for number in range(32))
    (kind,) = chosen_by(many).kinds
    assert len(kind.model_names) == 32


def test_touching_ranges_of_memory_are_one_range() -> None:
    every = f'{MEMORY}.isLessThan(quantity("1Gi")) || {MEMORY}.compareTo(quantity("1Gi")) >= 0'
    assert chosen_by(every) == DeviceSelector()


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (" || ".join(f'{MODEL} == "{number}"' for number in range(33)), "more than 32 models"),
        (" || ".join(f'{UUID} == "{number}"' for number in range(65)), "more than 64 devices"),
        (
            " || ".join(
                f'{MODEL} == "{at}" && {MEMORY} == quantity("{at}Gi")' for at in range(1, 18)
            ),
            "more than 16 alternatives",
        ),
        (f'{UUID} == "a" || {MEMORY} == quantity("1Gi")', MIXED),
        (f'{MEMORY}.compareTo(quantity("much")) > 0', "much is no quantity such as 20Gi"),
        (f"{MEMORY}.compareTo({MEMORY}) == 0", "each once"),
        (f'!{MEMORY}.compareTo(quantity("1Gi")) == 0', "! stands before a number"),
        (f'!{UUID} == "a"', "attributes is not understood here"),
        (f'{UUID} == "\\n"', "has an escape other than"),
        (f'{UUID} == "{"x" * 129}"', "more than 128 characters"),
        (f'{UUID}.startsWith("GPU")', "is not understood here"),
        ("(" * 40 + "device" + ")" * 40, "nested too deeply"),
        ("", "its end is not understood here"),
    ],
)
def test_what_cannot_be_chosen_by_is_refused_with_the_reason(expression: str, why: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_expression(expression, "spec.here")
    assert refused.value.field == "spec.here"
    assert why in refused.value.detail


def test_an_expression_longer_than_kubernetes_allows_is_refused() -> None:
    with pytest.raises(BadInput, match="may not be more than 10240 characters"):
        read_expression(" " * 10241, "f")


# On a pod.


def test_an_expression_and_hamis_annotations_hold_together() -> None:
    pod = a_pod(
        annotations={
            ANNOTATION_DEVICE_SELECTOR: f'{UUID} in ["GPU-1", "GPU-2"]',
            "nvidia.com/use-gpuuuid": "GPU-2,GPU-3",
            "nvidia.com/nouse-gputype": "T4",
        }
    )
    selector = hami_annotations.selector(pod)
    assert selector == DeviceSelector(uuids=["GPU-2"], exclude_models=["T4"])


def test_an_expression_that_contradicts_hamis_annotation_is_refused() -> None:
    annotations = {ANNOTATION_DEVICE_SELECTOR: f'{UUID} == "a"', "nvidia.com/use-gpuuuid": "b"}
    with pytest.raises(BadInput, match="names none of these devices; leave one"):
        hami_annotations.selector(a_pod(annotations=annotations))
