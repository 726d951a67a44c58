"""Kopf as the frame of both processes: settings, login, and the arguments of its run.

Decision 40 has what kopf does here and what it does not.
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
    """Seconds between kopf's tries at one request, without an end.

    After some 80 s without an API server it would end the process, again and again, and the kubelet
    would wait for up to five minutes before it starts it once more.
    """

    def __iter__(self) -> Iterator[float]:
        return chain((1, 2, 4), repeat(8))


def set_up(settings: kopf.OperatorSettings) -> None:
    """Kopf watches nothing and posts no events; our manifests own the webhook configurations."""
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
    """Run kopf with these handlers until SIGTERM, or until `stop` is set.

    Registers the login: the credentials of the rest of the process, found the same way.
    """

    @kopf.on.login(registry=registry)
    async def session(**_: Any) -> object:
        return await _session(config.kubeconfig, config.context)

    liveness = config.liveness
    if liveness is not None and not liveness.host:
        liveness = Address("0.0.0.0", liveness.port)  # kopf would take localhost
    await kopf.operator(
        registry=registry,
        settings=kopf.OperatorSettings(),
        clusterwide=True,
        standalone=True,
        # Kopf's own would have the name of a user, and a container's user may have none. (Its
        # type is a name for str that kopf does not export.)
        identity=cast(Any, config.identity),
        stop_flag=stop,
        liveness_endpoint=(
            None if liveness is None else f"http://{liveness.url_host}:{liveness.port}/healthz"
        ),
    )


async def _session(kubeconfig: str | None, context: str | None) -> kopf.AiohttpSession:
    """A session for kopf; it asks again when the server answers 401.

    Raises:
        LoginError: No usable credentials.
    """
    connection = await login(kubeconfig, context)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=connection.tls if connection.tls is not None else True,
        ),
        headers=dict(await connection.headers()),
    )
    return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)
