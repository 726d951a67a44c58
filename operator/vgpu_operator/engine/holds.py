"""Nominated reservations: cards on which nothing new starts until a request that waits fits there.

What is free on such a card is assumed in the ledger, so every decision sees it as taken; for the
waiting claim's own the hold is lifted. What becomes free later is gathered before anybody decides.
It stands under no namespace: nobody's quota pays for cards that nobody uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from vgpu_api.reasons import Tally
from vgpu_api.v1alpha1 import VGPUClaimSpec, VGPURequest
from vgpu_operator.ask import Ask
from vgpu_operator.engine.claim_writer import Key
from vgpu_operator.engine.held_target import Target
from vgpu_operator.ledger import Assumption, ClaimKey, Ledger
from vgpu_operator.placement import Grant, Plan

NO_NAMESPACE = ""
_SPEC = VGPUClaimSpec(requests=[VGPURequest()])


@dataclass(slots=True)
class Hold:
    """Cards that are held for a claim.

    Attributes:
        key: The claim, which need not exist yet.
        node: Where they are.
        cards: Their GPUDevices' names.
        gathered: What is held of each so far, MiB.
    """

    key: Key
    node: str
    cards: tuple[str, ...]
    gathered: dict[str, int] = field(default_factory=dict)
    assumption: Assumption | None = None


class Holds:
    """All nominated reservations, one at most for a claim.

    Args:
        ledger: Where they are assumed.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._holds: dict[Key, Hold] = {}

    def __iter__(self) -> Iterator[Hold]:
        return iter(list(self._holds.values()))

    def __len__(self) -> int:
        return len(self._holds)

    def of(self, key: Key) -> Hold | None:
        """The claim's."""
        return self._holds.get(key)

    @property
    def cards(self) -> set[str]:
        """All cards that are held."""
        return {card for hold in self._holds.values() for card in hold.cards}

    def begin(self, key: Key, target: Target) -> None:
        """Hold these cards from now on."""
        self._holds[key] = Hold(key, target.node, target.cards)
        self.gather()

    def end(self, key: Key) -> None:
        """Hold nothing for the claim any more."""
        hold = self._holds.pop(key, None)
        if hold is not None and hold.assumption is not None:
            self._ledger.forget(hold.assumption)

    def gather(self) -> None:
        """Take what has become free of the cards that are held. Call before any decision."""
        for hold in self._holds.values():
            news = [card for card in hold.cards if self._gather_of(hold, card)]
            if news:
                former, plan = hold.assumption, self._plan(hold)
                hold.assumption = self._ledger.assume(_place_of(hold.key), _SPEC, plan)
                if former is not None:
                    self._ledger.forget(former)

    def lifted(self, key: Key) -> AbstractContextManager[None]:
        """For planning the claim itself: inside, what is held for it is free."""
        return self._ledger.without(_place_of(key))

    def is_sound(self, hold: Hold) -> bool:
        """Whether its cards are there, in order, and on a node that takes pods."""
        columns = self._ledger.columns
        node, numbers = columns.node_id(hold.node), self._numbers(hold)
        if node is None or not (columns.node_ready[node] and columns.node_schedulable[node]):
            return False
        return len(numbers) == len(hold.cards) and all(
            columns.healthy[number] and not columns.cordoned[number] for number in numbers.values()
        )

    def explain(self, key: Key, ask: Ask, refusals: Mapping[str, Tally]) -> Mapping[str, str]:
        """What the refused nodes' texts lack, by node: cards that only a hold keeps from `ask`.

        Whom they are held for is not said: it may be another tenant's.
        """
        texts: dict[str, str] = {}
        for hold in self._holds.values():
            kept = [card for card in hold.cards if self._keeps(hold, card, ask)]
            if hold.key != key and hold.node in refusals and kept:
                texts[hold.node] = (
                    f"{len(kept)} on {hold.node} held for a request that has waited longer"
                )
        return texts

    def _keeps(self, hold: Hold, card: str, ask: Ask) -> bool:
        number = self._numbers(hold).get(card)
        if number is None:
            return False
        total, held = self._ledger.columns.memory[number], hold.gathered.get(card, 0)
        return any(request.memory_on(total) <= held for request in ask.requests)

    def _gather_of(self, hold: Hold, card: str) -> bool:
        number = self._numbers(hold).get(card)
        if number is None:
            return False
        columns = self._ledger.columns
        free = columns.memory[number] - columns.memory_used[number]
        if free <= 0:
            return False
        hold.gathered[card] = hold.gathered.get(card, 0) + free
        return True

    def _plan(self, hold: Hold) -> Plan:
        columns, numbers = self._ledger.columns, self._numbers(hold)
        grants = []
        for card, memory_mib in sorted(hold.gathered.items()):
            if card in numbers:
                uuid, index = columns.uuid[numbers[card]], columns.index[numbers[card]]
                grants.append(Grant("", card, uuid, index, memory_mib, cores=0))
        return Plan(hold.node, tuple(grants))

    def _numbers(self, hold: Hold) -> Mapping[str, int]:
        """The columns' numbers of its cards, of those that are there."""
        columns = self._ledger.columns
        node = columns.node_id(hold.node)
        cards = [] if node is None else columns.node_cards[node]
        return {columns.name[card]: card for card in cards if columns.name[card] in hold.cards}


def _place_of(key: Key) -> ClaimKey:
    """Where the ledger keeps a claim's hold: no claim can have this place."""
    return ClaimKey(NO_NAMESPACE, "/".join(key))
