"""What a namespace may still take, and what a claim takes of it while it is planned: check 9.

A claim is charged what it holds of each card at its worst moment, as the ledger counts it: the
greater of its init containers' peak and its app containers' sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_operator.ask import RequestAsk


@dataclass(frozen=True, slots=True)
class Budget:
    """What may still be taken: MiB and percent of compute over all cards; None is no limit."""

    memory_mib: int | None = None
    cores: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit."""
        return self.memory_mib is not None or self.cores is not None


UNLIMITED = Budget()


@dataclass(slots=True)
class _Held:
    """(MiB, percent of compute) that a claim holds of one card."""

    app: tuple[int, int] = (0, 0)
    init: tuple[int, int] = (0, 0)

    def peak(self) -> tuple[int, int]:
        return max(self.app[0], self.init[0]), max(self.app[1], self.init[1])

    def plus(self, request: RequestAsk, memory_mib: int, cores: int | None) -> _Held:
        """With one more grant; init containers run one after the other."""
        cores = request.cores if cores is None else cores
        if request.phase == "Init":
            return _Held(self.app, (max(self.init[0], memory_mib), max(self.init[1], cores)))
        return _Held((self.app[0] + memory_mib, self.app[1] + cores), self.init)


class Charge:
    """What a claim is charged so far, against its namespace's budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held: dict[int, _Held] = {}
        self._memory_mib = 0
        self._cores = 0

    def exceeds(
        self, card: int, request: RequestAsk, memory_mib: int, cores: int | None = None
    ) -> bool:
        """Whether `request.count` cards like this one are more than the namespace may take.

        Args:
            card: Which.
            request: For whom.
            memory_mib: MiB that the card would be charged.
            cores: Percent of compute that it would be charged, if not what is asked for.
        """
        memory, share = self._rise(card, request, memory_mib, cores)
        return _is_over(
            self._budget.memory_mib, self._memory_mib, memory * request.count
        ) or _is_over(self._budget.cores, self._cores, share * request.count)

    def add(
        self, card: int, request: RequestAsk, memory_mib: int, cores: int | None = None
    ) -> None:
        """The request was given this card."""
        memory, share = self._rise(card, request, memory_mib, cores)
        self._memory_mib += memory
        self._cores += share
        self._held[card] = self._held.get(card, _Held()).plus(request, memory_mib, cores)

    def _rise(
        self, card: int, request: RequestAsk, memory_mib: int, cores: int | None
    ) -> tuple[int, int]:
        held = self._held.get(card, _Held())
        before, after = held.peak(), held.plus(request, memory_mib, cores).peak()
        return after[0] - before[0], after[1] - before[1]


def _is_over(limit: int | None, charged: int, rise: int) -> bool:
    return limit is not None and rise > 0 and charged + rise > limit
