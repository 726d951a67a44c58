"""Parts that a node registers of its devices: what each is, and which one serves a request.

A part's name has its size and its memory: `3g.24gb` is 3 of as many pieces as the largest part has,
with that share of the device's compute, and has 24 GiB. Source: HAMi v2.10.0, Enflame DRS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_GIB = 1024
"""MiB."""
_ALL = 100
"""Percent of compute."""
_DIGITS = 10
"""More of them are no number here."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part that devices are given in.

    Attributes:
        name: As the node registers it.
        size: By which pods ask for it.
        memory_mib: Its memory.
        cores: Its share of the device's compute in percent, rounded up: so parts of a device with
            as many slots as its largest part is large never take more slots than there are.
        id: What the plugin knows it by; empty where that is not needed.
    """

    name: str
    size: int
    memory_mib: int
    cores: int
    id: str = ""


def sizes_of(name: str) -> tuple[int, int]:
    """The size and the GiB that the name of a part has; 0 for what it does not have."""
    size, *rest = (each.strip() for each in name.lower().split("."))
    if not rest:
        return 0, 0
    number = _number(size.removesuffix("g"))
    return number, _number(rest[0].removesuffix("gb")) if number else 0


def named_parts(ids: Mapping[str, str]) -> tuple[tuple[Part, ...], int]:
    """The parts of a register, from the smallest to the largest, and the largest size named in it.

    Names without a size or memory are no parts, but a size counts as the largest all the same.

    Args:
        ids: By name, what the plugin knows each part by.
    """
    found = {name: sizes_of(name) for name in ids}
    largest = max((size for size, _ in found.values()), default=0)
    parts = [
        Part(name, size, gib * _GIB, -(-_ALL * size // largest), ids[name])
        for name, (size, gib) in found.items()
        if size and gib
    ]
    return in_order(parts), largest


def in_order(parts: Iterable[Part]) -> tuple[Part, ...]:
    """From the smallest to the largest."""
    return tuple(sorted(parts, key=lambda part: (part.size, part.memory_mib, part.name)))


def of_size(parts: Sequence[Part], size: int) -> Part | None:
    """The part of a size, of several the one with the least memory; None: there is none."""
    return next((part for part in parts if part.size == size), None)


def smallest(parts: Sequence[Part], memory_mib: int, cores: int) -> Part | None:
    """The smallest part with that much of both; None: there is none."""
    fitting = (part for part in parts if part.memory_mib >= memory_mib and part.cores >= cores)
    return next(fitting, None)


def mib_of(parts: Sequence[Part], written: int) -> int:
    """MiB that an amount without a unit means: GiB, if the largest part could nearly have so much.

    What is more than twice its GiB is MiB.
    """
    is_gib = bool(parts) and written <= 2 * parts[-1].memory_mib // _GIB
    return written * _GIB if is_gib else written


def _number(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    return int(text) if is_number else 0
