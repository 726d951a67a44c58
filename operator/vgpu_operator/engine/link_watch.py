"""Links between cards that the two ends tell differently: they count as no link, and that is said.

Looked at where cards or their links have changed, and told once as an event of the node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vgpu_api.v1alpha1 import GPUDevice
from vgpu_operator.engine.books import Books
from vgpu_operator.engine.teller import Teller
from vgpu_operator.ledger import Ledger

REASON = "AsymmetricLinks"
_TOLD_AT_MOST = 3
"""Pairs named in one event."""


@dataclass(slots=True)
class LinkWatch:
    """Which nodes' links are to be looked at.

    Attributes:
        ledger: Knows a node's devices.
        books: Know the nodes.
        teller: Tells.
    """

    ledger: Ledger
    books: Books
    teller: Teller
    _links: dict[str, dict[str, int]] = field(default_factory=dict)  # device → peer → score
    _changed: set[str] = field(default_factory=set)  # nodes

    def device_changed(self, device: GPUDevice) -> None:
        """A device was seen."""
        links = _links_of(device)
        if self._links.get(device.metadata.name) != links:
            self._links[device.metadata.name] = links
            self._changed.add(device.spec.node_name)

    def device_gone(self, name: str) -> None:
        """A device is gone: nobody contradicts it any more."""
        self._links.pop(name, None)

    def look(self) -> None:
        """Tell of what has changed."""
        nodes, self._changed = self._changed, set()
        for name in sorted(nodes):
            node = self.books.nodes.get(name)
            pairs = _contradictions(self.ledger.devices(name))
            if node is not None and pairs:
                more = f" and {len(pairs) - _TOLD_AT_MOST} more" * (len(pairs) > _TOLD_AT_MOST)
                text = "; ".join(pairs[:_TOLD_AT_MOST]) + more
                self.teller.tell_node(node, REASON, f"links count as none: {text}")


def _contradictions(devices: tuple[GPUDevice, ...]) -> list[str]:
    """The pairs whose ends differ, in words."""
    scores = {device.status.uuid: _links_of(device) for device in devices if device.status.uuid}
    pairs = sorted({(a, b) for a, links in scores.items() for b in links if b in scores})
    return [
        f"{a} says {there} to {b}, which says {back}"
        for a, b in pairs
        if (there := scores[a][b]) != (back := scores[b].get(a, 0))
        and (a < b or (b, a) not in pairs)
    ]


def _links_of(device: GPUDevice) -> dict[str, int]:
    return {link.peer: link.score for link in device.status.links}
