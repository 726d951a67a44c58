"""Quantities are exact: every spelling of the API server, no floats, nothing guessed."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_api import quantity
from vgpu_api.errors import QuantityError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4k", 4000),
        ("4000", 4000),
        (4000, 4000),
        ("10M", 10**7),
        ("16Gi", 16 << 30),
        ("1.5Gi", 3 << 29),
        ("500m", Fraction(1, 2)),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("12e-1", Fraction(6, 5)),
        ("-1", -1),
        ("+2", 2),
        (".5", Fraction(1, 2)),
        ("5.", 5),
    ],
)
def test_every_spelling_has_its_exact_value(text: str | int, value: Fraction) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "8 GiB", "8gb", "8Gb", "Gi", "1.2.3", "0x10", "１", "8Gi\n", " 8Gi", "--1", "1e", "1ki"],
)
def test_what_is_no_quantity_is_refused_with_the_value(text: str) -> None:
    with pytest.raises(QuantityError) as refusal:
        quantity.parse(text)
    assert refusal.value.value == text


@given(text=st.text(max_size=80))
def test_any_text_is_a_quantity_or_a_quantity_error(text: str) -> None:
    """Invariant: parsing is total."""
    with contextlib.suppress(QuantityError):
        assert isinstance(quantity.parse(text), Fraction)


@given(size=st.integers(min_value=0, max_value=1 << 60))
def test_formatting_and_reading_a_size_are_inverse(size: int) -> None:
    """Invariant: reading a formatted size gives exactly the same size."""
    assert quantity.read_mib(quantity.format_mib(size)) == size


@given(size=st.integers(min_value=1, max_value=1 << 40))
def test_a_formatted_size_is_canonical(size: int) -> None:
    """Invariant: the largest unit that leaves a whole number."""
    text = quantity.format_mib(size)
    number, suffix = text[:-2], text[-2:]
    assert suffix == "Pi" or int(number) % 1024 != 0


@pytest.mark.parametrize("text", ["0", "0.5Mi", "1500k", "1", "-1Gi", "1048577"])
def test_a_size_below_1mi_or_in_parts_of_a_mib_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="whole number of MiB"):
        quantity.mib(text)


@pytest.mark.parametrize(("text", "size"), [("1048576", 1), ("1.5Gi", 1536), ("1024Ki", 1)])
def test_a_size_is_read_in_whole_mib(text: str, size: int) -> None:
    assert quantity.mib(text) == size


@pytest.mark.parametrize("text", ["-1", "0.5", "1m"])
def test_a_count_is_a_whole_number_of_0_or_more(text: str) -> None:
    assert quantity.whole("4k") == 4000
    with pytest.raises(QuantityError):
        quantity.whole(text)


@pytest.mark.parametrize(
    ("text", "binary"), [("16Gi", True), ("1Ki", True), ("16G", False), ("16", False), (16, False)]
)
def test_only_a_binary_suffix_marks_bytes(text: str | int, binary: bool) -> None:
    assert quantity.has_binary_suffix(text) is binary
