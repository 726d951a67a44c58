"""The decision: the best node for a claim, and the cards of its requests there.

`place` plans on the live columns and undoes that before it returns: copying the state of thousands
of cards would cost more than the decision. Nodes come from the request class's ranking, best first;
the exact fit on the node at hand is the judge, so most decisions look at one node only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1.vgpuclaim import NumaPolicy
from vgpu_operator.ask import Ask
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.fit import node_refusal
from vgpu_operator.placement.plan import Grant, Plan
from vgpu_operator.placement.planning import entry_of, exceeds, plan_on
from vgpu_operator.placement.quota import UNLIMITED, Budget
from vgpu_operator.placement.rankings import Entry, Ranking

_FEW = 16
"""So few candidates are looked at one by one."""
_FAR = 256
"""After so many better nodes that are no candidates, the candidates are looked for instead."""

Found: TypeAlias = tuple[int, tuple[Grant, ...]]
"""A node that serves the claim, and with what."""


def place(
    columns: Columns,
    ask: Ask,
    candidates: Iterable[str] | None = None,
    *,
    budget: Budget = UNLIMITED,
) -> Plan:
    """Find the best node for all requests of `ask`, and their cards.

    Args:
        columns: The state of all cards. Left as it was found, but for what rankings remember.
        ask: What is asked for.
        candidates: Names of the nodes to choose from, known or not; None for every node with
            cards. Nodes that are not ready or not schedulable are refused here; other properties
            of a node are the caller's to judge.
        budget: What the claim's namespace may still take.

    Returns:
        The plan; a refusal has a reason for every candidate.
    """
    unknown: dict[str, Tally] = {}
    nodes: set[int] | None = None
    if candidates is not None:
        nodes = set()
        for name in candidates:
            node = columns.node_id(name)
            if node is None:
                unknown[name] = node_refusal(Reason.NODE_INSUFFICIENT_DEVICE)
            else:
                nodes.add(node)
    plan = _place(columns, ask, nodes)
    if budget.is_limited and (plan.refused or exceeds(columns, ask, plan, budget)):
        plan = _scan(columns, ask, nodes, budget)
    return Plan(plan.node, plan.grants, {**unknown, **plan.refusals}) if unknown else plan


def _passes(ask: Ask) -> tuple[NumaPolicy, ...]:
    """Nodes that serve every request inside one NUMA node go first, where that is wanted."""
    if ask.node_policy == "NUMAFirst" and ask.numa != "Require":
        return ("Require", ask.numa)
    return (ask.numa,)


def _place(columns: Columns, ask: Ask, nodes: Collection[int] | None) -> Plan:
    """By the rankings of the ask's classes, without a quota."""
    if nodes is not None and len(nodes) <= _FEW:
        return _scan(columns, ask, nodes, UNLIMITED)
    for numa in _passes(ask):
        ranking = columns.rankings.of((ask, numa))
        _refresh(columns, ranking, ask, numa)
        found, tried = _first(columns, ranking, ask, numa, nodes)
        if found is not None:
            if nodes is not None:
                tried = _remembered(columns, ranking, nodes)
            return Plan(columns.node_name[found[0]], found[1], tried)
    return Plan(None, (), _refusals(columns, ranking, ask, nodes))


def _scan(columns: Columns, ask: Ask, nodes: Iterable[int] | None, budget: Budget) -> Plan:
    """Every node on its own, nothing remembered: for few nodes, and for what a quota refuses."""
    refusals: dict[str, Tally] = {}
    willing: list[int] = []
    for node in columns.nodes_with_cards() if nodes is None else nodes:
        reason = _unwilling(columns, node)
        if reason is None:
            willing.append(node)
        else:
            refusals[columns.node_name[node]] = node_refusal(reason)
    for numa in _passes(ask):
        entries: list[Entry] = []
        for node in willing:
            entry = entry_of(columns, node, ask, numa, budget)
            if entry is not None:
                entries.append(entry)
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


def _refresh(columns: Columns, ranking: Ranking, ask: Ask, numa: NumaPolicy) -> None:
    """Bring the class's ranking up to date with what has changed since it was asked last."""
    follows_mix = ask.node_policy == "Fragmentation"
    news = columns.rankings.news_for(ranking, mix=columns.mix.version if follows_mix else 0)
    if news is not None and not news:
        return
    heap = ranking.heap
    for node in columns.nodes_with_cards() if news is None else news:
        if not columns.node_cards[node] or _unwilling(columns, node) is not None:
            continue
        entry = entry_of(columns, node, ask, numa, UNLIMITED)
        if entry is None:
            continue
        if news is None:
            heap.append(entry)
        else:
            heappush(heap, entry)
    if news is None:
        heapify(heap)


def _first(
    columns: Columns,
    ranking: Ranking,
    ask: Ask,
    numa: NumaPolicy,
    nodes: Collection[int] | None,
) -> tuple[Found | None, dict[str, Tally]]:
    """The best node that serves the claim, and why those before it do not."""
    heap, version = ranking.heap, columns.rankings.version
    tried: dict[str, Tally] = {}
    aside: list[Entry] = []
    found = None
    while heap and len(aside) < _FAR:
        _, name, node, seen = heap[0]
        if seen != version[node]:
            heappop(heap)
        elif nodes is not None and node not in nodes:
            aside.append(heappop(heap))
        else:
            outcome = plan_on(columns, node, ask, numa)
            if not isinstance(outcome, Tally):
                found = node, outcome
                break
            heappop(heap)
            tried[name] = outcome
            ranking.refusals[node] = seen, outcome
    for entry in aside:
        heappush(heap, entry)
    if found is None and heap and nodes is not None:  # the candidates are far down
        found = _among(columns, heap, ask, numa, nodes)
    return found, tried


def _among(
    columns: Columns, heap: list[Entry], ask: Ask, numa: NumaPolicy, nodes: Collection[int]
) -> Found | None:
    """The best of a heap's entries that are candidates; the heap stays as it is."""
    version = columns.rankings.version
    entries = [entry for entry in heap if entry[2] in nodes and entry[3] == version[entry[2]]]
    for _, _, node, _ in sorted(entries):
        outcome = plan_on(columns, node, ask, numa)
        if not isinstance(outcome, Tally):
            return node, outcome
    return None


def _refusals(
    columns: Columns, ranking: Ranking, ask: Ask, nodes: Collection[int] | None
) -> dict[str, Tally]:
    """Why no node serves the claim. What was found out before and has not changed is kept."""
    refusals: dict[str, Tally] = {}
    for node in columns.nodes_with_cards() if nodes is None else nodes:
        reason = _unwilling(columns, node)
        version = columns.rankings.version[node]
        known = ranking.refusals.get(node)
        if reason is not None:
            tally = node_refusal(reason)
        elif known is not None and known[0] == version:
            tally = known[1]
        else:
            outcome = plan_on(columns, node, ask, ask.numa)
            assert isinstance(outcome, Tally)
            tally = outcome
            ranking.refusals[node] = version, tally
        refusals[columns.node_name[node]] = tally
    return refusals


def _remembered(columns: Columns, ranking: Ranking, nodes: Collection[int]) -> dict[str, Tally]:
    """What is known of candidates that do not serve the claim."""
    version = columns.rankings.version
    return {
        columns.node_name[node]: known[1]
        for node, known in ranking.refusals.items()
        if known[0] == version[node] and node in nodes
    }


def _unwilling(columns: Columns, node: int) -> Reason | None:
    """Why the node takes no pods at all."""
    if not columns.node_ready[node]:
        return Reason.NODE_NOT_READY
    return None if columns.node_schedulable[node] else Reason.NODE_UNSCHEDULABLE
