"""Where cards are held for who waits: on the node where the least must become free. Pure.

A hint, not a judgement: whether the request fits in the end is decided by `placement`, as always.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from vgpu_operator.ask import ALL_CORES, Ask, RequestAsk
from vgpu_operator.placement.checks import refusal_of_kind
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.planning import policies_on


@dataclass(frozen=True, slots=True)
class Target:
    """Cards of one node, by their GPUDevices' names.

    `missing` is what must still become free, in cards: each amount as a part of its card's whole.
    """

    missing: float
    node: str
    cards: tuple[str, ...]


def choose_target(
    columns: Columns, ask: Ask, nodes: Iterable[str], *, taken: Collection[str]
) -> Target | None:
    """The cards that would serve `ask` soonest; None where no node ever could.

    Args:
        columns: The state of all cards.
        ask: What is waited for.
        nodes: Those that may take it.
        taken: Cards, by name, that are held for another.
    """
    targets = (
        target for name in nodes for target in _on_node(columns, name, ask, taken) if target.cards
    )
    return min(
        targets, key=lambda target: (target.missing, target.node, target.cards), default=None
    )


def _on_node(columns: Columns, name: str, ask: Ask, taken: Collection[str]) -> Iterator[Target]:
    node = columns.node_id(name)
    if node is None or not (columns.node_ready[node] and columns.node_schedulable[node]):
        return
    free = [card for card in columns.node_cards[node] if columns.name[card] not in taken]
    groups: dict[int, list[int]] = {}
    for card in free:
        groups.setdefault(columns.numa[card] if ask.numa == "Require" else 0, []).append(card)
    policies = policies_on(columns, node, ask)
    for cards in groups.values():
        target = _among(columns, cards, ask, empty="Mutex" in policies)
        if target is not None:
            missing, chosen = target
            yield Target(missing, name, tuple(sorted(columns.name[card] for card in chosen)))


def _among(
    columns: Columns, cards: list[int], ask: Ask, *, empty: bool
) -> tuple[float, set[int]] | None:
    """The cards with the least missing, request by request; None when they are too few."""
    needs: dict[int, tuple[int, int]] = {}  # card → MiB, cores
    alone: set[int] = set()
    for request in sorted(ask.requests, key=lambda request: request.phase == "Init"):
        able = [card for card in cards if _could_serve(columns, card, request)]
        if len(able) < request.count:
            return None
        lonely = empty or request.cores >= ALL_CORES

        def cost(
            card: int, request: RequestAsk = request, lonely: bool = lonely
        ) -> tuple[float, int, str]:
            memory, cores = _with(needs.get(card, (0, 0)), request, columns.memory[card])
            missing = _missing(columns, card, memory, cores, alone=lonely or card in alone)
            return missing, columns.index[card], columns.name[card]

        for card in sorted(able, key=cost)[: request.count]:
            needs[card] = _with(needs.get(card, (0, 0)), request, columns.memory[card])
            if lonely:
                alone.add(card)
    missing = sum(
        _missing(columns, card, memory, cores, alone=card in alone)
        for card, (memory, cores) in needs.items()
    )
    return missing, set(needs)


def _with(need: tuple[int, int], request: RequestAsk, total_mib: int) -> tuple[int, int]:
    """A need and one request more, init containers last: they run before the others."""
    memory, cores = need
    more = request.memory_on(total_mib)
    if request.phase == "Init":
        return max(memory, more), max(cores, request.cores)
    return memory + more, cores + request.cores


def _could_serve(columns: Columns, card: int, request: RequestAsk) -> bool:
    """Whether the card would do if nothing were on it."""
    uuid = columns.uuid[card]
    return (
        refusal_of_kind(columns, card, request) is None
        and columns.mode[card] != "MIG"
        and uuid not in request.exclude_uuids
        and (not request.uuids or uuid in request.uuids)
        and 1 <= request.memory_on(columns.memory[card]) <= columns.memory[card]
        and request.cores <= max(columns.cores[card], ALL_CORES)
        and columns.slots[card] > 0
    )


def _missing(columns: Columns, card: int, memory: int, cores: int, *, alone: bool) -> float:
    slots_used, cores_used, memory_used = columns.used(card)
    totals = (columns.memory[card], columns.cores[card], columns.slots[card])
    if alone:
        lacks = (memory_used, cores_used, slots_used)
    else:
        lacks = (
            max(0, memory + memory_used - totals[0]),
            max(0, cores + cores_used - totals[1]),
            max(0, 1 + slots_used - totals[2]),
        )
    return sum(lack / total for lack, total in zip(lacks, totals, strict=True) if total)
