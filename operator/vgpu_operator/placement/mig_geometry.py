"""How a device in MIG mode is cut into instances: which profile serves, and where it lies.

The driver lists what a device may be divided into and where each profile may lie. An instance lies
on the memory slices from `start` on, `size` of them; no two share a slice. Slices are the bits of a
number. As in HAMi v2.10 the smallest instance that serves and still has a place is given, and the
device is charged the instance's size, not what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Place: TypeAlias = tuple[int, int]
"""(first memory slice, number of slices)."""

_FROM_THE_END = ("1g.", "3g.")
"""Profiles that are put at the end of a device first, which keeps its start free for the others."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a device may be cut into.

    Attributes:
        name: As the driver spells it, such as 1g.5gb.
        memory_mib: Memory of an instance.
        cores: Its part of the device's compute, in percent.
        places: Where it may lie, the most wanted first.
    """

    name: str
    memory_mib: int
    cores: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """A part of a device that is cut, or to be cut, out of it; `start` and `size` in slices."""

    profile: str
    start: int
    size: int
    memory_mib: int
    cores: int

    @property
    def slices(self) -> int:
        """The slices that it lies on."""
        return slices_of(self.start, self.size)


@dataclass(frozen=True, slots=True)
class Offer:
    """A profile as the driver reports it; `compute_slices` decides among equal sizes."""

    name: str
    memory_mib: int
    cores: int
    compute_slices: int
    places: tuple[Place, ...]


def bits_of(numbers: Iterable[int]) -> int:
    """Numbers as the bits of one."""
    return sum(1 << number for number in set(numbers))


def slices_of(start: int, size: int) -> int:
    """The slices of a place, one bit each."""
    return ((1 << size) - 1) << start


def geometry(offers: Iterable[Offer]) -> tuple[Profile, ...]:
    """What a device may be cut into, in the order of choice: least memory, then fewest slices."""
    return tuple(
        Profile(offer.name, offer.memory_mib, offer.cores, _in_order(offer))
        for offer in sorted(offers, key=lambda offer: (offer.memory_mib, offer.compute_slices))
    )


def smallest(
    profiles: Iterable[Profile], taken: int, memory_mib: int, *, named: str = ""
) -> Instance | None:
    """The first profile with that much memory that has a place besides the slices `taken`.

    Args:
        profiles: From `geometry`.
        taken: Slices that instances lie on.
        memory_mib: What is asked for.
        named: The only profile that serves; empty for all of them.
    """
    for profile in profiles:
        if profile.memory_mib < memory_mib or named not in ("", profile.name):
            continue
        for start, size in profile.places:
            if not taken & slices_of(start, size):
                return Instance(profile.name, start, size, profile.memory_mib, profile.cores)
    return None


def _in_order(offer: Offer) -> tuple[Place, ...]:
    return tuple(sorted(offer.places, reverse=offer.name.startswith(_FROM_THE_END)))
