"""A claim's place: one node and the cards of every request, or the reasons why there is none.

`place` is the whole decision. It plans on the live columns, taking cards as it goes so that the
requests of one claim see each other, and undoes that before it returns: copying the state of
thousands of cards would cost more than the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vgpu_api.quantity import format_mib
from vgpu_api.reasons import Reason, Tally, sum_up
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation
from vgpu_api.v1alpha1.vgpuclaim import NumaPolicy
from vgpu_operator.ask import ALL_CORES, Ask, RequestAsk
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.fit import Preferences, fit, node_refusal
from vgpu_operator.placement.score import node_score

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


@dataclass(frozen=True, slots=True)
class Grant:
    """A part of one card for one request.

    `device` is the GPUDevice's name, `memory_mib` is in MiB, `cores` in percent (0: no
    reservation).
    """

    request: str
    device: str
    uuid: str
    index: int
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided: a node and grants in the order of the requests, or neither.

    `refusals` has the reasons of every node that was tried in vain, also when another was found.
    """

    node: str | None
    grants: tuple[Grant, ...] = ()
    refusals: Mapping[str, Tally] = field(default_factory=dict)

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
                )
                for grant in self.grants
            ],
            allocated_time=allocated_time,
        )


def place(columns: Columns, ask: Ask, candidates: Iterable[str] | None = None) -> Plan:
    """Find the best node for all requests of `ask`, and their cards.

    Args:
        columns: The state of all cards. Left as it was found.
        ask: What is asked for.
        candidates: Names of the nodes to choose from, known or not; None for every node with
            cards. Nodes that are not ready or not schedulable are refused here; other properties
            of a node are the caller's to judge.

    Returns:
        The plan; a refusal has a reason for every candidate.
    """
    refusals: dict[str, Tally] = {}
    nodes: list[int] = []
    if candidates is None:
        nodes.extend(columns.nodes_with_cards())
    else:
        for name in dict.fromkeys(candidates):
            node = columns.node_id(name)
            if node is None:
                refusals[name] = node_refusal(Reason.NODE_INSUFFICIENT_DEVICE)
            else:
                nodes.append(node)
    ranked = _ranked(columns, _willing(columns, nodes, refusals), ask)
    # Nodes that serve every request inside one NUMA node go first, where that is wanted.
    passes: tuple[NumaPolicy, ...] = (ask.numa,)
    if ask.node_policy == "NUMAFirst":
        passes = ("Require", ask.numa)
    for numa in passes:
        for node in ranked:
            outcome = _plan_on(columns, node, ask, numa)
            if not isinstance(outcome, Tally):
                return Plan(columns.node_name[node], outcome, refusals)
            refusals[columns.node_name[node]] = outcome
    return Plan(None, (), refusals)


def describe(refusals: Mapping[str, Tally]) -> str:
    """The reasons of several nodes as one text: `count/total Reason`, sorted, joined by `, `.

    Reasons of cards are counted out of the cards of the nodes that have such reasons, reasons of
    nodes out of all the nodes.
    """
    cards, nodes = _summed(refusals)
    text = ", ".join(sorted(part for part in (*_parts(cards), *_parts(nodes))))
    return text or Reason.NO_GPU_NODES.value


def leading_reason(refusals: Mapping[str, Tally]) -> Reason:
    """The most frequent reason, of cards before of nodes."""
    cards, nodes = _summed(refusals)
    return cards.leading() or nodes.leading() or Reason.NO_GPU_NODES


def _parts(tally: Tally) -> list[str]:
    return str(tally).split(", ") if tally else []


def _summed(refusals: Mapping[str, Tally]) -> tuple[Tally, Tally]:
    of_cards: list[Tally] = []
    of_nodes: list[Tally] = []
    for tally in refusals.values():
        (of_nodes if _OF_A_NODE.issuperset(tally.counts) else of_cards).append(tally)
    nodes = sum_up(of_nodes)
    return sum_up(of_cards), Tally(nodes.counts, len(refusals))


def _willing(columns: Columns, nodes: list[int], refusals: dict[str, Tally]) -> list[int]:
    """The nodes that take pods at all; the others get their reason."""
    willing: list[int] = []
    for node in nodes:
        if not columns.node_ready[node]:
            refusals[columns.node_name[node]] = node_refusal(Reason.NODE_NOT_READY)
        elif not columns.node_schedulable[node]:
            refusals[columns.node_name[node]] = node_refusal(Reason.NODE_UNSCHEDULABLE)
        else:
            willing.append(node)
    return willing


def _ranked(columns: Columns, nodes: list[int], ask: Ask) -> list[int]:
    """Best first: the fullest, or for Spread the emptiest; then by name.

    Fragmentation is not served yet and ranks as Binpack, the default.
    """
    sign = 1.0 if ask.node_policy == "Spread" else -1.0
    return sorted(
        nodes, key=lambda node: (sign * node_score(columns, node), columns.node_name[node])
    )


def _plan_on(columns: Columns, node: int, ask: Ask, numa: NumaPolicy) -> tuple[Grant, ...] | Tally:
    """All requests on one node, or the reasons of the first that does not fit.

    Init containers run alone before the others, so each is fitted on the state before the pod.
    """
    preferences = Preferences(ask.device_policies or columns.node_policies[node], numa, ask.weights)
    grants: dict[str, list[Grant]] = {}
    taken: list[tuple[int, int, int, int]] = []
    try:
        for request in sorted(ask.requests, key=lambda request: request.phase == "App"):
            fitted = fit(columns, node, request, preferences)
            if fitted.refusal is not None:
                return fitted.refusal
            grants[request.name] = [_grant(columns, card, request) for card in fitted.cards]
            if request.phase == "App":
                for card in fitted.cards:
                    taken.append(_take(columns, card, request))
    finally:
        for card, slots, cores, memory in reversed(taken):
            columns.set_used(card, slots=slots, cores=cores, memory=memory)
    return tuple(grant for request in ask.requests for grant in grants[request.name])


def _grant(columns: Columns, card: int, request: RequestAsk) -> Grant:
    return Grant(
        request=request.name,
        device=columns.name[card],
        uuid=columns.uuid[card],
        index=columns.index[card],
        memory_mib=request.memory_on(columns.memory[card]),
        cores=request.cores,
    )


def _take(columns: Columns, card: int, request: RequestAsk) -> tuple[int, int, int, int]:
    """Use the card for the length of the plan; returns the card and what to set it back to."""
    slots, cores, memory = columns.used(card)
    cores_then = cores + request.cores
    if request.cores >= ALL_CORES:  # alone, whatever the card's cores are scaled to
        cores_then = max(cores_then, columns.cores[card])
    columns.set_used(
        card,
        slots=slots + 1,
        cores=cores_then,
        memory=memory + request.memory_on(columns.memory[card]),
    )
    return card, slots, cores, memory
