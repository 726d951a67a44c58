"""Vendors' tables: the shipped ones can be read, and each mistake in one is named."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from vgpu_api.errors import BadInput
from vgpu_api.vendors import Vendor, kind_of, kinds, read_table, shipped
from vgpu_api.vendors.model import ChoiceRule, NodeRule, RecordRule
from vgpu_api.vendors.tables import refuse_shared_words
from vgpu_operator.vendors.choices import CHOICES
from vgpu_operator.vendors.node_ranking import NODE_RULES
from vgpu_operator.vendors.records import RULES

ROOT = Path(__file__).parents[3]

TABLE = yaml.safe_load(
    """
title: Acme
kinds:
- name: acme
  word: ACME
  count: acme.com/gpu
  memory: {resource: acme.com/mem, unitMib: 256}
  cores: {resource: acme.com/cores, default: 100}
  register: {annotation: hami.io/node-acme-register, form: json}
  records: {allocated: hami.io/acme-devices-allocated}
"""
)


def test_the_shipped_tables_are_right_and_no_two_share_a_word() -> None:
    assert len(shipped()) >= 1
    assert {kind.name for kind in kinds()} >= {"hygon"}
    assert kind_of("hygon") is not None
    assert kind_of("nvidia") is None


def test_every_rule_that_a_table_may_name_is_there_and_no_other() -> None:
    assert set(RULES) == set(get_args(RecordRule))
    assert set(CHOICES) == set(get_args(ChoiceRule))
    assert set(NODE_RULES) == set(get_args(NodeRule))


@pytest.mark.parametrize("vendor", shipped(), ids=lambda vendor: vendor.title)
def test_every_vendor_is_on_its_page_and_has_an_example(vendor: Vendor) -> None:
    named = set(re.findall(r"`([^`/]+)/", (ROOT / "docs" / "vendors.md").read_text()))
    examples = [path.read_text() for path in (ROOT / "examples" / "vendors").glob("*.yaml")]
    for kind in vendor.kinds:
        prefix = kind.count.partition("/")[0]
        assert prefix in named
        assert any(f" {prefix}/" in text for text in examples)


def test_a_table_says_units_and_defaults() -> None:
    (kind,) = read_table(TABLE, source="acme").kinds
    assert kind.memory is not None
    assert kind.cores is not None
    assert (kind.memory.unit_mib, kind.cores.default) == (256, 100)
    assert kind.resources == ("acme.com/gpu", "acme.com/mem", "acme.com/cores")


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("title",), None, "acme.title: Invalid value: null: must be text"),
        (("kinds", 0, "count"), "gpu", 'acme.kinds[0].count: Invalid value: "gpu": must match'),
        (("kinds", 0, "memory", "unitMib"), 0, "acme.kinds[0].memory.unitMib: Invalid value: 0"),
        (
            ("kinds", 0, "register", "form"),
            "xml",
            'acme.kinds[0].register.form: Unsupported value: "xml"',
        ),
        (("kinds", 0, "gpus"), 1, "acme.kinds[0].gpus: Forbidden: unknown field"),
        (("kinds", 0, "name"), "Acme!", 'acme.kinds[0].name: Invalid value: "Acme!": must match'),
        (("kinds",), [], "acme.kinds: Required value: must have"),
    ],
)
def test_an_error_names_the_field_and_the_value(
    path: tuple[str | int, ...], value: Any, text: str
) -> None:
    wrong = copy.deepcopy(TABLE)
    at: Any = wrong
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(BadInput) as caught:
        read_table(wrong, source="acme")
    assert str(caught.value).startswith(text)


def test_two_kinds_of_a_table_have_names_and_words_of_their_own() -> None:
    wrong = copy.deepcopy(TABLE)
    wrong["kinds"] *= 2
    with pytest.raises(BadInput, match="two kinds have the name acme"):
        read_table(wrong, source="acme")


def test_no_two_tables_claim_a_resource() -> None:
    other = copy.deepcopy(TABLE)
    other["kinds"][0] |= {"name": "other", "word": "OTHER", "count": "other.com/gpu"}
    tables = (read_table(TABLE, source="acme"), read_table(other, source="other"))
    with pytest.raises(BadInput) as caught:
        refuse_shared_words(tables)
    assert str(caught.value) == (
        'other.resource: Duplicate value: "acme.com/mem": kind acme uses it already'
    )
