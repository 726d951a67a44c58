"""Compares ResourceClaims with VGPUClaims, for `kubectl vgpu audit`.

In Claims mode a ResourceClaim shows what a VGPUClaim gives a pod. It is looked at in every mode,
since some may be left of a former one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from vgpu_api import dra, quantity
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_POD_UID, FINALIZER_IN_USE
from vgpu_api.resources import PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import NotFound

_AGAIN_S = 2.0
"""Look again after this long, as agents do: writes may be under way at the first look."""
_ENDED = ("Succeeded", "Failed")

Key = tuple[str, str]
"""A namespace and a name."""


@dataclass(frozen=True, slots=True)
class ClaimFinding:
    """A ResourceClaim that disagrees with its VGPUClaim.

    Attributes:
        reason: A reason in CamelCase.
        subject: The namespace and name of the ResourceClaim.
        message: What each of them shows.
    """

    reason: str
    subject: str
    message: str


class ShownShare(NamedTuple):
    """What a ResourceClaim shows of one device."""

    node: str
    device: str
    id: str


Amounts = tuple[Fraction, Fraction] | None
"""Memory and cores; None if they are not shown."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A ResourceClaim with our finalizer or a device of our driver.

    If kube-scheduler allocates it, the operator writes nothing on it: `claim` and `pod_uid` are
    then those of the VGPUClaim that names it, and the shares are without kube-scheduler's ids.
    """

    key: Key
    uid: str
    shares: Mapping[ShownShare, Amounts]
    is_going: bool
    has_finalizer: bool
    claim: str
    pod_uid: str
    consumers: tuple[tuple[str, str], ...]
    is_of_scheduler: bool
    sole: str
    """Its first request: a VGPUClaim that has only one may leave out the container's name."""

    @property
    def subject(self) -> str:
        """Return namespace and name in one word."""
        return "/".join(self.key)

    @property
    def nodes(self) -> set[str]:
        """Return the nodes of the devices."""
        return {share.node for share in self.shares}


async def compare(
    api: Api, *, node: str | None = None, clock: Clock | None = None
) -> Mapping[str, Any] | None:
    """Return the number of ResourceClaims and their findings; None if the kind is not served.

    Args:
        api: A client that may list ResourceClaims, VGPUClaims and pods.
        node: Compare only those with devices of this node.
        clock: Waits between both looks.

    Raises:
        ClientError: The API server is unreachable or refuses a request.
    """
    try:
        number, found = await _look(api, node)
        if found:
            await (clock or Clock()).sleep(_AGAIN_S)
            first = {(each.reason, each.subject) for each in found}
            number, found = await _look(api, node)
            found = [each for each in found if (each.reason, each.subject) in first]
    except NotFound:
        return None
    return {"resourceClaims": number, "findings": [asdict(each) for each in found]}


async def _look(api: Api, node: str | None) -> tuple[int, list[ClaimFinding]]:
    # ResourceClaims first: a VGPUClaim is written before the ResourceClaim that shows it.
    listed = (await api.list(RESOURCE_CLAIMS)).items
    shown = [_read(raw) for raw in listed if _is_touched(raw)]
    claims = [VGPUClaim.read(raw) for raw in (await api.list(VGPU_CLAIMS)).items]
    shown = [_mirrored(each, claims) if each.is_of_scheduler else each for each in shown]
    awaited = await _awaited(api, {each.key[0] for each in shown if not each.shares})
    shown = [each for each in shown if node is None or node in each.nodes]
    found = [
        *_of_shown(shown, claims, awaited),
        *_unshown(claims, {raw["metadata"]["uid"] for raw in listed}, node),
    ]
    return len(shown), sorted(found, key=lambda each: (each.subject, each.reason))


def _mirrored(shown: Shown, claims: Iterable[VGPUClaim]) -> Shown:
    """Return a ResourceClaim that kube-scheduler allocates, with the VGPUClaim that repeats it."""
    for claim in claims:
        allocation, reserved = claim.status.allocation, claim.status.reserved_for
        if allocation is not None and allocation.resource_claim_uid == shown.uid:
            uid = "" if reserved is None else reserved.pod_uid
            return replace(shown, claim=claim.metadata.name, pod_uid=uid)
    first = next((uid for _, uid in shown.consumers), "")
    return replace(shown, pod_uid=first)


def _of_shown(
    shown: Iterable[Shown], claims: Iterable[VGPUClaim], awaited: set[Key]
) -> Iterator[ClaimFinding]:
    """Yield the findings about ResourceClaims, some of which pods wait for."""
    by_key = {(each.metadata.namespace or "", each.metadata.name): each for each in claims}
    for each in shown:
        yield from _of(each, by_key, awaited)


async def _awaited(api: Api, namespaces: Iterable[str]) -> set[Key]:
    """Return the ResourceClaims that pods of these namespaces name which have not ended."""
    return {
        (namespace, name)
        for namespace in sorted(namespaces)
        for pod in (await api.list(PODS, namespace=namespace)).items
        for name in _named(pod)
    }


def _of(shown: Shown, claims: Mapping[Key, VGPUClaim], awaited: set[Key]) -> Iterator[ClaimFinding]:
    """Yield the findings of one ResourceClaim."""
    others = [name for name, uid in shown.consumers if uid != shown.pod_uid]
    if others:
        yield ClaimFinding(
            "ReservedForAnother",
            shown.subject,
            f"it is reserved for {', '.join(others)}, and serves the pod with UID "
            f"{shown.pod_uid or 'unknown'}",
        )
    claim = claims.get((shown.key[0], shown.claim))
    if claim is None or claim.status.allocation is None:
        yield from _unbacked(shown, is_awaited=shown.key in awaited)
    elif shown.shares and (difference := _difference(shown, claim, claim.status.allocation)):
        yield ClaimFinding("ResourceClaimDiffers", shown.subject, difference)


def _unbacked(shown: Shown, *, is_awaited: bool) -> Iterator[ClaimFinding]:
    """Yield the finding of a ResourceClaim for which no VGPUClaim is allocated, if it is one."""
    if shown.shares:
        devices = ", ".join(sorted(share.device for share in shown.shares))
        yield ClaimFinding(
            "AllocationUnbacked",
            shown.subject,
            f"it shows {devices}, and no VGPUClaim has an allocation for it",
        )
    elif shown.has_finalizer and (shown.is_going or not is_awaited):
        yield ClaimFinding(
            "FinalizerLeft",
            shown.subject,
            f"it has the finalizer {FINALIZER_IN_USE}, and nothing is allocated",
        )


def _difference(shown: Shown, claim: VGPUClaim, allocation: Allocation) -> str:
    """Return what a ResourceClaim shows otherwise than its VGPUClaim; empty if nothing.

    Amounts of a claim that was edited are not compared: a resize changes the VGPUClaim only.
    """
    name = f"VGPUClaim {claim.metadata.name}"
    if allocation.resource_claim_uid != shown.uid:
        named = allocation.resource_claim_uid or "none"
        return f"{name} names the ResourceClaim with UID {named}, and this one has {shown.uid}"
    there, held = _compared(shown, claim, allocation)
    if there.keys() != held.keys():
        return f"it shows {_listed(there)}, and {name} gives {_listed(held)}"
    was_edited = (claim.metadata.generation or 1) > 1
    wrong = [share for share, amounts in there.items() if amounts not in (None, held[share])]
    if wrong and not was_edited:
        return f"it shows other amounts of {_listed(wrong)} than {name} gives"
    return ""


def _compared(
    shown: Shown, claim: VGPUClaim, allocation: Allocation
) -> tuple[Mapping[ShownShare, Amounts], Mapping[ShownShare, Amounts]]:
    """Return what a ResourceClaim shows and what its VGPUClaim gives, as far as they must agree.

    Devices of init containers are left out: they are released and allocated again, while a
    ResourceClaim cannot change.
    """
    init = {each.name for each in claim.spec.requests if each.phase == "Init"}
    of_init = {dra.share_id(allocation.id, request) for request in init}
    held = {_share(allocation, each, shown.sole): _amounts(each) for each in allocation.devices}
    held, there = _without(held, of_init), _without(shown.shares, of_init)
    if any(share.id for share in there):
        return there, held
    if init:  # the API server drops shareIDs without its feature gate, so nothing tells them apart
        return {}, {}
    return dict.fromkeys(there), {share._replace(id=""): None for share in held}


def _without(shares: Mapping[ShownShare, Amounts], ids: set[str]) -> dict[ShownShare, Amounts]:
    return {share: amounts for share, amounts in shares.items() if share.id not in ids}


def _unshown(
    claims: Iterable[VGPUClaim], there: set[str], node: str | None
) -> Iterator[ClaimFinding]:
    """Yield the VGPUClaims that name a ResourceClaim which does not exist."""
    for claim in claims:
        allocation = claim.status.allocation
        if allocation is None or node not in (None, allocation.node_name):
            continue
        if allocation.resource_claim_uid not in (*there, ""):
            yield ClaimFinding(
                "ResourceClaimMissing",
                f"{claim.metadata.namespace}/{claim.metadata.name}",
                f"it names the ResourceClaim with UID {allocation.resource_claim_uid}, and there "
                "is none",
            )


def _share(allocation: Allocation, device: AllocatedDevice, sole: str) -> ShownShare:
    share = dra.share_id(allocation.id, device.request or sole)
    return ShownShare(allocation.node_name, dra.device_name(device.uuid), share)


def _amounts(device: AllocatedDevice) -> Amounts:
    return quantity.parse(device.memory), Fraction(device.cores)


def _is_touched(raw: Mapping[str, Any]) -> bool:
    return FINALIZER_IN_USE in raw["metadata"].get("finalizers", ()) or bool(_results(raw))


def _results(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    allocation = (raw.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or []
    return [each for each in results if each.get("driver") == dra.DRIVER]


def _read(raw: Mapping[str, Any]) -> Shown:
    metadata = raw["metadata"]
    annotations = metadata.get("annotations") or {}
    consumers = (raw.get("status") or {}).get("reservedFor") or []
    is_of_scheduler = _is_of_scheduler(raw)
    return Shown(
        key=(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        shares={
            ShownShare(
                each["pool"], each["device"], "" if is_of_scheduler else each.get("shareID", "")
            ): _consumed(each)
            for each in _results(raw)
        },
        is_going="deletionTimestamp" in metadata,
        has_finalizer=FINALIZER_IN_USE in metadata.get("finalizers", ()),
        claim=annotations.get(ANNOTATION_CLAIM, ""),
        pod_uid=annotations.get(ANNOTATION_POD_UID, ""),
        consumers=tuple((each["name"], each["uid"]) for each in consumers),
        sole=next((each["request"] for each in _results(raw)), ""),
        is_of_scheduler=is_of_scheduler,
    )


def _is_of_scheduler(raw: Mapping[str, Any]) -> bool:
    requests = ((raw.get("spec") or {}).get("devices") or {}).get("requests") or ()
    classes = {(each.get("exactly") or {}).get("deviceClassName") for each in requests}
    return dra.SCHEDULER_CLASS in classes


def _consumed(result: Mapping[str, Any]) -> Amounts:
    capacity = result.get("consumedCapacity") or {}
    if "memory" not in capacity or "cores" not in capacity:
        return None
    return quantity.parse(capacity["memory"]), quantity.parse(capacity["cores"])


def _named(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ResourceClaims that a pod names, if it has not ended."""
    if (pod.get("status") or {}).get("phase") in _ENDED:
        return
    entries = pod["spec"].get("resourceClaims") or ()
    yield from (each["resourceClaimName"] for each in entries if "resourceClaimName" in each)


def _listed(shares: Iterable[ShownShare]) -> str:
    return ", ".join(sorted(f"{each.device} on {each.node}" for each in shares)) or "nothing"
