"""Which nodes a claim may go to, as one bit per node number.

A filter of a selector, an affinity and a set of tolerations is a few bitwise operations on integers
of as many bits as there are nodes: making one costs microseconds and some hundred bytes, so ten
thousand different ones cost no more each than ten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vgpu_api.reasons import Reason

ALL = -1
"""Every bit is set: the rule rules nothing out."""


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Bits of the nodes that pass each rule; a node has the number that `Columns` gave it.

    Attributes:
        selector: Pass the pod's node selector, and wear no label that rules the pod out.
        affinity: Pass its required node affinity.
        taints: Have no taint that it does not tolerate.
        allowed: Pass all three.
    """

    selector: int = ALL
    affinity: int = ALL
    taints: int = ALL
    allowed: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed", self.selector & self.affinity & self.taints)

    def __contains__(self, node: int) -> bool:
        return bool(self.allowed >> node & 1)

    def refusal(self, node: int) -> Reason:
        """The first rule that rules a node out."""
        if not self.selector >> node & 1:
            return Reason.NODE_SELECTOR_MISMATCH
        if not self.affinity >> node & 1:
            return Reason.NODE_AFFINITY_MISMATCH
        return Reason.NODE_TAINTED


EVERY_NODE = NodeFilter()


def only(node: int) -> int:
    """The bits of one node."""
    return 1 << node
