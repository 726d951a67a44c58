"""Filters nodes by the volumes of a pod.

This applies in Gate mode only. kube-scheduler checks volumes before it calls an extender; in Gate
mode a pod's node is decided before kube-scheduler has seen the pod, so all its rules about volumes
are applied here. Sources: Kubernetes, the scheduler's plugins VolumeBinding, VolumeZone,
VolumeRestrictions and NodeVolumeLimits (docs/design/scheduler-modes.md).

If a claim is bound, its volume decides. If it waits for its first consumer, any matching existing
volume or a newly provisioned one will do. In all other cases no node serves it, and `refusal`
explains why.

Only pods with such claims are stored. Results are cached until a volume, a claim or a node's label
changes, because a waiting pod is tried every second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from vgpu_api.core import Pod
from vgpu_api.reasons import Reason
from vgpu_operator.node_filter.node_rules import NodeFilters
from vgpu_operator.node_filter.storage_objects import (
    GA_LABELS,
    ZONE_LABELS,
    NodeDrivers,
    StorageObject,
    Volume,
    VolumeClaim,
    VolumeClaimKey,
    VolumeClass,
    VolumeRequest,
    claims_of_volumes,
    volume_claims_of,
)
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.constraints import ALL, any_of, numbers_of, only

Claims: TypeAlias = tuple[VolumeClaimKey, ...]
Refused: TypeAlias = tuple[Reason, str]
_Named: TypeAlias = tuple[type[StorageObject], str, str]
"""The kind, the namespace (of a claim) and the name of an object."""
_MOST_NAMED = 3
_Version: TypeAlias = tuple[int, int]
"""The versions of the storage objects and of the nodes' labels."""


@dataclass(frozen=True, slots=True)
class VolumeNodes:
    """The nodes that can use a pod's volumes, and those that can attach them, as bits."""

    reached: int = ALL
    attachable: int = ALL


@dataclass(frozen=True, slots=True)
class _Use:
    node: str
    claims: Claims


@dataclass(slots=True)
class _VolumeOptions:
    """The volumes that an unbound claim can get.

    Attributes:
        volumes: The existing volumes, smallest first, with the nodes that can use each.
        made: The nodes on which a volume can be provisioned.
    """

    volumes: list[tuple[str, int]] = field(default_factory=list)
    made: int = 0

    def nodes(self, taken: set[str]) -> int:
        """Return all nodes that can serve the claim without the volumes that are taken."""
        return self.made | any_of(bits for name, bits in self.volumes if name not in taken)

    def choose(self, bit: int, taken: set[str]) -> str | None:
        """Return the volume for a node; empty if it is provisioned, None if there is none."""
        for name, bits in self.volumes:
            if bits & bit and name not in taken:
                return name
        return "" if self.made & bit else None


class Volumes:
    """Volumes, their claims, and the pods on nodes that use them.

    Args:
        columns: The numbers of the nodes.
        filters: The filters that find nodes by label.

    Attributes:
        version: A number that grows whenever a claim may have become usable for some pod.
    """

    def __init__(self, columns: Columns, filters: NodeFilters) -> None:
        self._columns = columns
        self._filters = filters
        self._claims: dict[VolumeClaimKey, VolumeClaim] = {}
        self._volumes: dict[str, Volume] = {}
        self._free: dict[str, dict[str, None]] = {}  # class → volumes that a claim may take
        self._meant: dict[VolumeClaimKey, tuple[str, ...]] = {}  # claim → volumes reserved for it
        self._classes: dict[str, VolumeClass] = {}
        self._limits: dict[str, dict[str, int]] = {}  # driver → node → the most it attaches
        self._uses: dict[str, _Use] = {}  # pod UID → its node and claims
        self._on: dict[str, dict[str, Claims]] = {}  # node → pod UID → its claims
        self._users: dict[VolumeClaimKey, dict[str, None]] = {}  # UIDs
        self._unbound: dict[VolumeClaimKey, None] = {}
        self._unread: dict[_Named, str] = {}  # why each of these objects is invalid
        self.version = 0
        self._free_version = 0
        self._nodes_of: tuple[_Version, dict[Claims, VolumeNodes]] = ((0, 0), {})
        self._serving: tuple[_Version, dict[VolumeRequest, list[tuple[str, int]]]] = ((0, 0), {})

    # Observations.

    def observe(self, obj: StorageObject) -> None:
        """Record an added or updated claim, volume, class or CSINode."""
        if self._unread:
            key = obj.key if isinstance(obj, VolumeClaim) else VolumeClaimKey("", obj.name)
            self._unread.pop((type(obj), key.namespace, key.name), None)
        match obj:
            case VolumeClaim():
                if self._claims.get(obj.key) == obj:
                    return
                self._put_claim(obj)
            case Volume():
                if self._volumes.get(obj.name) == obj:
                    return
                self._put_volume(obj)
            case VolumeClass():
                self._classes[obj.name] = obj
            case NodeDrivers():
                self._forget_limits(obj.name)
                for driver, count in obj.limits:
                    self._limits.setdefault(driver, {})[obj.name] = count
        self.version += 1

    def _put_claim(self, claim: VolumeClaim) -> None:
        self._claims[claim.key] = claim
        if claim.is_bound:
            self._unbound.pop(claim.key, None)
        else:
            self._unbound[claim.key] = None

    def _put_volume(self, volume: Volume) -> None:
        self._forget_volume(volume.name)
        self._volumes[volume.name] = volume
        if volume.is_free:
            self._free.setdefault(volume.class_name, {})[volume.name] = None
            self._free_version += 1
        elif volume.claim is not None:
            self._meant[volume.claim] = (*self._meant.get(volume.claim, ()), volume.name)

    def remove(self, kind: type[StorageObject], namespace: str, name: str) -> None:
        """Forget an object."""
        self._unread.pop((kind, namespace, name), None)
        if kind is VolumeClaim:
            key = VolumeClaimKey(namespace, name)
            self._claims.pop(key, None)
            self._unbound.pop(key, None)
        elif kind is Volume:
            self._forget_volume(name)
        elif kind is VolumeClass:
            self._classes.pop(name, None)
        else:
            self._forget_limits(name)
        self.version += 1

    def unreadable(self, kind: type[StorageObject], namespace: str, name: str, why: str) -> None:
        """Count an object as missing, and remember for `refusal` why it is invalid."""
        self.remove(kind, namespace, name)
        self._unread[kind, namespace, name] = why

    def _forget_limits(self, node: str) -> None:
        for driver in list(self._limits):
            self._limits[driver].pop(node, None)
            if not self._limits[driver]:
                del self._limits[driver]

    def _forget_volume(self, name: str) -> None:
        known = self._volumes.pop(name, None)
        if known is None:
            return
        if known.is_free:
            of_class = self._free[known.class_name]
            del of_class[name]
            if not of_class:
                del self._free[known.class_name]
            self._free_version += 1
        elif known.claim is not None:
            others = tuple(each for each in self._meant[known.claim] if each != name)
            if others:
                self._meant[known.claim] = others
            else:
                del self._meant[known.claim]

    def put(self, pod: Pod, node: str) -> None:
        """Record a pod that is on a node or expected there."""
        uid = pod.metadata.uid
        known = self._uses.get(uid)
        if (known is not None and known.node == node) or not pod.spec.volumes:
            return
        self.remove_pod(uid)
        claims = volume_claims_of(pod)
        if not claims:
            return
        self._uses[uid] = _Use(node, claims)
        self._on.setdefault(node, {})[uid] = claims
        for key in claims:
            self._users.setdefault(key, {})[uid] = None
        self.version += 1

    def remove_pod(self, uid: str) -> None:
        """Forget a pod that is gone, has ended or is no longer expected."""
        use = self._uses.pop(uid, None)
        if use is None:
            return
        del self._on[use.node][uid]
        if not self._on[use.node]:
            del self._on[use.node]
        for key in use.claims:
            users = self._users[key]
            del users[uid]
            if not users:
                del self._users[key]
        self.version += 1

    # Answers.

    def refusal(self, pod: Pod) -> Refused | None:
        """Return why no node can serve a pod's claims, as a reason and a text, or None."""
        uid = pod.metadata.uid
        for key, is_ephemeral in claims_of_volumes(pod):
            claim = self._claims.get(key)
            if claim is None:
                missing = "is not made yet" if is_ephemeral else "does not exist yet"
                why = self._unread_or(missing, VolumeClaim, key.name, key.namespace)
                return Reason.VOLUME_CLAIM_NOT_READY, f"PersistentVolumeClaim {key.name} {why}"
            if is_ephemeral and claim.controller != uid:
                text = f"PersistentVolumeClaim {key.name} exists and is not this pod's own"
                return Reason.VOLUME_CLAIM_NOT_READY, text
            refused = self._refusal_of(claim, without=uid)
            if refused is not None:
                return refused
        return None

    def of(self, claims: Claims, *, without: str = "") -> VolumeNodes:
        """Return the nodes that a pod can use, given its claims.

        Args:
            claims: The pod's claims.
            without: The UID of a pod that does not count.
        """
        if not claims:
            return VolumeNodes()
        if without:
            return self._nodes(claims, without)
        at = (self.version, self._filters.version)
        if self._nodes_of[0] != at:
            self._nodes_of = at, {}
        known = self._nodes_of[1]
        if claims not in known:
            known[claims] = self._nodes(claims, "")
        return known[claims]

    def explain(self, claims: Claims) -> list[str]:
        """Explain, for each claim that excludes nodes, how many nodes with devices can serve it."""
        nodes = any_of(map(only, self._columns.nodes_with_devices()))
        texts = []
        for key in claims:
            count = (self.of((key,)).reached & nodes).bit_count()
            if count < nodes.bit_count():
                claim = self._claims.get(key)
                has = claim is not None and claim.is_bound
                what = f"volume {claim.volume}" if claim is not None and has else "a volume for it"
                texts.append(
                    f"PersistentVolumeClaim {key.name}: {what} is within reach of {count} of"
                    f" {nodes.bit_count()} nodes"
                )
        unread = sorted(name for kind, _, name in self._unread if kind is Volume)
        if texts and unread:
            named = ", ".join(unread[:_MOST_NAMED])
            texts.append(f"PersistentVolumes that cannot be read: {len(unread)} ({named})")
        return texts

    # A claim.

    def _refusal_of(self, claim: VolumeClaim, *, without: str) -> Refused | None:
        """Return why no node can serve an existing claim, or None."""
        named = f"PersistentVolumeClaim {claim.key.name}"
        others = self._users.get(claim.key, {}).keys() - {without}
        text, reason = "", Reason.VOLUME_CLAIM_NOT_READY
        if claim.is_going:
            text = "is being deleted"
        elif claim.is_lost:
            text = f"has lost its volume {claim.volume}"
        elif claim.is_once and others:
            text, reason = "is ReadWriteOncePod: another pod uses it", Reason.VOLUME_CLAIM_IN_USE
        elif claim.is_bound:
            if claim.volume not in self._volumes:
                why = self._unread_or("does not exist", Volume, claim.volume)
                text = f"is bound to volume {claim.volume}, which {why}"
        elif others:
            text, reason = "is being bound for another pod", Reason.VOLUME_CLAIM_IN_USE
        else:
            text = self._unbindable(claim)
        return (reason, f"{named} {text}") if text else None

    def _unbindable(self, claim: VolumeClaim) -> str:
        """Return why an unbound claim will not be bound for a pod; empty if it may be."""
        assert claim.request is not None
        name = claim.request.class_name
        known = self._classes.get(name)
        if name and known is None:
            why = self._unread_or("does not exist", VolumeClass, name)
            return f"has the StorageClass {name}, which {why}"
        if known is None or not known.waits or claim.volume:
            return "is not bound to a volume yet"
        return ""

    def _unread_or(
        self, missing: str, kind: type[StorageObject], name: str, namespace: str = ""
    ) -> str:
        """Return why an object is unknown: it is invalid, or it is missing."""
        why = self._unread.get((kind, namespace, name))
        return missing if why is None else f"cannot be read: {why}"

    # Nodes.

    def _nodes(self, claims: Claims, without: str) -> VolumeNodes:
        reached, unbound = ALL, []
        for key in claims:
            claim = self._claims.get(key)
            if claim is None or self._refusal_of(claim, without=without) is not None:
                return VolumeNodes(reached=0)
            if claim.is_bound:
                reached &= self._reach(self._volumes[claim.volume])
            else:
                unbound.append(claim)
        if unbound:
            reached &= self._serve(unbound, self._taken(without), reached)
        return VolumeNodes(reached, self._attachable(claims, without))

    def _reach(self, volume: Volume) -> int:
        """Return the nodes that a volume's affinity and zones allow."""
        return self._by_affinity(volume) & self._by_zone(volume)

    def _by_affinity(self, volume: Volume) -> int:
        return ALL if volume.affinity is None else self._filters.by_terms(volume.affinity)

    def _by_zone(self, volume: Volume) -> int:
        """Return the nodes in a volume's zones.

        If a node has no such label, it passes: its cluster has only one zone.
        """
        if not volume.zones:
            return ALL
        nodes = ALL
        for key, values in volume.zones:
            by_value = self._filters.domains(key)
            fits = any_of(by_value.get(value, 0) for value in values)
            if key in GA_LABELS:
                by_newer = self._filters.domains(GA_LABELS[key])
                newer = any_of(by_newer.get(value, 0) for value in values)
                fits |= newer & ~any_of(by_value.values())
            nodes &= fits
        in_zones = any_of(
            bits for key in ZONE_LABELS for bits in self._filters.domains(key).values()
        )
        return nodes | ~in_zones

    def _serve(self, claims: list[VolumeClaim], taken: set[str], within: int) -> int:
        """Return the nodes where every claim can get a volume of its own, as a bit mask."""
        options = [self._options(claim) for claim in _by_size(claims)]
        nodes = within & ((1 << len(self._columns.node_name)) - 1)
        for each in options:
            nodes &= each.nodes(taken)
        if len(options) == 1:
            return nodes
        served = 0
        for node in map(only, numbers_of(nodes)):
            if _each_gets_one(options, node, taken) is not None:
                served |= node
        return served

    def _options(self, claim: VolumeClaim) -> _VolumeOptions:
        request = claim.request
        assert request is not None
        known = self._classes.get(request.class_name)
        found = _VolumeOptions()
        if known is not None and known.driver:
            found.made = self._by_topology(known)
        if claim.selected_node:  # the volume is being provisioned for that node
            found.made &= self._filters.named(claim.selected_node)
            return found
        meant = (self._volumes[name] for name in self._meant.get(claim.key, ()))
        own = [each for each in meant if each.is_for(claim) and each.serves(request)]
        found.volumes = self._with_nodes(own) if own else self._free_for(request)
        return found

    def _free_for(self, request: VolumeRequest) -> list[tuple[str, int]]:
        at = (self._free_version, self._filters.version)
        if self._serving[0] != at:
            self._serving = at, {}
        known = self._serving[1]
        if request not in known:
            of_class = (self._volumes[name] for name in self._free.get(request.class_name, ()))
            known[request] = self._with_nodes(each for each in of_class if each.serves(request))
        return known[request]

    def _with_nodes(self, volumes: Iterable[Volume]) -> list[tuple[str, int]]:
        ranked = sorted(volumes, key=lambda volume: (volume.size, volume.name))
        return [(volume.name, self._by_affinity(volume)) for volume in ranked]

    def _by_topology(self, storage_class: VolumeClass) -> int:
        topologies = storage_class.topologies
        return self._filters.by_terms(topologies) if topologies else ALL

    def _taken(self, without: str) -> set[str]:
        """Return the volumes that will be bound for pods expected on their nodes."""
        taken: set[str] = set()
        uids = {uid for key in self._unbound for uid in self._users.get(key, ())} - {without}
        for uid in sorted(uids):
            use = self._uses[uid]
            bit = self._filters.named(use.node)
            unbound = [
                claim
                for key in use.claims
                if (claim := self._claims.get(key)) is not None and not claim.is_bound
            ]
            options = [self._options(claim) for claim in _by_size(unbound)]
            taken |= _each_gets_one(options, bit, taken) or set()
        return taken

    # Limits.

    def _attachable(self, claims: Claims, without: str) -> int:
        """Return the nodes that can attach the claims' volumes within their limits."""
        new: dict[str, set[str]] = {}
        for driver, volume in self._attached(claims):
            new.setdefault(driver, set()).add(volume)
        nodes = ALL
        for driver, volumes in new.items():
            for node, limit in self._limits.get(driver, {}).items():
                pods = self._on.get(node, {})
                at_most = sum(map(len, pods.values())) + len(volumes)
                if at_most > limit and self._exceeds(node, driver, volumes, limit, without):
                    nodes &= ~self._filters.named(node)
        return nodes

    def _exceeds(self, node: str, driver: str, volumes: set[str], limit: int, without: str) -> bool:
        """Return True if the volumes would exceed a driver's limit on a node."""
        there = {
            volume
            for uid, claims in self._on.get(node, {}).items()
            if uid != without
            for of, volume in self._attached(claims)
            if of == driver
        }
        return not volumes <= there and len(volumes | there) > limit

    def _attached(self, claims: Claims) -> Iterator[tuple[str, str]]:
        """Yield driver and handle of each volume, or the name of an unbound claim."""
        for key in claims:
            claim = self._claims.get(key)
            if claim is None:
                continue
            volume = self._volumes.get(claim.volume) if claim.is_bound else None
            if volume is not None and volume.driver:
                yield volume.driver, volume.handle
            elif claim.request is not None:
                known = self._classes.get(claim.request.class_name)
                if known is not None and known.driver:
                    yield known.driver, f"{key.namespace}/{key.name}"


def _by_size(claims: Iterable[VolumeClaim]) -> list[VolumeClaim]:
    """Sort claims in the order in which kube-scheduler binds them."""
    return sorted(claims, key=lambda claim: 0 if claim.request is None else claim.request.size)


def _each_gets_one(options: Iterable[_VolumeOptions], bit: int, taken: set[str]) -> set[str] | None:
    """Return a distinct volume on a node for each claim, or None if some claim gets none."""
    chosen: set[str] = set()
    for each in options:
        name = each.choose(bit, taken | chosen)
        if name is None:
            return None
        if name:
            chosen.add(name)
    return chosen
