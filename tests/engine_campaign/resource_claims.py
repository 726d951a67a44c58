"""ResourceClaims in Claims mode: kube-scheduler and the controllers that use them, and their rules.

They act by what the API server holds, as Kubernetes' plugin DynamicResources, its controller of
ResourceClaims and the kubelet do.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vgpu_api.resources import PODS, RESOURCE_CLAIMS
from vgpu_api.v1alpha1 import Allocation, VGPUClaim

if TYPE_CHECKING:
    from .judge import Judge
    from .server import Server

Raw = dict[str, Any]
_ENTRY = "vgpu"
_ENDED = ("Succeeded", "Failed")


def name_of(pod: Mapping[str, Any]) -> str:
    """Return the name of the ResourceClaim that a pod names; empty if it names none."""
    entries = pod["spec"].get("resourceClaims") or []
    return next((str(each["resourceClaimName"]) for each in entries if each["name"] == _ENTRY), "")


def node_of_claim(claim: Mapping[str, Any] | None) -> str:
    """Return the node that an allocated ResourceClaim allows; empty if it is not allocated."""
    allocation = ((claim or {}).get("status") or {}).get("allocation")
    if not allocation:
        return ""
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    (field,) = term["matchFields"]
    (node,) = field["values"]
    return str(node)


def usable_by(server: Server, pod: Mapping[str, Any]) -> Raw | None:
    """Return the allocated ResourceClaim by which a pod may be bound and prepared, or None."""
    name = name_of(pod)
    claim = server.find(RESOURCE_CLAIMS, name) if name else None
    if claim is None or not node_of_claim(claim):
        return None
    owners = {owner["uid"] for owner in claim["metadata"].get("ownerReferences", ())}
    is_going = bool(claim["metadata"].get("deletionTimestamp"))
    return None if is_going or pod["metadata"]["uid"] not in owners else claim


def reserve(server: Server, pod: Mapping[str, Any], claim: Raw) -> None:
    """Reserve a ResourceClaim for a pod."""
    metadata = pod["metadata"]
    user = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
    if user not in claim["status"].get("reservedFor", ()):
        claim["status"]["reservedFor"] = [user]
        server.put(RESOURCE_CLAIMS, claim)


def take_away(server: Server, pod: Mapping[str, Any]) -> None:
    """Take the allocation away, as kube-scheduler does if another node would fit."""
    claim = usable_by(server, pod)
    if claim is not None and not claim["status"].get("reservedFor"):
        del claim["status"]["allocation"]
        server.put(RESOURCE_CLAIMS, claim)


def is_prepared(server: Server, pod: Mapping[str, Any], allocation: Allocation) -> bool:
    """Return True if the kubelet asks for the pod's claim, and the agent prepares it."""
    if not name_of(pod):
        return True
    claim = usable_by(server, pod)
    if claim is None or allocation.resource_claim_uid != claim["metadata"]["uid"]:
        return False
    users = claim["status"].get("reservedFor", ())
    return any(user["uid"] == pod["metadata"]["uid"] for user in users)


def control(server: Server) -> None:
    """Delete claims of pods that are gone, reserve those of bound pods, release those of ended."""
    pods = {pod["metadata"]["uid"]: pod for pod in server.all(PODS)}
    for claim in server.all(RESOURCE_CLAIMS):
        owners = claim["metadata"].get("ownerReferences", ())
        if owners and all(owner["uid"] not in pods for owner in owners):
            server.remove(RESOURCE_CLAIMS, claim["metadata"]["name"])
    for claim in server.all(RESOURCE_CLAIMS):
        users = (claim.get("status") or {}).get("reservedFor") or []
        kept = [user for user in users if _uses(pods.get(user["uid"]))]
        if kept != users:
            found = server.find(RESOURCE_CLAIMS, claim["metadata"]["name"])
            assert found is not None
            found["status"]["reservedFor"] = kept
            server.put(RESOURCE_CLAIMS, found)
    for pod in pods.values():
        if pod["spec"].get("nodeName") and _uses(pod):
            usable = usable_by(server, pod)
            if usable is not None:
                reserve(server, pod, usable)


def _uses(pod: Mapping[str, Any] | None) -> bool:
    return pod is not None and pod["status"].get("phase") not in _ENDED


class HandedOver:
    """Judges ResourceClaims: allocated after their VGPUClaims, like them, and gone with them.

    Args:
        judge: Knows pods and VGPUClaims, and receives what is found.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._shares: dict[str, set[tuple[str, str, str]]] = {}
        """By the id of a VGPUClaim's allocation, all that it has had. Init containers give devices
        back, and a ResourceClaim cannot change while it is allocated."""
        self._there: dict[str, Mapping[str, Any]] = {}

    def claim(self, claim: VGPUClaim) -> None:
        """Note what a VGPUClaim gives its pod."""
        allocation = claim.status.allocation
        if allocation is not None:
            self._shares.setdefault(allocation.id, set()).update(_shares(allocation))

    def resource_claim(self, obj: Mapping[str, Any], *, gone: bool, by: str) -> None:
        """Check a change of a ResourceClaim."""
        name = obj["metadata"]["name"]
        before = self._there.pop(name, None)
        if gone:
            return
        self._there[name] = obj
        shown = _shown(obj)
        if by != "world" and not shown <= set[tuple[str, str, str]]().union(*self._shares.values()):
            self._judge.broken("early", f"ResourceClaim {name} shows what no VGPUClaim had")
        was_reserved = before is not None and bool(_users(before))
        if was_reserved or not _users(obj) & self._judge.there or self._judge.may_be_unaware:
            return  # kube-scheduler also reserves for a pod that is gone already, and binds nothing
        if not shown <= self._held() and not self._is_bound_elsewhere(obj):
            self._judge.broken("reserved", f"{name} is reserved, and its VGPUClaim is not so")

    def restored(self, objects: Mapping[str, Mapping[str, Any]]) -> None:
        """Take an older state of all ResourceClaims."""
        self._there = dict(objects)

    def at_rest(self) -> None:
        """Check that each ResourceClaim has its pod, and that its devices are held for it."""
        held = self._held()
        for name, claim in sorted(self._there.items()):
            owners = {owner["uid"] for owner in claim["metadata"].get("ownerReferences", ())}
            if not owners & self._judge.there:
                self._judge.broken("leak", f"ResourceClaim {name} is left by a pod that is gone")
            elif not _shown(claim) <= held and not self._is_bound_elsewhere(claim):
                self._judge.broken("stale", f"ResourceClaim {name} shows what is not held")

    def emptied(self) -> None:
        """Check that none is left."""
        for name in sorted(self._there):
            self._judge.broken("leak", f"ResourceClaim {name} is left")

    def _is_bound_elsewhere(self, claim: Mapping[str, Any]) -> bool:
        """Return True if the claim's pod was bound to another node than the claim allows.

        Kubernetes reserves the claim nevertheless, and it cannot be changed until the pod is gone.
        """
        owners = {owner["uid"] for owner in claim["metadata"].get("ownerReferences", ())}
        bound = {self._judge.pods[uid].spec.node_name for uid in owners if uid in self._judge.pods}
        return not bound <= {"", node_of_claim(claim)}

    def _held(self) -> set[tuple[str, str, str]]:
        """Return what ResourceClaims may show."""
        held: set[tuple[str, str, str]] = set()
        for claim in self._judge.claims.values():
            if claim.status.allocation is not None:
                held |= self._shares[claim.status.allocation.id]
        return held


def _shares(allocation: Allocation) -> set[tuple[str, str, str]]:
    """Return node, device and shareID of each device of an allocation."""
    return {
        (
            allocation.node_name,
            device.uuid.lower(),
            str(uuid.uuid5(uuid.UUID(allocation.id), device.request)),
        )
        for device in allocation.devices
    }


def _shown(claim: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    """Return node, device and shareID of each result of a ResourceClaim."""
    node = node_of_claim(claim)
    if not node:
        return set()
    results = claim["status"]["allocation"]["devices"]["results"]
    return {(node, each["device"], each["shareID"]) for each in results}


def _users(claim: Mapping[str, Any]) -> set[str]:
    """Return the UIDs of the pods for which a ResourceClaim is reserved."""
    users = (claim.get("status") or {}).get("reservedFor") or []
    return {str(user["uid"]) for user in users}
