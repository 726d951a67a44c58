"""The ledger: applies what is observed, assumes what is being written, keeps the columns true.

Observed truth and assumptions are kept apart. An observed claim is replaced by newer versions of
itself only (by resourceVersion), so events may come late, twice or out of order. An assumption
ends only by `confirm` or `forget`, or when the claim is seen with just that allocation; no other
event can end it, because a write that is under way may still land. Meanwhile a claim holds, card
by card, the most of what may be true.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node
from vgpu_api.effective import Use
from vgpu_api.v1alpha1 import GPUDevice, Metadata, VGPUClaim, VGPUClaimSpec
from vgpu_operator.ledger.cards import card_of, cordoned_uuids, state_of
from vgpu_operator.ledger.changes import ChangeLog
from vgpu_operator.ledger.holdings import (
    NOTHING,
    Hold,
    Holding,
    holding_of,
    holding_of_ruin,
    peak_of,
)
from vgpu_operator.placement.columns import Card, Columns, NodeState
from vgpu_operator.placement.plan import Plan

_GRAVES_KEPT = 10_000

T = TypeVar("T")


class ClaimKey(NamedTuple):
    """A claim's place: known before the claim exists. Equal to the plain tuple."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Assumption:
    """A plan that is being written: held until `confirm` or `forget`."""

    number: int
    key: ClaimKey
    node: str


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim and what it holds of one card."""

    key: ClaimKey
    use: Use


@dataclass(slots=True)
class _Record:
    """One claim: what was observed of it, what is assumed, and what it therefore holds."""

    uid: str = ""
    version: int = -1
    observed: Holding = NOTHING
    assumed: dict[int, Holding] = field(default_factory=dict)
    held: Holding = NOTHING


class Ledger:
    """Who holds what.

    Args:
        config: Defaults for cards and nodes.
        on_change: Called when an event from outside, or a `forget`, changed a node: something
            that waits may fit now. `assume` does not call it. It must not call back.

    Attributes:
        columns: The state of all cards, for `placement.place`. Nobody else writes it.
    """

    def __init__(
        self, *, config: ClusterConfig, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self.columns = Columns()
        self._config = config
        self._on_change = on_change
        self._log = ChangeLog()
        self._touched = False
        self._devices: dict[str, GPUDevice] = {}
        self._cards: dict[str, Card] = {}  # device object → what the columns know of it
        self._twins: dict[str, set[str]] = {}  # card UUID → device objects, one if all is well
        self._nodes: dict[str, Node] = {}
        self._states: dict[str, NodeState] = {}
        self._devices_on: dict[str, set[str]] = {}  # node → device objects
        self._records: dict[ClaimKey, _Record] = {}
        self._keys: dict[str, ClaimKey] = {}  # claim UID → place
        self._holders: dict[str, dict[ClaimKey, Hold]] = {}  # card UUID → claims
        self._fillers: dict[str, set[ClaimKey]] = {}  # node → claims that fill it
        self._graves: OrderedDict[str, None] = OrderedDict()  # UIDs of removed claims
        self._numbers = 0

    # Devices and nodes, as observed.

    def apply_device(self, device: GPUDevice) -> None:
        """A device was added or changed. Without a UUID in its status it is no card yet."""
        name = device.metadata.name
        known = self._devices.get(name)
        if known is not None and not _is_newer(device.metadata, known.metadata):
            return
        others = self._unlink(name)
        self._devices[name] = device
        self._devices_on.setdefault(device.spec.node_name, set()).add(name)
        if device.status.uuid:
            twins = self._twins.setdefault(device.status.uuid, set())
            twins.add(name)
            others |= twins
        self._write_cards({name} | others)
        self._tell()

    def remove_device(self, name: str) -> None:
        """A device is gone. What claims hold of its card counts again when it comes back."""
        others = self._unlink(name)
        self._devices.pop(name, None)
        self._write_cards({name} | others)
        self._tell()

    def apply_node(self, node: Node) -> None:
        """A node was added or changed: readiness, cordons, policies."""
        name = node.metadata.name
        known = self._nodes.get(name)
        if known is not None and not _is_newer(node.metadata, known.metadata):
            return
        self._nodes[name] = node
        state = state_of(node, config=self._config)
        if state != self._states.get(name):
            self._states[name] = state
            self.columns.put_node(name, state)
            self._touch(name)
        self._write_cards(self._devices_on.get(name, ()))
        self._tell()

    def remove_node(self, name: str) -> None:
        """A node is gone; cards that still name it are given to nobody."""
        if self._nodes.pop(name, None) is None:
            return
        del self._states[name]
        self.columns.remove_node(name)
        self._touch(name)
        self._tell()

    # Claims, as observed.

    def apply_claim(self, claim: VGPUClaim) -> None:
        """A claim was added, changed or read again. An older version than the known is ignored."""
        self._observe(claim)
        self._tell()

    def remove_claim(self, uid: str) -> None:
        """A claim is gone. What is assumed for it stays until it is confirmed or forgotten."""
        key = self._bury(uid)
        if key is not None:
            record = self._records[key]
            record.uid, record.observed = "", NOTHING
            self._settle(key)
            self._tell()

    def mark_unreadable(self, uid: str, raw: Mapping[str, Any]) -> None:
        """A claim that cannot be read: its cards count as full until it can be, or is gone."""
        metadata = raw["metadata"]
        key = ClaimKey(metadata.get("namespace") or "", metadata["name"])
        record = self._newer_record(key, uid, int(metadata["resourceVersion"]))
        if record is not None:
            record.observed = holding_of_ruin(raw, known=record.observed)
            self._settle(key)
            self._tell()

    # Writes under way.

    def assume(self, key: tuple[str, str], spec: VGPUClaimSpec, plan: Plan) -> Assumption:
        """Hold what a plan grants while it is being written; the next decision sees it.

        A claim may have several assumptions, for instance when a reservation moves while its
        first write is under way; it holds the most of them.

        Args:
            key: Namespace and name of the claim, which need not exist yet.
            spec: Says which requests are init containers.
            plan: Not a refusal.

        Raises:
            ValueError: the plan is a refusal.
        """
        if plan.node is None:
            raise ValueError(f"nothing to assume for {'/'.join(key)}: {plan.text}")
        place = ClaimKey(*key)
        self._numbers += 1
        assumption = Assumption(self._numbers, place, plan.node)
        record = self._records.setdefault(place, _Record())
        record.assumed[assumption.number] = holding_of(spec, plan.allocation(allocated_time=""))
        self._settle(place)
        self._touched = False
        return assumption

    def confirm(self, assumption: Assumption, claim: VGPUClaim) -> None:
        """The write has an outcome, and `claim` shows it: what stands there is the truth now."""
        self._drop(assumption)
        self._observe(claim)
        self._settle(assumption.key)
        self._tell()

    def forget(self, assumption: Assumption) -> None:
        """The write was not done and will not be. Does nothing if the assumption has ended."""
        self._drop(assumption)
        self._settle(assumption.key)
        self._tell()

    @contextmanager
    def without(self, key: tuple[str, str]) -> Iterator[None]:
        """For planning a claim anew: inside, all that it holds or assumes is free."""
        place = ClaimKey(*key)
        touched = self._touched
        self._hold(place, NOTHING)
        try:
            yield
        finally:
            self._settle(place)
            self._touched = touched

    # Views.

    def use_of(self, uuid: str) -> Use:
        """What claims hold of a card, assumptions included. Unreadable claims are not in it."""
        return sum((hold.use for hold in self._holders.get(uuid, {}).values()), Use())

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        """The claims that hold a card, by place."""
        return tuple(
            Holder(key, hold.use) for key, hold in sorted(self._holders.get(uuid, {}).items())
        )

    def held_by(self, key: tuple[str, str]) -> Mapping[str, Use]:
        """What a claim holds of each card (by UUID), assumptions included."""
        record = self._records.get(ClaimKey(*key))
        return {uuid: hold.use for uuid, hold in record.held.cards.items()} if record else {}

    def is_assumed(self, key: tuple[str, str]) -> bool:
        """Whether a write for the claim has no outcome yet."""
        record = self._records.get(ClaimKey(*key))
        return record is not None and bool(record.assumed)

    def nodes(self) -> tuple[str, ...]:
        """The nodes with cards, by name."""
        return tuple(
            sorted(self.columns.node_name[node] for node in self.columns.nodes_with_cards())
        )

    def node(self, name: str) -> Node | None:
        """The node object, if it was seen."""
        return self._nodes.get(name)

    def devices(self, node: str) -> tuple[GPUDevice, ...]:
        """The device objects of a node, by name; those that are no cards yet included."""
        return tuple(self._devices[name] for name in sorted(self._devices_on.get(node, ())))

    def duplicates(self) -> frozenset[str]:
        """Device objects whose UUID another object claims too. Nothing is placed on them."""
        return frozenset(name for twins in self._twins.values() if len(twins) > 1 for name in twins)

    def changed_since(self, cursor: int) -> tuple[int, frozenset[str]]:
        """The new cursor and the nodes touched since the old one (0 at first)."""
        return self._log.since(cursor, self.nodes())

    # Cards.

    def _unlink(self, name: str) -> set[str]:
        """Take a device out of the indexes; returns the others of its UUID."""
        device = self._devices.get(name)
        if device is None:
            return set()
        _discard(self._devices_on, device.spec.node_name, name)
        _discard(self._twins, device.status.uuid, name)
        return set(self._twins.get(device.status.uuid, ()))

    def _write_cards(self, names: Iterable[str]) -> None:
        for name in names:
            self._write_card(name)

    def _write_card(self, name: str) -> None:
        """Bring the columns up to date with one device object, or its absence."""
        known = self._cards.get(name)
        device = self._devices.get(name)
        if device is None or not device.status.uuid:
            if known is not None:
                del self._cards[name]
                self.columns.remove_card(name)
                self._left(known.node)
            return
        node = self._nodes.get(device.spec.node_name)
        card = card_of(
            device,
            cordoned_on_node=cordoned_uuids(node),
            duplicate=len(self._twins[device.status.uuid]) > 1,
            config=self._config,
        )
        if card != known:
            self._cards[name] = card
            self.columns.put_card(card)
            self._touch(card.node)
            if known is not None and known.node != card.node:
                self._left(known.node)
        self._write_use(name)

    def _left(self, node: str) -> None:
        """A card is no longer on the node, which may have been there for its sake only."""
        if node not in self._nodes:
            self.columns.remove_node(node)
        self._touch(node)

    def _write_use(self, name: str) -> None:
        """Sum up what claims hold of a card, and touch its node if that has changed."""
        card = self._cards.get(name)
        number = self.columns.card_id(name)
        if card is None or number is None:
            return
        slots = cores = memory = 0
        alone, full = False, card.node in self._fillers
        for hold in self._holders.get(card.uuid, {}).values():
            slots += hold.use.slots
            cores += hold.use.cores
            memory += hold.use.memory_mib
            alone = alone or hold.alone
            full = full or hold.full
        if alone or full:
            cores = max(cores, card.cores)
        if full:
            slots, memory = max(slots, card.slots), max(memory, card.memory_mib)
        columns = self.columns
        if (slots, cores, memory) != (
            columns.slots_used[number],
            columns.cores_used[number],
            columns.memory_used[number],
        ):
            columns.set_used(number, slots=slots, cores=cores, memory=memory)
            self._touch(card.node)

    # Claims.

    def _observe(self, claim: VGPUClaim) -> None:
        metadata = claim.metadata
        key = ClaimKey(metadata.namespace or "", metadata.name)
        record = self._newer_record(key, metadata.uid, int(metadata.resource_version))
        if record is None:
            return
        observed = holding_of(claim.spec, claim.status.allocation)
        record.observed = observed
        record.assumed = {
            number: assumed for number, assumed in record.assumed.items() if assumed != observed
        }
        self._settle(key)

    def _newer_record(self, key: ClaimKey, uid: str, version: int) -> _Record | None:
        """The claim's record, made for this version; None if the version is no news."""
        if uid in self._graves:
            return None
        record = self._records.setdefault(key, _Record())
        if version <= record.version:
            return None
        if record.uid and record.uid != uid:  # another object under the same name
            self._bury(record.uid)
            record.observed = NOTHING
        record.uid, record.version = uid, version
        self._keys[uid] = key
        return record

    def _bury(self, uid: str) -> ClaimKey | None:
        """Nothing that comes late (the answer to a write, say) brings this claim back."""
        self._graves[uid] = None
        if len(self._graves) > _GRAVES_KEPT:
            self._graves.popitem(last=False)
        return self._keys.pop(uid, None)

    def _drop(self, assumption: Assumption) -> None:
        record = self._records.get(assumption.key)
        if record is not None:
            record.assumed.pop(assumption.number, None)

    def _settle(self, key: ClaimKey) -> None:
        """Hold the most of what may be true of the claim."""
        record = self._records.get(key)
        if record is None:
            return
        if record.assumed:
            self._hold(key, peak_of((record.observed, *record.assumed.values())))
        else:
            self._hold(key, record.observed)
            if not record.uid:
                del self._records[key]

    def _hold(self, key: ClaimKey, held: Holding) -> None:
        """Let the claim hold just this, in the indexes and in the columns."""
        record = self._records.get(key)
        if record is None or record.held == held:
            return
        before, record.held = record.held, held
        for uuid in {**before.cards, **held.cards}:
            hold = held.cards.get(uuid)
            if hold == before.cards.get(uuid):
                continue
            if hold is None:
                del self._holders[uuid][key]
                if not self._holders[uuid]:
                    del self._holders[uuid]
            else:
                self._holders.setdefault(uuid, {})[key] = hold
            for name in self._twins.get(uuid, ()):
                self._write_use(name)
        for node in before.full_nodes ^ held.full_nodes:
            if node in held.full_nodes:
                self._fillers.setdefault(node, set()).add(key)
            else:
                _discard(self._fillers, node, key)
            for name in self._devices_on.get(node, ()):
                self._write_use(name)

    # Telling.

    def _touch(self, node: str) -> None:
        self._log.touch(node)
        self._touched = True

    def _tell(self) -> None:
        if self._touched:
            self._touched = False
            self._on_change()


def _is_newer(metadata: Metadata, known: Metadata) -> bool:
    return int(metadata.resource_version) > int(known.resource_version)


def _discard(index: dict[str, set[T]], key: str, value: T) -> None:
    """Take a value out of an index of sets, and the set with its last value."""
    values = index.get(key)
    if values is not None:
        values.discard(value)
        if not values:
            del index[key]
