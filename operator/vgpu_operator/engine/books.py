"""What the engine has seen: asking pods, claims and nodes, each as new as any.

Both the reflectors and our own writes bring versions of the same claims; the newest wins, whoever
brings it. Plain dictionaries: no I/O, no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

from vgpu_api.core import Node
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.claim_writer import Key
from vgpu_operator.engine.consumers import Consumer, is_owned_by

_GONE_REMEMBERED = 50_000


def key_of(claim: VGPUClaim) -> Key:
    """The claim's namespace and name."""
    return (claim.metadata.namespace or "", claim.metadata.name)


def version_of(resource_version: str) -> int:
    """A resourceVersion as a number; resourceVersions of one kind are ordered so."""
    return int(resource_version or 0)


class Books:
    """Asking pods by UID and by claim, claims by key, nodes by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._consumers: dict[str, Consumer] = {}
        self._of_claim: dict[Key, dict[str, Consumer]] = {}
        self._pod_versions: dict[str, int] = {}
        self._copies: dict[Key, set[str]] = {}  # template → UIDs of the pods that name it
        self._claims: dict[Key, VGPUClaim] = {}
        self._unreadable: dict[Key, tuple[str, int]] = {}  # UID and version
        self._serving: dict[str, Key] = {}  # pod UID → the claim whose cards are its
        # An answer or a Filter may come after the deletion was seen: what is gone stays gone.
        self._gone: OrderedDict[str, bool] = OrderedDict()

    # Pods.

    def consumer(self, uid: str) -> Consumer | None:
        """The asking pod with this UID."""
        return self._consumers.get(uid)

    def consumers(self) -> Iterator[Consumer]:
        """All asking pods."""
        return iter(self._consumers.values())

    def consumers_of(self, claim: Key) -> list[Consumer]:
        """The pods that a claim serves or should serve."""
        return list(self._of_claim.get(claim, {}).values())

    def put_consumer(self, consumer: Consumer) -> bool:
        """Take a version of a pod; False when a newer one is known.

        What a pod asks for is what it asked for first, and the claim that serves it is its claim,
        whatever its annotations say later: a running pod does not change its cards.
        """
        version = version_of(consumer.pod.metadata.resource_version)
        if consumer.uid in self._gone or version < self._pod_versions.get(consumer.uid, 0):
            return False
        known = self._forget_consumer(consumer.uid)
        if known is not None and not isinstance(known.ask, BadInput):
            consumer = replace(known, pod=consumer.pod)
        self._add_consumer(self._served(consumer), version)
        return True

    def is_template(self, claim: Key) -> bool:
        """Whether a pod names this claim as the template of its own."""
        return claim in self._copies

    def copies_of(self, template: Key) -> list[Consumer]:
        """The pods that want a copy of a template."""
        return [self._consumers[uid] for uid in sorted(self._copies.get(template, ()))]

    def drop_consumer(self, uid: str, *, was_seen: bool = True) -> Consumer | None:
        """The pod is gone; returns what was known of it.

        Where its going was not seen (`was_seen`), it may have been bound unseen before.
        """
        consumer = self._forget_consumer(uid)
        was_bound = not was_seen or consumer is None or consumer.pod.is_bound
        self._bury(uid, was_bound=was_bound)
        return consumer

    def is_gone(self, uid: str) -> bool:
        """Whether a pod, or a claim, was seen to go: whatever comes of it now comes late."""
        return uid in self._gone

    def was_never_bound(self, uid: str) -> bool:
        """Whether a pod was seen to go without ever having had a node."""
        return self._gone.get(uid) is False

    def _bury(self, uid: str, *, was_bound: bool) -> None:
        self._gone[uid] = was_bound
        if len(self._gone) > _GONE_REMEMBERED:
            self._gone.popitem(last=False)

    def _forget_consumer(self, uid: str) -> Consumer | None:
        consumer = self._consumers.pop(uid, None)
        if consumer is not None:
            del self._pod_versions[uid]
            of_claim = self._of_claim[consumer.claim]
            del of_claim[uid]
            if not of_claim:
                del self._of_claim[consumer.claim]
            copies = self._copies.get(consumer.template) if consumer.template else None
            if copies is not None and consumer.template is not None:
                copies.discard(uid)
                if not copies:
                    del self._copies[consumer.template]
        return consumer

    def _add_consumer(self, consumer: Consumer, version: int) -> None:
        self._consumers[consumer.uid] = consumer
        self._pod_versions[consumer.uid] = version
        self._of_claim.setdefault(consumer.claim, {})[consumer.uid] = consumer
        if consumer.template is not None:
            self._copies.setdefault(consumer.template, set()).add(consumer.uid)

    def _served(self, consumer: Consumer) -> Consumer:
        """The pod with the claim that serves it already, if one does."""
        claim = self._claims.get(self._serving.get(consumer.uid, consumer.claim))
        if claim is None or key_of(claim) == consumer.claim:
            return consumer
        return replace(consumer, claim=key_of(claim), owned=is_owned_by(claim, consumer.uid))

    # Claims.

    def claim(self, key: Key) -> VGPUClaim | None:
        """The newest version of a claim."""
        return self._claims.get(key)

    def claims(self) -> Iterator[VGPUClaim]:
        """All claims."""
        return iter(self._claims.values())

    def put_claim(self, claim: VGPUClaim) -> bool:
        """Take a version of a claim; False when it is not newer than the one that is known."""
        key = key_of(claim)
        known = self._claims.get(key)
        new = version_of(claim.metadata.resource_version)
        if claim.metadata.uid in self._gone:
            return False
        if known is not None and new <= version_of(known.metadata.resource_version):
            return False
        self._claims[key] = claim
        if new >= self._unreadable.get(key, ("", 0))[1]:
            self._unreadable.pop(key, None)
        self._note_serving(key, known, claim)
        return True

    def put_unreadable(self, key: Key, uid: str, version: int) -> None:
        """A version of a claim that cannot be read; what was known of it before is old."""
        if uid not in self._gone:
            self._unreadable[key] = (uid, version)

    def is_unreadable(self, key: Key) -> bool:
        """Whether the newest version of a claim cannot be read."""
        return key in self._unreadable

    def drop_claim(self, key: Key, uid: str) -> VGPUClaim | None:
        """The claim with this UID is gone; another of its name may have taken its place."""
        self._bury(uid, was_bound=True)
        if self._unreadable.get(key, ("", 0))[0] == uid:
            del self._unreadable[key]
        known = self._claims.get(key)
        if known is None or known.metadata.uid != uid:
            return None
        self._note_serving(key, known, None)
        return self._claims.pop(key)

    def _note_serving(self, key: Key, before: VGPUClaim | None, now: VGPUClaim | None) -> None:
        uid = _pod_served(before)
        if uid and self._serving.get(uid) == key:
            del self._serving[uid]
        uid = _pod_served(now)
        if uid and self._serving.setdefault(uid, key) == key:
            consumer = self._consumers.get(uid)
            if consumer is not None and consumer.claim != key:
                version = self._pod_versions[uid]
                self._forget_consumer(uid)
                self._add_consumer(self._served(consumer), version)


def _pod_served(claim: VGPUClaim | None) -> str:
    """The UID of the pod whose the claim's cards are; empty without cards or pod."""
    if claim is None or claim.status.allocation is None or claim.status.reserved_for is None:
        return ""
    return claim.status.reserved_for.pod_uid
