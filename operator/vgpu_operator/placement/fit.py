"""Whether a node's cards serve one request, and if not, why: the exact judge of every decision.

The order of the checks is HAMi v2.10's, because the first that fails names the reason. Two numbers
of that order have no check here: 9, the quota of the namespace, and the geometry of 14, for want
of which a card in MIG mode is given to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NumaPolicy
from vgpu_operator.ask import ALL_CORES, RequestAsk
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.order import Weights, in_order

_ONE_NODE = 1


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


def node_refusal(reason: Reason) -> Tally:
    """One reason that holds for a node as a whole."""
    return Tally({reason: 1}, _ONE_NODE)


def fit(columns: Columns, node: int, request: RequestAsk, preferences: Preferences) -> Fitted:
    """Choose `request.count` distinct cards of the node as they are now."""
    cards = columns.node_cards[node]
    if sum(columns.vendor[card] == request.vendor for card in cards) < request.count:
        return Fitted((), node_refusal(Reason.NODE_INSUFFICIENT_DEVICE))
    if preferences.numa == "Prefer" or "NUMAFirst" in preferences.policies:
        together = _fit_within_a_numa_node(columns, cards, request, preferences)
        if together:
            return Fitted(together)
    return _gather(columns, cards, request, preferences)


def refusal_of_kind(columns: Columns, card: int, request: RequestAsk) -> Reason | None:
    """Checks 1 to 3: whether the card is in order and of the kind asked for."""
    if not columns.healthy[card]:
        return Reason.CARD_NOT_HEALTHY
    if columns.cordoned[card]:
        return Reason.CARD_CORDONED
    if columns.vendor[card] != request.vendor:
        return Reason.CARD_TYPE_MISMATCH
    if request.mode not in ("Any", columns.mode[card]):
        return Reason.CARD_TYPE_MISMATCH
    model = columns.model[card]
    if request.models and not any(part in model for part in request.models):
        return Reason.CARD_TYPE_MISMATCH
    if any(part in model for part in request.exclude_models):
        return Reason.CARD_TYPE_MISMATCH
    return None


def refusal_of_room(
    columns: Columns, card: int, request: RequestAsk, policies: Sequence[DevicePolicy]
) -> Reason | None:
    """Checks 5 to 14: whether this very card has room for the request."""
    uuid = columns.uuid[card]
    if uuid in request.exclude_uuids or (request.uuids and uuid not in request.uuids):
        return Reason.CARD_UUID_MISMATCH
    used = columns.slots_used[card]
    if used >= columns.slots[card]:
        return Reason.CARD_TIME_SLICING_EXHAUSTED
    if used and "Mutex" in policies:
        return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT
    memory = request.memory_on(columns.memory[card])
    # A percentage of a tiny card may round down to nothing, and no memory is not a limit.
    if memory < 1 or memory > columns.memory[card] - columns.memory_used[card]:
        return Reason.CARD_INSUFFICIENT_MEMORY
    cores_free = columns.cores[card] - columns.cores_used[card]
    if request.cores > cores_free:
        return Reason.CARD_INSUFFICIENT_CORE
    if used and request.cores >= ALL_CORES:
        return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT
    if not request.cores and cores_free <= 0:
        return Reason.CARD_COMPUTE_UNITS_EXHAUSTED
    if columns.mode[card] == "MIG":
        return Reason.CARD_MIG_TOPOLOGY_INFEASIBLE
    return None


def _gather(
    columns: Columns, cards: Sequence[int], request: RequestAsk, preferences: Preferences
) -> Fitted:
    """Take cards from the end of the ordered list until there are enough."""
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
            reason = refusal_of_room(columns, card, request, preferences.policies)
        if reason is not None:
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        gathered.append(card)
        if len(gathered) == request.count:
            return Fitted(tuple(gathered))
    if gathered:
        reasons[Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST] = len(gathered)
    return Fitted((), Tally(reasons, len(cards)))


def _fit_within_a_numa_node(
    columns: Columns, cards: Sequence[int], request: RequestAsk, preferences: Preferences
) -> tuple[int, ...]:
    """Cards of the one NUMA node that is left with the fewest free cards; none if none can."""
    groups: dict[int, list[int]] = {}
    for card in cards:
        groups.setdefault(columns.numa[card], []).append(card)
    best: tuple[int, tuple[int, ...]] | None = None
    for numa in sorted(groups):
        chosen = _gather(columns, groups[numa], request, preferences).cards
        if not chosen:
            continue
        free = sum(not columns.slots_used[card] for card in groups[numa] if card not in chosen)
        if best is None or free < best[0]:
            best = (free, chosen)
    return best[1] if best is not None else ()
