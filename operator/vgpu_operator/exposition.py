"""Puts the metrics server of operator and webhooks together, from how a process runs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import NoReturn

from prometheus_client import REGISTRY

from vgpu_client.api import Api
from vgpu_client.listen import listen
from vgpu_client.metrics_server import MetricsAccess, MetricsServer
from vgpu_client.own_certificate import own_certificate
from vgpu_client.scrapers import Scrapers
from vgpu_operator.certificates.identity import Identity
from vgpu_operator.config import OperatorConfig, WebhookConfig


async def serve_metrics(
    api: Api, config: OperatorConfig | WebhookConfig, identity: Identity | None
) -> NoReturn:
    """Serve this process's metrics for as long as it runs.

    Args:
        api: Reviews scrapers, in every replica.
        config: Where, and to whom.
        identity: The certificate that the process shows elsewhere; None: one of its own making.

    Raises:
        OSError: The port is taken.
    """
    address, is_open = config.metrics, config.metrics_access is MetricsAccess.OPEN
    async with AsyncExitStack() as stack:
        if address is not None:
            tls = None
            if not is_open and identity is None:
                tls = own_certificate(config.identity)
            elif not is_open and identity is not None:
                await identity.ready.wait()
                tls = identity.anonymous
            server = MetricsServer(
                REGISTRY,
                listen(address.host, address.port),
                scrapers=None if is_open else Scrapers(api),
                tls=tls,
            )
            await stack.enter_async_context(server)
        while True:
            await asyncio.Event().wait()
