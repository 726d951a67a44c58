"""What request classes remember of nodes between decisions: the reason why deciding is cheap.

A request class is the set of equal demands. For each class a heap holds the nodes that may serve
it, best first. Every change of a node gives it a new version, which makes what was remembered of it
void; a class learns of changes from the log when it is asked next, so a decision costs as much as
has changed, not as much as there is.

A heap holds the best nodes only, which is what taking from it and putting into it costs, and what
ten thousand classes take of memory. `beyond` has where it was cut; only where none of its nodes
serves, all nodes are checked again. (Keeping every node was tried: 0.5 MB a class at 5,000 nodes.)

This module only remembers. `fit_node` decides what a node is worth and whether it serves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TypeAlias

_CLASSES_KEPT = 1_024
_LOG_KEPT = 32_768
BEST = 256
"""Nodes that a heap is cut to."""
_LONG = 1_024
"""Entries at which a heap is cut."""
_SLACK = 4
"""A heap is made anew when it has this many entries per live node (most of them void)."""

Entry: TypeAlias = tuple[float, str, int, int]
"""(sort key, node name, node, version): the least is the best; names decide ties."""


@dataclass(slots=True)
class Ranking:
    """One class's knowledge. `cursor` is the position up to which it has read the log.

    Attributes:
        heap: Nodes that may serve, and void entries.
        beyond: The best that was cut off the heap, if anything was: what is worse is not in it.
        keeps_all: The best nodes were not enough lately, so nothing is cut off for a while.
        mix: The version of the typical mix that the keys were computed with.
    """

    cursor: int = -1
    heap: list[Entry] = field(default_factory=list)
    beyond: Entry | None = None
    keeps_all: bool = False
    mix: int = 0

    def keep_best(self, version: Sequence[int]) -> None:
        """Cut a heap that has become long, by the nodes' versions."""
        if len(self.heap) > _LONG and not self.keeps_all:
            live = (entry for entry in self.heap if entry[3] == version[entry[2]])
            self.heap[:] = nsmallest(BEST + 1, live)  # in order, which is a heap
            if len(self.heap) > BEST:
                self.beyond = self.heap.pop()

    def look_beyond(self) -> None:
        """None of the best serves: every node is to be looked at when the class is asked next."""
        self.cursor = -1
        self.keeps_all = True


class Rankings:
    """All classes, and the log of changed nodes that they read.

    Attributes:
        version: By node: how often it has changed.
    """

    def __init__(self) -> None:
        self.version: list[int] = []
        self._log: list[int] = []
        self._first = 0  # the position of the log's first entry
        self._classes: OrderedDict[Hashable, Ranking] = OrderedDict()

    def touch(self, node: int) -> None:
        """Something of the node changed."""
        self.version[node] += 1
        self._log.append(node)
        if len(self._log) >= 2 * _LOG_KEPT:
            del self._log[:_LOG_KEPT]
            self._first += _LOG_KEPT

    def of(self, key: Hashable) -> Ranking:
        """The class's ranking; a new one knows nothing. Long unused ones are forgotten."""
        ranking = self._classes.get(key)
        if ranking is None:
            ranking = self._classes[key] = Ranking()
            if len(self._classes) > _CLASSES_KEPT:
                self._classes.popitem(last=False)
        else:
            self._classes.move_to_end(key)
        return ranking

    def news_for(self, ranking: Ranking, *, mix: int) -> Iterable[int] | None:
        """The nodes that changed since it was asked last; None: begin anew, with every node."""
        cursor, ranking.cursor = ranking.cursor, self._first + len(self._log)
        stale = cursor < self._first or mix != ranking.mix
        mostly_void = len(ranking.heap) > _SLACK * len(self.version) + 64
        if stale or mostly_void:
            ranking.mix = mix
            ranking.keeps_all = ranking.keeps_all and not mostly_void
            ranking.heap.clear()
            ranking.beyond = None
            return None
        if cursor == ranking.cursor:
            return ()
        return set(self._log[cursor - self._first :])
