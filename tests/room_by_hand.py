"""Counts the room on a node's devices for oracles, independently of the product.

It reads claims as the API server has them, and knows devices of one model and requests for some
devices of one node with memory and compute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

MIB, SLOTS = 16384, 4
"""The memory of each device, and how many claims may share it."""

Ask: TypeAlias = tuple[int, int, int]
"""The devices, and on each of them the MiB and the percent of compute."""


def limits(ask: Ask) -> dict[str, int]:
    """Return the limits of a container with these requests."""
    names = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
    return dict(zip(names, ask, strict=True))


def has_room(
    ask: Ask, uuids: Iterable[str], claims: Iterable[Mapping[str, Any]], gone: Collection[str]
) -> bool:
    """Return True if enough devices of a node fit the request once these pods are gone."""
    count, mib, cores = ask
    claims = list(claims)
    fitting = 0
    for uuid in uuids:
        holds = [
            device
            for claim in claims
            if claim["status"]["reservedFor"]["podUID"] not in gone
            for device in claim["status"]["allocation"]["devices"]
            if device["uuid"] == uuid
        ]
        used = sum(int(device["memory"].removesuffix("Mi")) for device in holds)
        taken = sum(device["cores"] for device in holds)
        is_open = not holds if cores == 100 else taken < 100
        fitting += is_open and used + mib <= MIB and taken + cores <= 100 and len(holds) < SLOTS
    return fitting >= count
