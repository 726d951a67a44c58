"""What a decision is: one node and the cards of every request, or the reasons why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vgpu_api.quantity import format_mib
from vgpu_api.reasons import Reason, Tally, sum_up
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation
from vgpu_operator.placement.geometry import Instance

_OF_A_NODE = frozenset(
    {
        Reason.NODE_INSUFFICIENT_DEVICE,
        Reason.NODE_NOT_READY,
        Reason.NODE_UNSCHEDULABLE,
        Reason.NODE_SELECTOR_MISMATCH,
        Reason.NODE_TAINTED,
        Reason.RESERVED_ELSEWHERE,
    }
)
"""Reasons that are counted in nodes, not in cards."""


@dataclass(slots=True, unsafe_hash=True)
class Grant:
    """A part of one card for one request.

    Not frozen, which would make it several times as dear to make; the types keep it as it is.
    `device` is the GPUDevice's name, `memory_mib` is in MiB, `cores` in percent (0: no
    reservation); `instance` is the part of a card in MIG mode that it is.
    """

    request: Final[str]
    device: Final[str]
    uuid: Final[str]
    index: Final[int]
    memory_mib: Final[int]
    cores: Final[int]
    instance: Final[Instance | None] = None

    @property
    def mig(self) -> MigAllocation | None:
        """The instance as it is written into the claim's status."""
        if self.instance is None:
            return None
        cut = self.instance
        return MigAllocation(profile=cut.profile, start=cut.start, size=cut.size)


@dataclass(slots=True, unsafe_hash=True)
class Plan:
    """What was decided: a node and grants in the order of the requests, or neither.

    Not frozen, as `Grant` is not. `refusals` has the reason of every node when there is no place,
    and else of the nodes that were tried in vain on the way.
    """

    node: Final[str | None]
    grants: Final[tuple[Grant, ...]] = ()
    refusals: Final[Mapping[str, Tally]] = field(default_factory=dict)

    @property
    def refused(self) -> bool:
        """There is no place now."""
        return self.node is None

    @property
    def reason(self) -> Reason:
        """The reason that stands for a refusal: the most frequent, of cards before of nodes."""
        return leading_reason(self.refusals)

    @property
    def text(self) -> str:
        """A refusal in words, for a condition, an event or a filter's answer."""
        return describe(self.refusals)

    def allocation(self, *, allocated_time: str) -> Allocation:
        """The plan as it is written into the claim's status.

        Raises:
            ValueError: the plan is a refusal.
        """
        if self.node is None:
            raise ValueError("a refusal allocates nothing")
        return Allocation(
            node_name=self.node,
            devices=[
                AllocatedDevice(
                    request=grant.request,
                    name=grant.device,
                    uuid=grant.uuid,
                    index=grant.index,
                    memory=format_mib(grant.memory_mib),
                    cores=grant.cores,
                    mig=grant.mig,
                )
                for grant in self.grants
            ],
            allocated_time=allocated_time,
        )


def describe(refusals: Mapping[str, Tally]) -> str:
    """The reasons of several nodes as one text: `count/total Reason`, sorted, joined by `, `.

    Reasons of cards are counted out of the cards of the nodes that have such reasons, reasons of
    nodes out of all the nodes.
    """
    cards, nodes = _summed(refusals)
    text = ", ".join(sorted(part for part in (*_parts(cards), *_parts(nodes))))
    return text or Reason.NO_GPU_NODES.value


def in_words(refusals: Mapping[str, Tally]) -> dict[str, str]:
    """Each node's reasons. Many nodes have the very same tally, which is said once."""
    said = {number: str(tally) for number, tally in _different(refusals).items()}
    return {node: said[id(tally)] for node, tally in refusals.items()}


def leading_reason(refusals: Mapping[str, Tally]) -> Reason:
    """The most frequent reason, of cards before of nodes."""
    cards, nodes = _summed(refusals)
    return cards.leading() or nodes.leading() or Reason.NO_GPU_NODES


def _parts(tally: Tally) -> list[str]:
    return str(tally).split(", ") if tally else []


def _summed(refusals: Mapping[str, Tally]) -> tuple[Tally, Tally]:
    """Of cards and of nodes."""
    different = _different(refusals)
    of_cards: list[tuple[Tally, int]] = []
    of_nodes: list[tuple[Tally, int]] = []
    for number, times in Counter(map(id, refusals.values())).items():
        tally = different[number]
        (of_nodes if _OF_A_NODE.issuperset(tally.counts) else of_cards).append((tally, times))
    nodes = sum_up(of_nodes)
    return sum_up(of_cards), Tally(nodes.counts, len(refusals))


def _different(refusals: Mapping[str, Tally]) -> dict[int, Tally]:
    """The tallies by identity, each once."""
    return {id(tally): tally for tally in refusals.values()}
