"""Numbers for what cards are and for what of them is in use: equal cards have equal numbers.

What is found out about one card then holds for all that are alike: a fleet has many cards, of few
kinds and in few conditions.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

_CONDITIONS_KEPT = 1 << 18
_QUESTIONS_KEPT = 256
_ANSWERS_KEPT = 4_096

State = TypeVar("State", bound=Hashable)
Answer = TypeVar("Answer")


class Findings(Generic[State, Answer]):
    """What was found out of cards by their state, which says it all, for each of many questions.

    Args:
        questions: When there are more of them, all is forgotten.
        answers: When there are more to one, those to it are.
    """

    def __init__(self, *, questions: int = _QUESTIONS_KEPT, answers: int = _ANSWERS_KEPT) -> None:
        self._questions = questions
        self._answers = answers
        self._known: dict[Hashable, dict[State, Answer]] = {}

    def of(self, question: Hashable) -> dict[State, Answer]:
        """What is known, by state; to be filled."""
        known = self._known.get(question)
        if known is None or len(known) > self._answers:
            if len(self._known) > self._questions:
                self._known.clear()
            known = self._known[question] = {}
        return known

    def forget(self) -> None:
        """States have other names from now on."""
        self._known.clear()


class Conditions:
    """Gives out the numbers.

    A *kind* is all that a card is apart from links, place and amounts in use; a *condition* is a
    kind and the amounts in use.

    Attributes:
        right_kinds: By request: whether cards of a kind pass the checks of what a card is.
        fitting: By request: whether cards in a condition pass the checks that hold for all of them.
        scores: By request and weights: the scores of cards in a condition.
    """

    def __init__(self) -> None:
        self._whats: dict[tuple[object, ...], int] = {}
        self._kinds: dict[tuple[int, int], int] = {}
        self._conditions: dict[tuple[int, int, int, int], int] = {}
        self.right_kinds: Findings[int, bool] = Findings()
        self.fitting: Findings[int, bool] = Findings()
        self.scores: Findings[int, float] = Findings()

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
        self.fitting.forget()
        self.scores.forget()
