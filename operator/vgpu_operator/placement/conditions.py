"""Numbers for what cards are and for what of them is in use: equal cards have equal numbers.

What is found out about one card then holds for all that are alike: a fleet has many cards, of few
kinds and in few conditions.
"""

from __future__ import annotations

from vgpu_operator.ask import RequestAsk

_CONDITIONS_KEPT = 1 << 18
_REQUESTS_KEPT = 4096


class Conditions:
    """Gives out the numbers.

    A *kind* is all that a card is apart from links, place and amounts in use; a *condition* is a
    kind and the amounts in use.
    """

    def __init__(self) -> None:
        self._whats: dict[tuple[object, ...], int] = {}
        self._kinds: dict[tuple[int, int], int] = {}
        self._conditions: dict[tuple[int, int, int, int], int] = {}
        self._right: dict[RequestAsk, dict[int, bool]] = {}

    def what(self, properties: tuple[object, ...]) -> int:
        """The number of what a card is."""
        return self._whats.setdefault(properties, len(self._whats))

    def kind(self, what: int, slices: int) -> int:
        """The number of a kind.

        Args:
            what: The number of what the card is.
            slices: Those in use, if it is in MIG mode: what is left of it is another kind of card.
        """
        key = (what, slices)
        return self._kinds.setdefault(key, len(self._kinds))

    def condition(self, kind: int, slots: int, cores: int, memory: int) -> int:
        """The number of a condition."""
        key = (kind, slots, cores, memory)
        return self._conditions.setdefault(key, len(self._conditions))

    @property
    def are_too_many(self) -> bool:
        """Most of the conditions are those of long ago: `forget` them."""
        return len(self._conditions) > _CONDITIONS_KEPT

    def forget(self) -> None:
        """Begin to number conditions anew; all that are kept somewhere are void."""
        self._conditions.clear()

    def right_kinds(self, request: RequestAsk) -> dict[int, bool]:
        """Which kinds of cards are known to be right for a request, or wrong; to be filled."""
        known = self._right.get(request)
        if known is None:
            if len(self._right) >= _REQUESTS_KEPT:
                self._right.clear()
            known = self._right[request] = {}
        return known
