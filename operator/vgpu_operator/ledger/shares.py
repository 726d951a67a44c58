"""The shares of devices that claims hold, computed from allocations, even invalid ones.

Several states of a claim may be true at the same time: the observed one, and one for each write
whose outcome is unknown. The claim holds the greatest share of each device among them, so that
there is room for whichever turns out to be true.

`ClaimRecords` keeps the last version of each claim. Only a newer version of the same object
replaces it (by resourceVersion and UID). A deleted claim stays deleted, because the response to a
write may arrive after the deletion was observed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from vgpu_api.effective import Use, effective_use
from vgpu_api.v1alpha1 import Allocation, VGPUClaimSpec
from vgpu_operator.demand import ALL_CORES
from vgpu_operator.placement.constraints import most_at_once
from vgpu_operator.placement.mig_geometry import bits_of, slices_of
from vgpu_operator.vendors.neighbours import marks_of

if TYPE_CHECKING:
    from vgpu_api.core import PodScopes  # slow to load, and `kubectl vgpu get` needs none


class ClaimKey(NamedTuple):
    """The namespace and name of a claim that may not exist yet. Equal to the plain tuple."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A claim's share of one device.

    Attributes:
        use: The peak usage of memory, compute and slots.
        alone: True if a request has all compute. Other claims then get none, even if the device's
            compute is scaled above 100 %.
        full: True if the amount is unknown, so that the device counts as full.
        slices: The MIG slices that its instances occupy, one bit each.
        uncut: True if it has a part that is no MIG instance, or an instance at an unknown place.
        marks: Its numbered cores, one bit each, or its marks (`vendors.neighbours`).
    """

    use: Use = field(default_factory=Use)
    alone: bool = False
    full: bool = False
    slices: int = 0
    uncut: bool = True
    marks: int = 0

    def peak(self, other: DeviceShare) -> DeviceShare:
        """Return the greater of each field."""
        return DeviceShare(
            self.use.peak(other.use),
            self.alone or other.alone,
            self.full or other.full,
            self.slices | other.slices,
            self.uncut or other.uncut,
            self.marks | other.marks,
        )

    def contradicts(self, *, in_mig_mode: bool) -> bool:
        """Return True if the share does not match the device's mode, so its usage is unknown."""
        return self.uncut if in_mig_mode else self.slices != 0


@dataclass(frozen=True, slots=True)
class ClaimShares:
    """A claim's shares of devices by UUID, and the nodes that the claim counts as filling.

    `device_count` is the number of devices it counts for in a quota, computed as
    `placement.constraints.DeviceCount` does for a plan.
    """

    devices: Mapping[str, DeviceShare] = field(default_factory=dict)
    full_nodes: frozenset[str] = frozenset()
    device_count: int = 0


NOTHING = ClaimShares()


def shares_of(spec: VGPUClaimSpec, allocation: Allocation | None) -> ClaimShares:
    """Return the shares of an allocation for `spec`; a device without UUID fills its node."""
    if allocation is None:
        return NOTHING
    # A claim with all of the compute has the device alone, however little memory it takes.
    alone = {device.uuid for device in allocation.devices if device.cores >= ALL_CORES}
    slices: dict[str, int] = {}
    uncut: set[str] = set()
    for device in allocation.devices:
        if device.mig is None or not device.mig.size:
            uncut.add(device.uuid)
        else:
            place = slices_of(device.mig.start, device.mig.size)
            slices[device.uuid] = slices.get(device.uuid, 0) | place
    marks = _marks_by_device(spec, allocation)
    uses = effective_use(spec, allocation.devices)
    return ClaimShares(
        devices={
            uuid: DeviceShare(
                use,
                alone=uuid in alone,
                slices=slices.get(uuid, 0),
                uncut=uuid in uncut,
                marks=marks.get(uuid, 0),
            )
            for uuid, use in uses.items()
            if uuid
        },
        # A device without a UUID may be any of the node's, so none of them may be given to others.
        full_nodes=frozenset({allocation.node_name}) if "" in uses else frozenset(),
        device_count=_counted(spec, allocation),
    )


def _marks_by_device(spec: VGPUClaimSpec, allocation: Allocation) -> dict[str, int]:
    """Return the bits of numbered cores and marks for each device."""
    by_request = {
        request.name: found
        for request in spec.requests
        if request.vendor != "nvidia" and (found := marks_of(request))
    }
    marks: dict[str, int] = {}
    for device in allocation.devices:
        own = bits_of(device.core_ids) if device.core_ids else 0
        found = own | by_request.get(device.request, 0)
        if found:
            marks[device.uuid] = marks.get(device.uuid, 0) | found
    return marks


def _counted(spec: VGPUClaimSpec, allocation: Allocation) -> int:
    """Return the number of devices that the allocation counts for in a quota.

    Devices of unknown requests are added on top, so that the number is never too low.
    """
    if all(request.phase == "App" for request in spec.requests):
        return len(allocation.devices)
    devices = Counter(device.request for device in allocation.devices)
    known = [(request.phase, devices.pop(request.name, 0)) for request in spec.requests]
    return devices.total() + most_at_once(known)


def shares_of_unreadable(raw: Mapping[str, Any], *, known: ClaimShares) -> ClaimShares:
    """Return the shares of an unreadable claim: it fills every device that it names.

    If even a device's name is unreadable, the claim fills its node and the devices `known` before.
    """
    status = raw.get("status")
    allocation = status.get("allocation") if isinstance(status, Mapping) else status
    if allocation is None:
        return NOTHING
    if not isinstance(allocation, Mapping):
        return _filled(known)
    devices = allocation.get("devices")
    uuids = [_uuid(device) for device in devices] if isinstance(devices, list) else [None]
    named = ClaimShares({uuid: DeviceShare(full=True) for uuid in uuids if uuid})
    if None not in uuids:
        return named
    node = allocation.get("nodeName")
    # Fail closed: an allocation that cannot be read may use anything on its node.
    nodes = frozenset({node}) if isinstance(node, str) and node else frozenset[str]()
    return peak_of((named, _filled(known), ClaimShares(full_nodes=nodes)))


def peak_of(possible: Iterable[ClaimShares]) -> ClaimShares:
    """Return the greatest share of each device among several possible states."""
    devices: dict[str, DeviceShare] = {}
    nodes: frozenset[str] = frozenset()
    count = 0
    for shares in possible:
        nodes |= shares.full_nodes
        count = max(count, shares.device_count)
        for uuid, share in shares.devices.items():
            devices[uuid] = devices[uuid].peak(share) if uuid in devices else share
    return ClaimShares(devices, nodes, count)


def _filled(known: ClaimShares) -> ClaimShares:
    return ClaimShares(
        {uuid: replace(share, full=True) for uuid, share in known.devices.items()},
        known.full_nodes,
        known.device_count,
    )


def _uuid(device: Any) -> str | None:
    uuid = device.get("uuid") if isinstance(device, Mapping) else None
    return uuid if isinstance(uuid, str) and uuid else None


_TOMBSTONES_KEPT = 10_000


@dataclass(slots=True)
class ClaimRecord:
    """The observed and the assumed shares of a claim, and the resulting ones.

    Attributes:
        uid: The UID of the observed object; empty if there is none, or it is gone.
        version: Its newest resourceVersion.
        observed: The shares of the observed allocation.
        assumed: The shares of each assumption, by the assumption's number.
        held: The shares that count.
        scopes: The quota scopes of the pod for which the claim is held; None if there is no pod.
    """

    uid: str = ""
    version: int = -1
    observed: ClaimShares = NOTHING
    assumed: dict[int, ClaimShares] = field(default_factory=dict)
    held: ClaimShares = NOTHING
    scopes: PodScopes | None = None


class ClaimRecords:
    """The records of all claims, by namespace and name."""

    def __init__(self) -> None:
        self._records: dict[ClaimKey, ClaimRecord] = {}
        self._keys: dict[str, ClaimKey] = {}  # claim UID → namespace and name
        self._tombstones: OrderedDict[str, None] = OrderedDict()  # UIDs of removed claims

    def get(self, key: ClaimKey) -> ClaimRecord | None:
        """Return the claim's record, or None."""
        return self._records.get(key)

    def at(self, key: ClaimKey) -> ClaimRecord:
        """Return the claim's record; create it if there is none."""
        return self._records.setdefault(key, ClaimRecord())

    def drop(self, key: ClaimKey) -> None:
        """Forget a claim that is deleted and has no assumptions."""
        del self._records[key]

    def knows(self, uid: str) -> bool:
        """Return True if this object was observed and is not gone."""
        return uid in self._keys

    def newer(self, key: ClaimKey, uid: str, version: int) -> ClaimRecord | None:
        """Return the claim's record, updated to this version; None if the version is outdated."""
        # The answer to a write can arrive after the watch has reported the deletion. The object
        # must not reappear and hold its devices forever.
        if uid in self._tombstones:
            return None
        record = self.at(key)
        if version <= record.version:
            return None
        if record.uid and record.uid != uid:  # another object has taken the name
            self.mark_deleted(record.uid)
        record.uid, record.version = uid, version
        self._keys[uid] = key
        return record

    def mark_deleted(self, uid: str) -> ClaimKey | None:
        """Record that an object is gone, and return its claim, if it was known."""
        self._tombstones[uid] = None
        if len(self._tombstones) > _TOMBSTONES_KEPT:
            self._tombstones.popitem(last=False)
        key = self._keys.pop(uid, None)
        if key is not None:
            record = self._records[key]
            record.uid, record.observed = "", NOTHING
        return key
