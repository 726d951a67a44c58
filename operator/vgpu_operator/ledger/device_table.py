"""The observed devices and nodes, and what claims use of them. Keeps the columns up to date.

Nothing else writes the columns, except a plan, which undoes its changes. Usage is recorded by
device UUID and not in the device objects, so it counts even while no object with the UUID is known.

Two change logs serve readers that cache results per node. Each reader has a cursor and asks for the
nodes that changed since then. A log keeps a bounded history; a reader that is too far behind gets
all nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node
from vgpu_api.v1alpha1 import GPUDevice, Metadata
from vgpu_operator.ledger.device_facts import cordoned_uuids, facts_of, is_gone, state_of
from vgpu_operator.ledger.shares import ClaimKey, ClaimShares, DeviceShare
from vgpu_operator.placement.columns import DeviceFacts, NodeState
from vgpu_operator.placement.fleet import Fleet
from vgpu_operator.vendors.neighbours import joined

DEVICES_OF_A_NODE = 64
"""The most devices of a node; further ones are ignored. No host has this many, but an agent can
publish any number, and each change costs time in proportion to that number: 290 ms of the engine's
loop with 20,000 devices.
"""


class ChangeLog:
    """The names of changed nodes, in order.

    Args:
        keep: The least number of entries kept; there are never more than twice as many.
    """

    def __init__(self, *, keep: int = 16_384) -> None:
        self._keep = keep
        self._entries: list[str] = []
        self._first = 0
        self._muted = 0

    @property
    def cursor(self) -> int:
        """Return the position after the newest entry."""
        return self._first + len(self._entries)

    def touch(self, node: str) -> None:
        """Record a change of the node."""
        if self._muted:
            return
        self._entries.append(node)
        if len(self._entries) >= 2 * self._keep:
            del self._entries[: self._keep]
            self._first += self._keep

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Record no changes inside the block, because the caller undoes them."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    def since(self, cursor: int, everything: Iterable[str]) -> tuple[int, frozenset[str]]:
        """Return the new cursor and the nodes that changed since the old one.

        Args:
            cursor: From an earlier call; 0 at first.
            everything: All nodes, for a reader that is too far behind.
        """
        if cursor < self._first:
            return self.cursor, frozenset(everything) | frozenset(self._entries)
        return self.cursor, frozenset(self._entries[cursor - self._first :])


T = TypeVar("T")


class DeviceTable:
    """Devices, nodes, and the claims that hold them.

    Args:
        config: The defaults for devices and nodes.

    Attributes:
        columns: The state of all devices.
        changes: The log of changed nodes.
        freed: The log of nodes that may have more free capacity than before.
    """

    def __init__(self, *, config: ClusterConfig) -> None:
        self.columns = Fleet()
        self.changes = ChangeLog()
        self.freed = ChangeLog()
        self._config = config
        self._devices: dict[str, GPUDevice] = {}
        self._facts: dict[str, DeviceFacts] = {}  # device object → facts in the columns
        # device UUID → device objects; more than one only by mistake, or while a device moves
        self._twins: dict[str, tuple[str, ...]] = {}
        self._shared: set[str] = set()  # UUIDs that several device objects have
        self._nodes: dict[str, Node] = {}
        self._states: dict[str, NodeState] = {}
        self._devices_on: dict[str, set[str]] = {}  # node → device objects
        self._holders: dict[str, dict[ClaimKey, DeviceShare]] = {}  # device UUID → claims
        self._fillers: dict[str, set[ClaimKey]] = {}  # node → claims that count as filling it

    # Observations.

    def apply_device(self, device: GPUDevice) -> None:
        """Record an added or updated device, unless a newer version is known."""
        name = device.metadata.name
        known = self._devices.get(name)
        if known is not None and not _is_newer(device.metadata, known.metadata):
            return
        others = self._unlink(name)
        self._devices[name] = device
        self._devices_on.setdefault(device.spec.node_name, set()).add(name)
        if device.status.uuid:
            twins = (*self._twins.get(device.status.uuid, ()), name)
            self._twins[device.status.uuid] = twins
            others.update(twins)
            if len(twins) > 1:
                self._shared.add(device.status.uuid)
        self._write_devices({name} | others)

    def remove_device(self, name: str) -> None:
        """Forget a device object, but not the claims on its UUID."""
        others = self._unlink(name)
        self._devices.pop(name, None)
        self._write_devices({name} | others)

    def apply_node(self, node: Node) -> bool:
        """Record an added or updated node. Return False if the known version is at least as new."""
        name = node.metadata.name
        known = self._nodes.get(name)
        if known is not None and not _is_newer(node.metadata, known.metadata):
            return False
        self._nodes[name] = node
        state = state_of(node, config=self._config)
        if state != self._states.get(name):
            self._states[name] = state
            self.columns.put_node(name, state)
            self.touch(name)
        self._write_devices(self._devices_on.get(name, ()))
        return True

    def remove_node(self, name: str) -> None:
        """Forget a node. Devices on it are not allocated any more."""
        if self._nodes.pop(name, None) is None:
            return
        del self._states[name]
        self.columns.remove_node(name)
        self.touch(name)

    def touch(self, node: str) -> None:
        """Record that a node may now serve more than before."""
        self.changes.touch(node)
        self.freed.touch(node)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Record no changes inside the block, because the caller undoes them."""
        with self.changes.muted(), self.freed.muted():
            yield

    def replace_shares(self, key: ClaimKey, *, before: ClaimShares, after: ClaimShares) -> None:
        """Replace a claim's shares `before` by `after`."""
        for uuid in before.devices.keys() | after.devices.keys():
            share = after.devices.get(uuid)
            if share == before.devices.get(uuid):
                continue
            if share is not None:
                self._holders.setdefault(uuid, {})[key] = share
            else:
                del self._holders[uuid][key]
                if not self._holders[uuid]:
                    del self._holders[uuid]
            for name in self._twins.get(uuid, ()):
                self._write_use(self._facts[name])
        for node in before.full_nodes ^ after.full_nodes:
            if node in after.full_nodes:
                self._fillers.setdefault(node, set()).add(key)
            else:
                _discard(self._fillers, node, key)
            self._write_devices(self._devices_on.get(node, ()))

    # Views.

    def holders(self, uuid: str) -> Mapping[ClaimKey, DeviceShare]:
        """Return the claims that hold a device, with their shares of it."""
        return self._holders.get(uuid, {})

    def nodes(self) -> Iterator[str]:
        """Yield the names of the nodes with devices, in any order."""
        columns = self.columns
        return (columns.node_name[node] for node in columns.nodes_with_devices())

    def devices(self, node: str) -> tuple[GPUDevice, ...]:
        """Return all device objects of a node by name, including those without a UUID."""
        return tuple(self._devices[name] for name in sorted(self._devices_on.get(node, ())))

    def is_one_too_many(self, device: GPUDevice) -> bool:
        """Return True for a new device of a node that already has `DEVICES_OF_A_NODE` devices."""
        on_node = self._devices_on.get(device.spec.node_name, ())
        return len(on_node) >= DEVICES_OF_A_NODE and device.metadata.name not in self._devices

    def node_of(self, name: str) -> str | None:
        """Return the node of a device object, or None if the object is unknown."""
        device = self._devices.get(name)
        return None if device is None else device.spec.node_name

    def duplicates(self) -> frozenset[str]:
        """Return the device objects whose UUID another object had first."""
        return frozenset(
            name for uuid in self._shared for name in self._twins[uuid] if name != self._owner(uuid)
        )

    def first_of(self, uuid: str) -> GPUDevice:
        """Return the object that represents a device; several objects may have its UUID.

        Raises:
            KeyError: No object has the UUID.
        """
        return self._devices[self._owner(uuid)]

    def _owner(self, uuid: str) -> str:
        """Return the name of the device object that represents a device.

        This is the oldest object, because an agent that copies another's UUID creates its object
        later. Objects whose agent reports the device as gone are skipped; otherwise a device that
        moved to another node would be usable on neither.
        """
        found = [self._devices[name] for name in self._twins[uuid]]
        there = [device for device in found if not is_gone(device)] or found
        oldest = min(there, key=lambda device: (device.metadata.creation_timestamp or "",
                                                device.metadata.name))  # fmt: skip
        return oldest.metadata.name

    # The columns.

    def _unlink(self, name: str) -> set[str]:
        """Remove a device object from the indexes; return the others with its UUID."""
        device = self._devices.get(name)
        if device is None:
            return set()
        _discard(self._devices_on, device.spec.node_name, name)
        uuid = device.status.uuid
        others = tuple(each for each in self._twins.pop(uuid, ()) if each != name)
        if others:
            self._twins[uuid] = others
        if len(others) < 2:
            self._shared.discard(uuid)
        return set(others)

    def _write_devices(self, names: Iterable[str]) -> None:
        for name in names:
            device = self._devices.get(name)
            # a device without a UUID does not count yet
            if device is None or not device.status.uuid:
                self._remove_device(name)
            else:
                self._write_facts(device)

    def _remove_device(self, name: str) -> None:
        known = self._facts.pop(name, None)
        if known is not None:
            self.columns.remove_device(name)
            self._left(known.node)

    def _write_facts(self, device: GPUDevice) -> None:
        name = device.metadata.name
        facts = facts_of(
            device,
            cordoned_on_node=cordoned_uuids(self._nodes.get(device.spec.node_name)),
            duplicate=device.status.uuid in self._shared
            and self._owner(device.status.uuid) != name,
            config=self._config,
        )
        known = self._facts.get(name)
        if facts != known:
            self._facts[name] = facts
            self.columns.put_device(facts)
            self.touch(facts.node)
            if known is not None and known.node != facts.node:
                self._left(known.node)
        self._write_use(facts)

    def _left(self, node: str) -> None:
        """Record that a device left a node, and forget the node if nothing else is known of it."""
        if node not in self._nodes:
            self.columns.remove_node(node)
        self.touch(node)

    def _held(self, facts: DeviceFacts) -> tuple[int, int, int, int]:
        """Return the total slots, cores, MiB and slices of a device that claims hold."""
        slots = cores = memory = slices = 0
        alone, full = False, facts.node in self._fillers
        in_mig_mode = facts.mode == "MIG"
        for share in self._holders.get(facts.uuid, {}).values():
            slots += share.use.slots
            cores += share.use.cores
            memory += share.use.memory_mib
            alone = alone or share.alone
            full = full or share.full or share.contradicts(in_mig_mode=in_mig_mode)
            slices |= share.slices
            if share.marks:
                slices = joined(slices, share.marks, share.use.slots)
        if alone or full:
            cores = max(cores, facts.cores)
        if full:
            slots, memory = max(slots, facts.slots), max(memory, facts.memory_mib)
        return slots, cores, memory, slices

    def _write_use(self, facts: DeviceFacts) -> None:
        """Write the usage of a device to the columns, and record the change."""
        slots, cores, memory, slices = self._held(facts)
        number = self.columns.number_of(facts.name)
        before = self.columns.in_use(number)
        if before == (slots, cores, memory, slices):
            return
        self.columns.set_used(number, slots=slots, cores=cores, memory=memory, slices=slices)
        self.changes.touch(facts.node)
        had_slots, had_cores, had_memory, had_slices = before
        if slots < had_slots or cores < had_cores or memory < had_memory or had_slices & ~slices:
            self.freed.touch(facts.node)


def _is_newer(metadata: Metadata, known: Metadata) -> bool:
    return int(metadata.resource_version) > int(known.resource_version)


def _discard(index: dict[str, set[T]], key: str, value: T) -> None:
    """Remove a value from an index of sets, and drop the set if it becomes empty."""
    values = index.get(key)
    if values is not None:
        values.discard(value)
        if not values:
            del index[key]
