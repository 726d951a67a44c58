"""Serves the metrics of the operator and the webhooks on an event loop of their own.

On the main loop, TLS handshakes and token reviews would compete with the engine or with admission.
Anyone who can reach the port could then delay kube-scheduler's calls with forged tokens.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import NoReturn

from prometheus_client import REGISTRY

from vgpu_client.api import Api
from vgpu_client.listen import listen
from vgpu_client.metrics_server import MetricsAccess, MetricsServer
from vgpu_client.own_certificate import own_certificate
from vgpu_client.scrapers import Scrapers
from vgpu_operator.certificates.identity import Identity
from vgpu_operator.config import Address, OperatorConfig, WebhookConfig


async def serve_metrics(
    config: OperatorConfig | WebhookConfig, identity: Identity | None
) -> NoReturn:
    """Serve this process's metrics for as long as it runs.

    Args:
        config: The address, and the clients that may scrape.
        identity: The certificate that the process uses elsewhere; None: a self-signed one.

    Raises:
        OSError: The port is in use.
        LoginError: There are no credentials for reviewing the scrapers' tokens.
    """
    address, is_open = config.metrics, config.metrics_access is MetricsAccess.OPEN
    if address is not None:
        tls = None
        if not is_open and identity is None:
            tls = own_certificate(config.identity)
        elif not is_open and identity is not None:
            await identity.ready.wait()
            tls = identity.anonymous
        await _in_a_thread(config, address, tls)
    while True:
        await asyncio.Event().wait()


async def _in_a_thread(
    config: OperatorConfig | WebhookConfig, address: Address, tls: ssl.SSLContext | None
) -> None:
    """Serve on the event loop of another thread until cancelled, and raise its error."""
    here, ended = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    there = asyncio.new_event_loop()
    serving = there.create_task(_serve(config, address, tls))

    def fail(error: BaseException) -> None:
        if not ended.done():
            ended.set_exception(error)

    def run() -> None:
        try:
            there.run_until_complete(serving)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            here.call_soon_threadsafe(fail, error)
        finally:
            there.close()

    thread = threading.Thread(target=run, name="metrics", daemon=True)
    thread.start()
    try:
        await ended
    finally:
        if thread.is_alive():
            there.call_soon_threadsafe(serving.cancel)
        await asyncio.to_thread(thread.join)


async def _serve(
    config: OperatorConfig | WebhookConfig, address: Address, tls: ssl.SSLContext | None
) -> NoReturn:
    listening = listen(address.host, address.port)
    if tls is None:
        async with MetricsServer(REGISTRY, listening, scrapers=None, tls=None):
            while True:
                await asyncio.Event().wait()
    async with (
        Api.connect(config.kubeconfig, config.context) as api,
        MetricsServer(REGISTRY, listening, scrapers=Scrapers(api), tls=tls),
    ):
        while True:
            await asyncio.Event().wait()
