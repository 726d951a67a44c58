"""Finds the pod of a ResourceClaim, and which of its containers uses which request.

The kubelet names the ResourceClaim and not the pod. A ResourceClaim of ours serves one pod, because
the kubelet asks for no second preparation when another pod joins it. Each container has a request
of its own, because the containers of one request would share one page and one limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vgpu_api.core.pod import Container, Pod
from vgpu_nodeagent.errors import Refused, Why


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """The ResourceClaim that the kubelet names."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClaimUsers:
    """The pod of a ResourceClaim, and the request that each of its containers uses.

    The request is empty for a container that uses all requests of the claim.
    """

    pod: Pod
    requests: Mapping[str, str]


def find_users(ref: ClaimRef, pods: Iterable[Pod]) -> ClaimUsers:
    """Return the only pod that uses the claim, and its containers.

    Args:
        ref: The ResourceClaim.
        pods: The pods of this node.

    Raises:
        Refused: No pod or several pods use it, or its containers share a request.
    """
    users = [pod for pod in pods if not pod.is_terminal and _entries(pod, ref)]
    if not users:
        raise Refused(
            Why.POD_UNKNOWN, f"no pod that uses ResourceClaim {ref} has been seen on this node yet"
        )
    if len(users) > 1:
        names = ", ".join(sorted(pod.metadata.name for pod in users))
        raise Refused(
            Why.RESOURCE_CLAIM_SHARED,
            f"ResourceClaim {ref} is used by several pods ({names}): one of driver vgpu.dev serves "
            "one pod",
        )
    return ClaimUsers(users[0], _requests(users[0], ref))


def joins(pod: Pod, other: Pod) -> bool:
    """Return True if two pods use a ResourceClaim together."""
    if pod.metadata.namespace != other.metadata.namespace or other.is_terminal:
        return False
    return not set(_claim_names(pod).values()).isdisjoint(_claim_names(other).values())


def _claim_names(pod: Pod) -> Mapping[str, str]:
    """Return the ResourceClaim of each entry of the pod's `resourceClaims` that has one."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    named = ((e.name, e.resource_claim_name or made.get(e.name)) for e in pod.spec.resource_claims)
    return {entry: name for entry, name in named if name}


def _entries(pod: Pod, ref: ClaimRef) -> frozenset[str]:
    """Return the entries of the pod's `resourceClaims` that stand for the claim."""
    if (pod.metadata.namespace or "") != ref.namespace:
        return frozenset()
    return frozenset(entry for entry, name in _claim_names(pod).items() if name == ref.name)


@dataclass(frozen=True, slots=True)
class _ClaimUse:
    """The use of a claim by a container, and the field that says so."""

    container: str
    request: str
    field: str


def _requests(pod: Pod, ref: ClaimRef) -> Mapping[str, str]:
    entries = _entries(pod, ref)
    uses = [use for entry, use in _uses(pod) if entry in entries]
    if not uses:
        raise Refused(
            Why.REQUEST_MISMATCH,
            f"no container of pod {pod.metadata.namespace}/{pod.metadata.name} uses ResourceClaim "
            f"{ref}: set resources.claims of the containers that need a GPU",
        )
    for number, use in enumerate(uses):
        for former in uses[:number]:
            _refuse_together(former, use)
    return {use.container: use.request for use in uses}


def _uses(pod: Pod) -> Iterator[tuple[str, _ClaimUse]]:
    """Yield every use of an entry of the pod's `resourceClaims`."""
    sections: tuple[tuple[str, Sequence[Container]], ...] = (
        ("initContainers", pod.spec.init_containers),
        ("containers", pod.spec.containers),
    )
    for section, containers in sections:
        for number, container in enumerate(containers):
            for place, used in enumerate(container.resources.claims):
                field = f"spec.{section}[{number}].resources.claims[{place}].request"
                yield used.name, _ClaimUse(container.name, used.request, field)


def _refuse_together(former: _ClaimUse, use: _ClaimUse) -> None:
    wrong = f'{use.field}: Invalid value: "{use.request}": '
    if former.container == use.container:
        raise Refused(
            Why.REQUEST_MISMATCH,
            f"{wrong}container {use.container} names several requests of the claim; leave the "
            "request out to use all of them",
        )
    if former.request == use.request or "" in (former.request, use.request):
        raise Refused(
            Why.REQUEST_MISMATCH,
            f"{wrong}container {former.container} uses it too; each container needs a request of "
            "its own, because limits are per container",
        )
