from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from rest import CRDS, Rest, thing_definition
from vgpu_local.apiserver import ApiServer


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    with ApiServer() as server:
        assert server.authority is not None
        connector = aiohttp.TCPConnector(ssl=server.authority.client_context())
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Rest(server, session)


@pytest.fixture
async def things(rest: Rest) -> Rest:
    await rest.create(CRDS, thing_definition())
    return rest
