"""Why many nodes do not serve a claim: what is found out about one card holds for all like it."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from vgpu_api.reasons import Reason, Tally
from vgpu_operator.ask import Ask
from vgpu_operator.placement.checks import refusal_of_kind, refusal_of_room
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.planning import policies_on, why_not
from vgpu_operator.placement.rankings import Ranking

_Found: TypeAlias = tuple[Reason | None, bool]
"""Why a card does not serve (None: alone it would), and whether it is of the vendor asked for."""


class Explanations:
    """Reasons of nodes that are known not to serve, of one moment.

    Args:
        columns: The state of all cards; must not change.
        ask: What was asked for, and no quota.
        ranking: The class's, which has each different tally once.
    """

    def __init__(self, columns: Columns, ask: Ask, ranking: Ranking) -> None:
        self._columns = columns
        self._ask = ask
        self._ranking = ranking
        request = ask.requests[0]
        named = bool(request.uuids or request.exclude_uuids)
        # Check 4 is about cards before, UUIDs are about one card, and later requests about earlier.
        self._card_by_card = len(ask.requests) == 1 and ask.numa != "Require" and not named
        self._known: dict[tuple[bool, int], _Found] = {}  # by Mutex and condition
        self._tallies: dict[tuple[_Found, ...], Tally] = {}  # by what was found of each card

    def of(self, node: int) -> Tally:
        """Why the node does not serve."""
        columns, ask = self._columns, self._ask
        if not self._card_by_card or columns.node_cut[node]:
            return self._ranking.said(why_not(columns, node, ask, ask.numa))
        alone = "Mutex" in policies_on(columns, node, ask)
        known, condition = self._known, columns.condition
        cards = columns.node_cards[node]
        try:
            found = tuple([known[alone, condition[card]] for card in cards])
        except KeyError:
            for card in cards:
                known[alone, condition[card]] = self._look_at(card, alone=alone)
            found = tuple([known[alone, condition[card]] for card in cards])
        tally = self._tallies.get(found)
        if tally is None:
            tally = self._tallies[found] = self._ranking.said(self._counted(found))
        return tally

    def _look_at(self, card: int, *, alone: bool) -> _Found:
        columns, request = self._columns, self._ask.requests[0]
        reason = refusal_of_kind(columns, card, request) or refusal_of_room(
            columns, card, request, ("Mutex",) if alone else ()
        )
        return reason, columns.vendor[card] == request.vendor

    def _counted(self, found: tuple[_Found, ...]) -> Tally:
        """As `fit.refusal` counts them."""
        if sum(of_vendor for _, of_vendor in found) < self._ask.requests[0].count:
            return Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE)
        counts = Counter(
            reason or Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST for reason, _ in found
        )
        return Tally(dict(counts), len(found))
