"""Whether a node's cards serve one request, and if not, why: the exact judge of every decision.

`fit` finds the cards that pass all checks and takes the best of them, which is what taking cards
from the end of the ordered list until there are enough comes to. `refusal` walks that list, and so
does everything on a node with cards in MIG mode, of which one may serve several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NumaPolicy
from vgpu_operator.ask import RequestAsk
from vgpu_operator.placement import topology
from vgpu_operator.placement.checks import passing
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.order import Weights, in_order, keys_of, preferred
from vgpu_operator.placement.quota import Charge
from vgpu_operator.placement.walk import too_few, walk


class Preferences(NamedTuple):
    """What decides among cards that fit, for one node: policies, NUMA, weights of the score."""

    policies: tuple[DevicePolicy, ...]
    numa: NumaPolicy
    weights: Weights


@dataclass(frozen=True, slots=True)
class Fitted:
    """Cards for a request, or none and the reasons (counts out of the node's cards)."""

    cards: tuple[int, ...]
    refusal: Tally | None = None


def fit(
    columns: Columns,
    node: int,
    request: RequestAsk,
    preferences: Preferences,
    charge: Charge | None = None,
) -> Fitted:
    """Choose `request.count` distinct cards of the node as they are now.

    Args:
        columns: The state of all cards.
        node: Whose cards.
        request: What is asked of each card.
        preferences: Which of those that fit.
        charge: The namespace's quota, if it has one.
    """
    cards = choose(columns, node, request, preferences, charge)
    if cards:
        return Fitted(cards)
    return Fitted((), refusal(columns, node, request, preferences, charge))


def choose(
    columns: Columns,
    node: int,
    request: RequestAsk,
    preferences: Preferences,
    charge: Charge | None,
) -> tuple[int, ...]:
    """As `fit`; none if too few fit, and no reasons: they cost more than the choice."""
    if columns.node_cut[node]:
        return _choose_parts(columns, node, request, preferences, charge)
    cards, policies = columns.node_cards[node], preferences.policies
    fitting = passing(columns, cards, request, policies, charge)
    if len(fitting) < request.count:
        return ()
    required = preferences.numa == "Require"
    together = preferences.numa == "Prefer" or "NUMAFirst" in policies
    if not (required or together):
        return _take(columns, fitting, request, preferences)
    groups: dict[int, list[int]] = {}
    for card in fitting:
        groups.setdefault(columns.numa[card], []).append(card)
    enough = [group for group in groups.values() if len(group) >= request.count]
    if enough and together:
        return _tightest(columns, cards, enough, request, preferences)
    if not required:
        return _take(columns, fitting, request, preferences)
    if not enough:
        return ()
    # The order is by NUMA node first, so the last group that is large enough is met first.
    last = preferred(columns, [card for group in enough for card in group], 1,
                     request=request, keys=keys_of(policies, one_numa_node=True),
                     weights=preferences.weights)[0]  # fmt: skip
    return _take(columns, groups[columns.numa[last]], request, preferences)


def _choose_parts(
    columns: Columns,
    node: int,
    request: RequestAsk,
    preferences: Preferences,
    charge: Charge | None,
) -> tuple[int, ...]:
    """As `choose`, on a node where some cards are cut: a card comes once for each of its parts."""
    policies, cards = preferences.policies, columns.node_cards[node]
    required = preferences.numa == "Require"

    def gather(ordered: Sequence[int]) -> tuple[int, ...]:
        found, _ = walk(
            columns,
            ordered,
            request,
            policies,
            charge,
            one_numa_node=required,
            count=None if "Topology" in policies else request.count,
        )
        if len(found) > request.count:
            return topology.choose(columns, found, request.count)
        return tuple(found) if len(found) == request.count else ()

    if too_few(columns, node, request):
        return ()
    ordered = _ordered(columns, cards, request, preferences)
    if preferences.numa == "Prefer" or "NUMAFirst" in policies:
        found = {
            numa: gather([card for card in ordered if columns.numa[card] == numa])
            for numa in sorted({columns.numa[card] for card in cards})
        }
        whole = [numa for numa, chosen in found.items() if chosen]
        if whole:
            return found[min(whole, key=lambda numa: _free(columns, cards, numa, found[numa]))]
    return gather(ordered)


def refusal(
    columns: Columns,
    node: int,
    request: RequestAsk,
    preferences: Preferences,
    charge: Charge | None = None,
) -> Tally:
    """Why the node's cards do not serve the request, counted as HAMi does."""
    if too_few(columns, node, request):
        return Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE)
    cards, required = columns.node_cards[node], preferences.numa == "Require"
    gathered, reasons = walk(
        columns,
        # Only check 4 looks at what came before.
        _ordered(columns, cards, request, preferences) if required else cards,
        request,
        preferences.policies,
        charge,
        one_numa_node=required,
        count=None,
    )
    if gathered:
        reasons[Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST] = len(gathered)
    return Tally(reasons, len(cards))


def _ordered(
    columns: Columns, cards: Sequence[int], request: RequestAsk, preferences: Preferences
) -> list[int]:
    return in_order(
        columns,
        cards,
        request=request,
        policies=preferences.policies,
        one_numa_node=preferences.numa == "Require",
        weights=preferences.weights,
    )


def _take(
    columns: Columns, fitting: Sequence[int], request: RequestAsk, preferences: Preferences
) -> tuple[int, ...]:
    """The best of cards that all fit; where NUMA nodes matter, they are all of one."""
    keys = keys_of(preferences.policies, one_numa_node=False)
    weights = preferences.weights
    if "Topology" in preferences.policies and len(fitting) > request.count:
        ranked = preferred(
            columns, fitting, len(fitting), request=request, keys=keys, weights=weights
        )
        return topology.choose(columns, ranked, request.count)
    return preferred(columns, fitting, request.count, request=request, keys=keys, weights=weights)


def _tightest(
    columns: Columns,
    cards: Sequence[int],
    groups: Sequence[Sequence[int]],
    request: RequestAsk,
    preferences: Preferences,
) -> tuple[int, ...]:
    """Cards of the one NUMA node that is left with the fewest free cards; the lowest of equals."""
    best: tuple[int, int, tuple[int, ...]] | None = None
    for group in groups:
        chosen = _take(columns, group, request, preferences)
        numa = columns.numa[group[0]]
        free = _free(columns, cards, numa, chosen)
        if best is None or (free, numa) < best[:2]:
            best = free, numa, chosen
    assert best is not None
    return best[2]


def _free(columns: Columns, cards: Sequence[int], numa: int, chosen: Sequence[int]) -> int:
    """How many free cards a NUMA node is left with."""
    return sum(
        columns.numa[card] == numa and not columns.slots_used[card] and card not in chosen
        for card in cards
    )
