"""How much idle compute of a node is of no use to the requests that usually come.

Fragmentation gradient descent (Weng et al., USENIX ATC '23): F(node) is the idle share that a
typical request cannot use, weighted by how frequent the request is: all that is idle if the node
cannot run it, else what is idle on cards with less left than it needs. A claim goes where F rises
least. A card's idle share is what is left of the scarcer of memory and compute.

Types for one card add up card by card, so what F needs of a card depends on the card's state
alone and is remembered by it; types for several cards need a look at the whole node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from vgpu_operator.ask import ALL_CORES, RequestAsk
from vgpu_operator.placement.checks import passing
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.mix import CardState, View

FULL_SCORE = 100
_UNIT = 1000.0
"""The share of a whole card."""


def score_of_rise(rise: float) -> int:
    """A rise of F as a score, 0 to 100, more is better: as published, in whole steps."""
    if rise == math.inf:
        return -1
    exact = round(rise, 6)  # sums of floats must not tell equal nodes apart
    return int(FULL_SCORE / (1.0 + math.exp(exact / _UNIT)))


def fragmentation(columns: Columns, node: int) -> float:
    """F of a node as its cards are now, in thousandths of a card."""
    views = [_view(columns, card) for card in columns.node_cards[node]]
    return sum(view.useless for view in views) - _used_by_several(columns, views)


def rise_with(columns: Columns, card: int, request: RequestAsk) -> float:
    """How much F rises with one more request on a card that has room; it is left as it was."""
    before, used = _view(columns, card), columns.used(card)
    take(columns, card, request)
    after = _view(columns, card)
    columns.lend(card, *used)
    rise = after.useless - before.useless
    if not before.several:  # and so neither after: there is less room
        return rise
    cards = columns.node_cards[columns.node_of[card]]
    others = [_view(columns, other) for other in cards if other != card]
    then, now = [*others, after], [*others, before]
    return rise - _used_by_several(columns, then) + _used_by_several(columns, now)


def rise_on(columns: Columns, card: int, request: RequestAsk) -> float:
    """How much F rises with one more request on a card; infinitely if it does not fit there."""
    rise = columns.mix.rises_for(request).get(_state(columns, card))
    return _learned(columns, card, request) if rise is None else rise


def best_score(columns: Columns, node: int, request: RequestAsk) -> int | None:
    """The score of the card of a node where F rises least; None if it fits on none.

    For a request for one card, which `passing` would let on by the card's state alone.
    """
    known, best = columns.mix.rises_for(request).get, math.inf
    kind, slots = columns.kind, columns.slots_used
    cores, memory = columns.cores_used, columns.memory_used
    for card in columns.node_cards[node]:
        rise = known((kind[card], slots[card], cores[card], memory[card]))
        if rise is None:
            rise = _learned(columns, card, request)
        if rise < best:
            best = rise
    return None if best == math.inf else score_of_rise(best)


def take(columns: Columns, card: int, request: RequestAsk) -> None:
    """Use a card for the length of a plan; whoever does, sets it back."""
    slots, cores, memory = columns.used(card)
    cores += request.cores
    if request.cores >= ALL_CORES:  # alone, whatever the card's cores are scaled to
        cores = max(cores, columns.cores[card])
    columns.lend(card, slots + 1, cores, memory + request.memory_on(columns.memory[card]))


def _learned(columns: Columns, card: int, request: RequestAsk) -> float:
    """How much F rises, infinitely if the request does not fit; remembered if that is for good."""
    state, alone = _state(columns, card), not _view(columns, card).several
    rise = math.inf
    if passing(columns, (card,), request, ()):
        rise = rise_with(columns, card, request)
    if alone:  # the node's other cards do not matter
        columns.mix.rises_for(request)[state] = rise
    return rise


def _state(columns: Columns, card: int) -> CardState:
    return (
        columns.kind[card],
        columns.slots_used[card],
        columns.cores_used[card],
        columns.memory_used[card],
    )


def _view(columns: Columns, card: int) -> View:
    state = _state(columns, card)
    views = columns.mix.views
    view = views.get(state)
    if view is None:
        view = views[state] = _look_at(columns, card)
    return view


def _look_at(columns: Columns, card: int) -> View:
    idle = _idle(columns, card)
    weight = 0.0
    several: list[int] = []
    for number, (frequency, request) in enumerate(columns.mix.types):
        if not passing(columns, (card,), request, ()):
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
