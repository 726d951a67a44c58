"""Kopf's login: the same credentials as the rest of the process, found the same way."""

from __future__ import annotations

import aiohttp
import kopf

from vgpu_client.connection import login


async def kopf_session(kubeconfig: str | None, context: str | None) -> kopf.AiohttpSession:
    """A session for kopf; it asks again when the server says 401.

    Raises:
        LoginError: no usable credentials.
    """
    connection = await login(kubeconfig, context)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=connection.tls if connection.tls is not None else True,
        ),
        headers=dict(await connection.headers()),
    )
    return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)
