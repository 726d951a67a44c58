"""Direct kube-scheduler to the leader's extender, by an EndpointSlice with its address.

The extender's Service has no selector, because no pod label says which replica leads. A new leader
writes its address into the slice, and repeats that now and then, so that a deleted slice comes
back. Until then, calls reach the former leader, which refuses them, and kube-scheduler retries.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from vgpu_api.names import FIELD_MANAGER_OPERATOR
from vgpu_api.resources import ENDPOINT_SLICES
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_client.transport import Object

logger = logging.getLogger(__name__)

PORT_NAME = "extender"
_AGAIN_S = 30.0
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Advertised:
    """The contents of the slice.

    Attributes:
        namespace: The Service's namespace.
        service: The Service's name.
        address: This replica's IP address.
        port: The extender's port.
    """

    namespace: str
    service: str
    address: str
    port: int

    def slice(self) -> Object:
        """Return the slice with this replica's address."""
        version = ipaddress.ip_address(self.address).version
        return {
            "metadata": {
                "namespace": self.namespace,
                "name": f"{self.service}-vgpu",
                "labels": {
                    "kubernetes.io/service-name": self.service,
                    "endpointslice.kubernetes.io/managed-by": FIELD_MANAGER_OPERATOR,
                },
            },
            "addressType": f"IPv{version}",
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}}],
            "ports": [{"name": PORT_NAME, "port": self.port, "protocol": "TCP"}],
        }


class Endpoint:
    """Keeps the slice up to date.

    Args:
        api: The API server; its writes land while this replica leads, or never.
        advertised: The contents of the slice.
        sleep: Waits between writes.
    """

    def __init__(
        self,
        api: Api,
        advertised: Advertised,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._advertised = advertised
        self._sleep = sleep

    async def run(self) -> None:
        """Write the slice again and again while this replica leads."""
        while True:
            await self._sleep(_AGAIN_S if await self._write() else _RETRY_S)

    async def _write(self) -> bool:
        try:
            await self._api.apply(
                ENDPOINT_SLICES,
                self._advertised.slice(),
                field_manager=FIELD_MANAGER_OPERATOR,
                force=True,
            )
        except ClientError as error:
            logger.warning(
                "service %s does not lead to this replica yet: %s", self._advertised.service, error
            )
            return False
        return True
