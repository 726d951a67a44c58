"""Grants survive restarts of agent and kubelet, a damaged record and an absent API server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_node import (
    GPU_0,
    T4_MIB,
    AgentNode,
    Json,
    a_slot_container,
    allocate,
    an_agent_node,
    claim_is,
    create_claim,
    create_pod,
    pod_is,
    pod_is_refused,
    until,
)
from agent_plane import Server
from vgpu_api.resources import NODES, PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_local.apiserver.faults import Fault
from vgpu_nodeagent.agent import Agent
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.enforcement.page import read_page


@pytest.fixture
async def node(api: Api, tmp_path: Path) -> AsyncIterator[AgentNode]:
    async with an_agent_node(api, tmp_path) as node:
        yield node


def a_device(memory: str) -> Json:
    return {"request": "main", "uuid": GPU_0, "memory": memory, "cores": 0, "index": 0}


async def a_running_pod(
    api: Api, *, container: Json | None = None, name: str = "1", memory: str = "10Gi", **spec: Any
) -> None:
    claim = await create_claim(api, f"c{name}", requests=[{"name": "main", "memory": memory}])
    pod = await create_pod(api, f"p{name}", container or a_slot_container(), **spec)
    await allocate(api, claim, pod, devices=[a_device(memory)])
    await pod_is(api, f"p{name}", "Running")


async def a_pod_that_does_not_fit_beside_it(api: Api) -> str:
    claim = await create_claim(api, "c2", requests=[{"name": "main", "memory": "10Gi"}])
    await allocate(api, claim, await create_pod(api, "p2"), devices=[a_device("10Gi")])
    return await pod_is_refused(api, "p2")


async def restarted_container(node: AgentNode, api: Api, name: str = "p1") -> None:
    await node.kubelet.kill_container("default", name, "main")
    await until(
        api,
        PODS,
        name,
        lambda p: (
            p["status"]["containerStatuses"][0]["restartCount"] == 1
            and "running" in p["status"]["containerStatuses"][0]["state"]
        ),
    )


def page_of(node: AgentNode, pod: str = "p1") -> Path:
    return Path(node.kubelet.environment("default", pod, "main")["VGPU_LIMIT_PAGE"])


def the_checkpoint(node: AgentNode) -> Path:
    return node.config.state_dir / "slots.json"


async def test_a_new_agent_knows_what_the_last_one_granted(api: Api, node: AgentNode) -> None:
    await a_running_pod(api, restartPolicy="Always")
    before = page_of(node)
    await node.stop_agent()
    await node.start_agent()
    assert "does not fit" in await a_pod_that_does_not_fit_beside_it(api)
    await restarted_container(node, api)
    assert page_of(node) == before


@asynccontextmanager
async def a_successor(node: AgentNode, api: Api) -> AsyncIterator[Agent]:
    """Start a second agent on the node, which takes over as soon as it can, as in an update."""
    successor = Agent(node.config, api, node.driver)
    running = asyncio.ensure_future(successor.run())
    try:
        async with asyncio.timeout(20):
            while successor.unready():
                assert not running.done()
                await asyncio.sleep(0.01)
        yield successor
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_during_an_update_the_old_agent_serves_until_it_ends_and_the_new_one_at_once(
    api: Api, node: AgentNode
) -> None:
    await a_running_pod(api, memory="4Gi", restartPolicy="Always")
    before = page_of(node)
    async with a_successor(node, api) as successor:
        assert not successor.registered.is_set()
        await a_running_pod(api, name="2", memory="4Gi")  # the old agent still starts this one
        clock = asyncio.get_running_loop().time
        ended = clock()
        await node.stop_agent()
        async with asyncio.timeout(2):
            await successor.registered.wait()
        assert clock() - ended < 1
        assert successor.unready() == ""
        await node.offers_slots()
        await restarted_container(node, api)  # the successor has the old agent's grants
        assert page_of(node) == before
        await a_running_pod(api, name="3", memory="4Gi")
        assert read_page(page_of(node, "p2")).state is PageState.GRANT


async def test_a_successor_that_ends_first_leaves_the_node_as_it_is(
    api: Api, node: AgentNode
) -> None:
    async with a_successor(node, api):
        pass
    await a_running_pod(api)


async def test_a_successor_with_a_bad_configuration_never_says_that_it_is_ready(
    api: Api, node: AgentNode
) -> None:
    config = replace(node.config, config_fault="nvidia.deviceSplitCount: Invalid value: 0")
    successor = Agent(config, api, node.driver)
    assert "deviceSplitCount" in successor.unready()


@pytest.mark.parametrize("damage", ["cut", "gone", "other format"])
async def test_a_damaged_checkpoint_is_rebuilt_from_the_other_records(
    api: Api, node: AgentNode, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The running pod keeps running and is still counted, and the next pod waits."""
    await a_running_pod(api, restartPolicy="Always")
    before = page_of(node)
    await node.stop_agent()
    path = the_checkpoint(node)
    if damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_text(path.read_text().replace('"format": 2', '"format": 7'))
    await node.start_agent()
    if damage != "gone":
        assert f"checkpoint {path}" in caplog.text
        assert [f.name for f in path.parent.glob("slots.json.damaged-*")]
    assert read_page(before).state is PageState.GRANT
    assert f"memory {T4_MIB} MiB, 10240 MiB in use" in await a_pod_that_does_not_fit_beside_it(api)
    await restarted_container(node, api)
    assert page_of(node) == before
    await api.delete(PODS, "p1", namespace="default", grace_s=1)
    await claim_is(api, "c1", "Released")


async def test_a_damaged_checkpoint_counts_a_grant_whose_claim_is_gone(
    api: Api, node: AgentNode
) -> None:
    await a_running_pod(api)
    await node.stop_agent()
    the_checkpoint(node).unlink()
    finalizers = {"metadata": {"finalizers": []}}
    await api.merge_patch(VGPU_CLAIMS, "c1", finalizers, namespace="default")
    await api.delete(VGPU_CLAIMS, "c1", namespace="default")
    await node.start_agent()
    assert "10240 MiB in use" in await a_pod_that_does_not_fit_beside_it(api)
    await api.delete(PODS, "p1", namespace="default", grace_s=1)
    await pod_is(api, "p2", "Running")


async def test_a_pod_that_ended_while_the_agent_was_away_is_released(
    api: Api, node: AgentNode
) -> None:
    await a_running_pod(api)
    page = page_of(node)
    await node.stop_agent()
    await api.delete(PODS, "p1", namespace="default", grace_s=0)
    await node.start_agent()
    await claim_is(api, "c1", "Released")
    assert not page.exists()


async def has_said_started(node: AgentNode, *, times: int) -> None:
    """Wait until the container has logged this many starts; no event shows them."""
    for _ in range(1000):
        if node.kubelet.logs("default", "p1", "main").count("started") == times:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"the container has not logged {times} starts")


async def test_a_container_starts_while_the_api_server_is_away(
    server: Server, api: Api, node: AgentNode
) -> None:
    greeting = a_slot_container(script="echo started; sleep 600")
    await a_running_pod(api, container=greeting, restartPolicy="Always")
    # the container runs before the kubelet has reported anything
    await has_said_started(node, times=1)
    away = server.faults.add(Fault(action="refuse", times=None))
    server.break_watches()
    await node.kubelet.kill_container("default", "p1", "main")
    await has_said_started(node, times=2)
    assert read_page(page_of(node)).state is PageState.GRANT
    assert server.faults.count(away) > 0


async def test_prepared_is_said_as_soon_as_it_can_be(
    server: Server, api: Api, node: AgentNode
) -> None:
    pod = await create_pod(api, "p1", node=None)
    await allocate(api, await create_claim(api, "c1"), pod)
    failing = Fault(
        action="status", code=503, verb="patch", resource="vgpuclaims.vgpu.dev/status", times=2
    )
    server.faults.add(failing)
    await bind(api, pod)
    await pod_is(api, "p1", "Running")
    await claim_is(api, "c1", "Prepared")
    assert server.faults.count(failing) == 2


async def bind(api: Api, pod: Json) -> None:
    metadata = pod["metadata"]
    await api.bind_pod(
        namespace="default",
        name=metadata["name"],
        uid=metadata["uid"],
        node="n1",
        annotations={},
    )


async def test_a_restarted_kubelet_is_registered_with_again(api: Api, node: AgentNode) -> None:
    await a_running_pod(api)
    await node.kubelet.restart()
    claim = await create_claim(api, "c2", requests=[{"name": "main", "memory": "1Gi"}])
    pod = await create_pod(api, "p2", node=None)
    await node.offers_slots()
    await allocate(api, claim, pod, devices=[a_device("1Gi")])
    await bind(api, pod)
    await pod_is(api, "p2", "Running")


async def test_slots_in_use_are_no_new_pods_after_the_kubelet_lost_its_checkpoint(
    api: Api, node: AgentNode
) -> None:
    """Nine of ten slots are in use; a kubelet without a record would give one to a new pod."""
    for number in range(9):
        name = f"p{number}"
        claim = await create_claim(api, name, requests=[{"name": "main", "memory": "1Gi"}])
        pod = await create_pod(api, name, claim=name)
        allocation_id = f"00000000-0000-0000-0000-{number:012}"
        await allocate(api, claim, pod, devices=[a_device("1Gi")], allocation_id=allocation_id)
        await pod_is(api, name, "Running")
    node.kubelet.folders.checkpoint.unlink()
    await node.kubelet.restart()
    await until(
        api,
        NODES,
        "n1",
        lambda n: (
            n["status"]["allocatable"].get("nvidia.com/gpu") == "10"
            and n["status"]["capacity"].get("nvidia.com/gpu") == "19"
        ),
    )
    claim = await create_claim(api, "c-new", requests=[{"name": "main", "memory": "1Gi"}])
    pod = await create_pod(api, "new", claim="c-new")
    await allocate(
        api,
        claim,
        pod,
        devices=[a_device("1Gi")],
        allocation_id="11" * 4 + "-0000" * 3 + "-" + "0" * 12,
    )
    await pod_is(api, "new", "Running")
    await api.delete(PODS, "p0", namespace="default", grace_s=1)
    await claim_is(api, "p0", "Released")


async def test_leftovers_of_an_allocation_that_nobody_holds_are_cleared_away(
    api: Api, node: AgentNode
) -> None:
    await node.stop_agent()
    spec = node.config.cdi_dir / "vgpu.dev-slot_slot-3-old.json"
    spec.write_text("{}")
    await node.start_agent()
    assert not spec.exists()
