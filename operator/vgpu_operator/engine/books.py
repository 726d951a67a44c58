"""What the engine has seen: asking pods, claims and nodes, each as new as any.

Both the reflectors and our own writes bring versions of the same claims; the newest wins, whoever
brings it. Plain dictionaries: no I/O, no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from vgpu_api.core import Node
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.claim_writer import Key
from vgpu_operator.engine.consumers import Consumer

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
        self._claims: dict[Key, VGPUClaim] = {}
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
        """Take a version of a pod; False when a newer one is known."""
        version = version_of(consumer.pod.metadata.resource_version)
        if consumer.uid in self._gone or version < self._pod_versions.get(consumer.uid, 0):
            return False
        self._forget_consumer(consumer.uid)
        self._consumers[consumer.uid] = consumer
        self._pod_versions[consumer.uid] = version
        self._of_claim.setdefault(consumer.claim, {})[consumer.uid] = consumer
        return True

    def drop_consumer(self, uid: str, *, was_seen: bool = True) -> Consumer | None:
        """The pod is gone; returns what was known of it.

        Where its going was not seen (`was_seen`), it may have been bound unseen before.
        """
        consumer = self._forget_consumer(uid)
        was_bound = not was_seen or consumer is None or consumer.pod.is_bound
        self._bury(uid, was_bound=was_bound)
        return consumer

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
        return consumer

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
        return True

    def drop_claim(self, key: Key, uid: str) -> VGPUClaim | None:
        """The claim with this UID is gone; another of its name may have taken its place."""
        self._bury(uid, was_bound=True)
        known = self._claims.get(key)
        if known is None or known.metadata.uid != uid:
            return None
        return self._claims.pop(key)
