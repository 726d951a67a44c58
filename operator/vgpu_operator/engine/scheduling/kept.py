"""Capacity that a claim may not use because it is kept for others: earmarks and tentative places.

Placement asks `KeptFrom`, a view of both for one claim; `State.deciding` makes it.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.scheduling.reservation import Reservation, Reservations
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import Columns, Share

MOST = 9
"""Requests in the cluster that have earmarks at a time; a group counts as one."""
MOST_OF_A_NAMESPACE = 3
"""The same of one namespace, so that no tenant can keep all others from the devices."""
MOST_OF_A_GROUP = 64
"""Devices that are kept for one group; a larger one gets no earmark."""
CROWDED = 4
"""Once pods of this many other kinds are awaited on a node, a requeue respects all of them."""


@dataclass(frozen=True, slots=True)
class Earmark:
    """The devices of one node that are kept for a claim.

    Attributes:
        key: The claim, which need not exist yet.
        node: The node's name.
        number: The number that the columns give the node.
        devices: Names of the GPUDevices.
        priority: Of the pod or Immediate claim; a more important one may use the devices.
        pod_uid: The pod that waits for them; empty for an Immediate claim.
        kind: The class in which the claim waited when it got the earmark.
        group: The group of its pod. The earmarks of a group are given and removed together, and
            each is for all its pods.
    """

    key: ClaimKey
    node: str
    number: int
    devices: tuple[str, ...]
    priority: int = 0
    pod_uid: str = ""
    kind: EquivalenceClass | None = None
    group: GroupKey | None = None

    @property
    def request(self) -> ClaimKey | GroupKey:
        """Return the group or, without one, the claim."""
        return self.key if self.group is None else self.group

    def is_for(self, key: ClaimKey, group: GroupKey | None) -> bool:
        """Return True if the devices are kept for a claim, alone or as one of its group."""
        return self.key == key or (group is not None and self.group == group)

    def may_be_used_by(self, key: ClaimKey, group: GroupKey | None, priority: int) -> bool:
        """Return True if the devices are kept for a claim, or it is more important.

        kube-scheduler keeps room for nominated pods by the same rule.
        """
        return self.is_for(key, group) or priority > self.priority


@dataclass(slots=True)
class Earmarks:
    """All earmarks, one at most for a claim."""

    _of_claim: dict[ClaimKey, Earmark] = field(default_factory=dict)
    _on_node: dict[int, list[Earmark]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Earmark]:
        return iter(list(self._of_claim.values()))

    def __len__(self) -> int:
        return len(self._of_claim)

    def get(self, key: ClaimKey) -> Earmark | None:
        """Return the claim's earmark, or None."""
        return self._of_claim.get(key)

    @property
    def by_node(self) -> Mapping[int, list[Earmark]]:
        """Return the earmarks by node number."""
        return self._on_node

    def devices_on(self, node: int, priority: int) -> set[str]:
        """Return the devices on a node that are kept for claims of at least this priority."""
        there = (each for each in self._on_node.get(node, ()) if each.priority >= priority)
        return {name for earmark in there for name in earmark.devices}

    def of_others_on(
        self, node: int, devices: Collection[str], key: ClaimKey, group: GroupKey | None
    ) -> list[Earmark]:
        """Return the earmarks of other requests on any of these devices of a node."""
        return [
            earmark
            for earmark in self._on_node.get(node, ())
            if not earmark.is_for(key, group) and set(earmark.devices) & set(devices)
        ]

    def has_room_for(self, namespace: str) -> bool:
        """Return True if a claim of the namespace may get an earmark."""
        requests = {earmark.request for earmark in self._of_claim.values()}
        used = Counter(request.namespace for request in requests)
        return len(requests) < MOST and used[namespace] < MOST_OF_A_NAMESPACE

    def ended_by(
        self, key: ClaimKey, group: GroupKey | None, node: int, devices: Collection[str]
    ) -> list[Earmark]:
        """Return the earmarks that end if a claim takes these devices of a node."""
        own = self._of_claim.get(key)
        others = self.of_others_on(node, devices, key, group)
        return others if own is None else [own, *others]

    def of_group(self, group: GroupKey | None) -> list[Earmark]:
        """Return the earmarks of a group."""
        found = self._of_claim.values()
        return [] if group is None else [each for each in found if each.group == group]

    def put(self, earmark: Earmark) -> None:
        """Add an earmark; it replaces the claim's former one."""
        self.remove(earmark.key)
        self._of_claim[earmark.key] = earmark
        self._on_node.setdefault(earmark.number, []).append(earmark)

    def remove(self, key: ClaimKey) -> Earmark | None:
        """Remove the claim's earmark and return it, or return None if there was none."""
        earmark = self._of_claim.pop(key, None)
        if earmark is not None:
            there = self._on_node[earmark.number]
            there.remove(earmark)
            if not there:
                del self._on_node[earmark.number]
        return earmark

    def shares_on(
        self, columns: Columns, node: int, key: ClaimKey, group: GroupKey | None, priority: int
    ) -> list[Share]:
        """Return the shares that earmarks take on a node from a claim which may not use them.

        Each is all memory of its device, so that nothing new can be placed there.
        """
        shares = []
        for earmark in self._on_node.get(node, ()):
            if not earmark.may_be_used_by(key, group, priority):
                for device in numbers_of(columns, earmark).values():
                    shares.append(Share(device, 0, 0, columns.memory[device]))
        return shares


def numbers_of(columns: Columns, earmark: Earmark) -> dict[str, int]:
    """Return the numbers of an earmark's devices by name, without those that no longer exist."""
    node = columns.node_id(earmark.node)
    devices = [] if node is None else columns.node_devices[node]
    return {
        columns.name[device]: device
        for device in devices
        if columns.name[device] in earmark.devices
    }


class Yielding(Enum):
    """The rule by which a claim respects the tentative places of others."""

    ALL = "all"
    """Respect all of them. A Filter looks for capacity beside them first."""
    MORE_IMPORTANT = "more important"
    """Respect those of pods with a higher priority. A Filter that finds no capacity otherwise takes
    the places of all other pods."""
    OF_ITS_KIND = "of its kind"
    """Respect those of the same kind, and those of pods with a higher priority. This is for a
    requeue: no more pods of a kind are requeued than can fit, but pods of another kind
    are not kept waiting for a pod that may never come."""
    AS_IMPORTANT = "as important"
    """Respect those of pods with the same or a higher priority. This is for an Immediate claim, and
    for a group that waits."""
    ANEW = "anew"
    """Respect those of pods with a higher priority, and not even those of the own group. This is
    for a preemption, which plans all pods of a group anew while kube-scheduler tries them."""


@dataclass(frozen=True, slots=True)
class KeptFrom:
    """The capacity that is kept from a claim; implements `placement.Kept`.

    Attributes:
        key: The claim that is being decided.
        kind: Its equivalence class, if it waits.
        priority: The priority of its pod, or of an Immediate claim itself.
        yielding: The rule for tentative places.
        columns: The state of all devices.
        reservations: All reservations, among them the tentative places.
        earmarks: All earmarks; those of other claims count unless these are less important.
        group: The group of its pod. Provisional places of the same group always
            count, except for a new plan.
    """

    key: ClaimKey
    kind: EquivalenceClass | None
    priority: int
    yielding: Yielding
    columns: Final[Columns]
    reservations: Final[Reservations]
    earmarks: Final[Earmarks]
    group: GroupKey | None = None

    @property
    def nodes(self) -> Collection[int]:
        """See `placement.Kept`."""
        maps: tuple[Any, Any] = self.reservations.tentative, self.earmarks.by_node
        return ChainMap(*maps)

    def on(self, node: int) -> Sequence[Share]:
        """See `placement.Kept`."""
        shares = self.earmarks.shares_on(self.columns, node, self.key, self.group, self.priority)
        there = self.reservations.tentative.get(node, {}).values()
        crowded = self.yielding is Yielding.OF_ITS_KIND and self._is_crowded(there)
        group = None if self.yielding is Yielding.ANEW else self.group
        for place in there:
            if place.key == self.key:
                continue
            is_fellows = place.group is not None and place.group == group
            if is_fellows or (not place.is_given_up and (crowded or self._counts(place))):
                shares += place.shares
        return shares

    def _counts(self, place: Reservation) -> bool:
        match self.yielding:
            case Yielding.ALL:
                return True
            case Yielding.MORE_IMPORTANT | Yielding.ANEW:
                return place.is_awaited and place.priority > self.priority
            case Yielding.AS_IMPORTANT:
                return place.is_awaited and place.priority >= self.priority
        return place.is_awaited and (place.kind == self.kind or place.priority > self.priority)

    def _is_crowded(self, there: Collection[Reservation]) -> bool:
        return len({place.kind for place in there if place.is_awaited} - {self.kind}) >= CROWDED
