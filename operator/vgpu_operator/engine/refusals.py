"""What was refused and why, remembered so that it is told once and counted right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vgpu_api.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RETELL_S = 5.0
"""A changed text is written again after this long at the earliest: counts move all the time."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod or a claim gets nothing now.

    `by_node` has a text for each node that was looked at, where nodes were looked at.
    """

    reason: Reason
    message: str
    by_node: Mapping[str, str]

    def on(self, nodes: Iterable[str]) -> dict[str, str]:
        """Why not on these nodes."""
        by_node, message = self.by_node, self.message
        return {node: by_node.get(node) or message for node in nodes}
