"""This node, as everything that grants and releases sees it: its name, our resource, all records.

One value, made once by the agent and handed to PreStart, the releases and the ends of init
containers, which read and write the same records and must never have different ones in hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from vgpu_nodeagent.discovery.drivers.numa import HostNuma
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.backends import Backends
from vgpu_nodeagent.events import Events
from vgpu_nodeagent.kubelet.pod_resources import PodResources
from vgpu_nodeagent.state.checkpoint import Checkpoint
from vgpu_nodeagent.state.instances import Instances
from vgpu_nodeagent.state.node_view import NodeView


@dataclass(frozen=True, slots=True)
class LocalNode:
    """What is worked on.

    Attributes:
        name: The node's name.
        resource: The resource that our slots are offered as.
        view: The newest known pods, claims and devices of this node.
        inventory: The devices.
        checkpoint: Slot allocations and holdings, on disk.
        allocations: Pages and CDI specs, on disk.
        backends: What keeps claims within their limits.
        instances: Parts of devices in MIG mode, in the driver.
        pod_resources: The kubelet's word on who holds slots now.
        kubelet_checkpoint: The kubelet's own record of who was given slots.
        kubelet_pods: The kubelet's folder of pods, by UID.
        host_numa: The host's NUMA nodes.
        events: Where what happens is put.
    """

    name: str
    resource: str
    view: NodeView
    inventory: Inventory
    checkpoint: Checkpoint
    allocations: Allocations
    backends: Backends
    instances: Instances
    pod_resources: PodResources
    kubelet_checkpoint: Path
    kubelet_pods: Path
    host_numa: HostNuma = field(default_factory=HostNuma)
    events: Events = field(default_factory=Events)
