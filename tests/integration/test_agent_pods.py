from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_node import (
    GPU_0,
    AgentNode,
    allocate,
    an_agent_node,
    claim_is,
    create_claim,
    create_pod,
    install_crds,
    pod_is,
    pod_is_refused,
)
from vgpu_client.api import Api
from vgpu_local.apiserver import ApiServer


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    with ApiServer() as server:
        async with Api.connect(str(server.kubeconfig(tmp_path / "kubeconfig"))) as api:
            await install_crds(api)
            yield api


@pytest.fixture
async def node(api: Api, tmp_path: Path) -> AsyncIterator[AgentNode]:
    async with an_agent_node(api, tmp_path) as node:
        yield node


async def test_a_container_gets_what_its_claim_says(api: Api, node: AgentNode) -> None:
    claim = await create_claim(api, "c1")
    pod = await create_pod(api, "p1")
    await allocate(api, claim, pod)
    await pod_is(api, "p1", "Running")
    environment = node.kubelet.environment("default", "p1", "main")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == GPU_0
    assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "8192M"
    assert "CUDA_DEVICE_SM_LIMIT" not in environment
    await claim_is(api, "c1", "Prepared")


async def test_without_a_claim_nothing_starts_and_the_kubelet_says_why(
    api: Api, node: AgentNode
) -> None:
    await create_pod(api, "p1")
    assert "no claim on this node is reserved for pod default/p1" in await pod_is_refused(api, "p1")
