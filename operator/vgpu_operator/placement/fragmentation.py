"""How much idle compute of a node is of no use to the requests that usually come.

Fragmentation gradient descent (Weng et al., USENIX ATC '23): F(node) is the idle share that a
typical request cannot use, weighted by how frequent the request is: all that is idle if the node
cannot run it, else what is idle on cards with less left than it needs. A claim goes where F rises
least. A card's idle share is what is left of the scarcer of memory and compute.

A node without the CPU that a type's pods ask for runs none of them. What is free of it counts in
levels: only the amounts that types ask for make a difference.

Types for one card add up card by card, so what F needs of a card depends on the card's state and
the level alone and is remembered by them; types for several cards need a look at the whole node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from vgpu_operator.ask import RequestAsk
from vgpu_operator.placement.checks import passing
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.mix import CardState, View
from vgpu_operator.placement.taking import give_back, take

FULL_SCORE = 100
_UNIT = 1000.0
"""The share of a whole card."""


def score_of_rise(rise: float) -> int:
    """A rise of F as a score, 0 to 100, more is better: as published, in whole steps."""
    if rise == math.inf:
        return -1
    exact = round(rise, 6)  # sums of floats must not tell equal nodes apart
    return int(FULL_SCORE / (1.0 + math.exp(exact / _UNIT)))


def fragmentation(columns: Columns, node: int, *, cpu_milli: int = 0) -> float:
    """F of a node as its cards are now, in thousandths of a card.

    Args:
        columns: The state of all cards.
        node: Which.
        cpu_milli: To be taken off what is free of its CPU.
    """
    return _at_level(columns, node, _level(columns, node, cpu_milli))


def rise_on(columns: Columns, card: int, request: RequestAsk) -> float:
    """How much F rises with one more request on a card; infinitely if it does not fit there."""
    node = columns.node_of[card]
    level = _level(columns, node, request.cpu_milli)
    rise = columns.mix.rises_for(request).get(_state(columns, card, level))
    if rise is None:
        rise = _learned(columns, card, request, level)
    return rise + _rise_by_cpu(columns, node, level)


def best_score(columns: Columns, node: int, request: RequestAsk) -> int | None:
    """The score of the card of a node where F rises least; None if it fits on none.

    For a request for one card, which `passing` would let on by the card's state alone.
    """
    known, best = columns.mix.rises_for(request).get, math.inf
    kind, slots = columns.kind, columns.slots_used
    cores, memory = columns.cores_used, columns.memory_used
    level = _level(columns, node, request.cpu_milli)
    for card in columns.node_cards[node]:
        rise = known((level, kind[card], slots[card], cores[card], memory[card]))
        if rise is None:
            rise = _learned(columns, card, request, level)
        if rise < best:
            best = rise
    if best == math.inf:
        return None
    return score_of_rise(best + _rise_by_cpu(columns, node, level))


def _level(columns: Columns, node: int, cpu_milli: int) -> int:
    """The level of a node's free CPU with that much less of it."""
    return columns.mix.level(columns.node_cpu_free[node] - cpu_milli)


def _at_level(columns: Columns, node: int, level: int) -> float:
    views = [_view(columns, card, level) for card in columns.node_cards[node]]
    return sum(view.useless for view in views) - _used_by_several(columns, views)


def _rise_by_cpu(columns: Columns, node: int, level: int) -> float:
    """How much F rises by the free CPU's going down to a level, its cards as they are."""
    now = _level(columns, node, 0)
    if level == now:
        return 0.0
    return _at_level(columns, node, level) - _at_level(columns, node, now)


def _rise_at_level(columns: Columns, card: int, request: RequestAsk, level: int) -> float:
    """How much F rises by the request's share of a card, the level of free CPU being the same."""
    before = _view(columns, card, level)
    taken = take(columns, card, request)
    after = _view(columns, card, level)
    give_back(columns, (taken,))
    rise = after.useless - before.useless
    if not before.several:  # and so neither after: there is less room
        return rise
    cards = columns.node_cards[columns.node_of[card]]
    others = [_view(columns, other, level) for other in cards if other != card]
    then, now = [*others, after], [*others, before]
    return rise - _used_by_several(columns, then) + _used_by_several(columns, now)


def _learned(columns: Columns, card: int, request: RequestAsk, level: int) -> float:
    """As `_rise_at_level`, infinite if the request does not fit; remembered if that is for good."""
    state, alone = _state(columns, card, level), not _view(columns, card, level).several
    rise = math.inf
    if passing(columns, (card,), request, ()):
        rise = _rise_at_level(columns, card, request, level)
    if alone:  # the node's other cards do not matter
        columns.mix.rises_for(request)[state] = rise
    return rise


def _state(columns: Columns, card: int, level: int) -> CardState:
    return (
        level,
        columns.kind[card],
        columns.slots_used[card],
        columns.cores_used[card],
        columns.memory_used[card],
    )


def _view(columns: Columns, card: int, level: int) -> View:
    state = _state(columns, card, level)
    views = columns.mix.views
    view = views.get(state)
    if view is None:
        view = views[state] = _look_at(columns, card, level)
    return view


def _look_at(columns: Columns, card: int, level: int) -> View:
    idle = _idle(columns, card)
    weight = 0.0
    several: list[int] = []
    needs = columns.mix.needs
    for number, (frequency, request) in enumerate(columns.mix.types):
        if needs[number] > level or not passing(columns, (card,), request, ()):
            continue
        if request.count == 1:
            weight += frequency
        else:
            several.append(number)
    return View(idle, idle * (columns.mix.total - weight), tuple(several))


def _idle(columns: Columns, card: int) -> float:
    out_of_use = not columns.healthy[card] or columns.cordoned[card]
    if out_of_use or columns.slots_used[card] >= columns.slots[card]:
        return 0.0
    shares = [
        used / total
        for used, total in (
            (columns.cores_used[card], columns.cores[card]),
            (columns.memory_used[card], columns.memory[card]),
        )
        if total
    ]
    return max(0.0, _UNIT * (1.0 - max(shares, default=1.0)))


def _used_by_several(columns: Columns, views: Iterable[View]) -> float:
    """What types for several cards could use, where enough cards fit."""
    idle: dict[int, list[float]] = {}
    for view in views:
        for number in view.several:
            idle.setdefault(number, []).append(view.idle)
    total = 0.0
    for number, shares in idle.items():
        frequency, request = columns.mix.types[number]
        if len(shares) >= request.count:
            total += frequency * sum(shares)
    return total
