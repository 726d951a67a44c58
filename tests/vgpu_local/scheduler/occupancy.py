"""The sum of the pods' requests on each node, updated pod by pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

Amounts = Mapping[str, Fraction]
"""Amounts in base units by resource name."""


def plus(one: Amounts, other: Amounts) -> dict[str, Fraction]:
    """Add two amounts, resource by resource."""
    names = {**one, **other}
    return {name: one.get(name, Fraction(0)) + other.get(name, Fraction(0)) for name in names}


def most(one: Amounts, other: Amounts) -> dict[str, Fraction]:
    """Take the larger of two amounts, resource by resource."""
    names = {**one, **other}
    return {name: max(one.get(name, Fraction(0)), other.get(name, Fraction(0))) for name in names}


@dataclass(slots=True)
class Occupancy:
    """The pods that are bound or about to be, and the sums of their requests per node."""

    _pods: dict[str, tuple[str, Amounts]] = field(default_factory=dict)
    _used: dict[str, dict[str, Fraction]] = field(default_factory=dict)

    def used(self, node: str) -> Amounts:
        """Return the sum of the requests of the pods on a node."""
        return self._used.get(node, {})

    def node_of(self, uid: str) -> str | None:
        """Return the node on which a pod counts, or None."""
        placed = self._pods.get(uid)
        return placed[0] if placed else None

    def on(self, node: str) -> list[str]:
        """Return the UIDs of the pods that count on a node."""
        return [uid for uid, (place, _) in self._pods.items() if place == node]

    def place(self, uid: str, node: str, requests: Amounts) -> None:
        """Count a pod on this node only."""
        self.remove(uid)
        self._pods[uid] = (node, requests)
        self._used[node] = plus(self._used.get(node, {}), requests)

    def remove(self, uid: str) -> bool:
        """Stop counting a pod; return True if it was counted."""
        placed = self._pods.pop(uid, None)
        if placed is None:
            return False
        node, requests = placed
        self._used[node] = plus(self._used[node], {name: -v for name, v in requests.items()})
        return True
