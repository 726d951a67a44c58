"""The parts into which a node divides its devices, and the choice of a part for a request.

The name of a part contains its size and memory. If the largest part has size 6, `3g.24gb` has half
of the device's compute and 24 GiB. Source: HAMi v2.10.0, Enflame DRS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_GIB = 1024
"""MiB."""
_ALL = 100
"""All compute of a device, in percent."""
_DIGITS = 10
"""The most digits of a number in a part's name."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a device.

    Attributes:
        name: The name that the node registers.
        size: The size that pods request.
        memory_mib: Its memory.
        cores: Its share of the device's compute in percent, rounded up, so that the compute of a
            device runs out before its slots do.
        id: The plugin's id of the part. Empty if the plugin needs none.
    """

    name: str
    size: int
    memory_mib: int
    cores: int
    id: str = ""


def sizes_of(name: str) -> tuple[int, int]:
    """Return the size and the GiB in the name of a part; 0 for each that is missing."""
    size, *rest = (each.strip() for each in name.lower().split("."))
    if not rest:
        return 0, 0
    number = _number(size.removesuffix("g"))
    return number, _number(rest[0].removesuffix("gb")) if number else 0


def named_parts(ids: Mapping[str, str]) -> tuple[tuple[Part, ...], int]:
    """Return the parts in a register, smallest first, and the largest size in any name.

    A name without a size or memory is not a part, but its size still counts for the largest.

    Args:
        ids: The plugin's id of each part, by the name of the part.
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
    """Sort parts, the smallest first."""
    return tuple(sorted(parts, key=lambda part: (part.size, part.memory_mib, part.name)))


def of_size(parts: Sequence[Part], size: int) -> Part | None:
    """Return the part of this size with the least memory, or None."""
    return next((part for part in parts if part.size == size), None)


def smallest(parts: Sequence[Part], memory_mib: int, cores: int) -> Part | None:
    """Return the smallest part with at least this memory and compute, or None."""
    fitting = (part for part in parts if part.memory_mib >= memory_mib and part.cores >= cores)
    return next(fitting, None)


def mib_of(parts: Sequence[Part], written: int) -> int:
    """Convert an amount without a unit to MiB. It means GiB, unless it is too large for that.

    An amount above twice the GiB of the largest part is in MiB.
    """
    is_gib = bool(parts) and written <= 2 * parts[-1].memory_mib // _GIB
    return written * _GIB if is_gib else written


def _number(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    return int(text) if is_number else 0
