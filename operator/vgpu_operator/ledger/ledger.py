"""The ledger: applies observed objects, assumes writes in flight, and keeps the columns up to date.

Observations and assumptions are separate. Only a newer version replaces an observation
(`shares.ClaimRecords`), so events may arrive late, twice or out of order. Only `confirm` or
`forget` ends an assumption, never an event, because a write in flight may be retried and land on
top of any version that was seen last. Meanwhile a claim holds, of each device, the most that may be
true; so an allocation that is both observed and assumed counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node, Pod, PodScopes, ResourceQuota
from vgpu_api.effective import Use
from vgpu_api.v1alpha1 import Allocation, GPUDevice, VGPUClaim, VGPUClaimSpec
from vgpu_operator.demand import Demand
from vgpu_operator.ledger.device_table import DeviceTable
from vgpu_operator.ledger.quotas import QuotaAmount, Quotas
from vgpu_operator.ledger.shares import (
    NOTHING,
    ClaimKey,
    ClaimRecord,
    ClaimRecords,
    ClaimShares,
    peak_of,
    shares_of,
    shares_of_unreadable,
)
from vgpu_operator.node_filter.host_filters import HostFilters
from vgpu_operator.placement.constraints import Budget


@dataclass(frozen=True, slots=True)
class Assumption:
    """An allocation that is being written; held until `confirm` or `forget`."""

    number: int
    key: ClaimKey


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim and its use of one device."""

    key: ClaimKey
    use: Use


class Ledger:
    """The devices, nodes, quotas and claims of a cluster.

    Args:
        config: The defaults for devices and nodes.

    Attributes:
        columns: The state of all devices, for `placement.place`. Only the ledger writes it.
        filters: The node filters that are not about devices.
    """

    def __init__(self, *, config: ClusterConfig) -> None:
        self._table = DeviceTable(config=config)
        self._quotas = Quotas(config=config)
        self.columns = self._table.columns
        self.filters = HostFilters(self.columns, is_exact=config.scheduling.decides_first)
        self._config = config
        self._records = ClaimRecords()
        self._numbers = 0

    # Devices and nodes, as observed.

    def apply_device(self, device: GPUDevice) -> None:
        """Record an added or updated device. It counts once its status has a UUID."""
        self._table.apply_device(device)

    def remove_device(self, name: str) -> None:
        """Forget a device object. Claims on its UUID count again when the object comes back."""
        self._table.remove_device(name)

    def apply_node(self, node: Node) -> None:
        """Record an added or updated node with its readiness, cordons and policies."""
        name = node.metadata.name
        if not self._table.apply_node(node):
            return
        if self.filters.apply_node(node):
            self._table.touch(name)

    def remove_node(self, name: str) -> None:
        """Forget a node. Devices on it are not allocated any more."""
        number = self.columns.node_id(name)
        self._table.remove_node(name)
        self.filters.remove_node(name, number)

    # Pods, in Gate mode.

    def expect_pod(self, pod: Pod, node: str) -> None:
        """Count a pod's other resource requests on the node where it runs or will run."""
        self._note_room(self.filters.expect_pod(pod, node))

    def forget_pod(self, uid: str) -> None:
        """Stop counting a pod on its node."""
        self._note_room(self.filters.forget_pod(uid))

    def _note_room(self, node: str) -> None:
        number = self.columns.node_id(node)
        if number is not None and self.columns.node_devices[number]:
            self._table.touch(node)  # a waiting pod may fit on the node now

    # Quotas.

    def apply_quota(self, quota: ResourceQuota) -> None:
        """Record an added or updated quota."""
        self._quotas.apply(quota)

    def remove_quota(self, namespace: str, name: str) -> None:
        """Forget a quota."""
        self._quotas.remove(namespace, name)

    # Claims, as observed.

    def apply_claim(self, claim: VGPUClaim) -> None:
        """Record an added or updated claim, unless a newer version is known."""
        self._observe(claim)

    def remove_claim(self, uid: str) -> None:
        """Forget a claim. Its assumptions stay until they are confirmed or forgotten."""
        key = self._records.mark_deleted(uid)
        if key is not None:
            self._recount(key)

    def mark_unreadable(self, uid: str, raw: Mapping[str, Any]) -> None:
        """Count a claim's devices as full until the claim is readable again or gone."""
        metadata = raw["metadata"]
        key = ClaimKey(metadata.get("namespace") or "", metadata["name"])
        record = self._records.newer(key, uid, int(metadata["resourceVersion"]))
        if record is not None:
            record.observed = shares_of_unreadable(raw, known=record.observed)
            self._hold(key, record)

    def count_as(self, key: tuple[str, str], scopes: PodScopes | None) -> None:
        """Set the quota scopes of the pod for which a claim is held; None if there is no pod.

        They remain until they are set again, because a pod may be gone before its devices are free.
        """
        record = self._records.get(ClaimKey(*key))
        if record is not None:
            self._count_as(key[0], record, scopes)

    def _count_as(self, namespace: str, record: ClaimRecord, scopes: PodScopes | None) -> None:
        held = record.held
        if held is not NOTHING and record.scopes != scopes:
            # Out under the old scopes and in under the new ones: other quotas may count the pod
            # now.
            self._quotas.move(namespace, before=held, after=NOTHING, scopes=record.scopes)
            self._quotas.move(namespace, before=NOTHING, after=held, scopes=scopes)
            self._quotas.may_take_more(namespace)
        record.scopes = scopes

    # Writes in flight.

    def assume(
        self,
        key: tuple[str, str],
        spec: VGPUClaimSpec,
        allocation: Allocation,
        *,
        scopes: PodScopes | Literal["as before"] | None = "as before",
    ) -> Assumption:
        """Hold an allocation while it is being written, so that the next decision counts it.

        A claim may have several assumptions, for instance when a reservation moves while its first
        write is in flight. It then holds the maximum of all.

        Args:
            key: Namespace and name of the claim, which may not exist yet.
            spec: The claim's spec, which says which requests belong to init containers.
            allocation: The allocation that is written.
            scopes: The scopes for `count_as`.
        """
        place = ClaimKey(*key)
        record = self._records.at(place)
        if scopes != "as before":
            self._count_as(key[0], record, scopes)
        return self._assume(place, record, shares_of(spec, allocation))

    def assume_shares(self, key: tuple[str, str], shares: ClaimShares) -> Assumption:
        """Hold shares of devices like `assume`, also those that no allocation describes."""
        place = ClaimKey(*key)
        return self._assume(place, self._records.at(place), shares)

    def _assume(self, place: ClaimKey, record: ClaimRecord, shares: ClaimShares) -> Assumption:
        self._numbers += 1
        assumption = Assumption(self._numbers, place)
        record.assumed[assumption.number] = shares
        self._hold(place, record)
        return assumption

    def confirm(self, assumption: Assumption, claim: VGPUClaim) -> None:
        """End an assumption whose write has an outcome, and record the resulting claim."""
        # The claim may be older than the version that a watch has delivered since; then
        # `_observe` ignores it, and only the assumption ends.
        self._drop(assumption)
        self._observe(claim)
        self._recount(assumption.key)

    def forget(self, assumption: Assumption) -> None:
        """End an assumption whose write will not happen. Has no effect if it has already ended."""
        self._drop(assumption)
        self._recount(assumption.key)

    @contextmanager
    def without(self, *keys: tuple[str, str]) -> Iterator[None]:
        """Free everything that these claims hold, to plan as if they held nothing.

        The caller must not change anything inside the block. Afterwards the state is restored, and
        no change is recorded.
        """
        holding = {
            place: (record, record.held)
            for place in {ClaimKey(*key) for key in keys}
            if (record := self._records.get(place)) is not None and record.held is not NOTHING
        }
        if not holding:
            yield
            return
        # Muted, because this is no change of the cluster: every cache that follows the change log
        # would be computed again.
        with self._table.muted():
            for place, (record, _) in holding.items():
                self._replace(place, record, NOTHING)
            try:
                yield
            finally:
                for place, (record, held) in holding.items():
                    self._replace(place, record, held)

    # Views.

    def budget(self, namespace: str, scopes: PodScopes | None = None) -> Budget:
        """Return the amounts that the namespace's quotas leave for a pod with these scopes.

        Without `scopes`, for a claim without a pod.
        """
        return self._quotas.left(namespace, scopes)

    def budget_of(self, key: tuple[str, str]) -> Budget:
        """Return the amounts that quotas leave for the pod of a claim."""
        record = self._records.get(ClaimKey(*key))
        return self._quotas.left(key[0], None if record is None else record.scopes)

    def quota_amounts(self) -> Iterator[QuotaAmount]:
        """Yield every limit of every quota and its usage; another thread may call this."""
        return self._quotas.amounts()

    def exceeded_quotas(
        self, namespace: str, demand: Demand, scopes: PodScopes | None = None
    ) -> list[str]:
        """Return, as text, the limits that a claim refused by quota exceeds."""
        return self._quotas.exceeded(namespace, demand, scopes)

    def holders(self, uuid: str) -> tuple[Holder, ...]:
        """Return the claims that hold a device, by namespace and name."""
        holds = self._table.holders(uuid)
        return tuple(Holder(key, share.use) for key, share in sorted(holds.items()))

    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes with devices, in order."""
        return tuple(sorted(self._table.nodes()))

    def devices(self, node: str) -> tuple[GPUDevice, ...]:
        """Return all device objects of a node by name, including those without a UUID."""
        return self._table.devices(node)

    def is_one_too_many(self, device: GPUDevice) -> bool:
        """Return True for a new device of a node that already has `DEVICES_OF_A_NODE` devices."""
        return self._table.is_one_too_many(device)

    def node_of(self, device: str) -> str | None:
        """Return the node of a device object, or None if the object is unknown."""
        return self._table.node_of(device)

    def duplicates(self) -> frozenset[str]:
        """Return the device objects whose UUID another object had first. They get no claims."""
        return self._table.duplicates()

    def first_of(self, uuid: str) -> GPUDevice:
        """Return the object that represents a device; several objects may have its UUID.

        Raises:
            KeyError: No object has the UUID.
        """
        return self._table.first_of(uuid)

    def touch(self, node: str) -> None:
        """Record that a node may have more capacity, for a reason that the ledger cannot see."""
        self._table.freed.touch(node)

    def budget_version(self, namespace: str) -> int:
        """Return a number that grows whenever quotas may leave more for the namespace."""
        return self._quotas.version(namespace)

    @property
    def cursors(self) -> tuple[int, int]:
        """Return the current cursors of `changed_since` and `freed_since`."""
        return self._table.changes.cursor, self._table.freed.cursor

    def changed_since(self, cursor: int) -> tuple[int, frozenset[str]]:
        """Return a new cursor and the nodes changed since the old one (0 at first)."""
        return self._table.changes.since(cursor, self._table.nodes())

    def freed_since(self, cursor: int) -> tuple[int, frozenset[str]]:
        """Like `changed_since`, for nodes that may serve more than before."""
        return self._table.freed.since(cursor, self._table.nodes())

    # Records.

    def _observe(self, claim: VGPUClaim) -> None:
        metadata = claim.metadata
        key = ClaimKey(metadata.namespace or "", metadata.name)
        is_new = not self._records.knows(metadata.uid)
        record = self._records.newer(key, metadata.uid, int(metadata.resource_version))
        if record is None:
            return
        owned = any(owner.kind == "Pod" for owner in metadata.owner_references)
        # A pod's claim is counted with its pod.
        if is_new and not owned and self.columns.mix.wants_next():
            self.columns.mix.observe(Demand.of(claim.spec, self._config))
        record.observed = shares_of(claim.spec, claim.status.allocation)
        self._hold(key, record)

    def _drop(self, assumption: Assumption) -> None:
        record = self._records.get(assumption.key)
        if record is not None:
            record.assumed.pop(assumption.number, None)

    def _recount(self, key: ClaimKey) -> None:
        """Recompute a claim's shares, if the claim is still known."""
        record = self._records.get(key)
        if record is not None:
            self._hold(key, record)

    def _hold(self, key: ClaimKey, record: ClaimRecord) -> None:
        """Hold the most that may be true of a claim; drop a deleted claim without assumptions."""
        held = record.observed
        if record.assumed:
            # Any of the writes may have reached the API server, so each device must have room for
            # each of them.
            held = peak_of((record.observed, *record.assumed.values()))
        # Even if more is held on one device, less may be held of another, so waiting claims of the
        # namespace are tried again.
        if record.held.devices and held != record.held:
            self._quotas.may_take_more(key.namespace)
        self._replace(key, record, held)
        if not (record.assumed or record.uid):
            self._records.drop(key)

    def _replace(self, key: ClaimKey, record: ClaimRecord, held: ClaimShares) -> None:
        if held != record.held:
            self._table.replace_shares(key, before=record.held, after=held)
            self._quotas.move(key.namespace, before=record.held, after=held, scopes=record.scopes)
            record.held = held
