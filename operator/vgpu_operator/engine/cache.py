"""The cache of observed objects: the newest version of each GPU pod, claim and node.

Versions come from informers, Filter requests and the responses to our own writes; the newest wins,
whatever its source. The cache consists of plain dictionaries, without I/O and without a clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from vgpu_api.core import Node, PodGroup, ResourceClaim
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_api.v1alpha1.base import version_of
from vgpu_operator.dialects.pod_groups import GroupKind
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey, is_owned_by
from vgpu_operator.engine.resource_claims.known import (
    OtherPods,
    ResourceClaims,
    ResourceKey,
    is_for,
    resource_claim_of,
    resource_key,
)
from vgpu_operator.ledger import ClaimKey

_DELETED_REMEMBERED = 20_000
"""The number of deleted pods and claims to remember. Late news of them comes within seconds, and
each takes some 250 bytes.
"""


def key_of(claim: VGPUClaim) -> ClaimKey:
    """Return the claim's namespace and name."""
    return ClaimKey(claim.metadata.namespace or "", claim.metadata.name)


class Traits(NamedTuple):
    """Values that all pods of a group must share; `least` is None if its PodGroup has it."""

    scheduler: str
    priority: int
    least: int | None


class Cache:
    """The observed GPU pods by UID and by claim, claims by key and by node, and nodes.

    Attributes:
        nodes: The nodes by name.
        pod_groups: The PodGroups by key.
        pod_group_apis: The APIs of PodGroups that are known to be served, or not to be.
        resource_claims: The ResourceClaims of our classes.
        users: Pods that name ResourceClaims through which they get no devices.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.pod_groups: dict[GroupKey, PodGroup] = {}
        self.pod_group_apis: dict[GroupKind, bool] = {}
        self._pods: dict[str, GPUPod] = {}
        self._of_claim: dict[ClaimKey, dict[str, GPUPod]] = {}
        self._of_group: dict[GroupKey, dict[str, GPUPod]] = {}
        self._traits: dict[GroupKey, Counter[Traits]] = {}
        self._running_of_group: Counter[GroupKey] = Counter()
        self._others: dict[str, GroupKey] = {}  # of pods without GPUs, by UID
        self._others_of_group: Counter[GroupKey] = Counter()
        self._by_template: dict[ClaimKey, set[str]] = {}  # template → UIDs of the pods that name it
        self.resource_claims = ResourceClaims()
        self.users = OtherPods()
        self._by_resource_claim: dict[ResourceKey, set[str]] = {}  # → UIDs of the pods that name it
        self._running: dict[int, Counter[str]] = {}  # priority → running pods by node
        self._deleting: dict[
            str, str
        ] = {}  # UIDs of bound pods that are being deleted → their nodes
        self._immediate: dict[ClaimKey, str] = {}  # allocated Immediate claims → their nodes
        self._claims: dict[ClaimKey, VGPUClaim] = {}
        self._on_node: dict[str, dict[ClaimKey, None]] = {}
        self._unreadable: dict[ClaimKey, tuple[str, int]] = {}  # UID and version
        self._serving: dict[str, ClaimKey] = {}  # pod UID → the claim that is allocated for it
        # UIDs of deleted objects, because a response or a Filter may deliver one after its deletion
        # was observed. The value is True if a pod may have been bound.
        self._deleted: OrderedDict[str, bool] = OrderedDict()

    # Pods.

    def pod(self, uid: str) -> GPUPod | None:
        """Return the GPU pod with this UID, or None."""
        return self._pods.get(uid)

    def pods(self) -> Iterator[GPUPod]:
        """Iterate over all GPU pods."""
        return iter(self._pods.values())

    def pods_of(self, claim: ClaimKey) -> list[GPUPod]:
        """Return the pods that a claim serves or should serve."""
        return list(self._of_claim.get(claim, {}).values())

    def pods_of_group(self, group: GroupKey) -> list[GPUPod]:
        """Return the GPU pods of a group; its pods without GPUs are not in the cache."""
        return list(self._of_group.get(group, {}).values())

    def groups(self) -> Collection[GroupKey]:
        """Return the groups that have GPU pods."""
        return self._of_group.keys()

    def count_of_group(self, group: GroupKey) -> int:
        """Return the number of the group's GPU pods, among them those that have ended."""
        return len(self._of_group.get(group, ()))

    def running_of_group(self, group: GroupKey) -> int:
        """Return how many of the group's GPU pods are bound, not ended and not being deleted."""
        return self._running_of_group[group]

    def traits_of_group(self, group: GroupKey) -> Mapping[Traits, int]:
        """Return how many of a group's GPU pods that have not ended have each combination."""
        return self._traits.get(group, {})

    def others_of_group(self, group: GroupKey) -> int:
        """Return how many pods without GPUs the group has."""
        return self._others_of_group[group]

    def group_of_pod(self, uid: str) -> GroupKey | None:
        """Return the group of a pod with this UID, whether it requests GPUs or not, or None."""
        known = self._pods.get(uid)
        return self._others.get(uid) if known is None else known.group

    def put_other(self, uid: str, group: GroupKey | None) -> None:
        """Record the group of a pod without GPUs; None if it has none, has ended or is gone."""
        known = self._others.pop(uid, None)
        if known is not None:
            self._others_of_group[known] -= 1
            if not self._others_of_group[known]:
                del self._others_of_group[known]
        if group is not None:
            self._others[uid] = group
            self._others_of_group[group] += 1

    def put_pod(self, pod: GPUPod) -> bool:
        """Store a pod; return False if a newer version is known or the pod was deleted.

        A pod keeps its original demand and claim even if its annotations change later, because a
        running pod cannot change its devices.
        """
        known = self._pods.get(pod.uid)
        if pod.uid in self._deleted or (known is not None and _version(pod) < _version(known)):
            return False
        if known is not None:
            self._remove_pod(known)
            if not isinstance(known.demand, BadInput):
                pod = known.seen_again(pod.pod)
        self._add_pod(self._served(self._with_resource_claim(pod)))
        return True

    def _with_resource_claim(self, pod: GPUPod) -> GPUPod:
        """Return the pod as its ResourceClaim shows it: handed over to kube-scheduler or not."""
        if not pod.resource_claim:
            return pod
        found = self.resource_claims.get(resource_claim_of(pod))
        is_allocated = found is not None and found.status.allocation is not None
        is_its_own = found is not None and is_for(found, pod.uid)
        return replace(pod, is_handed_over=is_allocated and is_its_own)

    def resource_claim_uid(self, pod: GPUPod) -> str:
        """Return the UID of the pod's own ResourceClaim; empty if there is none, or it ends."""
        found = self.resource_claims.get(resource_claim_of(pod))
        if found is None or found.metadata.deletion_timestamp is not None:
            return ""
        return found.metadata.uid if is_for(found, pod.uid) else ""

    def pods_of_resource_claim(self, key: ResourceKey) -> list[GPUPod]:
        """Return the pods that name a ResourceClaim as the one of their devices."""
        return [self._pods[uid] for uid in sorted(self._by_resource_claim.get(key, ()))]

    def put_resource_claim(self, claim: ResourceClaim) -> bool:
        """Store a ResourceClaim, and note in its pods if it is allocated; False if it is late."""
        if claim.metadata.uid in self._deleted or not self.resource_claims.put(claim):
            return False
        self._note_resource_claim(resource_key(claim))
        return True

    def delete_resource_claim(self, key: ResourceKey, uid: str) -> ResourceClaim | None:
        """Forget a deleted ResourceClaim; return its last version, or None if another is known."""
        self._remember_deleted(uid, may_have_run=True)
        known = self.resource_claims.get(key)
        if known is None or known.metadata.uid != uid:
            return None
        self.resource_claims.remove(key)
        self._note_resource_claim(key)
        return known

    def _note_resource_claim(self, key: ResourceKey) -> None:
        for pod in self.pods_of_resource_claim(key):
            self._remove_pod(pod)
            self._add_pod(self._with_resource_claim(pod))

    def is_template(self, claim: ClaimKey) -> bool:
        """Return True if a pod names this claim as its template."""
        return claim in self._by_template

    def pods_of_template(self, template: ClaimKey) -> list[GPUPod]:
        """Return the pods that name this claim as their template."""
        return [self._pods[uid] for uid in sorted(self._by_template.get(template, ()))]

    def delete_pod(self, uid: str, *, was_seen: bool = True) -> GPUPod | None:
        """Forget a deleted pod; return its last version, or None.

        Args:
            uid: The pod's UID.
            was_seen: True if the watch reported the deletion. If the pod is merely missing in a
                list, it may have been bound unseen before it was deleted.
        """
        known = self._pods.get(uid)
        if known is not None:
            self._remove_pod(known)
        self.put_other(uid, None)
        may_have_run = not was_seen or known is None or known.pod.is_bound
        self._remember_deleted(uid, may_have_run=may_have_run)
        return known

    def forget_pod(self, uid: str) -> None:
        """Remove a pod that only a what-if question added, as if it had never been stored."""
        known = self._pods.get(uid)
        if known is not None:
            self._remove_pod(known)

    def nodes_with_deleted_pods(self) -> set[str]:
        """Return the nodes where a pod is being deleted."""
        return set(self._deleting.values())

    def lowest_priority(self) -> float:
        """Return the lowest priority of a running pod, or of an Immediate claim; else infinity."""
        immediate = (self._claims[key].spec.scheduling_priority for key in self._immediate)
        return min((*self._running, *immediate), default=float("inf"))

    def nodes_with_pods_below(self, priority: int) -> set[str]:
        """Return the nodes where a less important pod runs, or an Immediate claim has devices."""
        nodes = set(self._immediate.values())
        for each, of_node in self._running.items():
            if each < priority:
                nodes.update(of_node)
        return nodes

    def is_deleted(self, uid: str) -> bool:
        """Return True if a pod or claim is known to be deleted, so that this event is outdated."""
        return uid in self._deleted

    def was_never_bound(self, uid: str) -> bool:
        """Return True if a pod is known to have been deleted without ever being bound."""
        return self._deleted.get(uid) is False

    def _remember_deleted(self, uid: str, *, may_have_run: bool) -> None:
        self._deleted[uid] = may_have_run
        if len(self._deleted) > _DELETED_REMEMBERED:
            self._deleted.popitem(last=False)

    def _remove_pod(self, pod: GPUPod) -> None:
        del self._pods[pod.uid]
        self._deleting.pop(pod.uid, None)
        if pod.is_running:
            running, node = self._running[pod.priority], pod.pod.spec.node_name
            running[node] -= 1
            if not running[node]:
                del running[node]
            if not running:
                del self._running[pod.priority]
        of_claim = self._of_claim[pod.claim]
        del of_claim[pod.uid]
        if not of_claim:
            del self._of_claim[pod.claim]
        if pod.group is not None:
            of_group, traits = self._of_group[pod.group], self._traits[pod.group]
            del of_group[pod.uid]
            self._running_of_group[pod.group] -= pod.is_running
            traits[_traits(pod)] -= _is_live(pod)
            if not traits[_traits(pod)]:
                del traits[_traits(pod)]
            if not of_group:
                del self._of_group[pod.group], self._traits[pod.group]
                del self._running_of_group[pod.group]
        template = pod.template
        if template is not None:
            self._by_template[template].discard(pod.uid)
            if not self._by_template[template]:
                del self._by_template[template]
        if pod.resource_claim:
            key = resource_claim_of(pod)
            self._by_resource_claim[key].discard(pod.uid)
            if not self._by_resource_claim[key]:
                del self._by_resource_claim[key]

    def _add_pod(self, pod: GPUPod) -> None:
        self._pods[pod.uid] = pod
        if pod.pod.is_bound and pod.pod.metadata.deletion_timestamp is not None:
            self._deleting[pod.uid] = pod.pod.spec.node_name
        if pod.is_running:
            self._running.setdefault(pod.priority, Counter())[pod.pod.spec.node_name] += 1
        self._of_claim.setdefault(pod.claim, {})[pod.uid] = pod
        if pod.group is not None:
            self._of_group.setdefault(pod.group, {})[pod.uid] = pod
            traits = self._traits.setdefault(pod.group, Counter())
            if _is_live(pod):
                traits[_traits(pod)] += 1
            self._running_of_group[pod.group] += pod.is_running
        if pod.template is not None:
            self._by_template.setdefault(pod.template, set()).add(pod.uid)
        if pod.resource_claim:
            self._by_resource_claim.setdefault(resource_claim_of(pod), set()).add(pod.uid)

    def _served(self, pod: GPUPod) -> GPUPod:
        """Return the pod with the claim that is already allocated for it, if there is one."""
        claim = self._claims.get(self._serving.get(pod.uid, pod.claim))
        if claim is None or key_of(claim) == pod.claim:
            return pod
        return replace(pod, claim=key_of(claim), owned=is_owned_by(claim, pod.uid))

    # Nodes.

    def is_there(self, allocation: Allocation) -> bool:
        """Return True if the node of an allocation still exists.

        A node that was registered again has the same name but another UID.
        """
        node = self.nodes.get(allocation.node_name)
        return node is not None and allocation.node_uid in ("", node.metadata.uid)

    # Claims.

    def claim(self, key: ClaimKey) -> VGPUClaim | None:
        """Return the newest version of a claim, or None."""
        return self._claims.get(key)

    def claims(self) -> Iterator[VGPUClaim]:
        """Iterate over all claims."""
        return iter(self._claims.values())

    def claims_on(self, node: str) -> tuple[ClaimKey, ...]:
        """Return the claims that are allocated on a node."""
        return tuple(self._on_node.get(node, ()))

    def put_claim(self, claim: VGPUClaim) -> bool:
        """Store a claim. Return False if the known version is at least as new."""
        key = key_of(claim)
        known = self._claims.get(key)
        new = version_of(claim.metadata.resource_version)
        if claim.metadata.uid in self._deleted:
            return False
        if known is not None and new <= version_of(known.metadata.resource_version):
            return False
        self._claims[key] = claim
        if new >= self._unreadable.get(key, ("", 0))[1]:
            self._unreadable.pop(key, None)
        self._index(key, known, claim)
        return True

    def claim_serving(self, uid: str) -> ClaimKey | None:
        """Return the claim that is allocated for the pod with this UID, or None."""
        return self._serving.get(uid)

    def put_unreadable(self, key: ClaimKey, uid: str, version: int) -> None:
        """Record that a claim's new version is invalid, so that the stored version is outdated.

        A version that is not newer than the stored one is late news: nothing would follow that
        makes the claim readable again.
        """
        known = self._claims.get(key)
        is_late = known is not None and version <= version_of(known.metadata.resource_version)
        if uid not in self._deleted and not is_late:
            self._unreadable[key] = (uid, version)

    def is_unreadable(self, key: ClaimKey) -> bool:
        """Return True if the newest version of a claim is invalid."""
        return key in self._unreadable

    def delete_claim(self, key: ClaimKey, uid: str) -> VGPUClaim | None:
        """Forget a deleted claim and return its last version.

        Return None if the claim is unknown, or another claim has taken its name.
        """
        self._remember_deleted(uid, may_have_run=True)
        if self._unreadable.get(key, ("", 0))[0] == uid:
            del self._unreadable[key]
        known = self._claims.get(key)
        if known is None or known.metadata.uid != uid:
            return None
        self._index(key, known, None)
        return self._claims.pop(key)

    def _index(self, key: ClaimKey, before: VGPUClaim | None, now: VGPUClaim | None) -> None:
        node, uid = _allocated_to(before)
        new_node, new_uid = _allocated_to(now)
        if node != new_node:
            if node:
                on_node = self._on_node[node]
                del on_node[key]
                if not on_node:
                    del self._on_node[node]
            if new_node:
                self._on_node.setdefault(new_node, {})[key] = None
        self._index_immediate(key, now, new_node)
        if uid and self._serving.get(uid) == key:
            del self._serving[uid]
        if new_uid and self._serving.setdefault(new_uid, key) == key:
            pod = self._pods.get(new_uid)
            if pod is not None and pod.claim != key:
                self._remove_pod(pod)
                self._add_pod(self._served(pod))

    def _index_immediate(self, key: ClaimKey, now: VGPUClaim | None, node: str) -> None:
        if now is not None and node and now.spec.binding_mode == "Immediate":
            self._immediate[key] = node
        else:
            self._immediate.pop(key, None)


def _is_live(pod: GPUPod) -> bool:
    return not pod.pod.is_terminal and pod.pod.metadata.deletion_timestamp is None


def _traits(pod: GPUPod) -> Traits:
    return Traits(pod.pod.spec.scheduler_name, pod.priority, pod.group_least)


def _version(pod: GPUPod) -> int:
    return version_of(pod.pod.metadata.resource_version)


def _allocated_to(claim: VGPUClaim | None) -> tuple[str, str]:
    """Return the node of a claim's allocation and its pod's UID, each empty if there is none."""
    if claim is None or claim.status.allocation is None:
        return "", ""
    reserved = claim.status.reserved_for
    return claim.status.allocation.node_name, "" if reserved is None else reserved.pod_uid
