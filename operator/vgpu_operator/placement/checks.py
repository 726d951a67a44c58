"""The checks of one card against one request, in HAMi v2.10's order: the first that fails says why.

Check 4 (NUMA) is about several cards and has its place in `walk`. A card in MIG mode has room where
an instance that is large enough has a place (`geometry`).
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy
from vgpu_operator.ask import ALL_CORES, RequestAsk
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.quota import Charge
from vgpu_operator.placement.taking import charged, instance_on


def refusal_of_kind(columns: Columns, card: int, request: RequestAsk) -> Reason | None:
    """Checks 1 to 3: whether the card is in order and of the kind asked for."""
    if columns.duplicate[card]:  # ours, before HAMi's first: nobody knows where the card is
        return Reason.CARD_UUID_DUPLICATE
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
    columns: Columns,
    card: int,
    request: RequestAsk,
    policies: Sequence[DevicePolicy],
    charge: Charge | None = None,
) -> Reason | None:
    """Checks 5 to 14: whether this very card has room for the request."""
    uuid = columns.uuid[card]
    if uuid in request.exclude_uuids or (request.uuids and uuid not in request.uuids):
        return Reason.CARD_UUID_MISMATCH
    return refusal_of_amounts(columns, card, request, policies, charge)


def refusal_of_amounts(
    columns: Columns,
    card: int,
    request: RequestAsk,
    policies: Sequence[DevicePolicy],
    charge: Charge | None = None,
) -> Reason | None:
    """Checks 6 to 14: whether what is free of the card is enough."""
    used = columns.slots_used[card]
    if used >= columns.slots[card]:
        return Reason.CARD_TIME_SLICING_EXHAUSTED
    if used and "Mutex" in policies:
        return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT
    memory = request.memory_on(columns.memory[card])
    is_cut = columns.mode[card] == "MIG"
    instance = instance_on(columns, card, request) if is_cut else None
    if charge is not None and charge.exceeds(card, request, *charged(request, memory, instance)):
        return Reason.RESOURCE_QUOTA_NOT_FIT
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
    if is_cut and instance is None:
        return Reason.CARD_MIG_TOPOLOGY_INFEASIBLE
    return None


def passing(
    columns: Columns,
    cards: Sequence[int],
    request: RequestAsk,
    policies: Sequence[DevicePolicy],
    charge: Charge | None = None,
) -> list[int]:
    """The cards that pass every check; in the order given."""
    known, condition = columns.conditions.fitting.of(request), columns.condition
    try:
        found = [card for card in cards if known[condition[card]]]
    except KeyError:
        for card in cards:
            known[condition[card]] = _serves(columns, card, request)
        found = [card for card in cards if known[condition[card]]]
    if "Mutex" in policies or charge is not None or request.uuids or request.exclude_uuids:
        return [c for c in found if not refusal_of_room(columns, c, request, policies, charge)]
    return found


def _serves(columns: Columns, card: int, request: RequestAsk) -> bool:
    """Whether the card passes the checks that hold for all cards in its condition."""
    return not (
        refusal_of_kind(columns, card, request) or refusal_of_amounts(columns, card, request, ())
    )
