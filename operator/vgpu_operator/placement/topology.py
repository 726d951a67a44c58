"""Chooses devices by their links: well connected ones for a request, while sparing the best links.

The score of a pair is what both devices report for their link; it is 0 if they disagree or one of
them reports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_operator.placement.columns import Columns

_MAX_STEPS = 10_000
"""The number of partial choices after which the best one so far is taken. Eight devices have fewer
in all; the limit is for larger nodes whose links follow no pattern.
"""


def pair_score(columns: Columns, one: int, other: int) -> int:
    """Return the score of the link between two devices; 0 if unknown or if they disagree."""
    score = columns.links[one].get(columns.uuid[other], 0)
    return score if score == columns.links[other].get(columns.uuid[one], 0) else 0


def choose(columns: Columns, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """Choose `count` devices out of more that fit, which are given in order of preference.

    For one device, take the one with the lowest total over its pairs with the others that fit, so
    that well-linked devices remain available together. Links to full devices do not count. For
    several, take the combination with the highest sum; the first one wins ties.
    """
    if count > 1:
        return _best_connected(columns, fitting, count)

    def total(device: int) -> int:
        return sum(pair_score(columns, device, peer) for peer in fitting if peer != device)

    return (min(fitting, key=total),)


def _best_connected(columns: Columns, devices: Sequence[int], count: int) -> tuple[int, ...]:
    """Find the lexicographically first combination with the greatest sum, by branch and bound.

    A branch is abandoned when its upper bound does not exceed the best sum so far. The search
    starts from the sum of a greedy choice.
    """
    score = [[pair_score(columns, a, b) if a != b else 0 for b in devices] for a in devices]
    most = max(max(row) for row in score)
    greedy = _greedy(score, count)
    best = greedy
    # one less, so that the first combination with the greedy sum replaces it
    best_sum = _sum(score, greedy) - 1
    steps = 0

    def extend(chosen: tuple[int, ...], total: int, gains: list[int], start: int) -> None:
        nonlocal best, best_sum, steps
        missing = count - len(chosen)
        if not missing:
            if total > best_sum:
                best, best_sum = chosen, total
            return
        steps += 1
        if steps > _MAX_STEPS:
            return
        bound = sum(sorted(gains[start:], reverse=True)[:missing])
        # Missing devices can gain `bound` with the chosen ones and `most` with each other.
        if total + bound + most * missing * (missing - 1) // 2 <= best_sum:
            return
        for index in range(start, len(score) - missing + 1):
            row = score[index]
            extend(
                (*chosen, index),
                total + gains[index],
                [gain + row[at] for at, gain in enumerate(gains)],
                index + 1,
            )

    extend((), 0, [0] * len(score), 0)
    return tuple(devices[index] for index in best)


def _greedy(score: list[list[int]], count: int) -> tuple[int, ...]:
    """Return the best of the choices that start at a device and add the best one at each step."""
    best: tuple[int, tuple[int, ...]] | None = None
    for start in range(len(score)):
        chosen = [start]
        while len(chosen) < count:
            rest = (index for index in range(len(score)) if index not in chosen)
            chosen.append(max(rest, key=lambda index: sum(score[index][at] for at in chosen)))
        total = _sum(score, chosen)
        if best is None or total > best[0]:
            best = total, tuple(sorted(chosen))
    assert best is not None
    return best[1]


def _sum(score: list[list[int]], chosen: Sequence[int]) -> int:
    return sum(score[a][b] for at, a in enumerate(chosen) for b in chosen[at + 1 :])
