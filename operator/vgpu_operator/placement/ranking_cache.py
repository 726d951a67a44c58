"""Rankings of nodes by request class, kept between decisions so that deciding is cheap.

A request class is a set of equal demands. Each class has a heap of the nodes that may serve it,
best first. Each change of a node gives it a new version, which invalidates its entries. A class
reads the log of changed nodes when it is used next, so the cost of a decision depends on the number
of changes and not on the size of the cluster.

A heap keeps only the best nodes, which bounds the cost of a push and the memory of ten thousand
classes. `beyond` is the best entry that was cut off; all nodes are checked again only if none of
the kept ones can serve. (Keeping every node was tried: 0.5 MB a class at 5,000 nodes.)

This module only stores rankings. `fit_node` ranks nodes and decides if they can serve.
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
"""The number of nodes that a heap is cut to."""
_LONG = 1_024
"""The number of entries above which a heap is cut."""
_SLACK = 4
"""A heap with more entries per node than this is rebuilt, because most of them are outdated."""

Entry: TypeAlias = tuple[float, str, int, int]
"""(sort key, node name, node, version): the smallest is the best; names break ties."""


@dataclass(slots=True)
class Ranking:
    """The ranking of one class. `cursor` is its position in the log of changes.

    Attributes:
        heap: Nodes that may serve, and outdated entries.
        beyond: The best entry that was cut off, if any; worse entries are not in the heap.
        keeps_all: True if the best nodes were not enough; then nothing is cut for a while.
        mix: The version of the target workload that the keys were computed with.
    """

    cursor: int = -1
    heap: list[Entry] = field(default_factory=list)
    beyond: Entry | None = None
    keeps_all: bool = False
    mix: int = 0

    def keep_best(self, version: Sequence[int]) -> None:
        """Cut a long heap to the best nodes, given the current versions of nodes."""
        if len(self.heap) > _LONG and not self.keeps_all:
            live = (entry for entry in self.heap if entry[3] == version[entry[2]])
            self.heap[:] = nsmallest(BEST + 1, live)  # a sorted list is also a heap
            if len(self.heap) > BEST:
                self.beyond = self.heap.pop()

    def look_beyond(self) -> None:
        """Have every node checked at the class's next use, because none of the best can serve."""
        self.cursor = -1
        self.keeps_all = True


class Rankings:
    """The rankings of all classes, and the log of changed nodes that they read.

    Attributes:
        version: By node, the number of its changes.
    """

    def __init__(self) -> None:
        self.version: list[int] = []
        self._log: list[int] = []
        self._first = 0  # the position of the first entry in the log
        self._classes: OrderedDict[Hashable, Ranking] = OrderedDict()

    def touch(self, node: int) -> None:
        """Record a change of the node."""
        self.version[node] += 1
        self._log.append(node)
        # Drop half of the log at once, so that the average cost of a touch is constant.
        if len(self._log) >= 2 * _LOG_KEPT:
            del self._log[:_LOG_KEPT]
            self._first += _LOG_KEPT

    def of(self, key: Hashable) -> Ranking:
        """Return the class's ranking; a new one is empty. Long unused rankings are evicted."""
        ranking = self._classes.get(key)
        if ranking is None:
            ranking = self._classes[key] = Ranking()
            if len(self._classes) > _CLASSES_KEPT:
                self._classes.popitem(last=False)
        else:
            self._classes.move_to_end(key)
        return ranking

    def news_for(self, ranking: Ranking, *, mix: int) -> Iterable[int] | None:
        """Return the nodes that changed since the ranking was last read, or None to start over."""
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
        return set(self._log[cursor - self._first :])  # a busy node occurs many times in the log
