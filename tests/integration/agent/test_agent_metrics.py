"""A scrape of a running agent shows its devices and claims, and changes within seconds."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent_node import (
    GPU_0,
    AgentNode,
    allocate,
    an_agent_node,
    create_claim,
    create_pod,
    pod_is,
)
from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.metrics_server import MetricsAccess
from vgpu_local.ports import free_ports
from vgpu_nodeagent.reporting.exposition import HAMI_CONTAINER, HAMI_DEVICE

HAMI_NAMES = {row.name for _, row in HAMI_CONTAINER} | {row.name for _, row in HAMI_DEVICE}

SOON_S = 5.0
PAUSE_S = 0.1
ENDED_S = 10.0
"""The pod's grace period, its release, and the same again."""


@pytest.fixture
async def node(api: Api, tmp_path: Path) -> AsyncIterator[AgentNode]:
    async with an_agent_node(api, tmp_path) as node:
        await node.stop_agent()
        node.config = dataclasses.replace(
            node.config, metrics_port=free_ports(1)[0], metrics_access=MetricsAccess.OPEN
        )
        await node.start_agent()
        yield node


async def scrape(node: AgentNode) -> str:
    url = f"http://127.0.0.1:{node.config.metrics_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def within(seconds: float, node: AgentNode, holds: Callable[[str], bool]) -> str:
    """Return the first scrape that fulfils the condition."""
    text = ""
    for _ in range(int(seconds / PAUSE_S)):
        if holds(text := await scrape(node)):
            return text
        await asyncio.sleep(PAUSE_S)
    raise AssertionError(f"not within {seconds} s: {text}")


def keep(text: str) -> None:
    """Store the scrape for `make check-metrics` if it asks for one."""
    if into := os.environ.get("VGPU_EXPOSITION"):
        Path(into).write_text(text)


async def test_a_new_claim_has_its_series_within_five_seconds_and_a_dead_one_none(
    api: Api, node: AgentNode
) -> None:
    pod = await create_pod(api, "p")
    claim = await create_claim(api, "c")
    await allocate(
        api,
        claim,
        pod,
        devices=[{"request": "main", "uuid": GPU_0, "memory": "8Gi", "cores": 30, "index": 0}],
    )
    await pod_is(api, "p", "Running")
    mine = 'claim="c",container="main"'
    limit = f'vgpu_claim_memory_limit_bytes{{{mine},device_uuid="{GPU_0}"'
    text = await within(SOON_S, node, lambda text: limit in text)
    families = {family.name for family in text_string_to_metric_families(text)}
    assert families >= HAMI_NAMES
    keep(text)
    await api.delete(PODS, "p", namespace="default")
    await within(ENDED_S, node, lambda text: mine not in text)
