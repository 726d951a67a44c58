"""The ledger: applies what is observed, assumes what is being written, keeps the columns true.

Observed truth and assumptions are kept apart. What was observed is replaced by what is newer only
(`records.py`), so events may come late, twice or out of order. An assumption
ends only by `confirm` or `forget`, never by an event: a write that is under way may be tried again
and land on whatever version was seen last. Meanwhile a claim holds, card by card, the most of what
may be true, so an allocation that is both seen and assumed counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node, ResourceQuota
from vgpu_api.effective import Use
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim, VGPUClaimSpec
from vgpu_operator.ask import Ask
from vgpu_operator.ledger.board import Board, ClaimKey
from vgpu_operator.ledger.holdings import (
    NOTHING,
    Holding,
    holding_of,
    holding_of_ruin,
    peak_of,
)
from vgpu_operator.ledger.hosts import Hosts
from vgpu_operator.ledger.quotas import Quotas
from vgpu_operator.ledger.records import Record, Records
from vgpu_operator.placement.plan import Plan
from vgpu_operator.placement.quota import Budget


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


class Ledger:
    """Who holds what.

    Args:
        config: Defaults for cards and nodes.
        on_change: Called when an event from outside, or a `forget`, changed a node: something
            that waits may fit now. `assume` does not call it. It must not call back.

    Attributes:
        columns: The state of all cards, for `placement.place`. Nobody else writes it.
        hosts: What is free of the nodes' CPU; to be told of pods.
    """

    def __init__(
        self, *, config: ClusterConfig, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._board = Board(config=config)
        self._quotas = Quotas(config=config)
        self.columns = self._board.columns
        self.hosts = Hosts(self.columns)
        self._config = config
        self._on_change = on_change
        self._told = 0  # the position in the change log up to which `on_change` knows
        self._records = Records()
        self._numbers = 0

    # Devices and nodes, as observed.

    def apply_device(self, device: GPUDevice) -> None:
        """A device was added or changed. Without a UUID in its status it is no card yet."""
        self._board.apply_device(device)
        self._tell()

    def remove_device(self, name: str) -> None:
        """A device is gone. What claims hold of its card counts again when it comes back."""
        self._board.remove_device(name)
        self._tell()

    def apply_node(self, node: Node) -> None:
        """A node was added or changed: readiness, cordons, policies."""
        self._board.apply_node(node)
        self.hosts.apply_node(node)
        self._tell()

    def remove_node(self, name: str) -> None:
        """A node is gone. Cards that still name it are given to nobody."""
        self._board.remove_node(name)
        self.hosts.remove_node(name)
        self._tell()

    def apply_quota(self, quota: ResourceQuota) -> None:
        """A quota was added or changed."""
        if self._quotas.apply(quota):
            self._on_change()

    def remove_quota(self, namespace: str, name: str) -> None:
        """A quota is gone."""
        if self._quotas.remove(namespace, name):
            self._on_change()

    # Claims, as observed.

    def apply_claim(self, claim: VGPUClaim) -> None:
        """A claim was added, changed or read again. An older version than the known is ignored."""
        self._observe(claim)
        self._tell()

    def remove_claim(self, uid: str) -> None:
        """A claim is gone. What is assumed for it stays until it is confirmed or forgotten."""
        key = self._records.bury(uid)
        if key is not None:
            self._settle(key)
            self._tell()

    def mark_unreadable(self, uid: str, raw: Mapping[str, Any]) -> None:
        """A claim that cannot be read: its cards count as full until it can be, or is gone."""
        metadata = raw["metadata"]
        key = ClaimKey(metadata.get("namespace") or "", metadata["name"])
        record = self._records.newer(key, uid, int(metadata["resourceVersion"]))
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
        record = self._records.at(place)
        record.assumed[assumption.number] = holding_of(spec, plan.allocation(allocated_time=""))
        self._settle(place)
        self._told = self._board.log.cursor
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
        """For planning a claim anew: inside, all that it holds or assumes is free.

        Nothing else may be done inside, so afterwards nothing has changed and nobody is told.
        """
        place = ClaimKey(*key)
        with self._board.log.muted():
            record = self._records.get(place)
            if record is not None:
                self._hold(place, record, NOTHING)
            try:
                yield
            finally:
                self._settle(place)

    # Views.

    def budget(self, namespace: str) -> Budget:
        """What the namespace's quotas leave for `placement.place`."""
        return self._quotas.left(namespace)

    def use_of(self, uuid: str) -> Use:
        """What claims hold of a card, assumptions included. Unreadable claims are not in it."""
        return sum((hold.use for hold in self._board.holders(uuid).values()), Use())

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        """The claims that hold a card, by place."""
        holds = self._board.holders(uuid)
        return tuple(Holder(key, hold.use) for key, hold in sorted(holds.items()))

    def nodes(self) -> tuple[str, ...]:
        """The nodes with cards, by name."""
        return self._board.nodes()

    def devices(self, node: str) -> tuple[GPUDevice, ...]:
        """The device objects of a node, by name; those that are no cards yet included."""
        return self._board.devices(node)

    def duplicates(self) -> frozenset[str]:
        """Device objects whose UUID another object claims too. Nothing is placed on them."""
        return self._board.duplicates()

    def changed_since(self, cursor: int) -> tuple[int, frozenset[str]]:
        """The new cursor and the nodes touched since the old one (0 at first)."""
        return self._board.log.since(cursor, self.nodes())

    # Records.

    def _observe(self, claim: VGPUClaim) -> None:
        metadata = claim.metadata
        key = ClaimKey(metadata.namespace or "", metadata.name)
        is_new = not self._records.knows(metadata.uid)
        record = self._records.newer(key, metadata.uid, int(metadata.resource_version))
        if record is None:
            return
        owned = any(owner.kind == "Pod" for owner in metadata.owner_references)
        if is_new and not owned and self.columns.mix.wants_next():  # else it counts with its pod
            self.columns.mix.observe(Ask.of(claim.spec, self._config))
        record.observed = holding_of(claim.spec, claim.status.allocation)
        self._settle(key)

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
            self._hold(key, record, peak_of((record.observed, *record.assumed.values())))
            return
        self._hold(key, record, record.observed)
        if not record.uid:
            self._records.drop(key)

    def _hold(self, key: ClaimKey, record: Record, held: Holding) -> None:
        if held != record.held:
            self._board.hold(key, before=record.held, after=held)
            self._quotas.move(key.namespace, before=record.held, after=held)
            record.held = held

    def _tell(self) -> None:
        """Call `on_change` if a node was touched since it was called last."""
        if self._told != self._board.log.cursor:
            self._told = self._board.log.cursor
            self._on_change()
