"""Whether a node's cards serve one request, and if not, why: the exact judge of every decision.

`fit` finds the cards that pass all checks and takes the best of them, which is what taking cards
from the end of the ordered list until there are enough comes to. `refusal` walks that list as HAMi
v2.10 does, since there the reasons and their counts come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NumaPolicy
from vgpu_operator.ask import RequestAsk
from vgpu_operator.placement import topology
from vgpu_operator.placement.checks import passing, refusal_of_kind, refusal_of_room
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.order import Weights, in_order, keys_of, preferred
from vgpu_operator.placement.quota import Charge


@dataclass(frozen=True, slots=True)
class Preferences:
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
    cards = choose(columns, columns.node_cards[node], request, preferences, charge)
    if cards:
        return Fitted(cards)
    return Fitted((), refusal(columns, node, request, preferences, charge))


def choose(
    columns: Columns,
    cards: Sequence[int],
    request: RequestAsk,
    preferences: Preferences,
    charge: Charge | None,
) -> tuple[int, ...]:
    """The cards for a request among `cards` (in their node's order); none if too few fit."""
    policies = preferences.policies
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


def refusal(
    columns: Columns,
    node: int,
    request: RequestAsk,
    preferences: Preferences,
    charge: Charge | None = None,
) -> Tally:
    """Why the node's cards do not serve the request, counted as HAMi does."""
    cards = columns.node_cards[node]
    if sum(columns.vendor[card] == request.vendor for card in cards) < request.count:
        return Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE)
    required = preferences.numa == "Require"
    ordered = in_order(
        columns,
        cards,
        request=request,
        policies=preferences.policies,
        one_numa_node=required,
        weights=preferences.weights,
    )
    reasons: dict[Reason, int] = {}
    gathered: list[int] = []
    for card in reversed(ordered):
        reason = refusal_of_kind(columns, card, request)
        if reason is None:
            # Check 4: start again on the NUMA node of this card.
            if required and gathered and columns.numa[gathered[-1]] != columns.numa[card]:
                reasons[Reason.NUMA_NOT_FIT] = reasons.get(Reason.NUMA_NOT_FIT, 0) + len(gathered)
                gathered.clear()
            reason = refusal_of_room(columns, card, request, preferences.policies, charge)
        if reason is None:
            gathered.append(card)
        else:
            reasons[reason] = reasons.get(reason, 0) + 1
    if gathered:
        reasons[Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST] = len(gathered)
    return Tally(reasons, len(cards))


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
        free = sum(
            columns.numa[card] == numa and not columns.slots_used[card] and card not in chosen
            for card in cards
        )
        if best is None or (free, numa) < best[:2]:
            best = free, numa, chosen
    assert best is not None
    return best[2]
