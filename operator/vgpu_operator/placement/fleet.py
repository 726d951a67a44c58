"""The columns, with queries over all devices at once.

Rankings make a decision cheap if its class of requests has been seen before. A new class has to
look at every node once, and a refusal needs a reason for every device. A Python loop over 40,000
devices takes tens of milliseconds; here it is a few vector operations. Decisions read and write the
lists of `Columns`; the arrays here mirror them and are updated when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from vgpu_api.reasons import Reason
from vgpu_operator.demand import ALL_CORES, Demand, RequestDemand
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.constraints import (
    ALL,
    EVERY_NODE,
    UNLIMITED,
    Budget,
    NodeFilter,
    together,
)
from vgpu_operator.placement.device_conditions import refusal_of_facts
from vgpu_operator.placement.part_requests import on_facts
from vgpu_operator.placement.usage_scores import node_score

Numbers: TypeAlias = npt.NDArray[np.int64]
Scores: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_NOWHERE = -1
_MORE_THAN_ANY = 1 << 62
"""More MiB than any device has."""
_MEMORY = 4
"""The row of a device's memory."""
_IN_USE = 5
"""The first row of the amounts in use; the rows before it are fixed properties."""
_QUESTIONS_KEPT = 1_024

REASONS: tuple[Reason | None, ...] = (
    None,
    Reason.CARD_UUID_DUPLICATE,
    Reason.CARD_NOT_HEALTHY,
    Reason.CARD_CORDONED,
    Reason.CARD_TYPE_MISMATCH,
    Reason.CARD_TIME_SLICING_EXHAUSTED,
    Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
    Reason.CARD_INSUFFICIENT_MEMORY,
    Reason.CARD_INSUFFICIENT_CORE,
    Reason.CARD_COMPUTE_UNITS_EXHAUSTED,
    Reason.RESOURCE_QUOTA_NOT_FIT,
)
"""The reason for each column of `NodeRefusals.counts`; column 0 counts devices that would serve."""
_NUMBER_OF = {reason: number for number, reason in enumerate(REASONS)}


class NodeRefusals(NamedTuple):
    """The number of devices refused for each reason, by node.

    Attributes:
        counts: The number of devices, with a row per node and a column per reason (`REASONS`).
        of_vendor: By node, the number of devices of the requested vendor.
    """

    counts: Numbers
    of_vendor: Numbers


class Best(NamedTuple):
    """The devices and the node that come closest to serving a request.

    Attributes:
        memory: The device with the most free memory; None if no device is of the requested kind.
        cores: The device with the most free compute; None in the same case.
        node: The node with the most devices that could serve the request; None if there is no such
            device.
        serving: The number of these devices.
    """

    memory: int | None
    cores: int | None
    node: int | None
    serving: int


class Fleet(Columns):
    """All devices and nodes of a cluster.

    Arrays are indexed by the device and node numbers of `Columns`. Keeping the columns in a
    separate object would create a reference cycle, which might never be freed (see
    `garbage_collection`).
    """

    def __init__(self) -> None:
        super().__init__()
        # Rows: node, facts, slots, cores and memory, then slots, cores and memory in use.
        self._rows = np.zeros((8, 0), dtype=np.int64)
        self._score = np.zeros(0, dtype=np.float64)
        self._willing = np.zeros(0, dtype=np.bool_)
        self._has_devices = np.zeros(0, dtype=np.bool_)
        self._in_mig_mode = np.zeros(0, dtype=np.bool_)
        self._chooses = np.zeros(0, dtype=np.bool_)
        self._rank = np.zeros(0, dtype=np.int64)
        self._refusals: dict[RequestDemand, npt.NDArray[np.int8]] = {}  # by number of facts
        self._largest: dict[RequestDemand, Best] = {}  # until a device is added, removed or changed

    # Finding nodes.

    def split_by_willingness(self, nodes: NodeFilter) -> tuple[list[int], list[int]]:
        """Return the nodes with devices that accept a pod, and those with devices that do not.

        Args:
            nodes: The nodes that the pod may use.
        """
        self._refresh()
        count = len(self.node_name)
        there = self._has_devices[:count]
        take = there & self._taking(nodes)[:count]
        return np.flatnonzero(take).tolist(), np.flatnonzero(there & ~take).tolist()

    def _taking(self, nodes: NodeFilter) -> Flags:
        """Return, by number, True if the node accepts a pod that may use `nodes`."""
        count = len(self._willing)
        taking = self._willing.copy()
        if nodes.tolerated:
            taking |= _flags(nodes.tolerated, count)[:count]
        if nodes.allowed != ALL:
            taking &= _flags(nodes.allowed, count)[:count]
        return taking

    def may_serve(
        self,
        demand: Demand,
        nodes: NodeFilter = EVERY_NODE,
        budget: Budget = UNLIMITED,
    ) -> Numbers:
        """Return the nodes where each request alone finds enough devices.

        They include all nodes that can serve the claim, and possibly some that cannot, because
        requests take devices from each other, and NUMA nodes and policies are not considered.
        """
        self._refresh()
        serving = self._taking(nodes)
        if not self.conditions.facts:  # there has never been any device
            return np.flatnonzero(serving)
        # With several requests, one may use a device that is already charged for another.
        is_alone = len(demand.requests) == 1
        for request in demand.requests:
            fitting = self._fitting(request)
            if budget.is_limited:
                times = request.count if is_alone else 1
                fitting = fitting[~self._over(request, fitting, budget, times)]
            of_node = np.bincount(self._rows[0][fitting], minlength=len(serving))
            # A device in MIG mode may serve one request several times.
            serving &= (of_node >= request.count) | (self._in_mig_mode & (of_node > 0))
            if request.uuids:
                named = np.zeros_like(serving)
                named[list(self.nodes_of(request.uuids))] = True
                serving &= named
        return np.flatnonzero(serving)

    def scores(self, nodes: Numbers) -> Scores:
        """Return the `usage_scores.node_score` of the nodes that `may_serve` has just returned."""
        return self._score[nodes]

    def choosing(self, nodes: Numbers) -> list[int]:
        """Return the positions of nodes that have their own node policy."""
        chosen: list[int] = np.flatnonzero(self._chooses[nodes]).tolist()
        return chosen

    def best_positions(self, nodes: Numbers, keys: Scores, count: int) -> list[int]:
        """Return the positions of the nodes with the smallest keys, in order; names break ties."""
        positions = np.arange(len(nodes))
        if count < len(nodes):
            positions = np.flatnonzero(keys <= np.partition(keys, count - 1)[count - 1])
        order = np.lexsort((self._rank[nodes[positions]], keys[positions]))
        chosen: list[int] = positions[order][:count].tolist()
        return chosen

    def _known(self) -> Numbers:
        """Return the rows of all device numbers, without the spare capacity."""
        return self._rows[:, : len(self.memory)]

    def _there(self) -> Numbers:
        """Return the rows of the devices that exist."""
        known = self._known()
        there = known[0] != _NOWHERE
        return known if there.all() else known[:, there]

    def _fitting(self, request: RequestDemand) -> Numbers:
        """Return the devices that pass all checks except policies, quotas and MIG geometry."""
        node, facts, slots, cores, memory, slots_used, cores_used, memory_used = self._known()
        requested, own_cores = _requested(self, request, facts, memory)
        fits = (self._refusal_of_facts(request)[facts] == 0) & (node != _NOWHERE)
        fits &= slots_used < slots
        fits &= cores - cores_used >= np.maximum(own_cores, request.least_cores)
        fits &= (requested >= request.least_mib) & (requested <= memory - memory_used)
        if request.cores >= ALL_CORES:
            fits &= slots_used == 0
        return np.flatnonzero(fits)

    def _over(
        self,
        request: RequestDemand,
        devices: Numbers,
        budget: Budget,
        times: int,
    ) -> Flags:
        """Return, for each device, True if `times` devices like it would exceed the budget."""
        node, facts, _, _, memory, _, _, _ = self._known()[:, devices]
        requested, own_cores = _requested(self, request, facts, memory)
        # An instance has at least the requested memory, but it may have less compute.
        own_cores = np.where(self._in_mig_mode[node], 0, own_cores)
        return np.broadcast_to(_over(budget, times, requested, own_cores), devices.shape)

    def exceeds_everywhere(self, demand: Demand, budget: Budget) -> bool:
        """Return True if the claim would exceed the budget with any devices.

        Without this check, a used-up quota would cost a plan on every node.
        """
        self._refresh()
        if budget.devices is not None and together(demand, lambda _: 1) > budget.devices:
            return True
        if budget.memory_mib is not None:
            memory = self._there()[_MEMORY]
            smallest = int(memory.min()) if len(memory) else 0
            least = together(demand, lambda each: 0 if each.part else each.memory_on(smallest))
            if least > max(budget.memory_mib, 0):  # a claim that takes nothing exceeds nothing
                return True
        # An instance or a part may have less compute than requested.
        if budget.cores is None or self._in_mig_mode.any():
            return False
        least = together(demand, lambda each: 0 if each.part else each.cores)
        return least > max(budget.cores, 0)

    def closest(self, demand: Demand, count: int, within: NodeFilter) -> list[tuple[int, float]]:
        """Return the nodes where the least capacity must become free for the claim's first request.

        Args:
            demand: The claim's requests.
            count: The largest number of nodes to return.
            within: The nodes from which to choose.

        Returns:
            Each node and the amount that must become free, as a number of devices; the smallest
            amount comes first.
        """
        self._refresh()
        if not self.conditions.facts:
            return []
        # Prefer the first app container or sidecar, because it holds its devices the longest.
        request = min(demand.requests, key=lambda request: request.phase == "Init")
        node, facts, slots, cores, memory, slots_used, cores_used, memory_used = self._there()
        requested, own_cores = _requested(self, request, facts, memory)
        able = (self._refusal_of_facts(request)[facts] == 0) & (slots > 0)
        able &= (requested >= request.least_mib) & (requested <= memory)
        alone = request.cores >= ALL_CORES
        zero = np.int64(0)
        lacks = np.zeros(len(node))
        for used, more, total in (
            (memory_used, requested, memory),
            (cores_used, own_cores, cores),
            (slots_used, 1, slots),
        ):
            lack = used if alone else np.maximum(zero, used + more - total)
            lacks += np.divide(lack, total, out=np.zeros(len(node)), where=total > 0)
        node, lacks = node[able], lacks[able]
        order = np.lexsort((lacks, node))
        node, total_lack = node[order], np.concatenate(([0.0], np.cumsum(lacks[order])))
        numbers, first, size = np.unique(node, return_index=True, return_counts=True)
        chosen = (size >= request.count) & self._taking(within)[numbers]
        numbers, first = numbers[chosen], first[chosen]
        missing = total_lack[first + request.count] - total_lack[first]
        chosen_at = self.best_positions(numbers, missing, count)
        return [(int(numbers[at]), float(missing[at])) for at in chosen_at]

    # Amounts.

    def most_free(self, request: RequestDemand, within: NodeFilter) -> Best:
        """Return the devices and the node that are currently closest to serving a request.

        Args:
            request: The request.
            within: The nodes from which to choose.
        """
        self._refresh()
        if not self.conditions.facts:
            return Best(None, None, None, 0)
        node, facts, slots, cores, memory, slots_used, cores_used, memory_used = self._known()
        takes_pods = self._taking(within)
        here = (node != _NOWHERE) & takes_pods[node]
        here &= self._refusal_of_facts(request)[facts] == 0
        fitting = self._fitting(request)
        return _best(
            np.flatnonzero(here & (slots_used < slots)),
            memory - memory_used,
            cores - cores_used,
            node[fitting[takes_pods[node[fitting]]]],
        )

    def largest(self, request: RequestDemand) -> Best:
        """Return `most_free` as if all devices were empty, healthy and on open nodes."""
        self._refresh()
        if not self.conditions.facts:
            return Best(None, None, None, 0)
        known = self._largest.get(request)
        if known is None:
            known = self._largest[request] = self._find_largest(request)
            if len(self._largest) > _QUESTIONS_KEPT:
                del self._largest[next(iter(self._largest))]
        return known

    def _find_largest(self, request: RequestDemand) -> Best:
        node, facts, slots, cores, memory = self._known()[:_IN_USE]
        of_kind = [
            refusal_of_facts(each._replace(duplicate=False, healthy=True, cordoned=False), request)
            is None
            for each in self.conditions.facts
        ]
        there = (node != _NOWHERE) & (slots > 0) & np.array(of_kind, dtype=np.bool_)[facts]
        requested, own_cores = _requested(self, request, facts, memory)
        able = (
            there & (requested >= request.least_mib) & (requested <= memory) & (own_cores <= cores)
        )
        return _best(np.flatnonzero(there), memory, cores, node[able])

    # Reasons.

    def refused(
        self,
        request: RequestDemand,
        budget: Budget = UNLIMITED,
        *,
        mutex: bool,
    ) -> NodeRefusals:
        """Count, per node, the reasons why devices cannot serve a request.

        The request must not name UUIDs or a part, and the devices must not be in MIG mode.

        Args:
            request: The request.
            budget: The amounts that the namespace may still take; only this request is checked.
            mutex: True if devices in use are excluded (policy Mutex).
        """
        self._refresh()
        node, facts, slots, cores, memory, slots_used, cores_used, memory_used = self._there()
        of_facts = self._refusal_of_facts(request)[facts]
        requested, cores_free = _memory_requested(request, memory), cores - cores_used
        over = _over(budget, request.count, requested, np.int64(request.cores))
        used = slots_used > 0
        # In the order of the checks: the first one that applies is the reason, so it is written
        # last.
        tests: list[tuple[Flags | np.bool_, Reason]] = [
            (slots_used >= slots, Reason.CARD_TIME_SLICING_EXHAUSTED),
            (used & mutex, Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT),
            (over, Reason.RESOURCE_QUOTA_NOT_FIT),
            (
                (requested < request.least_mib) | (requested > memory - memory_used),
                Reason.CARD_INSUFFICIENT_MEMORY,
            ),
            (request.cores > cores_free, Reason.CARD_INSUFFICIENT_CORE),
            (used & (request.cores >= ALL_CORES), Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT),
            ((cores_free <= 0) & (not request.cores), Reason.CARD_COMPUTE_UNITS_EXHAUSTED),
        ]
        reason = np.zeros(len(node), dtype=np.int8)
        for test, why in reversed(tests):
            reason[test] = _NUMBER_OF[why]
        np.copyto(reason, of_facts, where=of_facts != 0)
        nodes, width = len(self._score), len(REASONS)
        counts = np.bincount(node * width + reason, minlength=nodes * width)
        vendors = np.array(
            [each.vendor == request.vendor for each in self.conditions.facts],
            dtype=np.bool_,
        )
        of_one = bool(vendors.all())  # true in most clusters, and saves a copy
        of_vendor = np.bincount(node if of_one else node[vendors[facts]], minlength=nodes)
        return NodeRefusals(counts.reshape(nodes, width), of_vendor)

    def _refusal_of_facts(self, request: RequestDemand) -> npt.NDArray[np.int8]:
        """Return, by number of facts, the number of the reason why such a device cannot serve."""
        facts = self.conditions.facts
        known = self._refusals.get(request)
        if known is None or len(known) < len(facts):
            if known is None and len(self._refusals) >= _QUESTIONS_KEPT:
                del self._refusals[next(iter(self._refusals))]
            known = self._refusals[request] = np.array(
                [_NUMBER_OF[refusal_of_facts(each, request)] for each in facts], dtype=np.int8
            )
        return known

    # Following the columns.

    def _refresh(self) -> None:
        changes = self.changes
        devices, nodes = len(self.name), len(self.node_name)
        if devices > self._rows.shape[1]:
            self._rows = _grown(self._rows, devices)
        if nodes > len(self._score):
            self._score = _grown(self._score, nodes)
            self._willing = _grown(self._willing, nodes)
            self._has_devices = _grown(self._has_devices, nodes)
            self._in_mig_mode = _grown(self._in_mig_mode, nodes)
            self._chooses = _grown(self._chooses, nodes)
            self._rank = _grown(self._rank, nodes)
        if changes.devices:
            stale = list(changes.devices)
            changes.devices.clear()
            there = self._rows[:_IN_USE, stale]
            for row, values in enumerate(_rows(self, stale)):
                self._rows[row, stale] = values
            if not np.array_equal(there, self._rows[:_IN_USE, stale]):
                self._largest.clear()
        if changes.nodes:
            stale = list(changes.nodes)
            changes.nodes.clear()
            self._score[stale] = [node_score(self, node) for node in stale]
            self._willing[stale] = [
                self.node_ready[node] and self.node_schedulable[node] for node in stale
            ]
            self._has_devices[stale] = [bool(self.node_devices[node]) for node in stale]
            self._in_mig_mode[stale] = [self.node_in_mig_mode[node] > 0 for node in stale]
            self._chooses[stale] = [self.node_policy[node] is not None for node in stale]
        if changes.names:
            changes.names = False
            by_name = sorted(range(nodes), key=self.node_name.__getitem__)
            self._rank[by_name] = np.arange(nodes)


def _best(devices: Numbers, memory: Numbers, cores: Numbers, serving: Numbers) -> Best:
    """Return the largest of some devices and the most frequent node; the first one wins ties."""
    if not len(devices):
        return Best(None, None, None, 0)
    by_memory, by_cores = (int(devices[np.argmax(of[devices])]) for of in (memory, cores))
    if not len(serving):
        return Best(by_memory, by_cores, None, 0)
    of_node = np.bincount(serving)
    return Best(by_memory, by_cores, int(of_node.argmax()), int(of_node.max()))


def _flags(mask: int, count: int) -> Flags:
    """Convert the first bits of a mask to an array."""
    octets = (mask & ((1 << count) - 1)).to_bytes(count // 8 + 1, "little")
    return np.unpackbits(np.frombuffer(octets, dtype=np.uint8), bitorder="little").view(np.bool_)


def _over(
    budget: Budget, times: int, memory: Numbers | np.int64, cores: Numbers | np.int64
) -> Flags | np.bool_:
    """Return True where `times` devices with these charges each would exceed the budget."""
    over: Flags | np.bool_ = np.bool_(budget.devices is not None and times > budget.devices)
    for left, amount in ((budget.memory_mib, memory), (budget.cores, cores)):
        if left is not None:
            over = over | ((amount > 0) & (amount > left // times))
    return over


def _requested(
    columns: Columns, request: RequestDemand, facts: Numbers, memory: Numbers
) -> tuple[Numbers | np.int64, Numbers | np.int64]:
    """Return the MiB and percent of compute that a request takes on each device.

    If a device lacks the requested part, the memory is set to more than any device has.
    """
    if request.part is None:
        return _memory_requested(request, memory), np.int64(request.cores)
    of_facts = [on_facts(each, request) for each in columns.conditions.facts]
    found = [
        (_MORE_THAN_ANY, 0) if part is None else (part.memory_mib or 0, part.cores)
        for part in of_facts
    ]
    by_facts = np.array(found, dtype=np.int64)
    return by_facts[facts, 0], by_facts[facts, 1]


def _memory_requested(request: RequestDemand, memory: Numbers) -> Numbers | np.int64:
    """Return the MiB that a request takes on each device."""
    if request.mode == "Exclusive":
        return np.maximum(memory, request.memory_mib or 0)
    if request.memory_mib is not None:
        return np.int64(request.memory_mib)
    return memory * (request.memory_percent or 100) // 100


def _rows(columns: Columns, devices: Sequence[int]) -> list[list[int]]:
    """Return the rows of `Fleet._rows` for some devices."""

    def of(read: Callable[[int], int]) -> list[int]:
        return [read(device) for device in devices]

    return [
        of(lambda device: columns.node_of[device] if columns.is_there(device) else _NOWHERE),
        of(columns.facts.__getitem__),
        of(columns.slots.__getitem__),
        of(columns.cores.__getitem__),
        of(columns.memory.__getitem__),
        of(columns.slots_used.__getitem__),
        of(columns.cores_used.__getitem__),
        of(columns.memory_used.__getitem__),
    ]


def _grown(array: npt.NDArray, length: int) -> npt.NDArray:  # type: ignore[type-arg]
    """Return the array with space for twice the length. New devices have no node until written."""
    room = [(0, 0)] * (array.ndim - 1) + [(0, 2 * length - array.shape[-1])]
    return np.pad(array, room, constant_values=_NOWHERE if array.ndim > 1 else 0)
