"""Numbers for what cards are and for what of them is in use: equal cards have equal numbers.

What is found out about one card then holds for all that are alike: a fleet has many cards, of few
kinds and in few conditions.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from vgpu_operator.placement.card import Facts

_CONDITIONS_KEPT = 1 << 18
_QUESTIONS_KEPT = 1_024
_ANSWERS_KEPT = 4_096

State = TypeVar("State", bound=Hashable)
Answer = TypeVar("Answer")


class Findings(Generic[State, Answer]):
    """What was found out of cards by their state, which says it all, for each of many questions.

    Args:
        questions: When there are more of them, the one that was asked first is forgotten. (Not the
            one that was asked least lately, which would cost every look.)
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
            if known is None and len(self._known) >= self._questions:
                del self._known[next(iter(self._known))]
            known = self._known[question] = {}
        return known

    def forget(self) -> None:
        """States have other names from now on."""
        self._known.clear()


class Conditions:
    """Gives out the numbers.

    A card's *facts* are all that it is apart from links, place and use; a *kind* is facts and, in
    MIG mode, the slices in use; a *condition* is a kind and the amounts in use.

    Attributes:
        facts: All facts, by number.
        right_kinds: By request: whether cards of a kind pass the checks of what a card is.
        fitting: By request: whether cards in a condition pass the checks that hold for all of them.
        scores: By request and weights: the scores of cards in a condition.
    """

    def __init__(self) -> None:
        self.facts: list[Facts] = []
        self._facts: dict[Facts, int] = {}
        self._kinds: dict[tuple[int, int], int] = {}
        self._conditions: dict[tuple[int, int, int, int], int] = {}
        self.right_kinds: Findings[int, bool] = Findings()
        self.fitting: Findings[int, bool] = Findings()
        self.scores: Findings[int, float] = Findings()

    def number(self, facts: Facts) -> int:
        """The number of what a card is."""
        number = self._facts.get(facts)
        if number is None:
            number = self._facts[facts] = len(self.facts)
            self.facts.append(facts)
        return number

    def kind(self, facts: int, slices: int) -> int:
        """The number of a kind.

        Args:
            facts: The number of what the card is.
            slices: Those in use, if it is in MIG mode: what is left of it is another kind of card.
        """
        key = (facts, slices)
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
