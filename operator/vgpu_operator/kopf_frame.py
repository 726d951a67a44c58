"""Kopf as the frame of the operator and the webhooks: settings, login, and running until stopped.

Both `app` modules and the controllers use it. docs/design/admission-and-kopf.md explains what Kopf
is used for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain, repeat
from typing import Any

import kopf

from vgpu_api.resources import Resource
from vgpu_client.connection import login
from vgpu_client.session import open_session
from vgpu_operator.config import Address, OperatorConfig, WebhookConfig


class _Backoffs:
    """An endless series of delays, in seconds, between Kopf's attempts at one request.

    By default Kopf gives up after about 80 s without an API server and ends the process. After a
    few such exits, the kubelet would back off for up to five minutes before each restart.
    """

    def __iter__(self) -> Iterator[float]:
        return chain((1, 2, 4), repeat(8))


def set_up(settings: kopf.OperatorSettings) -> None:
    """Configure Kopf to post no events, and to read the list of kinds only once, at its start."""
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
    """Run Kopf as the frame of a process until SIGTERM, or until `stop` is set.

    Kopf logs in with the same credentials as the rest of the process.
    """
    liveness = config.liveness
    if liveness is not None and not liveness.host:
        # by default, Kopf would listen on localhost only
        liveness = Address("0.0.0.0", liveness.port)
    async with _logging_in(registry, config):
        await kopf.operator(
            registry=registry,
            settings=kopf.OperatorSettings(),
            clusterwide=True,
            standalone=True,
            identity=_identity(config),
            stop_flag=stop,
            liveness_endpoint=(
                None if liveness is None else f"http://{liveness.url_host}:{liveness.port}/healthz"
            ),
        )


async def watch(
    registry: kopf.OperatorRegistry,
    config: OperatorConfig,
    *,
    stop: asyncio.Event,
    named: Mapping[Resource, str],
) -> None:
    """Run Kopf with handlers of objects, in a thread, until `stop` is set.

    Objects of namespaced kinds are watched in the operator's namespace.

    Args:
        registry: The handlers.
        config: The operator's arguments.
        stop: An event of the calling thread's loop.
        named: For each of these kinds, the name of the only object to watch. A right that is
            limited to a name covers only requests for that name.
    """
    logging.getLogger("kopf._core.reactor.running").addFilter(_is_no_word_of_signals)
    settings = kopf.OperatorSettings()
    set_up(settings)
    # Kopf would kill the process ten minutes after a failure, but the caller starts it again.
    settings.process.ultimate_exiting_timeout = None
    settings.watching.chunk_size = 500  # else a list is read as a whole
    for kind, name in named.items():
        place = (kind.group, kind.version, kind.plural)
        settings.watching.field_selectors[place] = f"metadata.name={name}"
    async with _logging_in(registry, config):
        await kopf.operator(
            registry=registry,
            settings=settings,
            namespaces=[config.namespace],
            standalone=True,
            identity=_identity(config),
            stop_flag=stop,
        )


def _is_no_word_of_signals(record: logging.LogRecord) -> bool:
    """Return False for Kopf's warning that it handles no signals outside the main thread."""
    return not record.getMessage().startswith("OS signals are ignored")


@asynccontextmanager
async def _logging_in(
    registry: kopf.OperatorRegistry, config: OperatorConfig | WebhookConfig
) -> AsyncIterator[None]:
    """Let Kopf log in within the block; it asks for a new session after a 401."""
    async with AsyncExitStack() as sessions:

        @kopf.on.login(registry=registry)
        async def session(**_: Any) -> kopf.AiohttpSession:
            await sessions.aclose()  # the server refused the previous one
            connection = await login(config.kubeconfig, config.context)
            opened = open_session(
                tls=connection.tls, headers=await connection.credentials.headers()
            )
            return kopf.AiohttpSession(
                server=connection.server,
                aiohttp_session=await sessions.enter_async_context(opened),
            )

        yield


def _identity(config: OperatorConfig | WebhookConfig) -> Any:
    """Return Kopf's name for this process; its type is an alias of str that Kopf does not export.

    Kopf's default includes the user's name, which may not exist in a container.
    """
    return config.identity
