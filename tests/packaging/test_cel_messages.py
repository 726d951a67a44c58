"""Rejections by CEL have the same form as the webhook's: `path: kind: detail`.

For a CRD's rule, the API server itself prints the path (`fieldPath`, or the location of the rule)
and the kind (`reason`). For a policy, it prints only the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.errors import Fault

ROOT = Path(__file__).parents[2]
KINDS = "|".join(fault.value for fault in Fault)
MESSAGE = re.compile(rf"[a-z]\w*(?:\.\w+|\[[\w./-]+\])*: (?:{KINDS}): \S.*", re.DOTALL)
REASONS = {
    "FieldValueInvalid",
    "FieldValueForbidden",
    "FieldValueRequired",
    "FieldValueDuplicate",
}


def found(value: Any, key: str) -> Iterator[Any]:
    """Yield all values of a key, at any depth."""
    match value:
        case dict():
            for name, child in value.items():
                if name == key:
                    yield child
                yield from found(child, key)
        case list():
            for child in value:
                yield from found(child, key)


def policy_messages() -> dict[str, str]:
    """Return the messages of policies, or the fixed texts of an expression, by file and number."""
    messages = {}
    for path in sorted((ROOT / "manifests").rglob("*.yaml")):
        documents = list(yaml.safe_load_all(path.read_text()))
        texts = [str(text) for text in found(documents, "message")]
        texts += [said(text) for text in found(documents, "messageExpression")]
        for number, text in enumerate(texts):
            messages[f"{path.relative_to(ROOT)}:{number}"] = text
    return messages


def said(expression: str) -> str:
    """Return the value of an expression of strings, with `x` in place of each inserted value."""
    parts = re.split(r"('(?:[^'\\]|\\.)*')", expression)
    return "".join(part[1:-1] if part.startswith("'") else "x" for part in parts if part.strip())


def crd_rules() -> list[dict[str, str]]:
    """Return the rules of our kinds."""
    documents = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("vgpu*"))
                 if path.suffix == ".yaml"]  # fmt: skip
    return [rule for rules in found(documents, "x-kubernetes-validations") for rule in rules]


MESSAGES = policy_messages()
RULES = crd_rules()


@pytest.mark.parametrize("place", sorted(MESSAGES))
def test_the_message_of_a_policy_is_a_field_error(place: str) -> None:
    assert MESSAGE.fullmatch(MESSAGES[place]), MESSAGES[place]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["message"])
def test_a_rule_of_a_crd_leaves_path_and_kind_to_the_server(rule: dict[str, str]) -> None:
    assert not MESSAGE.fullmatch(rule["message"])
    assert rule.get("reason", "FieldValueInvalid") in REASONS
    assert re.fullmatch(r"(\.\w+)+", rule.get("fieldPath", ".spec"))


def test_a_rule_at_the_root_of_a_kind_names_its_field() -> None:
    for path in (ROOT / "crds").glob("vgpu*.yaml"):
        for version in yaml.safe_load(path.read_text())["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            for rule in schema.get("x-kubernetes-validations", ()):
                assert rule["fieldPath"].lstrip(".").split(".")[0] in schema["properties"]


def test_there_are_messages_and_rules() -> None:
    assert len(MESSAGES) > 15
    assert len(RULES) > 6


@pytest.mark.parametrize(
    "text",
    [
        "only the operator may",
        "spec.mode: only the operator may",
        "Forbidden: only the operator may",
        "spec.mode: Refused: only the operator may",
        "spec.mode: Forbidden: ",
    ],
)
def test_a_sentence_without_path_or_kind_is_no_field_error(text: str) -> None:
    assert not MESSAGE.fullmatch(text)
