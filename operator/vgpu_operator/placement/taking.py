"""What a request takes of a card, taken and given back for the length of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from vgpu_operator.ask import ALL_CORES, RequestAsk
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.geometry import Instance, smallest

Taken: TypeAlias = tuple[int, int, int, int, int]
"""A card, and the slots, cores, MiB and slices that it is to be set back to."""


def instance_on(columns: Columns, card: int, request: RequestAsk) -> Instance | None:
    """The instance that a card in MIG mode would be cut for a request; None if there is none."""
    total, (_, cores, memory, slices) = columns.memory[card], columns.in_use(card)
    instance = smallest(columns.profiles[card], slices, request.memory_on(total))
    if instance is None:
        return None
    # An instance has its own size, whatever the card's amounts are scaled to: never more than all.
    is_over = memory + instance.memory_mib > total or cores + instance.cores > columns.cores[card]
    return None if is_over else instance


def charged(request: RequestAsk, memory_mib: int, instance: Instance | None) -> tuple[int, int]:
    """(MiB, percent of compute) that a card is charged: an instance at its own size."""
    if instance is None:
        return memory_mib, request.cores
    return instance.memory_mib, instance.cores


def take(columns: Columns, card: int, request: RequestAsk) -> Taken:
    """Use a card that fits, or an instance of it; whoever does, gives it back."""
    before = slots, cores, memory, slices = columns.in_use(card)
    instance = instance_on(columns, card, request) if columns.mode[card] == "MIG" else None
    if instance is not None:
        slices |= instance.slices
    more, own = charged(request, request.memory_on(columns.memory[card]), instance)
    cores += own
    if own >= ALL_CORES:  # alone, whatever the card's cores are scaled to
        cores = max(cores, columns.cores[card])
    columns.lend(card, slots + 1, cores, memory + more, slices)
    return card, *before


def take_place(columns: Columns, card: int, request: RequestAsk) -> Taken:
    """Take an instance's place only: what is left of a card by an init container before others.

    Its amounts count alone, but its instance lies there as long as the pod's others do.
    """
    before = slots, cores, memory, slices = columns.in_use(card)
    instance = instance_on(columns, card, request) if columns.mode[card] == "MIG" else None
    if instance is not None:
        columns.lend(card, slots, cores, memory, slices | instance.slices)
    return card, *before


def give_back(columns: Columns, taken: Iterable[Taken]) -> None:
    """Set cards back, the last taken first."""
    for card, slots, cores, memory, slices in reversed(tuple(taken)):
        columns.lend(card, slots, cores, memory, slices)
