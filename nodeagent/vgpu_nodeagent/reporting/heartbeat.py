"""Renews the node's Lease every ten seconds: one small write instead of one per device.

If the Lease is not renewed, the operator marks the node's devices `Ready=Unknown`. An agent that
cannot write it still serves its node.
"""

from __future__ import annotations

import logging

from vgpu_api import names
from vgpu_api.resources import LEASES, NODES
from vgpu_client.api import Api
from vgpu_client.clock import Clock, rfc3339
from vgpu_client.errors import ClientError
from vgpu_client.transport import Object

logger = logging.getLogger(__name__)


class Heartbeat:
    """Renews the Lease of one node.

    Args:
        api: The API server.
        node: The node's name.
        clock: The time to write, and the waits between renewals. The operator measures when it
            sees renewals, not the time in them.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._node = node
        self._clock = clock or Clock()
        self._has_failed = False
        self._owner: Object | None = None

    async def run(self) -> None:
        """Renew the Lease for ever."""
        while True:
            await self.beat()
            await self._clock.sleep(names.AGENT_LEASE_RENEW_S)

    async def beat(self) -> None:
        """Renew the Lease once, or create it if it does not exist."""
        try:
            if self._owner is None:
                self._owner = await self._node_as_owner()
            lease = {
                "metadata": {
                    "namespace": names.AGENT_NAMESPACE,
                    "name": self._node,
                    "ownerReferences": [self._owner],
                },
                "spec": {
                    "holderIdentity": self._node,
                    "leaseDurationSeconds": names.AGENT_LEASE_S,
                    "renewTime": rfc3339(self._clock.unix()),
                },
            }
            await self._api.apply(
                LEASES, lease, field_manager=names.FIELD_MANAGER_AGENT, force=True
            )
        except ClientError as error:
            level = logging.DEBUG if self._has_failed else logging.WARNING
            logger.log(level, "cannot renew the lease of node %s: %s", self._node, error)
            self._has_failed = True
            self._owner = None  # the Node may be another one of the same name
        else:
            self._has_failed = False

    async def _node_as_owner(self) -> Object:
        """Return the Node as owner, so that the Lease is deleted with it."""
        node = await self._api.get(NODES, self._node)
        uid = node["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid}
