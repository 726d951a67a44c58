"""Parts that a node registers: the meaning of their names, and the part that serves a request."""

from __future__ import annotations

import pytest

from vgpu_operator.vendors.parts import Part, mib_of, named_parts, of_size, sizes_of, smallest


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("3g.24gb", (3, 24)),
        (" 3G.24GB ", (3, 24)),
        ("3.24", (3, 24)),
        ("3g.24gb.plain", (3, 24)),
        ("3g.plain", (3, 0)),
        ("3g.24tb", (3, 0)),
        ("full", (0, 0)),
        ("3g", (0, 0)),
        ("g.24gb", (0, 0)),
        ("-3g.24gb", (0, 0)),
        ("3gg.24gb", (0, 0)),
        ("٣g.24gb", (0, 0)),
        ("99999999999g.24gb", (0, 0)),
        ("0g.24gb", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_a_name_has_a_size_and_memory_or_not(name: str, sizes: tuple[int, int]) -> None:
    assert sizes_of(name) == sizes


def test_parts_are_in_order_and_have_their_share_of_the_compute_rounded_up() -> None:
    ids = {"7g.80gb": "0", "1g.20gb": "15", "1g.10gb": "19", "full": "9", "4g.40gb": "5"}
    parts, largest = named_parts(ids)
    assert largest == 7
    assert parts == (
        Part("1g.10gb", 1, 10_240, 15, "19"),
        Part("1g.20gb", 1, 20_480, 15, "15"),
        Part("4g.40gb", 4, 40_960, 58, "5"),
        Part("7g.80gb", 7, 81_920, 100, "0"),
    )


def test_a_size_without_memory_is_no_part_and_counts_as_the_largest() -> None:
    parts, largest = named_parts({"2g.16gb": "0", "8g.most": "1"})
    assert (parts, largest) == ((Part("2g.16gb", 2, 16_384, 25, "0"),), 8)
    assert named_parts({"full": "0"}) == ((), 0)


PARTS, _ = named_parts({"1g.20gb": "", "1g.10gb": "", "2g.20gb": "", "4g.40gb": "", "8g.80gb": ""})


@pytest.mark.parametrize(
    ("size", "name"), [(1, "1g.10gb"), (2, "2g.20gb"), (8, "8g.80gb"), (3, None)]
)
def test_a_size_is_that_part_with_the_least_memory(size: int, name: str | None) -> None:
    found = of_size(PARTS, size)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("memory_mib", "cores", "name"),
    [
        (1, 0, "1g.10gb"),
        (10_240, 0, "1g.10gb"),
        (10_241, 0, "1g.20gb"),
        (10_241, 14, "2g.20gb"),
        (1, 26, "4g.40gb"),
        (40_960, 51, "8g.80gb"),
        (81_920, 100, "8g.80gb"),
        (81_921, 0, None),
    ],
)
def test_the_smallest_part_with_both_serves(memory_mib: int, cores: int, name: str | None) -> None:
    found = smallest(PARTS, memory_mib, cores)
    assert (None if found is None else found.name) == name


def test_an_amount_without_a_unit_is_gib_unless_that_is_more_than_twice_the_largest_part() -> None:
    assert [mib_of(PARTS, written) for written in (1, 80, 160)] == [1024, 81_920, 163_840]
    assert [mib_of(PARTS, written) for written in (161, 8192)] == [161, 8192]
    assert mib_of((), 8) == 8
