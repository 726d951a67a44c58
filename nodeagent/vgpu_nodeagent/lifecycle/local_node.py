"""The node's records and what acts on them, in one value.

PreStart, releases, resizes and the ends of init containers read and write the same records, so the
agent makes this value once and hands it to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vgpu_nodeagent.discovery.drivers.numa import HostNuma
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.backends import Backends
from vgpu_nodeagent.events import Events
from vgpu_nodeagent.kubelet.records import KubeletRecords
from vgpu_nodeagent.state.checkpoint import Checkpoint
from vgpu_nodeagent.state.claim_reads import ClaimReads
from vgpu_nodeagent.state.instances import Instances
from vgpu_nodeagent.state.node_view import NodeView


@dataclass(frozen=True, slots=True)
class LocalNode:
    """The node that the agent serves.

    Attributes:
        name: The node's name.
        view: The newest known pods, claims and devices of this node.
        inventory: The devices.
        checkpoint: Slot allocations, claim allocations and MIG instances, on disk.
        allocations: Pages and CDI specs, on disk.
        backends: Enforce the limits of claims.
        instances: Makes and removes MIG instances.
        kubelet: The kubelet's own records.
        claims: Keeps the claims in the view up to date.
        host_numa: The host's NUMA nodes.
        events: The queue for events of this node.
    """

    name: str
    view: NodeView
    inventory: Inventory
    checkpoint: Checkpoint
    allocations: Allocations
    backends: Backends
    instances: Instances
    kubelet: KubeletRecords
    claims: ClaimReads
    host_numa: HostNuma = field(default_factory=HostNuma)
    events: Events = field(default_factory=Events)
