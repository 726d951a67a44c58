"""Why a pod or a claim gets nothing now. The text is made when it is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from vgpu_api.reasons import CURES, Cure, Reason
from vgpu_operator.placement import Plan

OF_ROOM = frozenset(reason for reason, cure in CURES.items() if cure is Cure.ROOM)
"""Reasons that the end of others on a device can cure."""

_NONE: Mapping[str, str] = MappingProxyType({})
_NONE_KEPT: Mapping[str, int] = MappingProxyType({})


class Refusal:
    """A reason, and a text for each node that was checked, if any was.

    Args:
        reason: Why, where no node was checked.
        text: The same in a sentence.
        plan: The refused plan, where nodes were checked.
        notes: By node: what its text has to add.
        kept: By node: how many devices have room, and are kept for other requests.

    Attributes:
        kept: As above; the text says it, too.
    """

    def __init__(
        self,
        reason: Reason | None = None,
        text: str = "",
        *,
        plan: Plan | None = None,
        notes: Mapping[str, str] = _NONE,
        kept: Mapping[str, int] = _NONE_KEPT,
    ) -> None:
        self._reason = reason
        self._text = text
        self._plan = plan
        self._notes = notes
        self.kept = kept

    @property
    def reason(self) -> Reason:
        """The reason that stands for all."""
        if self._reason is None:
            self._reason = Reason.NO_GPU_NODES if self._plan is None else self._plan.reason
        return self._reason

    @property
    def message(self) -> str:
        """Everything in a sentence, for an event, a condition, or a node without a text."""
        if not self._text and self._plan is not None:
            self._text = "; ".join((self._plan.text, *self._notes.values()))
        return self._text

    @property
    def is_of_room(self) -> bool:
        """Whether the end of others can cure it."""
        return self.reason in OF_ROOM

    def on(self, node: str) -> str:
        """Why not on this node."""
        for texts in self.by_cure((node,)):
            if node in texts:
                return texts[node]
        return self.message

    def by_cure(self, nodes: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Why not on these nodes, by name.

        Args:
            nodes: Those that were checked, or of which nothing is known.

        Returns:
            The nodes where the end of others could make room, so that preemption may help; and the
            other ones.
        """
        curable: dict[str, str] = {}
        others: dict[str, str] = {}
        for tally, names in () if self._plan is None else self._plan.groups:
            into = others if OF_ROOM.isdisjoint(tally.counts) else curable
            into.update(dict.fromkeys(names, str(tally) or self.message))
        for node, note in self._notes.items():
            for texts in (curable, others):
                if node in texts:
                    texts[node] = f"{texts[node]}; {note}"
        if len(curable) + len(others) < len(nodes):
            unknown = (node for node in nodes if node not in curable and node not in others)
            others.update(dict.fromkeys(unknown, self.message))
        return curable, others
