"""The decision: the best node for a claim, and the cards of its requests there.

`place` plans on the live columns and undoes that before it returns: copying the state of thousands
of cards would cost more than the decision. Nodes come from the request class's ranking, best first;
the exact fit on the node at hand is the judge, so most decisions look at one node only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Final, TypeAlias

from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1.vgpuclaim import NumaPolicy
from vgpu_operator.ask import Ask
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.explaining import Explanations
from vgpu_operator.placement.plan import Grant, Plan
from vgpu_operator.placement.planning import exceeds, grants_on, keys_for, plan_on
from vgpu_operator.placement.quota import UNLIMITED, Budget
from vgpu_operator.placement.rankings import Entry, Ranking
from vgpu_operator.placement.tried import Tried

_FEW = 16
"""So few candidates are looked at one by one."""
_FAR = 256
"""After so many better nodes that are no candidates, the candidates are looked for instead."""

_NONE: Mapping[str, Tally] = MappingProxyType({})

Found: TypeAlias = tuple[int, tuple[Grant, ...]]
"""A node that serves the claim, and with what."""


def place(
    columns: Columns,
    ask: Ask,
    candidates: Collection[str] | None = None,
    *,
    barred: Mapping[str, Tally] = MappingProxyType({}),
    budget: Budget = UNLIMITED,
) -> Plan:
    """Find the best node for all requests of `ask`, and their cards.

    Args:
        columns: The state of all cards. Left as it was found, but for what rankings remember.
        ask: What is asked for.
        candidates: Names of the nodes to choose from, known or not; None for every node with
            cards. Nodes that are not ready or not schedulable are refused here.
        barred: Nodes that the caller rules out, and why: those with cards, or more.
        budget: What the claim's namespace may still take.

    Returns:
        The plan; a refusal has a reason for every candidate, a grant of nodes that were tried in
        vain before, as it is when somebody looks at it first.
    """
    space = _Space(frozenset(candidates) if candidates is not None else None, barred)
    plan = _place(columns, ask, space)
    if not budget.is_limited:
        return plan
    if plan.refused or exceeds(columns, ask, plan, budget):
        return _scan(columns, ask, space, budget)
    return Plan(plan.node, plan.grants)  # what was tried in vain was tried without the quota


def refusals_on(
    columns: Columns,
    ask: Ask,
    candidates: Collection[str],
    *,
    barred: Mapping[str, Tally] = MappingProxyType({}),
    budget: Budget = UNLIMITED,
) -> dict[str, Tally]:
    """Why the candidates that do not serve the claim do not, each looked at alone.

    Args:
        columns: The state of all cards.
        ask: What is asked for.
        candidates: As for `place`.
        barred: As for `place`.
        budget: As for `place`.
    """
    nodes, refusals = _Space(frozenset(candidates), barred).numbers(columns)
    for node in nodes:
        reason = _unwilling(columns, node)
        if reason is not None:
            refusals[columns.node_name[node]] = Tally.of_node(reason)
            continue
        outcome = plan_on(columns, node, ask, ask.numa, budget)
        if isinstance(outcome, Tally):
            refusals[columns.node_name[node]] = outcome
    return refusals


@dataclass(slots=True)
class _Space:
    """The nodes to choose from. Names, not numbers: most decisions look at one or two of them."""

    candidates: Final[frozenset[str] | None]
    barred: Final[Mapping[str, Tally]]

    def __contains__(self, name: str) -> bool:
        return name not in self.barred and (self.candidates is None or name in self.candidates)

    @property
    def is_everything(self) -> bool:
        return self.candidates is None and not self.barred

    def numbers(self, columns: Columns) -> tuple[list[int], dict[str, Tally]]:
        """The numbers of all nodes in it, and why other candidates are not."""
        if self.candidates is None:
            names = [columns.node_name[node] for node in columns.nodes_with_cards()]
        else:
            names = list(self.candidates)
        out: dict[str, Tally] = {}
        nodes: list[int] = []
        missing = Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE)
        for name, node in zip(names, columns.node_ids(names), strict=True):
            if name in self.barred:
                out[name] = self.barred[name]
            elif node is None:
                out[name] = missing
            else:
                nodes.append(node)
        return nodes, out


def _passes(ask: Ask) -> tuple[NumaPolicy, ...]:
    """Nodes that serve every request inside one NUMA node go first, where that is wanted."""
    if ask.node_policy == "NUMAFirst" and ask.numa != "Require":
        return ("Require", ask.numa)
    return (ask.numa,)


def _place(columns: Columns, ask: Ask, space: _Space) -> Plan:
    """By the rankings of the ask's classes, without a quota."""
    if space.candidates is not None and len(space.candidates) <= _FEW:
        return _scan(columns, ask, space, UNLIMITED)
    for numa in _passes(ask):
        ranking = columns.rankings.of((ask, numa))
        found, tried = _best(columns, ranking, ask, numa, space)
        if found is None and ranking.beyond is not None:
            ranking.look_beyond()
            found, tried = _best(columns, ranking, ask, numa, space)
        if found is not None:
            refusals = Tried(tried, columns, ask, numa) if tried else _NONE
            return Plan(columns.node_name[found[0]], found[1], refusals)
    return Plan(None, (), _refusals(columns, ranking, ask, space))


def _scan(columns: Columns, ask: Ask, space: _Space, budget: Budget) -> Plan:
    """Every node on its own, nothing remembered: for few nodes, and for what a quota refuses."""
    nodes, refusals = space.numbers(columns)
    willing: list[int] = []
    for node in nodes:
        reason = _unwilling(columns, node)
        if reason is None:
            willing.append(node)
        else:
            refusals[columns.node_name[node]] = Tally.of_node(reason)
    for numa in _passes(ask):
        entries: list[Entry] = []
        key_of = keys_for(columns, ask, numa, budget)
        for node in willing:
            key = key_of(node)
            if key is not None:
                entries.append((key, columns.node_name[node], node, 0))
                continue
            why = plan_on(columns, node, ask, numa, budget)
            assert isinstance(why, Tally)
            refusals[columns.node_name[node]] = why
        for _, name, node, _ in sorted(entries):
            outcome = plan_on(columns, node, ask, numa, budget)
            if not isinstance(outcome, Tally):
                return Plan(name, outcome, refusals)
            refusals[name] = outcome
    return Plan(None, (), refusals)


def _best(
    columns: Columns, ranking: Ranking, ask: Ask, numa: NumaPolicy, space: _Space
) -> tuple[Found | None, dict[str, int]]:
    """The best node of the ranking that serves the claim, and those before it, which do not."""
    _refresh(columns, ranking, ask, numa)
    return _first(columns, ranking, ask, numa, space)


def _refresh(columns: Columns, ranking: Ranking, ask: Ask, numa: NumaPolicy) -> None:
    """Bring the class's ranking up to date with what has changed since it was asked last."""
    follows_mix = ask.node_policy == "Fragmentation"
    news = columns.rankings.news_for(ranking, mix=columns.mix.version if follows_mix else 0)
    if news is not None and not news:
        return
    heap, beyond = ranking.heap, ranking.beyond
    key_of = keys_for(columns, ask, numa, UNLIMITED)
    names, versions = columns.node_name, columns.rankings.version
    cards, ready, schedulable = columns.node_cards, columns.node_ready, columns.node_schedulable
    for node in columns.nodes_with_cards() if news is None else news:
        if not (cards[node] and ready[node] and schedulable[node]):
            continue
        key = key_of(node)
        if key is None:
            continue
        entry = (key, names[node], node, versions[node])
        if news is None:
            heap.append(entry)
        elif beyond is None or entry < beyond:
            heappush(heap, entry)
    if news is None:
        heapify(heap)


def _first(
    columns: Columns,
    ranking: Ranking,
    ask: Ask,
    numa: NumaPolicy,
    space: _Space,
) -> tuple[Found | None, dict[str, int]]:
    """The best node that serves the claim, and those before it, which do not."""
    heap, version = ranking.heap, columns.rankings.version
    tried: dict[str, int] = {}
    aside: list[Entry] = []
    found, everything = None, space.is_everything
    while heap and len(aside) < _FAR:
        _, name, node, seen = heap[0]
        if seen != version[node]:
            heappop(heap)
        elif not everything and name not in space:
            aside.append(heappop(heap))
        else:
            grants = grants_on(columns, node, ask, numa)
            if grants is not None:
                found = node, grants
                break
            heappop(heap)
            tried[name] = node
    for entry in aside:
        heappush(heap, entry)
    if found is not None:
        ranking.keep_best(version)
    elif heap and not everything:  # the candidates are far down
        found = _among(columns, heap, ask, numa, space)
    return found, tried


def _among(
    columns: Columns, heap: list[Entry], ask: Ask, numa: NumaPolicy, space: _Space
) -> Found | None:
    """The best of a heap's entries that are candidates; the heap stays as it is."""
    version = columns.rankings.version
    entries = [entry for entry in heap if entry[3] == version[entry[2]] and entry[1] in space]
    for _, _, node, _ in sorted(entries):
        grants = grants_on(columns, node, ask, numa)
        if grants is not None:
            return node, grants
    return None


def _refusals(columns: Columns, ranking: Ranking, ask: Ask, space: _Space) -> dict[str, Tally]:
    """Why no node serves the claim. What was found out before and has not changed is kept."""
    nodes, refusals = space.numbers(columns)
    explanations = Explanations(columns, ask, ranking)
    names, versions, kept = columns.node_name, columns.rankings.version, ranking.refusals
    ready, schedulable = columns.node_ready, columns.node_schedulable
    for node in nodes:
        if not (ready[node] and schedulable[node]):
            reason = _unwilling(columns, node)
            assert reason is not None
            refusals[names[node]] = Tally.of_node(reason)
            continue
        version, known = versions[node], kept.get(node)
        if known is None or known[0] != version:
            known = kept[node] = version, explanations.of(node)
        refusals[names[node]] = known[1]
    return refusals


def _unwilling(columns: Columns, node: int) -> Reason | None:
    """Why the node takes no pods at all."""
    if not columns.node_ready[node]:
        return Reason.NODE_NOT_READY
    return None if columns.node_schedulable[node] else Reason.NODE_UNSCHEDULABLE
