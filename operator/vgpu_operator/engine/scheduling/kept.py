"""What is kept from a claim for others: earmarked devices, and tentative places.

`KeptFrom` is the view of both that placement asks; `State.deciding` makes it.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.scheduling.reservation import Reservation, Reservations
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import Columns, Share

MOST = 9
"""Earmarks at a time in the cluster."""
MOST_OF_A_NAMESPACE = 3
"""Of those, for one namespace: no tenant keeps the others' devices free for itself."""
CROWDED = 4
"""So many kinds of pods are requeued for one node before no more are."""


@dataclass(frozen=True, slots=True)
class Earmark:
    """Devices of one node that are kept for a claim.

    Attributes:
        key: The claim, which need not exist yet.
        node: The node's name.
        number: The number that the columns give the node.
        devices: Names of the GPUDevices.
        pod_uid: The pod that waits for them; empty for an Immediate claim.
        kind: The class in which the claim waited when it got the earmark.
    """

    key: ClaimKey
    node: str
    number: int
    devices: tuple[str, ...]
    pod_uid: str = ""
    kind: EquivalenceClass | None = None


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
        """The claim's."""
        return self._of_claim.get(key)

    @property
    def by_node(self) -> Mapping[int, list[Earmark]]:
        """By node number."""
        return self._on_node

    def devices_on(self, node: int) -> set[str]:
        """Return the names of the devices that are kept on a node."""
        return {name for earmark in self._on_node.get(node, ()) for name in earmark.devices}

    def has_room_for(self, namespace: str) -> bool:
        """Whether a claim of the namespace may get one."""
        used = Counter(key.namespace for key in self._of_claim)
        return len(self._of_claim) < MOST and used[namespace] < MOST_OF_A_NAMESPACE

    def put(self, earmark: Earmark) -> None:
        """Keep devices from now on."""
        self.remove(earmark.key)
        self._of_claim[earmark.key] = earmark
        self._on_node.setdefault(earmark.number, []).append(earmark)

    def remove(self, key: ClaimKey) -> Earmark | None:
        """Keep nothing for the claim any more; returns what was kept."""
        earmark = self._of_claim.pop(key, None)
        if earmark is not None:
            there = self._on_node[earmark.number]
            there.remove(earmark)
            if not there:
                del self._on_node[earmark.number]
        return earmark

    def shares_on(self, columns: Columns, node: int, key: ClaimKey) -> list[Share]:
        """What is kept on a node from a claim: all memory of each device, so nothing starts."""
        shares = []
        for earmark in self._on_node.get(node, ()):
            if earmark.key != key:
                for device in numbers_of(columns, earmark).values():
                    shares.append(Share(device, 0, 0, columns.memory[device]))
        return shares


def numbers_of(columns: Columns, earmark: Earmark) -> dict[str, int]:
    """Return the columns' numbers of an earmark's devices, of those that are there, by name."""
    node = columns.node_id(earmark.node)
    devices = [] if node is None else columns.node_devices[node]
    return {
        columns.name[device]: device
        for device in devices
        if columns.name[device] in earmark.devices
    }


class Yielding(Enum):
    """Which tentative places a claim respects."""

    ALL = "all"
    """Every other's: a Filter looks for room beside them first."""
    MORE_IMPORTANT = "more important"
    """Only those of pods of a higher priority: everybody else's yields to a Filter."""
    OF_ITS_KIND = "of its kind"
    """For a requeue: as many pods of a kind are requeued as there is room for, but pods of another
    kind are not kept waiting for one that may never come."""
    AS_IMPORTANT = "as important"
    """For an Immediate claim: those of pods of its priority or a higher one."""


@dataclass(frozen=True, slots=True)
class KeptFrom:
    """What is kept from a claim; see `placement.Kept`.

    Attributes:
        key: The claim.
        kind: Its kind, if it waits.
        priority: Its pod's, or its own.
        yielding: Which tentative places count.
        columns: The state of all devices.
        reservations: Where the tentative places are.
        earmarks: Count always, but for the claim's own.
    """

    key: ClaimKey
    kind: EquivalenceClass | None
    priority: int
    yielding: Yielding
    columns: Final[Columns]
    reservations: Final[Reservations]
    earmarks: Final[Earmarks]

    @property
    def nodes(self) -> Collection[int]:
        """See `placement.Kept`."""
        maps: tuple[Any, Any] = self.reservations.tentative, self.earmarks.by_node
        return ChainMap(*maps)

    def on(self, node: int) -> Sequence[Share]:
        """See `placement.Kept`."""
        shares = self.earmarks.shares_on(self.columns, node, self.key)
        there = self.reservations.tentative.get(node, {}).values()
        crowded = self.yielding is Yielding.OF_ITS_KIND and self._is_crowded(there)
        for place in there:
            if place.key != self.key and (crowded or self._counts(place)):
                shares += place.shares
        return shares

    def _counts(self, place: Reservation) -> bool:
        match self.yielding:
            case Yielding.ALL:
                return True
            case Yielding.MORE_IMPORTANT:
                return place.is_awaited and place.priority > self.priority
            case Yielding.AS_IMPORTANT:
                return place.is_awaited and place.priority >= self.priority
        return place.is_awaited and (place.kind == self.kind or place.priority > self.priority)

    def _is_crowded(self, there: Collection[Reservation]) -> bool:
        return len({place.kind for place in there if place.is_awaited} - {self.kind}) >= CROWDED
