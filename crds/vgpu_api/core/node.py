"""The fields of a Node that affect the placement of pods."""

from __future__ import annotations

from pydantic import Field

from vgpu_api.core.written_conditions import WrittenConditions
from vgpu_api.empties import no_entries, no_items
from vgpu_api.v1alpha1.base import ApiModel, Metadata


class Taint(ApiModel):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(ApiModel):
    """The fields of a node's spec that we read."""

    unschedulable: bool = False
    taints: list[Taint] = Field(default_factory=no_items)


class NodeStatus(ApiModel):
    """The fields of a node's status that we read."""

    conditions: WrittenConditions
    capacity: dict[str, str | int] = Field(default_factory=no_entries)
    allocatable: dict[str, str | int] = Field(default_factory=no_entries)


class Node(ApiModel):
    """A node."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: NodeSpec = Field(default_factory=NodeSpec)
    status: NodeStatus = Field(default_factory=lambda: NodeStatus())

    @property
    def is_ready(self) -> bool:
        """True if the node's condition Ready is True."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    @property
    def is_silent(self) -> bool:
        """True if the node's kubelet does not report any more: Ready is Unknown."""
        return any(c.type == "Ready" and c.status == "Unknown" for c in self.status.conditions)
