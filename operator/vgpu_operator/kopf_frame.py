"""Kopf as the frame of the operator and the webhooks: settings, login, and running until stopped.

Both `app` modules use it. docs/design/admission-and-kopf.md explains what Kopf is used for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, cast

import aiohttp
import kopf

from vgpu_client.connection import login
from vgpu_operator.config import Address, OperatorConfig, WebhookConfig


class _Backoffs:
    """An endless series of delays, in seconds, between Kopf's attempts at one request.

    By default Kopf gives up after about 80 s without an API server and ends the process. After a
    few such exits, the kubelet would back off for up to five minutes before each restart.
    """

    def __iter__(self) -> Iterator[float]:
        return chain((1, 2, 4), repeat(8))


def set_up(settings: kopf.OperatorSettings) -> None:
    """Configure Kopf to watch and post nothing. The manifests own the webhook configurations."""
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.finalizer = "vgpu.dev/kopf"
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = _Backoffs()


async def run(
    registry: kopf.OperatorRegistry,
    config: OperatorConfig | WebhookConfig,
    *,
    stop: asyncio.Event,
) -> None:
    """Run Kopf with these handlers until SIGTERM, or until `stop` is set.

    Kopf logs in with the same credentials as the rest of the process.
    """

    @kopf.on.login(registry=registry)
    async def session(**_: Any) -> object:
        return await _session(config.kubeconfig, config.context)

    liveness = config.liveness
    if liveness is not None and not liveness.host:
        # by default, Kopf would listen on localhost only
        liveness = Address("0.0.0.0", liveness.port)
    await kopf.operator(
        registry=registry,
        settings=kopf.OperatorSettings(),
        clusterwide=True,
        standalone=True,
        # Kopf's default includes the user's name, which may not exist in a container. (The type is
        # an alias of str that Kopf does not export.)
        identity=cast(Any, config.identity),
        stop_flag=stop,
        liveness_endpoint=(
            None if liveness is None else f"http://{liveness.url_host}:{liveness.port}/healthz"
        ),
    )


async def _session(kubeconfig: str | None, context: str | None) -> kopf.AiohttpSession:
    """Return a session for Kopf, which requests a new one after a 401."""
    connection = await login(kubeconfig, context)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=connection.tls if connection.tls is not None else True,
        ),
        headers=dict(await connection.headers()),
    )
    return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)
