"""Assembles the webhook process: Kopf, our HTTPS server, and the handlers behind both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import kopf

from vgpu_api.config import ConfigFile
from vgpu_client.api import Api
from vgpu_client.reload import changed
from vgpu_operator import kopf_frame
from vgpu_operator.admission import kopf_handlers
from vgpu_operator.admission.reviews import Reviews
from vgpu_operator.admission.server import Webhooks
from vgpu_operator.certificates.parts import webhook_identity
from vgpu_operator.config import WebhookConfig
from vgpu_operator.exposition import serve_metrics
from vgpu_operator.garbage_collection import set_aside

logger = logging.getLogger(__name__)


async def follow(source: ConfigFile, level: str) -> None:
    """Use each new configuration as soon as the kubelet has mounted it."""
    while True:
        await changed(source, level)
        logger.info("using the new configuration")


async def run(config: WebhookConfig) -> None:
    """Serve until SIGTERM, then drain.

    Raises:
        VgpuError: No usable credentials for the API server.
        OSError: The certificate files are unusable.
    """
    failure: list[BaseException] = []
    stop = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    registry = kopf.OperatorRegistry()
    async with Api.connect(config.kubeconfig, config.context) as api:
        identity = webhook_identity(api, config)
        kopf_handlers.register(registry)

        async def keep(work: Coroutine[None, None, None]) -> None:
            try:
                await work
            except OSError as error:
                logger.error("cannot continue, ending: %s", error, exc_info=error)
                failure.append(error)
                stop.set()

        @kopf.on.startup(registry=registry)
        async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
            kopf_frame.set_up(settings)
            settings.admission.server = Webhooks(
                config.listen,
                identity,
                paths=kopf_handlers.PATHS,
                answers=Reviews(api, config.cluster).answers,
                drain_s=config.drain_s,
            )
            for work in (
                identity.run(),
                serve_metrics(config, identity),
                follow(config.cluster, config.log_level),
            ):
                tasks.append(asyncio.create_task(keep(work)))
            # otherwise, garbage collection would scan all imported modules and delay reviews
            set_aside()

        @kopf.on.cleanup(registry=registry)
        async def end(**_: Any) -> None:
            for task in tasks:  # Kopf would wait 5 s for each task that is still running
                task.cancel()
            stop.set()  # Kopf waits 5 s for its own task, which ends when this flag is set

        await kopf_frame.run(registry, config, stop=stop)
    if failure:
        raise failure[0]
