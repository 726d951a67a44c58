"""The observed ResourceClaims of our classes, the newest version of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from vgpu_api.core import ResourceClaim
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_POD_UID
from vgpu_api.v1alpha1.base import version_of
from vgpu_client.recorder import Regarding
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.ledger import ClaimKey


class ResourceKey(NamedTuple):
    """The namespace and name of a ResourceClaim."""

    namespace: str
    name: str


def resource_key(claim: ResourceClaim) -> ResourceKey:
    """Return the key of a ResourceClaim."""
    return ResourceKey(claim.metadata.namespace or "", claim.metadata.name)


def resource_claim_of(pod: GPUPod) -> ResourceKey:
    """Return the key of the ResourceClaim through which a pod gets its devices."""
    return ResourceKey(pod.pod.metadata.namespace or "", pod.resource_claim)


def vgpu_claim_of(claim: ResourceClaim) -> ClaimKey:
    """Return the key of the VGPUClaim that a ResourceClaim shows, as the operator noted in it.

    The VGPUClaim's name is empty if the operator has not allocated the ResourceClaim yet.
    """
    metadata = claim.metadata
    return ClaimKey(metadata.namespace or "", metadata.annotations.get(ANNOTATION_CLAIM, ""))


def served(claim: ResourceClaim) -> str:
    """Return the UID of the pod for which a ResourceClaim is, or last was; empty if for none."""
    return claim.metadata.annotations.get(ANNOTATION_POD_UID, "")


def is_for(claim: ResourceClaim, pod_uid: str) -> bool:
    """Return True if the operator has made or allocated a ResourceClaim for this pod."""
    return bool(pod_uid) and served(claim) == pod_uid


class ResourceClaims:
    """ResourceClaims by namespace and name."""

    def __init__(self) -> None:
        self._known: dict[ResourceKey, ResourceClaim] = {}
        self._showing: dict[ClaimKey, set[ResourceKey]] = {}

    def __iter__(self) -> Iterator[ResourceClaim]:
        return iter(list(self._known.values()))

    def get(self, key: ResourceKey) -> ResourceClaim | None:
        """Return the newest version of a claim, or None."""
        return self._known.get(key)

    def showing(self, claim: ClaimKey) -> Collection[ResourceKey]:
        """Return the ResourceClaims that show a VGPUClaim: one, unless somebody forged others."""
        return self._showing.get(claim, ())

    def put(self, claim: ResourceClaim) -> bool:
        """Store a claim; return False if the known version is at least as new."""
        key = resource_key(claim)
        known, version = self._known.get(key), version_of(claim.metadata.resource_version)
        if known is not None and version <= version_of(known.metadata.resource_version):
            return False
        self.remove(key)
        self._known[key] = claim
        self._showing.setdefault(vgpu_claim_of(claim), set()).add(key)
        return True

    def remove(self, key: ResourceKey) -> None:
        """Forget a claim."""
        known = self._known.pop(key, None)
        if known is not None:
            showing = self._showing[vgpu_claim_of(known)]
            showing.discard(key)
            if not showing:
                del self._showing[vgpu_claim_of(known)]


class OtherPods:
    """Pods that name ResourceClaims through which they get no devices.

    Attributes:
        regarding: These pods as the subjects of events, by UID.
    """

    def __init__(self) -> None:
        self.regarding: dict[str, Regarding] = {}
        self._claims: dict[str, frozenset[ResourceKey]] = {}
        self._pods: dict[ResourceKey, set[str]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._claims)

    def put(self, uid: str, claims: Iterable[ResourceKey]) -> bool:
        """Store the claims that a pod names; return True if it names any that it did not."""
        named, known = frozenset(claims), self._claims.pop(uid, frozenset())
        for key in known - named:
            self._pods[key].discard(uid)
            if not self._pods[key]:
                del self._pods[key]
        if not named:
            self.regarding.pop(uid, None)
            return False
        self._claims[uid] = named
        for key in named:
            self._pods.setdefault(key, set()).add(uid)
        return named != known

    def claims_of(self, uid: str) -> Collection[ResourceKey]:
        """Return the claims that a pod names."""
        return self._claims.get(uid, ())

    def pods_of(self, claim: ResourceKey) -> Collection[str]:
        """Return the UIDs of the pods that name a claim."""
        return self._pods.get(claim, ())
