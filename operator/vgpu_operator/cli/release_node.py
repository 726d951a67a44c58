"""`kubectl vgpu release --node NODE`: report on behalf of a lost agent that devices are unused.

An agent reports the end of an allocation in `status.released`, and the operator then frees the
devices. If a node is lost but its Node object remains, an administrator can report this at once
instead of waiting until the agent counts as gone. The policy `vgpu-claim-status` lets only the
agents and the operator write a claim's status, so the command impersonates the operator's
ServiceAccount, and the user needs permission to impersonate it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vgpu_api.agent_pods import is_agent_pod
from vgpu_api.core import Node, Pod
from vgpu_api.names import AGENT_NAMESPACE, OPERATOR_USER
from vgpu_api.resources import NODES, PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import Conflict, NotFound
from vgpu_client.transport import Object
from vgpu_operator.cli.listing import listed
from vgpu_operator.cli.users import Users, delete_pods, users_of

_END_S = 90.0
_OPERATOR_S = 30.0
_POLL_S = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The claims on a node that the command will release.

    Attributes:
        claims: The claims that are allocated on the node.
        users: Their pods that have not ended.
    """

    claims: tuple[Object, ...]
    users: Users

    def lines(self, node: str) -> list[str]:
        """Return the steps of the plan, one line each."""
        pods = [f"force-delete {len(self.users)} pods on node {node}"] if self.users else []
        return [*pods, *(f"release claim {_name(claim)}" for claim in self.claims)]


class ReleaseNode:
    """A command that frees all devices allocated on one node.

    Args:
        api: An administrator's client.
        say: Prints a line.
        node: The name of the node.
        delete_pods: Delete pods that have not ended; otherwise they are obstacles.
        clock: Waits.
    """

    def __init__(
        self,
        api: Api,
        say: Say,
        *,
        node: str,
        delete_pods: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._say = say
        self._node = node
        self._delete_pods = delete_pods
        self._clock = clock or Clock()

    async def plan(self) -> NodePlan:
        """Read the claims and pods of the node.

        Raises:
            ClientError: Claims or pods cannot be read.
        """
        claims = await self._allocated()
        return NodePlan(tuple(claims), users_of(claims, (await self._api.list(PODS)).items))

    async def obstacles(self, plan: NodePlan) -> list[str]:
        """Return the reasons not to start.

        Raises:
            ClientError: The node or the agents' pods cannot be read.
        """
        found = []
        if plan.claims and await self._has_agent():
            found.append(f"the agent of node {self._node} is alive: it releases claims itself")
        if plan.users and not self._delete_pods:
            found += [f"pod {user} uses a GPU" for user in plan.users.names()]
        return found

    async def carry_out(self, plan: NodePlan) -> list[str]:
        """Release all claims and return a sentence about each claim that is still allocated.

        Raises:
            ClientError: The API server is unreachable or refuses a request. It is safe to run the
                command again.
        """
        left = []
        if plan.users:
            left += await delete_pods(
                self._api, plan.users, limit_s=_END_S, clock=self._clock, force=True
            )
        operator = self._api.acting_as(OPERATOR_USER)
        for claim in plan.claims:
            if await release(operator, claim):
                self._say(f"claim {_name(claim)}: released")
        waited = 0.0
        mine = {claim["status"]["allocation"]["id"] for claim in plan.claims}
        while held := [
            c for c in await self._allocated() if c["status"]["allocation"]["id"] in mine
        ]:
            if waited >= _OPERATOR_S:
                return left + [
                    f"claim {_name(claim)} is still allocated; check that the operator runs"
                    for claim in held
                ]
            await self._clock.sleep(_POLL_S)
            waited += _POLL_S
        return left

    async def _allocated(self) -> list[Object]:
        return [
            claim
            for claim in (await listed(self._api, VGPU_CLAIMS)).items
            if ((claim.get("status") or {}).get("allocation") or {}).get("nodeName") == self._node
        ]

    async def _has_agent(self) -> bool:
        """Return True if a kubelet that reports finds a pod of the node's agent ready."""
        try:
            node = Node.model_validate(await self._api.get(NODES, self._node))
        except NotFound:
            return False
        pods = map(
            Pod.model_validate, (await self._api.list(PODS, namespace=AGENT_NAMESPACE)).items
        )
        return not node.is_silent and any(
            is_agent_pod(pod) and pod.is_ready and pod.spec.node_name == self._node for pod in pods
        )


async def release(operator: Api, claim: Object) -> bool:
    """Record that an allocated claim is released, as its node's agent would.

    Args:
        operator: A client that acts as the operator.
        claim: The claim, with the allocation to release.

    Returns:
        False if the claim is gone, or another claim has its name.

    Raises:
        ClientError: The API server is unreachable or refuses the request.
    """
    metadata = claim["metadata"]
    released = {"allocationID": claim["status"]["allocation"]["id"]}
    # If a new claim has taken the name, the UID causes a conflict.
    changes = {"metadata": {"uid": metadata["uid"]}, "status": {"released": released}}
    try:
        await operator.merge_patch(
            VGPU_CLAIMS,
            metadata["name"],
            changes,
            namespace=metadata["namespace"],
            subresource="status",
        )
    except (NotFound, Conflict):
        return False
    return True


def _name(claim: Object) -> str:
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
