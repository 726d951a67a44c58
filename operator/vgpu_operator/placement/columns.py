"""The state of every card and node as columns: one list per property, one number per row.

A decision reads a few properties of many cards; lists indexed by small integers are the cheapest
shape for that, and the one from which score vectors can be kept later. The ledger is the only
writer, but for `plan.place`, which takes cards for the length of a decision and gives them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vgpu_api.v1alpha1.gpudevice import DeviceMode
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NodePolicy
from vgpu_operator.placement.arrays import Arrays
from vgpu_operator.placement.device import NUMA_UNKNOWN_FROM, Conditions, DeviceFacts, NodeState
from vgpu_operator.placement.geometry import Profile
from vgpu_operator.placement.mix import Mix
from vgpu_operator.placement.rankings import Rankings

__all__ = ["NUMA_UNKNOWN_FROM", "Columns", "DeviceFacts", "NodeState"]

CPU_UNKNOWN = 1 << 62
"""Free milli-CPU of a node of which nobody has said anything: enough for every request."""


class Columns:
    """Cards and nodes by number. Numbers of what was removed are used again.

    Per card: `name uuid index vendor model mode numa slots cores memory healthy duplicate
    cordoned profiles`, `links` (by UUID), the amounts in use `slots_used cores_used memory_used`,
    of a card in MIG mode the `slices_used`, `node_of` (the node's number), and the numbers of its
    `facts`, `kind` and `condition` (`conditions.Conditions`).
    Per node: `node_name node_cards` (cards by index, then UUID) `node_ready node_schedulable
    node_policies node_labelled` (for its cards) `node_policy` (its own place among nodes)
    `node_cpu_free` (milli-CPU) `node_cut` (cards in MIG mode), and the sums over its cards
    `node_slots node_slots_used` and so on.

    `rankings` is what request classes remember of nodes, `arrays` what a look at every card needs,
    `mix` the requests that are typical, `conditions` gives kinds and conditions their numbers.
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
        self.links: list[dict[str, int]] = []
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
        self.node_cards: list[list[int]] = []
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
        self.node_cut: list[int] = []
        self.rankings = Rankings()
        self.arrays = Arrays()
        self.mix = Mix()
        self.conditions = Conditions()
        self._card_ids: dict[str, int] = {}
        self._node_ids: dict[str, int] = {}
        self._cards_of: dict[str, set[int]] = {}  # UUID → cards; one, if all is well
        self._free_cards: list[int] = []
        self._free_nodes: list[int] = []

    # Reading.

    def node_id(self, name: str) -> int | None:
        """The node's number, if it is known."""
        return self._node_ids.get(name)

    def node_ids(self, names: Iterable[str]) -> list[int | None]:
        """The nodes' numbers, in the order of the names; None for one that is not known."""
        return list(map(self._node_ids.get, names))

    def number_of(self, name: str) -> int:
        """The number of a card that is known, by its object's name."""
        return self._card_ids[name]

    def used(self, card: int) -> tuple[int, int, int]:
        """(slots, cores, MiB) in use of a card."""
        return self.slots_used[card], self.cores_used[card], self.memory_used[card]

    def in_use(self, card: int) -> tuple[int, int, int, int]:
        """(slots, cores, MiB, slices) in use of a card: what `lend` takes."""
        return (*self.used(card), self.slices_used[card])

    def nodes_with_cards(self) -> Iterator[int]:
        """The nodes that have at least one card."""
        return (node for node in self._node_ids.values() if self.node_cards[node])

    def nodes_of(self, uuids: Iterable[str]) -> frozenset[int]:
        """The nodes that have a card with one of the UUIDs."""
        of = self._cards_of
        return frozenset(self.node_of[card] for uuid in uuids for card in of.get(uuid, ()))

    def is_there(self, card: int) -> bool:
        """Whether a card has this number now."""
        return self._card_ids.get(self.name[card]) == card

    def state(self) -> dict[str, tuple[int, int, int]]:
        """(slots, cores, MiB) in use by card: what a plan must leave as it found it."""
        return {name: self.used(card) for name, card in self._card_ids.items()}

    # Writing.

    def put_card(self, card: DeviceFacts) -> int:
        """Add a card, or replace what is known of it (it may have changed its node)."""
        number = self._card_ids.get(card.name)
        if number is not None and self.node_name[self.node_of[number]] != card.node:
            self.remove_card(card.name)
            number = None
        if number is None:
            number = self._new_card(card)
        else:
            self._add_to_sums(number, -1)
            self._forget_uuid(number)
        self.uuid[number] = card.uuid
        self._cards_of.setdefault(card.uuid, set()).add(number)
        self.index[number] = card.index
        self.vendor[number] = card.vendor
        self.model[number] = card.model
        self.mode[number] = card.mode
        self.numa[number] = card.numa
        self.slots[number] = card.slots
        self.cores[number] = card.cores
        self.memory[number] = card.memory_mib
        self.healthy[number] = card.healthy
        self.duplicate[number] = card.duplicate
        self.cordoned[number] = card.cordoned
        self.links[number] = dict(card.links)
        self.profiles[number] = card.profiles
        self.facts[number] = self.conditions.number(card.facts)
        self._set_kind(number)
        self._add_to_sums(number, 1)
        self.node_cards[self.node_of[number]].sort(key=self._place_on_node)
        self._touch(self.node_of[number], number)
        return number

    def remove_card(self, name: str) -> None:
        """Forget a card; nothing happens if it is not known."""
        number = self._card_ids.pop(name, None)
        if number is None:
            return
        self.set_used(number, slots=0, cores=0, memory=0)
        self._add_to_sums(number, -1)
        self._forget_uuid(number)
        node = self.node_of[number]
        self.node_cards[node].remove(number)
        self._touch(node, number)
        self._free_cards.append(number)

    def put_node(self, name: str, state: NodeState) -> int:
        """Add a node, or replace what is known of it."""
        node = self._node(name)
        self.node_ready[node] = state.ready
        self.node_schedulable[node] = state.schedulable
        self.node_policies[node] = state.device_policies
        self.node_labelled[node] = state.labelled_policies
        self.node_policy[node] = state.node_policy
        self._touch(node)
        return node

    def remove_node(self, name: str) -> None:
        """Forget a node that has no cards any more; one that has some is only not ready."""
        node = self._node_ids.get(name)
        if node is None:
            return
        self.node_ready[node] = False
        self._touch(node)
        if not self.node_cards[node]:
            del self._node_ids[name]
            self._free_nodes.append(node)

    def set_cpu_free(self, node: int, milli: int) -> None:
        """Set what is free of a node's CPU; only Fragmentation looks at it."""
        if self.node_cpu_free[node] != milli:
            self.node_cpu_free[node] = milli
            if self.mix.knows_cpu:
                self.rankings.touch(node)

    def set_used(self, card: int, *, slots: int, cores: int, memory: int, slices: int = 0) -> None:
        """Set what of a card is in use: requests, percent of compute, MiB, slices of MIG."""
        self.lend(card, slots, cores, memory, slices)
        if self.conditions.are_too_many:
            self._number_conditions_anew()
        self._touch(self.node_of[card], card)

    def lend(self, card: int, slots: int, cores: int, memory: int, slices: int = 0) -> None:
        """As `set_used`, for a plan that sets it back before it ends: nobody is told."""
        node = self.node_of[card]
        self.node_slots_used[node] += slots - self.slots_used[card]
        self.node_cores_used[node] += cores - self.cores_used[card]
        self.node_memory_used[node] += memory - self.memory_used[card]
        self.slots_used[card] = slots
        self.cores_used[card] = cores
        self.memory_used[card] = memory
        if slices != self.slices_used[card]:
            self.slices_used[card] = slices
            self._set_kind(card)
        self.condition[card] = self.conditions.condition(self.kind[card], slots, cores, memory)

    def _new_card(self, card: DeviceFacts) -> int:
        node = self._node(card.node)
        if self._free_cards:
            number = self._free_cards.pop()
            self.name[number] = card.name
            self.node_of[number] = node
            self.slots[number] = self.cores[number] = self.memory[number] = 0
        else:
            number = len(self.name)
            self.name.append(card.name)
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
        self._card_ids[card.name] = number
        self.node_cards[node].append(number)
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
            self.node_cards.append([])
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
        self.arrays.changed(node, renamed=True)
        return node

    def _touch(self, node: int, card: int | None = None) -> None:
        """Tell whoever keeps something that is computed of a node, or of a card."""
        self.rankings.touch(node)
        self.arrays.changed(node, card)

    def _forget_uuid(self, card: int) -> None:
        cards = self._cards_of[self.uuid[card]]
        cards.discard(card)
        if not cards:
            del self._cards_of[self.uuid[card]]

    def _node_sums(self) -> Iterable[list[int]]:
        return (
            self.node_slots,
            self.node_cores,
            self.node_memory,
            self.node_slots_used,
            self.node_cores_used,
            self.node_memory_used,
            self.node_cut,
        )

    def _add_to_sums(self, card: int, sign: int) -> None:
        node = self.node_of[card]
        self.node_slots[node] += sign * self.slots[card]
        self.node_cores[node] += sign * self.cores[card]
        self.node_memory[node] += sign * self.memory[card]
        self.node_cut[node] += sign * (self.mode[card] == "MIG")

    def _set_kind(self, card: int) -> None:
        self.kind[card] = self.conditions.kind(self.facts[card], self.slices_used[card])
        self._set_condition(card)

    def _set_condition(self, card: int) -> None:
        self.condition[card] = self.conditions.condition(self.kind[card], *self.used(card))

    def _number_conditions_anew(self) -> None:
        self.conditions.forget()
        self.mix.forget()
        for card in self._card_ids.values():
            self._set_condition(card)

    def _place_on_node(self, card: int) -> tuple[int, str, str]:
        return self.index[card], self.uuid[card], self.name[card]
