"""Which nodes changed, for readers that keep something computed per node.

Each reader has a cursor and asks what was touched since; the log keeps a bounded past, and a
reader that fell behind it is told every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class ChangeLog:
    """Names of touched nodes in order of the touch.

    Args:
        keep: Entries kept at least; twice as many are held at most.
    """

    def __init__(self, *, keep: int = 16_384) -> None:
        self._keep = keep
        self._entries: list[str] = []
        self._first = 0
        self._muted = 0

    @property
    def cursor(self) -> int:
        """The position after the newest entry."""
        return self._first + len(self._entries)

    def touch(self, node: str) -> None:
        """Note that something of the node changed."""
        if self._muted:
            return
        self._entries.append(node)
        if len(self._entries) >= 2 * self._keep:
            del self._entries[: self._keep]
            self._first += self._keep

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Touches inside are not noted: what is done there is undone before it ends."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    def since(self, cursor: int, everything: Iterable[str]) -> tuple[int, frozenset[str]]:
        """The new cursor and the nodes touched since the old one.

        Args:
            cursor: From an earlier call; 0 at first.
            everything: All nodes there are, told to a reader that is too far behind.
        """
        if cursor < self._first:
            return self.cursor, frozenset(everything) | frozenset(self._entries)
        return self.cursor, frozenset(self._entries[cursor - self._first :])
