"""Whether a device has room for a request, and what the request takes of it.

The checks run in HAMi v2.10's order; the first that fails is the reason. Check 4 (NUMA) is about
several devices and has its place in `walk`. A device in MIG mode has room where an instance that is
large enough has a place (`geometry`). What is taken here is given back before the plan ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.vgpuclaim import ANY_PROFILE, DevicePolicy
from vgpu_operator.ask import ALL_CORES, RequestAsk
from vgpu_operator.placement.bounds import Charge, Share
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.device import refusal_of_facts
from vgpu_operator.placement.geometry import Instance, smallest


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
    if "Mutex" in policies and (used or (request.group_mutex and _group_is_used(columns, card))):
        return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT
    memory = request.memory_on(columns.memory[card])
    is_cut = columns.mode[card] == "MIG"
    instance = instance_on(columns, card, request) if is_cut else None
    if charge is not None and charge.exceeds(card, request, *charged(request, memory, instance)):
        return Reason.RESOURCE_QUOTA_NOT_FIT
    # A percentage of a tiny card may round down to nothing, and no memory is not a limit.
    if memory < request.least_mib or memory > columns.memory[card] - columns.memory_used[card]:
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


def _group_is_used(columns: Columns, card: int) -> bool:
    """Whether a card that is linked to this one serves anything. Source: HAMi v2.10.0, Vastai."""
    linked, of_node = columns.links[card], columns.node_cards[columns.node_of[card]]
    return any(columns.slots_used[other] and columns.uuid[other] in linked for other in of_node)


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


Taken: TypeAlias = tuple[int, int, int, int, int]
"""A card, and the slots, cores, MiB and slices that it is to be set back to."""


def instance_on(columns: Columns, card: int, request: RequestAsk) -> Instance | None:
    """The instance that a card in MIG mode would be cut for a request; None if there is none."""
    total, (_, cores, memory, slices) = columns.memory[card], columns.in_use(card)
    named = "" if request.mig_profile == ANY_PROFILE else request.mig_profile
    wanted = request.memory_on(total)
    instance = smallest(columns.profiles[card], slices, wanted, named=named)
    if instance is None:
        return None
    # An instance has its own size, whatever the card's amounts are scaled to: never more than all.
    is_over = memory + instance.memory_mib > total or cores + instance.cores > columns.cores[card]
    return None if is_over else instance


def charged(request: RequestAsk, memory_mib: int, instance: Instance | None) -> tuple[int, int]:
    """(MiB, percent of compute) that a card is charged: an instance at its own size."""
    if instance is None:
        return memory_mib, request.cores
    return instance.memory_mib, instance.cores


def take(columns: Columns, card: int, request: RequestAsk) -> Taken:
    """Use a card that fits, or an instance of it; whoever does, gives it back."""
    before = slots, cores, memory, slices = columns.in_use(card)
    instance = instance_on(columns, card, request) if columns.mode[card] == "MIG" else None
    if instance is not None:
        slices |= instance.slices
    more, own = charged(request, request.memory_on(columns.memory[card]), instance)
    cores += own
    if own >= ALL_CORES:  # alone, whatever the card's cores are scaled to
        cores = max(cores, columns.cores[card])
    columns.lend(card, slots + 1, cores, memory + more, slices)
    return card, *before


def take_place(columns: Columns, card: int, request: RequestAsk) -> Taken:
    """Take an instance's place only: what is left of a card by an init container before others.

    Its amounts count alone, but its instance lies there as long as the pod's others do.
    """
    before = slots, cores, memory, slices = columns.in_use(card)
    instance = instance_on(columns, card, request) if columns.mode[card] == "MIG" else None
    if instance is not None:
        columns.lend(card, slots, cores, memory, slices | instance.slices)
    return card, *before


def lay(columns: Columns, shares: Iterable[Share]) -> list[Taken]:
    """Count shares as in use, for the length of a plan; `give_back` takes them off again."""
    taken: list[Taken] = []
    for share in shares:
        card = share.device
        before = slots, cores, memory, slices = columns.in_use(card)
        columns.lend(
            card,
            slots + share.slots,
            cores + share.cores,
            memory + share.memory_mib,
            slices | share.slices,
        )
        taken.append((card, *before))
    return taken


def give_back(columns: Columns, taken: Iterable[Taken]) -> None:
    """Set cards back, the last taken first."""
    for card, slots, cores, memory, slices in reversed(tuple(taken)):
        columns.lend(card, slots, cores, memory, slices)
