"""Why nodes that were tried for a claim do not serve it, found out only if somebody asks.

Most decisions are grants, and nobody looks at what was tried before; the reasons of a node cost
more than finding the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vgpu_api.reasons import Tally
from vgpu_api.v1alpha1.vgpuclaim import NumaPolicy
from vgpu_operator.ask import Ask
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.planning import plan_on


class Tried(Mapping[str, Tally]):
    """Reasons by node, of the columns as they are when a node is looked at first.

    A node that would serve by then has an empty tally.

    Args:
        nodes: Their numbers, by name.
        columns: The state of all cards.
        ask: What was asked for.
        numa: As it was tried.
    """

    __slots__ = ("_ask", "_columns", "_known", "_nodes", "_numa")

    def __init__(
        self, nodes: Mapping[str, int], columns: Columns, ask: Ask, numa: NumaPolicy
    ) -> None:
        self._nodes = nodes
        self._columns = columns
        self._ask = ask
        self._numa = numa
        self._known: dict[str, Tally] = {}

    def __getitem__(self, name: str) -> Tally:
        tally = self._known.get(name)
        if tally is None:
            outcome = plan_on(self._columns, self._nodes[name], self._ask, self._numa)
            tally = self._known[name] = outcome if isinstance(outcome, Tally) else Tally({}, 0)
        return tally

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)
