"""Chooses the best node for a claim, and the devices for its requests on that node.

`place` plans on the live columns and undoes its changes before it returns, because copying the
state of thousands of devices would cost more than the decision. It takes nodes from the ranking of
the request's class, best first, until the exact plan succeeds on one; usually the first one does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

import numpy as np

from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1.vgpuclaim import NumaPolicy
from vgpu_operator.demand import Demand
from vgpu_operator.placement.constraints import (
    ALL,
    EVERY_NODE,
    NOTHING_KEPT,
    UNLIMITED,
    Budget,
    Kept,
    NodeFilter,
    numbers_of,
)
from vgpu_operator.placement.fit_device import give_back, lay, may_fit
from vgpu_operator.placement.fit_node import (
    DECISION_STEPS,
    KeyOf,
    exceeds,
    follows_score,
    grants_on,
    keys_for,
    plan_on,
)
from vgpu_operator.placement.fleet import Fleet, Numbers, Scores
from vgpu_operator.placement.plan import Grant, Plan, Refused, alike
from vgpu_operator.placement.ranking_cache import BEST, Entry, Ranking
from vgpu_operator.placement.refusal_counts import why_none_serve

_FEW = 16
"""Up to this many candidates are checked one by one, without a ranking."""
_FAR = 256
"""After this many better nodes that are not candidates, only the candidates are searched."""

Found: TypeAlias = tuple[int, tuple[Grant, ...]]
"""A node that can serve the claim, and the grants on it."""


def place(
    fleet: Fleet,
    demand: Demand,
    candidates: Collection[str] | None = None,
    *,
    nodes: NodeFilter = EVERY_NODE,
    budget: Budget = UNLIMITED,
    kept: Kept = NOTHING_KEPT,
) -> Plan:
    """Find the best node for all requests of `demand`, and their devices.

    Args:
        fleet: The state of all devices; only its rankings are modified.
        demand: The claim's requests.
        candidates: Names of the nodes to choose from, known or not; None for every node with
            devices. Nodes that are not ready or not schedulable are refused here.
        nodes: The nodes that the pod's own rules allow.
        budget: The amounts that the claim's namespace may still take.
        kept: The capacity that is kept for others.

    Returns:
        The plan. The reasons of a refusal are computed when they are first read, from the state of
        the columns at that time.
    """
    space = _Space(fleet, demand, frozenset(candidates) if candidates is not None else None,
                   nodes, budget, kept)  # fmt: skip
    found = _place(space)
    if found is None:
        return Plan(None, (), space.refusals)
    return Plan(fleet.node_name[found[0]], found[1])


def best_of(
    fleet: Fleet,
    demand: Demand,
    numbers: Iterable[int],
    *,
    nodes: NodeFilter = EVERY_NODE,
    budget: Budget = UNLIMITED,
    kept: Kept = NOTHING_KEPT,
) -> Plan | None:
    """Return a plan for the best of a few nodes, or None without reasons if none can serve.

    It is meant for a waiting request that fits on no other node; its cost grows with the number of
    nodes.
    """
    space = _Space(fleet, demand, None, nodes, budget, kept)
    there = [node for node in numbers if space.is_willing(node)]
    found = space.first_that_serves(there)
    return None if found is None else Plan(fleet.node_name[found[0]], found[1])


def refusals_on(
    fleet: Fleet,
    demand: Demand,
    candidates: Collection[str],
    *,
    nodes: NodeFilter = EVERY_NODE,
    budget: Budget = UNLIMITED,
    kept: Kept = NOTHING_KEPT,
) -> dict[str, Tally]:
    """Return the reasons of each candidate that cannot serve the claim.

    The arguments are those of `place`.
    """
    space = _Space(fleet, demand, frozenset(candidates), nodes, budget, kept)
    willing, refusals = space.split()
    for node in willing:
        outcome = space.plan(node, demand.numa)
        if isinstance(outcome, Tally):
            refusals[fleet.node_name[node]] = outcome
    return refusals


@dataclass(slots=True)
class _Space:
    """A claim and the nodes from which to choose."""

    fleet: Final[Fleet]
    demand: Final[Demand]
    candidates: Final[frozenset[str] | None]
    nodes: Final[NodeFilter]
    budget: Final[Budget]
    kept: Final[Kept]

    def __post_init__(self) -> None:
        self.fleet.search_steps = DECISION_STEPS  # each decision starts with a full search budget

    @property
    def is_everything(self) -> bool:
        return self.candidates is None and self.nodes.allowed == ALL

    def has(self, node: int, name: str) -> bool:
        return node in self.nodes and (self.candidates is None or name in self.candidates)

    def is_willing(self, node: int) -> bool:
        """Return True if the node accepts this pod."""
        fleet = self.fleet
        is_open = fleet.node_ready[node] and fleet.node_schedulable[node]
        return bool(
            fleet.node_devices[node]
            and (is_open or self.nodes.tolerated >> node & 1)
            and self.has(node, fleet.node_name[node])
        )

    def few(self) -> list[int] | None:
        """Return the nodes from which to choose, if there are few enough to check one by one."""
        if self.candidates is not None and len(self.candidates) <= _FEW:
            found = self.fleet.node_ids(self.candidates)
            return [node for node in found if node is not None]
        allowed = self.nodes.allowed
        if allowed != ALL and allowed >= 0 and allowed.bit_count() <= _FEW:
            return list(numbers_of(allowed))
        return None

    def split(self) -> tuple[list[int], dict[str, Tally]]:
        """Return the candidates that accept the pod, and the reasons of those that do not."""
        fleet, names = self.fleet, self.fleet.node_name
        refused: dict[str, Tally] = {}
        if self.candidates is None:
            willing, others = fleet.split_by_willingness(self.nodes)
        else:
            missing = Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE)
            ready, schedulable = fleet.node_ready, fleet.node_schedulable
            everything, tolerated = self.nodes.allowed == ALL, self.nodes.tolerated
            willing, others = [], []
            for name, node in zip(self.candidates, fleet.node_ids(self.candidates), strict=True):
                if node is None:
                    refused[name] = missing
                elif (everything or node in self.nodes) and (
                    (ready[node] and schedulable[node]) or tolerated >> node & 1
                ):
                    willing.append(node)
                else:
                    others.append(node)
        for node in others:
            why = self.why_unwilling(node)
            assert why is not None
            refused[names[node]] = Tally.of_node(why)
        return willing, refused

    def why_unwilling(self, node: int) -> Reason | None:
        """Return why a node does not accept the pod, regardless of devices, or None if it does."""
        if node not in self.nodes:
            return self.nodes.refusal(node)
        return self.fleet.closed(node, self.nodes)

    def grants(self, node: int, numa: NumaPolicy) -> tuple[Grant, ...] | None:
        """Return the claim's grants on a node, or None if the node cannot serve it."""
        shares = self.kept.on(node)
        if not shares:
            return self._grants(node, numa)
        if not may_fit(self.fleet, node, self.demand.requests[0], shares):
            return None
        laid = lay(self.fleet, shares)
        grants = self._grants(node, numa)
        give_back(self.fleet, laid)
        return grants

    def _grants(self, node: int, numa: NumaPolicy) -> tuple[Grant, ...] | None:
        if not self.budget.is_limited:
            return grants_on(self.fleet, node, self.demand, numa)
        outcome = plan_on(self.fleet, node, self.demand, numa, self.budget)
        return None if isinstance(outcome, Tally) else outcome

    def plan(self, node: int, numa: NumaPolicy) -> tuple[Grant, ...] | Tally:
        """Like `grants`, but return the reasons of a refusal as well."""
        laid = lay(self.fleet, self.kept.on(node))
        outcome = plan_on(self.fleet, node, self.demand, numa, self.budget)
        give_back(self.fleet, laid)
        return outcome

    def first_that_serves(self, nodes: Sequence[int]) -> Found | None:
        """Return the best node that can serve the claim, without a ranking."""
        for numa in _passes(self.demand):
            for node in nodes if len(nodes) == 1 else self.in_order(nodes, numa):
                grants = self.grants(node, numa)
                if grants is not None:
                    return node, grants
        return None

    def in_order(self, nodes: Sequence[int], numa: NumaPolicy) -> list[int]:
        """Sort nodes, best first, without those that are known not to fit."""
        key_of = keys_for(self.fleet, self.demand, numa, self.budget)
        ranked: list[tuple[float, str, int]] = []
        for node in nodes:
            key = key_of(node)
            if key is not None:
                ranked.append((key, self.fleet.node_name[node], node))
        return [node for _, _, node in sorted(ranked)]

    def tally(self, node: int) -> Tally:
        """Return why a node that accepts the pod cannot serve it; empty if it now can."""
        outcome = self.plan(node, self.demand.numa)
        return outcome if isinstance(outcome, Tally) else Tally({}, 0)

    def refusals(self) -> list[Refused]:
        """Return the reasons of all candidates."""
        fleet, kept = self.fleet, frozenset(self.kept.nodes)
        fleet.search_steps = DECISION_STEPS
        willing, refused = self.split()
        apart = kept.intersection(willing)
        together = [node for node in willing if node not in apart] if apart else willing
        name_of = fleet.node_name.__getitem__
        refused.update((name_of(node), self.tally(node)) for node in sorted(apart))
        found = alike(refused)
        for tally, nodes in why_none_serve(fleet, self.demand, together, self.budget):
            found.append((tally, list(map(name_of, nodes))))
        return found

    def is_kept(self, node: int) -> bool:
        """Return True if capacity of the node is kept from this claim."""
        return bool(self.kept.on(node))


def _passes(demand: Demand) -> tuple[NumaPolicy, ...]:
    """Return the NUMA policies to try in turn.

    With NUMAFirst, nodes that can serve every request on one NUMA node come first.
    """
    if demand.node_policy == "NUMAFirst" and demand.numa != "Require":
        return ("Require", demand.numa)
    return (demand.numa,)


def _place(space: _Space) -> Found | None:
    few = space.few()
    if few is not None:
        return space.first_that_serves([node for node in few if space.is_willing(node)])
    if not space.budget.is_limited:
        return _by_rankings(space)
    if space.fleet.exceeds_everywhere(space.demand, space.budget):
        return None
    unlimited = replace(space, budget=UNLIMITED)
    found = _by_rankings(unlimited)
    if found is None or not exceeds(space.fleet, space.demand, Plan(None, found[1]), space.budget):
        return found  # a quota only removes choices, and this one does not remove the best
    return _by_search(space)


def _by_search(space: _Space) -> Found | None:
    """Find a node among all candidates that may serve, without the rankings."""
    for numa in _passes(space.demand):
        found = _among(numa, space)
        if found is not None:
            return found
    return None


def _by_rankings(space: _Space) -> Found | None:
    """Find a node by the ranking of the demand's class, regardless of quotas."""
    fleet, demand = space.fleet, space.demand
    if space.nodes.tolerated:  # rankings do not contain nodes that are cordoned or not ready
        return _by_search(space)
    for numa in _passes(demand):
        ranking = fleet.rankings.of((demand, numa))
        found = _best(ranking, numa, space)
        # Only now is it worth looking at the nodes that were cut off the ranking.
        if found is None and ranking.beyond is not None and space.is_everything:
            ranking.look_beyond()
            found = _best(ranking, numa, space)
        if found is not None:
            return found
    return None


def _best(ranking: Ranking, numa: NumaPolicy, space: _Space) -> Found | None:
    """Update the ranking and return its best node that can serve the claim."""
    _refresh(space.fleet, ranking, space.demand, numa)
    return _first(ranking, numa, space)


def _refresh(fleet: Fleet, ranking: Ranking, demand: Demand, numa: NumaPolicy) -> None:
    """Apply to the class's ranking all changes of nodes since it was last read."""
    follows_mix = demand.node_policy == "Fragmentation"
    news = fleet.rankings.news_for(ranking, mix=fleet.mix.version if follows_mix else 0)
    if news is None:
        _rank_anew(fleet, ranking, demand, numa)
        return
    if not news:
        return
    heap, beyond = ranking.heap, ranking.beyond
    key_of = keys_for(fleet, demand, numa, UNLIMITED)
    names, versions = fleet.node_name, fleet.rankings.version
    devices, ready, schedulable = fleet.node_devices, fleet.node_ready, fleet.node_schedulable
    for node in news:
        if not (devices[node] and ready[node] and schedulable[node]):
            continue
        key = key_of(node)
        if key is None:
            continue
        entry = (key, names[node], node, versions[node])
        # Nodes beyond the cut are missing in the heap, so an entry there would jump the queue.
        if beyond is None or entry < beyond:
            heappush(heap, entry)


def _rank_anew(fleet: Fleet, ranking: Ranking, demand: Demand, numa: NumaPolicy) -> None:
    """Fill the empty heap of a class with all nodes that may serve it."""
    names, versions, heap = fleet.node_name, fleet.rankings.version, ranking.heap
    nodes = fleet.may_serve(demand)
    keys = _keys(fleet, nodes, demand, numa)
    if keys is not None and not ranking.keeps_all:
        for position in fleet.best_positions(nodes, keys, BEST + 1):
            node = int(nodes[position])
            heap.append((float(keys[position]), names[node], node, versions[node]))
        if len(heap) > BEST:  # entries were added in sorted order, so the list is already a heap
            ranking.beyond = heap.pop()
        return
    heap += _entries(fleet, nodes.tolist(), keys_for(fleet, demand, numa, UNLIMITED))
    heapify(heap)


def _entries(fleet: Fleet, nodes: Iterable[int], key_of: KeyOf) -> Iterator[Entry]:
    names, versions = fleet.node_name, fleet.rankings.version
    for node in nodes:
        key = key_of(node)
        if key is not None:
            yield key, names[node], node, versions[node]


def _first(ranking: Ranking, numa: NumaPolicy, space: _Space) -> Found | None:
    """Return the best node in the heap that can serve the claim."""
    heap, version = ranking.heap, space.fleet.rankings.version
    aside: list[Entry] = []
    found, everything = None, space.is_everything
    while heap and len(aside) < _FAR:
        _, name, node, seen = heap[0]
        # an outdated entry: if the node may still serve, it has a newer one
        if seen != version[node]:
            heappop(heap)
        elif not everything and not space.has(node, name):
            aside.append(heappop(heap))
        else:
            grants = space.grants(node, numa)
            if grants is not None:
                found = node, grants
                break
            entry = heappop(heap)
            if space.is_kept(node):  # keep the node, because it may serve other claims of the class
                aside.append(entry)
    more = bool(heap) or (ranking.beyond is not None and not everything)
    for entry in aside:
        heappush(heap, entry)
    if found is not None:
        ranking.keep_best(version)
    elif more:  # the candidates are far down the ranking, or were cut off
        found = _among(numa, space)
    return found


def _among(numa: NumaPolicy, space: _Space) -> Found | None:
    """Return the best candidate that can serve the claim, without using the ranking."""
    fleet, demand, budget = space.fleet, space.demand, space.budget
    names = fleet.node_name
    nodes = [
        node
        for node in fleet.may_serve(demand, space.nodes, budget).tolist()
        if space.has(node, names[node])
    ]
    numbers = np.array(nodes, dtype=np.int64)
    keys = _keys(fleet, numbers, demand, numa, budget)
    if keys is not None:
        ordered = [nodes[at] for at in fleet.best_positions(numbers, keys, len(nodes))]
    else:
        entries = sorted(_entries(fleet, nodes, keys_for(fleet, demand, numa, budget)))
        ordered = [node for _, _, node, _ in entries]
    for node in ordered:
        grants = space.grants(node, numa)
        if grants is not None:
            return node, grants
    return None


def _keys(
    fleet: Fleet,
    nodes: Numbers,
    demand: Demand,
    numa: NumaPolicy,
    budget: Budget = UNLIMITED,
) -> Scores | None:
    """Return the sort keys of many nodes, or None if they must be computed one by one."""
    sign = follows_score(demand)
    if not sign:
        return None
    keys = sign * fleet.scores(nodes)
    if demand.node_may_choose:
        key_of = keys_for(fleet, demand, numa, budget)
        for position in fleet.choosing(nodes):
            keys[position] = key_of(int(nodes[position]))
    return keys
