"""Assembles and runs the process of the web page: informers, the mirror and the server."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from typing import Any

import aiohttp

from vgpu_api.resources import POD_DISRUPTION_BUDGETS
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.credentials import TokenFile
from vgpu_client.listen import listen
from vgpu_client.own_certificate import own_certificate
from vgpu_client.reflector import Reflector
from vgpu_client.reload import changed
from vgpu_client.session import open_session
from vgpu_operator.certificates.identity import Identity, InFiles
from vgpu_operator.config import WebConfig
from vgpu_operator.engine.informers import (
    STORAGE,
    follow_pod_groups,
    informers,
    more_informers,
)
from vgpu_operator.engine.scheduling.gate import is_on
from vgpu_operator.web.agent_metrics import AgentMetrics
from vgpu_operator.web.history import History
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.prometheus import Prometheus
from vgpu_operator.web.server import WebServer
from vgpu_operator.web.sight import Visitors
from vgpu_operator.web.usage import UsageSource
from vgpu_operator.web.usage_reader import FleetUsageReader

logger = logging.getLogger(__name__)


async def run(config: WebConfig) -> None:
    """Serve until SIGTERM.

    A new configuration changes the meaning of claims, so the process then exits and is restarted.

    Raises:
        VgpuError: Login failed, or the cluster was restored from a backup.
        OSError: The port is in use, or files of certificates are unusable.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Api.connect(config.kubeconfig, config.context) as api, open_session() as session:
        mirror = Mirror(config.cluster.config, Clock(api))
        sources = informers(api, mirror.observe, config.cluster.config)
        of_volumes = more_informers(api, mirror.observe, STORAGE) if is_on(mirror.state) else []
        of_budgets = more_informers(api, mirror.observe, (POD_DISRUPTION_BUDGETS,))
        synced = asyncio.Event()

        async def note_synced() -> None:
            await asyncio.gather(*(source.synced.wait() for source in sources))
            # compute the rows now: for a large fleet they take a second, and no visitor should wait
            mirror.nodes()
            synced.set()

        async def note_listed(source: Reflector[Any]) -> None:
            # `synced` does not wait for volumes, so an account that may not list them serves the
            # rest.
            await source.synced.wait()
            mirror.note_listed(source.resource)

        prometheus = _prometheus(config, session)
        source: UsageSource = prometheus or AgentMetrics(api, session, Clock())
        work = [
            asyncio.create_task(FleetUsageReader(mirror, source, Clock()).run()),
            *(asyncio.create_task(each.run()) for each in (*sources, *of_volumes, *of_budgets)),
            asyncio.create_task(follow_pod_groups(api, mirror, Clock(api))),
            asyncio.create_task(changed(config.cluster, config.log_level)),
        ]
        side = [asyncio.create_task(note_synced())]
        side += [asyncio.create_task(note_listed(source)) for source in of_volumes]
        tls = own_certificate(config.identity)
        if config.tls is not None:
            identity = Identity("vgpu-web", InFiles(config.tls), verifies_clients=False)
            work.append(asyncio.create_task(identity.run()))
            tls = identity.context
        stopping = asyncio.create_task(stop.wait())
        listening = listen(config.listen.host, config.listen.port)
        history = History(prometheus, Clock())
        async with WebServer(mirror, Visitors(api), history, listening, tls=tls, synced=synced):
            await asyncio.wait([*work, stopping], return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in work if task.done()]
        for task in (*work, *side, stopping):
            task.cancel()
        await asyncio.gather(*work, *side, stopping, return_exceptions=True)
        for task in ended:
            task.result()
            logger.info("a new configuration is mounted; restarting to use it")


def _prometheus(config: WebConfig, session: aiohttp.ClientSession) -> Prometheus | None:
    """Return the client of the configured Prometheus, if there is one.

    Raises:
        OSError: The file of its authorities is unusable.
    """
    settings = config.cluster.config.web
    if not settings.prometheus:
        return None
    ca, token = config.prometheus_ca, config.prometheus_token
    return Prometheus(
        session,
        settings.prometheus,
        labels=settings.prometheus_labels,
        token=None if token is None else TokenFile(token),
        tls=None if ca is None else ssl.create_default_context(cafile=str(ca)),
    )
