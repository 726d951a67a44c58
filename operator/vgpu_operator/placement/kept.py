"""What of the devices is kept for others while one claim is planned.

Tentative places and earmarks are nobody's allocation: they stand in no column, no status and no
quota. They count only against whom they are kept from, so they are laid over the columns of the one
node at hand for the length of its plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.taking import Taken


class Share(NamedTuple):
    """An amount of one device: requests, percent of compute, MiB, slices of MIG."""

    device: int
    slots: int
    cores: int
    memory_mib: int
    slices: int = 0


class Kept(Protocol):
    """What is kept from the claim that is planned."""

    @property
    def nodes(self) -> Collection[int]:
        """Nodes with anything that is kept from anybody; `on` may still be empty for this claim."""

    def on(self, node: int) -> Sequence[Share]:
        """What is kept from this claim on a node."""


class _Nothing:
    nodes: frozenset[int] = frozenset()

    def on(self, node: int) -> Sequence[Share]:
        return ()


NOTHING_KEPT: Kept = _Nothing()


def lay(columns: Columns, shares: Iterable[Share]) -> list[Taken]:
    """Count shares as in use, for the length of a plan; `taking.give_back` takes them off again."""
    taken: list[Taken] = []
    for share in shares:
        card = share.device
        before = slots, cores, memory, slices = columns.in_use(card)
        columns.lend(
            card,
            slots + share.slots,
            cores + share.cores,
            memory + share.memory_mib,
            slices | share.slices,
        )
        taken.append((card, *before))
    return taken
