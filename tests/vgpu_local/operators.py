"""The operators and webhooks of a cluster, and the Services that lead to them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from vgpu_client.api import Api
from vgpu_local.daemon import Daemon
from vgpu_local.programs import (
    NAMESPACE,
    SERVICE,
    OperatorPlace,
    Replica,
    WebhookReplica,
    free_front,
    free_replica,
    free_webhook_replica,
)
from vgpu_local.readiness import leads
from vgpu_local.service import Backend, Service, Slices

_HERE = "127.0.0.1"


class Operators:
    """All replicas of operator and webhooks, with their Services.

    Attributes:
        front: The ports of the Services. That of the webhooks leads to any replica, and that of
            the extender to the operator that an EndpointSlice names as the leader.
        daemons: The operators' processes by number.
        webhooks: The webhooks' processes by number.
    """

    def __init__(self, count: int, webhooks: int) -> None:
        """Create the replicas of operator and webhooks; nothing is started yet."""
        self.front = free_front()
        self.daemons: list[Daemon] = []
        self.webhooks: list[Daemon] = []
        self._replicas = [free_replica(number) for number in range(count)]
        self._webhooks = [free_webhook_replica(number) for number in range(webhooks)]
        self._services: list[Service] = []
        self._following: asyncio.Task[None] | None = None

    async def open_services(self, api: Api) -> None:
        """Start the Services that lead to the replicas."""
        slices = Slices(api, {replica.address: _HERE for replica in self._replicas})
        self._following = asyncio.create_task(slices.run())
        extender = Service(lambda: slices.backends(NAMESPACE, SERVICE, "extender"))
        # A pod that is to end leaves its Service at once, however long it answers.
        webhook = Service(lambda: [Backend(_HERE, port) for port in self.webhook_ports()])
        for service, port in ((extender, self.front.extender), (webhook, self.front.webhook)):
            await service.start(port)
            self._services.append(service)

    async def close_services(self) -> None:
        """Stop the Services."""
        for service in self._services:
            await service.stop()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def start(
        self,
        operator: Callable[[Replica], Daemon],
        webhook: Callable[[WebhookReplica], Daemon],
    ) -> None:
        """Start a process for each replica."""
        self.daemons.extend(operator(replica) for replica in self._replicas)
        self.webhooks.extend(webhook(replica) for replica in self._webhooks)

    def places(self) -> list[OperatorPlace]:
        """Return the ports of the operators that should be running."""
        return [replica.place for replica, _ in self._running()]

    def place_of(self, operator: Daemon) -> OperatorPlace:
        """Return the ports of an operator."""
        return self._replicas[self.daemons.index(operator)].place

    def webhook_ports(self) -> list[int]:
        """Return the ports of the webhooks that should be running."""
        pairs = zip(self._webhooks, self.webhooks, strict=True)
        return [replica.webhook for replica, daemon in pairs if daemon.wanted]

    def metrics_ports(self) -> dict[str, list[int]]:
        """Return the ports of the replicas' metrics by component."""
        return {
            "operator": [replica.place.metrics for replica in self._replicas],
            "webhook": [replica.metrics for replica in self._webhooks],
        }

    def leader(self, tls: ssl.SSLContext) -> Daemon | None:
        """Return the running operator that reports that it leads, or None."""
        for replica, daemon in self._running():
            if leads(replica.place.extender_url, tls):
                return daemon
        return None

    def _running(self) -> list[tuple[Replica, Daemon]]:
        pairs = zip(self._replicas, self.daemons, strict=True)
        return [(replica, daemon) for replica, daemon in pairs if daemon.wanted]
