"""Puts the webhooks' process together and runs it: kopf and its handlers, on our server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import kopf

from vgpu_api.config import ConfigFile
from vgpu_client.api import Api
from vgpu_client.reload import changed
from vgpu_operator.certificates.parts import webhook_identity
from vgpu_operator.config import WebhookConfig
from vgpu_operator.exposition import serve_metrics
from vgpu_operator.garbage_collection import set_aside
from vgpu_operator.handlers import admission, frame
from vgpu_operator.handlers.reviews import Reviews
from vgpu_operator.handlers.webhooks import Webhooks

logger = logging.getLogger(__name__)


async def follow(source: ConfigFile, level: str) -> None:
    """Answer by each new configuration as soon as it is mounted."""
    while True:
        await changed(source, level)
        logger.info("configuration: a new one is in force")


async def run(config: WebhookConfig) -> None:
    """Serve until SIGTERM, then drain.

    Raises:
        VgpuError: No login.
        OSError: The certificate in the files cannot be used.
    """
    failure: list[BaseException] = []
    stop = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    registry = kopf.OperatorRegistry()
    async with Api.connect(config.kubeconfig, config.context) as api:
        identity = webhook_identity(api, config)
        admission.register(registry)

        async def keep(work: Coroutine[None, None, None]) -> None:
            try:
                await work
            except OSError as error:
                logger.error("ending: %s", error, exc_info=error)
                failure.append(error)
                stop.set()

        @kopf.on.startup(registry=registry)
        async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
            frame.set_up(settings)
            settings.admission.server = Webhooks(
                config.listen,
                identity,
                paths=admission.PATHS,
                answers=Reviews(api, config.cluster).answers,
                drain_s=config.drain_s,
            )
            for work in (
                identity.run(),
                serve_metrics(config, identity),
                follow(config.cluster, config.log_level),
            ):
                tasks.append(asyncio.create_task(keep(work)))
            set_aside()  # a pass over what is imported holds all reviews up

        @kopf.on.cleanup(registry=registry)
        async def end(**_: Any) -> None:
            for task in tasks:  # kopf would wait 5 s for each that goes on
                task.cancel()
            stop.set()  # kopf would wait 5 s for its own task that waits for this flag

        await frame.run(registry, config, stop=stop)
    if failure:
        raise failure[0]
