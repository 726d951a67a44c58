"""The state of all devices and nodes as columns: a list per property, indexed by number.

A decision reads a few properties of many devices, for which lists indexed by small integers are the
cheapest data structure. Only the ledger writes them; `best_node.place` takes devices for the
duration of a decision and then returns them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.gpudevice import DeviceMode
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NodePolicy
from vgpu_operator.placement.constraints import NodeFilter
from vgpu_operator.placement.device_conditions import (
    NUMA_UNKNOWN_FROM,
    Conditions,
    DeviceFacts,
    NodeState,
)
from vgpu_operator.placement.mig_geometry import Profile
from vgpu_operator.placement.ranking_cache import Rankings
from vgpu_operator.placement.target_workload import Mix

__all__ = ["NUMA_UNKNOWN_FROM", "Columns", "DeviceFacts", "NodeState"]

CPU_UNKNOWN = 1 << 62
"""The free milli-CPU of a node about which nothing is known: enough for every request."""


class Changes:
    """The changes since a fleet last updated its arrays.

    Attributes:
        devices: Devices that were added, changed or removed.
        nodes: Nodes that changed, or whose devices did.
        names: True if a number was reassigned to a node with another name.
    """

    __slots__ = ("devices", "names", "nodes")

    def __init__(self) -> None:
        self.devices: set[int] = set()
        self.nodes: set[int] = set()
        self.names = True

    def note(self, node: int, device: int | None = None, *, renamed: bool = False) -> None:
        """Record a change of a node or of one of its devices."""
        self.nodes.add(node)
        if device is not None:
            self.devices.add(device)
        self.names = self.names or renamed


class Columns:
    """Devices and nodes by number. The numbers of removed ones are reused.

    Per device: `name uuid index vendor model mode numa slots cores memory healthy duplicate
    cordoned profiles`, `links` (by UUID), the amounts in use `slots_used cores_used memory_used`,
    `slices_used` (one bit each: MIG slices, numbered cores or the marks of `vendors.neighbours`),
    `node_of` (the node's number), and the numbers of its `facts`, `kind` and `condition`
    (`device_conditions.Conditions`). Per node: `node_name node_devices` (devices by index, then
    UUID) `node_ready node_schedulable node_policies node_labelled` (for its devices) `node_policy`
    (its own rank among nodes) `node_cpu_free` (milli-CPU) `node_in_mig_mode` (number of devices in
    MIG mode), and the sums over its devices `node_slots node_cores node_memory` and
    `node_slots_used`, etc.

    `rankings` has nodes by request class, `changes` lists updates that the arrays of a `Fleet`
    lack, `mix` has the typical requests, and `conditions` numbers kinds and conditions.
    `search_steps` is the number of choices that the current decision may still try
    (`fit_node.DECISION_STEPS`).
    """

    def __init__(self) -> None:
        self.name: list[str] = []
        self.uuid: list[str] = []
        self.index: list[int] = []
        self.vendor: list[str] = []
        self.model: list[str] = []
        self.mode: list[DeviceMode] = []
        self.numa: list[int] = []
        self.slots: list[int] = []
        self.cores: list[int] = []
        self.memory: list[int] = []
        self.healthy: list[bool] = []
        self.duplicate: list[bool] = []
        self.cordoned: list[bool] = []
        self.links: list[Mapping[str, int]] = []
        self.facts: list[int] = []
        self.kind: list[int] = []
        self.condition: list[int] = []
        self.slots_used: list[int] = []
        self.cores_used: list[int] = []
        self.memory_used: list[int] = []
        self.slices_used: list[int] = []
        self.profiles: list[tuple[Profile, ...]] = []
        self.node_of: list[int] = []
        self.node_name: list[str] = []
        self.node_devices: list[list[int]] = []
        self.node_ready: list[bool] = []
        self.node_schedulable: list[bool] = []
        self.node_policies: list[tuple[DevicePolicy, ...]] = []
        self.node_labelled: list[tuple[DevicePolicy, ...]] = []
        self.node_policy: list[NodePolicy | None] = []
        self.node_cpu_free: list[int] = []
        self.node_slots: list[int] = []
        self.node_cores: list[int] = []
        self.node_memory: list[int] = []
        self.node_slots_used: list[int] = []
        self.node_cores_used: list[int] = []
        self.node_memory_used: list[int] = []
        self.node_in_mig_mode: list[int] = []
        self.search_steps = 0
        self.rankings = Rankings()
        self.changes = Changes()
        self.mix = Mix()
        self.conditions = Conditions()
        self._device_ids: dict[str, int] = {}
        self._node_ids: dict[str, int] = {}
        self._devices_of: dict[str, tuple[int, ...]] = {}  # UUID → devices; normally one
        self._free_devices: list[int] = []
        self._free_nodes: list[int] = []

    # Reading.

    def closed(self, node: int, nodes: NodeFilter) -> Reason | None:
        """Return why a node accepts no new pods; None if it does, or if the pod tolerates that."""
        if nodes.tolerated >> node & 1:
            return None
        if not self.node_ready[node]:
            return Reason.NODE_NOT_READY
        return None if self.node_schedulable[node] else Reason.NODE_UNSCHEDULABLE

    def node_id(self, name: str) -> int | None:
        """Return the node's number, or None if it is unknown."""
        return self._node_ids.get(name)

    def node_ids(self, names: Iterable[str]) -> list[int | None]:
        """Return the numbers of nodes in the order of the names; None for unknown nodes."""
        return list(map(self._node_ids.get, names))

    def number_of(self, name: str) -> int:
        """Return the number of a device, given the name of its object."""
        return self._device_ids[name]

    def used(self, device: int) -> tuple[int, int, int]:
        """Return a device's (slots, cores, MiB) in use."""
        return self.slots_used[device], self.cores_used[device], self.memory_used[device]

    def in_use(self, device: int) -> tuple[int, int, int, int]:
        """Return (slots, cores, MiB, slices or numbered cores) in use, as arguments for `lend`."""
        return (*self.used(device), self.slices_used[device])

    def nodes_with_devices(self) -> Iterator[int]:
        """Return the nodes that have at least one device."""
        return (node for node in self._node_ids.values() if self.node_devices[node])

    def nodes_of(self, uuids: Iterable[str]) -> frozenset[int]:
        """Return the nodes that have a device with one of the UUIDs."""
        of = self._devices_of
        return frozenset(self.node_of[device] for uuid in uuids for device in of.get(uuid, ()))

    def is_there(self, device: int) -> bool:
        """Return True if the number currently belongs to a device."""
        return self._device_ids.get(self.name[device]) == device

    def state(self) -> dict[str, tuple[int, int, int]]:
        """Return (slots, cores, MiB) in use for each device; plans must not modify this."""
        return {name: self.used(device) for name, device in self._device_ids.items()}

    # Writing.

    def put_device(self, device: DeviceFacts) -> int:
        """Add or replace a device, which may have moved to another node."""
        number = self._device_ids.get(device.name)
        # The sums of the former node still contain the device, so it is removed there and added
        # here.
        if number is not None and self.node_name[self.node_of[number]] != device.node:
            self.remove_device(device.name)
            number = None
        if number is None:
            number = self._new_device(device)
        else:
            # The sums are updated by difference: recomputing them would read every device of the
            # node.
            self._add_to_sums(number, -1)
            self._forget_uuid(number)
        self.uuid[number] = device.uuid
        self._devices_of[device.uuid] = (*self._devices_of.get(device.uuid, ()), number)
        self.index[number] = device.index
        self.vendor[number] = device.vendor
        self.model[number] = device.model
        self.mode[number] = device.mode
        self.numa[number] = device.numa
        self.slots[number] = device.slots
        self.cores[number] = device.cores
        self.memory[number] = device.memory_mib
        self.healthy[number] = device.healthy
        self.duplicate[number] = device.duplicate
        self.cordoned[number] = device.cordoned
        self.links[number] = device.links
        self.profiles[number] = device.profiles
        self.facts[number] = self.conditions.number(device.facts)
        self._set_kind(number)
        self._add_to_sums(number, 1)
        self.node_devices[self.node_of[number]].sort(key=self._place_on_node)
        self._touch(self.node_of[number], number)
        return number

    def remove_device(self, name: str) -> None:
        """Remove a device, if it is known."""
        number = self._device_ids.pop(name, None)
        if number is None:
            return
        # The number is used again for another device, which must not inherit this one's use.
        self.set_used(number, slots=0, cores=0, memory=0)
        self._add_to_sums(number, -1)
        self._forget_uuid(number)
        node = self.node_of[number]
        self.node_devices[node].remove(number)
        self._touch(node, number)
        self._free_devices.append(number)

    def put_node(self, name: str, state: NodeState) -> int:
        """Add or replace a node."""
        node = self._node(name)
        self.node_ready[node] = state.ready
        self.node_schedulable[node] = state.schedulable
        self.node_policies[node] = state.device_policies
        self.node_labelled[node] = state.labelled_policies
        self.node_policy[node] = state.node_policy
        self._touch(node)
        return node

    def remove_node(self, name: str) -> None:
        """Remove a node; if it still has devices, only mark it not ready."""
        node = self._node_ids.get(name)
        if node is None:
            return
        self.node_ready[node] = False
        self._touch(node)
        if not self.node_devices[node]:
            del self._node_ids[name]
            self._free_nodes.append(node)

    def set_cpu_free(self, node: int, milli: int) -> None:
        """Set the free CPU of a node. Only the Fragmentation policy reads it."""
        if self.node_cpu_free[node] != milli:
            self.node_cpu_free[node] = milli
            if self.mix.knows_cpu:
                self.rankings.touch(node)

    def set_used(
        self, device: int, *, slots: int, cores: int, memory: int, slices: int = 0
    ) -> None:
        """Set the number of requests, percent of compute, MiB and MIG slices in use on a device."""
        self.lend(device, slots, cores, memory, slices)
        # Not in `lend`, because a plan may hold results by condition while it lends devices.
        if self.conditions.are_too_many:
            self._number_conditions_anew()
        self._touch(self.node_of[device], device)

    def lend(self, device: int, slots: int, cores: int, memory: int, slices: int = 0) -> None:
        """Like `set_used`, but without recording a change; for plans that undo it."""
        node = self.node_of[device]
        self.node_slots_used[node] += slots - self.slots_used[device]
        self.node_cores_used[node] += cores - self.cores_used[device]
        self.node_memory_used[node] += memory - self.memory_used[device]
        self.slots_used[device] = slots
        self.cores_used[device] = cores
        self.memory_used[device] = memory
        if slices != self.slices_used[device]:
            self.slices_used[device] = slices
            self._set_kind(device)
        self.condition[device] = self.conditions.condition(self.kind[device], slots, cores, memory)

    def _new_device(self, device: DeviceFacts) -> int:
        node = self._node(device.node)
        if self._free_devices:
            number = self._free_devices.pop()
            self.name[number] = device.name
            self.node_of[number] = node
            self.slots[number] = self.cores[number] = self.memory[number] = 0
        else:
            number = len(self.name)
            self.name.append(device.name)
            self.node_of.append(node)
            for text in (self.uuid, self.vendor, self.model):
                text.append("")
            self.mode.append("Shared")
            for flag in (self.healthy, self.duplicate, self.cordoned):
                flag.append(False)
            self.links.append({})
            self.profiles.append(())
            for amount in (
                *(self.index, self.facts, self.kind, self.condition, self.numa),
                *(self.slots, self.cores, self.memory),
                *(self.slots_used, self.cores_used, self.memory_used, self.slices_used),
            ):
                amount.append(0)
        self._device_ids[device.name] = number
        self.node_devices[node].append(number)
        return number

    def _node(self, name: str) -> int:
        node = self._node_ids.get(name)
        if node is not None:
            return node
        if self._free_nodes:
            node = self._free_nodes.pop()
            self.node_name[node] = name
        else:
            node = len(self.node_name)
            self.node_name.append(name)
            self.node_devices.append([])
            self.node_ready.append(False)
            self.node_schedulable.append(True)
            self.node_policies.append(("Spread",))
            self.node_labelled.append(("Binpack",))
            self.node_policy.append(None)
            self.node_cpu_free.append(CPU_UNKNOWN)
            self.rankings.version.append(0)
            for amount in self._node_sums():
                amount.append(0)
        self.node_ready[node] = False
        self.node_cpu_free[node] = CPU_UNKNOWN
        self._node_ids[name] = node
        self.changes.note(node, renamed=True)
        return node

    def _touch(self, node: int, device: int | None = None) -> None:
        """Invalidate the results that depend on a node or on one of its devices."""
        self.rankings.touch(node)
        self.changes.note(node, device)

    def _forget_uuid(self, device: int) -> None:
        uuid = self.uuid[device]
        others = tuple(each for each in self._devices_of.pop(uuid) if each != device)
        if others:
            self._devices_of[uuid] = others

    def _node_sums(self) -> Iterable[list[int]]:
        return (
            self.node_slots,
            self.node_cores,
            self.node_memory,
            self.node_slots_used,
            self.node_cores_used,
            self.node_memory_used,
            self.node_in_mig_mode,
        )

    def _add_to_sums(self, device: int, sign: int) -> None:
        node = self.node_of[device]
        self.node_slots[node] += sign * self.slots[device]
        self.node_cores[node] += sign * self.cores[device]
        self.node_memory[node] += sign * self.memory[device]
        self.node_in_mig_mode[node] += sign * (self.mode[device] == "MIG")

    def _set_kind(self, device: int) -> None:
        self.kind[device] = self.conditions.kind(self.facts[device], self.slices_used[device])
        self._set_condition(device)

    def _set_condition(self, device: int) -> None:
        self.condition[device] = self.conditions.condition(self.kind[device], *self.used(device))

    def _number_conditions_anew(self) -> None:
        self.conditions.forget()
        self.mix.forget()
        for device in self._device_ids.values():
            self._set_condition(device)

    def _place_on_node(self, device: int) -> tuple[int, str, str]:
        return self.index[device], self.uuid[device], self.name[device]
