"""Chooses the profile and the place of an instance on a device in MIG mode.

The driver lists the profiles of a device and the places of each. An instance occupies `size` memory
slices from `start` on, and no two share a slice. Sets of slices are the bits of an integer. As in
HAMi v2.10, a request gets the smallest instance that can serve it and still has a place, and the
device is charged the size of the instance, not the requested amount.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Place: TypeAlias = tuple[int, int]
"""(first memory slice, number of slices)."""

_FROM_THE_END = ("1g.", "3g.")
"""Profiles that are placed near the end of a device, to keep its start free for others."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A MIG profile with the places of its instances.

    Attributes:
        name: The driver's name for it, such as 1g.5gb.
        memory_mib: The memory of an instance in MiB.
        cores: Its share of the device's compute in percent.
        places: The places for an instance, most preferred first.
    """

    name: str
    memory_mib: int
    cores: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance that exists or is to be created; `start` and `size` are in slices."""

    profile: str
    start: int
    size: int
    memory_mib: int
    cores: int

    @property
    def slices(self) -> int:
        """Return the slices that it occupies."""
        return slices_of(self.start, self.size)


@dataclass(frozen=True, slots=True)
class Offer:
    """A profile as the driver reports it; `compute_slices` breaks ties between equal sizes."""

    name: str
    memory_mib: int
    cores: int
    compute_slices: int
    places: tuple[Place, ...]


def bits_of(numbers: Iterable[int]) -> int:
    """Return an integer in which the bits with these numbers are set."""
    return sum(1 << number for number in set(numbers))


def slices_of(start: int, size: int) -> int:
    """Return the slices of a place, one bit each."""
    return ((1 << size) - 1) << start


def geometry(offers: Iterable[Offer]) -> tuple[Profile, ...]:
    """Sort profiles by preference: least memory first, then fewest compute slices."""
    return tuple(
        Profile(offer.name, offer.memory_mib, offer.cores, _in_order(offer))
        for offer in sorted(offers, key=lambda offer: (offer.memory_mib, offer.compute_slices))
    )


def smallest(
    profiles: Iterable[Profile], taken: int, memory_mib: int, *, named: str = ""
) -> Instance | None:
    """Return an instance of the first profile with enough memory and a free place, or None.

    Args:
        profiles: The result of `geometry`.
        taken: The slices that other instances occupy.
        memory_mib: The requested memory in MiB.
        named: The only allowed profile; empty for any profile.
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
