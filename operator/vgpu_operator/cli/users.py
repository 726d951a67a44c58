"""Finds the pods that use devices through their claims, and deletes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vgpu_api.resources import NODES, PODS
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import NotFound
from vgpu_client.transport import Object

_POLL_S = 0.5
_NAMED = 10
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Users:
    """Pods that have not ended and whose claims are allocated."""

    pods: tuple[Object, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.pods)

    def names(self) -> list[str]:
        """Return the first names, and the number of the others."""
        shown = [_name(pod) for pod in self.pods[:_NAMED]]
        more = len(self.pods) - len(shown)
        return [*shown, f"(and {more} more)"] if more else shown


def users_of(claims: Iterable[Object], pods: Iterable[Object]) -> Users:
    """Return the pods for which these claims are allocated."""
    reserved = {
        (claim.get("status") or {}).get("reservedFor", {}).get("podUID", "")
        for claim in claims
        if (claim.get("status") or {}).get("allocation")
    }
    return Users(
        tuple(
            pod
            for pod in pods
            if pod["metadata"]["uid"] in reserved
            and (pod.get("status") or {}).get("phase") not in _ENDED
        )
    )


async def delete_pods(
    api: Api,
    users: Users,
    *,
    limit_s: float,
    clock: Clock,
    force: bool = False,
) -> list[str]:
    """Delete pods and wait until they are gone.

    Args:
        api: An administrator's client.
        users: The pods.
        limit_s: Seconds to wait.
        clock: Waits.
        force: Delete without waiting for the kubelet; always done on nodes that are not Ready.

    Returns:
        A sentence about each pod that still exists.

    Raises:
        ClientError: The API server is unreachable or refuses a request.
    """
    dead = [
        node["metadata"]["name"] for node in (await api.list(NODES)).items if not _is_ready(node)
    ]
    for pod in users.pods:
        # A kubelet that is down never confirms a deletion, so the pod would stay forever.
        lost = force or pod["spec"].get("nodeName") in dead
        metadata = pod["metadata"]
        try:
            await api.delete(
                PODS,
                metadata["name"],
                namespace=metadata["namespace"],
                uid=metadata["uid"],
                grace_s=0 if lost else None,
            )
        except NotFound:
            continue
    waited = 0.0
    while left := await _left(api, users.pods):
        if waited >= limit_s:
            return [f"pod {_name(pod)} has not ended" for pod in left]
        await clock.sleep(_POLL_S)
        waited += _POLL_S
    return []


async def _left(api: Api, pods: Sequence[Object]) -> list[Object]:
    there = {pod["metadata"]["uid"] for pod in (await api.list(PODS)).items}
    return [pod for pod in pods if pod["metadata"]["uid"] in there]


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
