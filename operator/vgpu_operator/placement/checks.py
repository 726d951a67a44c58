"""The checks of one card against one request, in HAMi v2.10's order: the first that fails says why.

Check 4 (NUMA) is about several cards and has its place in `walk`. A card in MIG mode has room where
an instance that is large enough has a place (`geometry`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy
from vgpu_operator.ask import ALL_CORES, RequestAsk
from vgpu_operator.placement.card import refusal_of_facts
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.quota import Charge
from vgpu_operator.placement.taking import charged, instance_on


def refusal_of_kind(columns: Columns, card: int, request: RequestAsk) -> Reason | None:
    """Checks 1 to 3: whether the card is in order and of the kind asked for."""
    return refusal_of_facts(columns.conditions.facts[columns.facts[card]], request)


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


def with_room(columns: Columns, cards: Iterable[int], request: RequestAsk) -> list[int]:
    """The cards that pass checks 6 and 10 to 13: what nearly always decides, in one pass."""
    slots, slots_used = columns.slots, columns.slots_used
    memory, memory_used = columns.memory, columns.memory_used
    cores, cores_used = columns.cores, columns.cores_used
    asked = request.cores
    alone, at_least = asked >= ALL_CORES, asked or 1  # who asks for no cores needs one to be free
    mib = request.memory_mib
    if mib is None:
        return [
            card
            for card in cards
            if slots_used[card] < slots[card]
            and at_least <= cores[card] - cores_used[card]
            and not (alone and slots_used[card])
            and 1 <= request.memory_on(memory[card]) <= memory[card] - memory_used[card]
        ]
    return [
        card
        for card in cards
        if memory_used[card] + mib <= memory[card]
        and slots_used[card] < slots[card]
        and at_least <= cores[card] - cores_used[card]
        and not (alone and slots_used[card])
    ]


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
        found = _serving(columns, cards, request)
        known.update(dict.fromkeys([condition[card] for card in cards], False))
        known.update(dict.fromkeys([condition[card] for card in found], True))
    if "Mutex" in policies or charge is not None or request.uuids or request.exclude_uuids:
        return [c for c in found if not refusal_of_room(columns, c, request, policies, charge)]
    return found


def _serving(columns: Columns, cards: Sequence[int], request: RequestAsk) -> list[int]:
    """The cards that pass the checks that hold for all cards in their condition."""
    fits, kind = columns.conditions.right_kinds.of(request), columns.kind
    found: list[int] = []
    for card in with_room(columns, cards, request):
        right = fits.get(kind[card])
        if right is None:
            right = refusal_of_kind(columns, card, request) is None
            if columns.mode[card] != "MIG":
                fits[kind[card]] = right
            else:  # not a question of kind alone
                right = right and instance_on(columns, card, request) is not None
        if right:
            found.append(card)
    return found
