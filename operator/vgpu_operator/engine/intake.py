"""What is brought in: every change that the reflectors and our own writes show.

Here books and ledger are told, and whoever must be looked at because of it is put in a queue;
nothing is decided. A change may come late, twice or out of order, and in a replica that does not
lead: the books and the ledger bear that, and the queues wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node, Pod, ResourceQuota
from vgpu_api.v1alpha1 import GPUDevice, Metadata, VGPUClaim
from vgpu_operator.engine.books import Books, key_of, version_of
from vgpu_operator.engine.claim_writer import Key
from vgpu_operator.engine.consumers import Consumer, consumer_of
from vgpu_operator.engine.hints import Hints
from vgpu_operator.engine.immediate import ImmediateQueue
from vgpu_operator.engine.link_watch import LinkWatch
from vgpu_operator.engine.pod_queue import PodQueue
from vgpu_operator.engine.scheduler import Scheduler
from vgpu_operator.engine.starvation import Starvation
from vgpu_operator.engine.teller import Teller
from vgpu_operator.engine.typical import Typical
from vgpu_operator.ledger import Ledger


class Intake:
    """Takes notes of what changes.

    Args:
        config: Defaults, and the names of resources.
        books: What was seen.
        ledger: Who holds what.
        scheduler: Its reservations and rules of nodes go with what is gone.
        teller: Forgets what it told of claims that are gone.
        starvation: Forgets who waits no longer.
        hints: Forgets pods that need none.
        link_watch: Looks at what cards say of each other.
        pods: Pods to be placed.
        immediate: Immediate claims to be placed.
        note: Has a claim tended.
        wake: Asks for a round.
    """

    def __init__(
        self,
        *,
        config: ClusterConfig,
        books: Books,
        ledger: Ledger,
        scheduler: Scheduler,
        teller: Teller,
        starvation: Starvation,
        hints: Hints,
        link_watch: LinkWatch,
        pods: PodQueue,
        immediate: ImmediateQueue,
        note: Callable[[Key], None],
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._books = books
        self._ledger = ledger
        self._scheduler = scheduler
        self._teller = teller
        self._starvation = starvation
        self._hints = hints
        self._link_watch = link_watch
        self._pods = pods
        self._immediate = immediate
        self._note = note
        self._wake = wake
        self._pods_listed = -1
        self._typical = Typical(config, ledger.columns, scheduler.pod_claims.spec_for)

    def pod_changed(self, pod: Pod) -> Consumer | None:
        """A pod was seen; returns it as a consumer if it asks for GPUs."""
        known = self._books.consumer(pod.metadata.uid)
        consumer = consumer_of(pod, self._config) or (known and replace(known, pod=pod))
        if self._books.is_gone(pod.metadata.uid):
            return None
        has_come = self._ledger.hosts.apply_pod(pod)
        if consumer is None:
            if has_come:
                self._typical.came_without(pod)
            return None
        if known is None:
            self._typical.asked(consumer)
        if self._books.put_consumer(consumer):
            if consumer.wants_node or consumer.lacks_grant:
                self._pods.seen(consumer.uid)
            else:
                self._forget(consumer.uid)
            self._note(consumer.claim)
            if consumer.template is not None:
                self._note(consumer.template)
        return self._books.consumer(consumer.uid)

    def pod_gone(self, uid: str, *, was_seen: bool = True) -> None:
        """A pod is gone; where its going was not seen it may have had a node."""
        consumer = self._books.drop_consumer(uid, was_seen=was_seen)
        self._ledger.hosts.remove_pod(uid)
        self._forget(uid)
        self._pods.gone(uid)
        if consumer is not None:
            self._starvation.over(consumer.claim)
            self._note(consumer.claim)

    def pod_told(self, pod: Pod) -> Consumer | None:
        """As `pod_changed`, of a pod as kube-scheduler knows it, which may be of the past."""
        if self._books.consumer(pod.metadata.uid) is None and self._is_of_the_past(pod):
            return None
        return self.pod_changed(pod)

    def pods_listed(self, version: int, uids: Iterable[str]) -> None:
        """All pods that there were at a version have been told.

        Filters tell of pods, too, and of one that came and went while nobody watched nobody says
        that it has gone.
        """
        self._pods_listed, present = version, frozenset(uids)
        for consumer in list(self._books.consumers()):
            if consumer.uid not in present and self._is_of_the_past(consumer.pod):
                self.pod_gone(consumer.uid, was_seen=False)

    def _is_of_the_past(self, pod: Pod) -> bool:
        """Whether the last list had this version of the pod, if there still was such a pod."""
        return version_of(pod.metadata.resource_version) <= self._pods_listed

    def claim_changed(self, claim: VGPUClaim) -> None:
        """A version of a claim was seen or written."""
        if not self._books.put_claim(claim):
            return
        self._ledger.apply_claim(claim)
        key = key_of(claim)
        if claim.status.allocation is None:
            self._drop_reservation(key)  # it was made of what has been released
        self._note(key)
        for consumer in (*self._books.consumers_of(key), *self._books.copies_of(key)):
            self._pods.claim_changed(consumer.uid, has_cards=claim.status.allocation is not None)

    def claim_gone(self, key: Key, uid: str) -> None:
        """A claim is gone."""
        self._ledger.remove_claim(uid)
        if self._books.drop_claim(key, uid) is None:
            return
        self._drop_reservation(key)
        for consumer in self._books.consumers_of(key):
            if consumer.wants_node:
                self._pods.put(consumer.uid)
        self._teller.forget(key)
        self._immediate.drop(key)
        self._wake()

    def _drop_reservation(self, key: Key) -> None:
        """Drop what stood in the claim; one that is being written ends with its write."""
        reservation = self._scheduler.reservations.of_claim(key)
        if reservation is not None and reservation.written.done():
            self._scheduler.reservations.drop(reservation)

    def claim_unreadable(self, uid: str, raw: dict[str, Any]) -> None:
        """A claim cannot be read: its cards count as full until it can, and it is left alone."""
        metadata = raw["metadata"]
        key = (metadata.get("namespace") or "", metadata["name"])
        self._books.put_unreadable(key, uid, version_of(metadata["resourceVersion"]))
        self._ledger.mark_unreadable(uid, raw)

    def node_changed(self, node: Node) -> None:
        """A node was seen."""
        known = self._books.nodes.get(node.metadata.name)
        self._books.nodes[node.metadata.name] = node
        if known is None or _rules_of(known) != _rules_of(node):
            self._scheduler.barred.changed(node.metadata.name)
        self._ledger.apply_node(node)
        if known is not None and known.metadata.uid != node.metadata.uid:
            self._note_claims_on(node.metadata.name)

    def node_gone(self, name: str) -> None:
        """A node is gone: claims on it are released."""
        self._books.nodes.pop(name, None)
        self._scheduler.barred.changed(name)
        self._ledger.remove_node(name)
        self._note_claims_on(name)

    def node_unreadable(self, name: str, uid: str) -> None:
        """A node cannot be read: it is there, so nothing on it is free."""
        if name not in self._books.nodes:
            self._books.nodes[name] = Node(metadata=Metadata(name=name, uid=uid))

    def _note_claims_on(self, name: str) -> None:
        for claim in self._books.claims():
            if claim.status.allocation and claim.status.allocation.node_name == name:
                self._note(key_of(claim))

    def device_changed(self, device: GPUDevice) -> None:
        """A device was seen."""
        self._ledger.apply_device(device)
        self._link_watch.device_changed(device)

    def device_gone(self, name: str) -> None:
        """A device is gone."""
        self._ledger.remove_device(name)
        self._link_watch.device_gone(name)

    def quota_changed(self, quota: ResourceQuota) -> None:
        """A quota was seen: who waits in its namespace may fit now."""
        self._ledger.apply_quota(quota)
        self._try_again_in(quota.metadata.namespace or "")

    def quota_gone(self, namespace: str, name: str) -> None:
        """A quota is gone."""
        self._ledger.remove_quota(namespace, name)
        self._try_again_in(namespace)

    def _try_again_in(self, namespace: str) -> None:
        self._pods.something_changed(namespace=namespace)
        self._immediate.hurry(namespace)

    def _forget(self, uid: str) -> None:
        self._pods.forget(uid)
        self._hints.forget(uid)


def _rules_of(node: Node) -> tuple[object, ...]:
    """What of a node says which pods it takes, whatever its state."""
    return node.metadata.labels, node.spec.taints
