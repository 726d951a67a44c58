"""The reason why a pod or a claim gets nothing now; its text is only made when it is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from vgpu_api.reasons import CURES, Cure, Reason
from vgpu_operator.placement import Plan

OF_ROOM = frozenset(reason for reason, cure in CURES.items() if cure is Cure.ROOM)
"""Reasons that go away when others on a device end."""

_NONE: Mapping[str, str] = MappingProxyType({})
_NONE_KEPT: Mapping[str, int] = MappingProxyType({})


class Refusal:
    """The reason for a refusal, with a text for each node that was checked.

    Args:
        reason: The reason, if no node was checked.
        text: The same as a sentence.
        plan: The refused plan, if nodes were checked.
        notes: By node, a note to add to its text.
        kept: By node, how many devices have capacity but are kept for other requests.

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
        """Return the one reason that is shown: the given one, or the plan's."""
        if self._reason is None:
            self._reason = Reason.NO_GPU_NODES if self._plan is None else self._plan.reason
        return self._reason

    @property
    def message(self) -> str:
        """Return the refusal as one text, for an event, a condition, or a node without its own."""
        if not self._text and self._plan is not None:
            self._text = "; ".join((self._plan.text, *self._notes.values()))
        return self._text

    @property
    def is_of_room(self) -> bool:
        """True if the refusal may go away when others end."""
        return self.reason in OF_ROOM

    def on(self, node: str) -> str:
        """Return why the node was refused."""
        for texts in self.by_cure((node,)):
            if node in texts:
                return texts[node]
        return self.message

    def by_cure(self, nodes: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return why each of these nodes was refused, in two maps by node name.

        Returns:
            The nodes where preemption may help, because the end of others could make room; and the
            others, among them nodes that were not checked.
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
