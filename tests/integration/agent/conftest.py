"""An API server for each test of one agent, and the builders that most tests use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agent_plane import AgentPlane, Server
from vgpu_client.api import Api


@pytest.fixture
def server(agent_plane: AgentPlane) -> Server:
    """The server, which injects faults and records writes."""
    return agent_plane.server


@pytest.fixture
async def api(agent_plane: AgentPlane) -> AsyncIterator[Api]:
    """An administrator's client."""
    async with Api.connect(str(agent_plane.kubeconfig)) as api:
        yield api
