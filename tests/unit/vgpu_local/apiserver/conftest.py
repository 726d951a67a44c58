from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from rest import Rest
from vgpu_local.apiserver import ApiServer


@pytest.fixture
async def rest(server: ApiServer) -> AsyncIterator[Rest]:
    assert server.authority is not None
    connector = aiohttp.TCPConnector(ssl=server.authority.client_context())
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Rest(server.url, session)
