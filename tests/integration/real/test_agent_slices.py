"""The component resource-slices: an agent writes the ResourceSlices of its node and driver only.

The tests run on each version of Kubernetes, without our programs: they use tokens of the agents'
account.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from vgpu_api.dra import DRIVER, TAINT
from vgpu_api.resources import MUTATING_WEBHOOKS, NODES, RESOURCE_SLICES, VALIDATING_WEBHOOKS
from vgpu_client.api import Api
from vgpu_client.errors import Invalid
from vgpu_client.transport import Object
from vgpu_local.accounts import AGENT, client_of
from vgpu_local.control_plane import ControlPlane, MinorVersion, Options
from vgpu_local.installation import install, policies_in_force

HERE, ELSEWHERE = "node-here", "node-elsewhere"
UNSERVED = 1
ANOTHER = "gpu.nvidia.com"

pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True, slots=True)
class Writers:
    """A client for each account that may write.

    Attributes:
        admin: An administrator.
        agent: The agent of the node HERE.
        stray: An agent whose token names no node.
    """

    admin: Api
    agent: Api
    stray: Api


@pytest.fixture(scope="module")
def fenced(
    kubernetes_version: MinorVersion, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    with ControlPlane(Options(version=kubernetes_version, controllers=True)) as running:
        install(
            running,
            tmp_path_factory.mktemp("install"),
            webhook_port=UNSERVED,
            overlay_name="claims",
            components=["resource-slices"],
        )
        yield running


@pytest.fixture(scope="module")
async def writers(
    fenced: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Writers]:
    folder = tmp_path_factory.mktemp("writers")
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Api.connect(str(fenced.kubeconfig)))
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            await admin.delete(resource, "vgpu")
        for node in (HERE, ELSEWHERE):
            await admin.create(NODES, {"metadata": {"name": node}})

        agent, stray = [
            await stack.enter_async_context(
                client_of(admin, fenced.kubeconfig, folder, AGENT, node=node)
            )
            for node in (HERE, None)
        ]
        await policies_in_force(admin)
        yield Writers(admin, agent, stray)


def a_slice(name: str, *, node: str = HERE, driver: str = DRIVER) -> Object:
    taints = [{"key": TAINT, "effect": "NoSchedule"}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "taints": taints}],
        },
    }


async def test_an_agent_makes_changes_and_deletes_the_slices_of_its_node(writers: Writers) -> None:
    for generation in (1, 2):
        wanted = a_slice("own")
        wanted["spec"]["pool"]["generation"] = generation
        await writers.agent.apply(RESOURCE_SLICES, wanted, field_manager="test", force=True)
    (found,) = (await writers.agent.list(RESOURCE_SLICES)).items
    assert found["spec"]["pool"]["generation"] == 2
    await writers.agent.delete(RESOURCE_SLICES, "own")
    assert (await writers.agent.list(RESOURCE_SLICES)).items == []


@pytest.mark.parametrize(
    ("node", "driver", "said"),
    [
        # Two policies refuse it, and the API server names one of them.
        (ELSEWHERE, DRIVER, r"Forbidden: (only the agent of a node|the agent of node)"),
        (HERE, ANOTHER, "spec.driver: Forbidden: an agent writes ResourceSlices of the driver"),
    ],
)
async def test_an_agent_makes_no_slice_of_another_node_or_driver(
    writers: Writers, node: str, driver: str, said: str
) -> None:
    with pytest.raises(Invalid, match=said):
        await writers.agent.create(RESOURCE_SLICES, a_slice("taken", node=node, driver=driver))


async def test_an_agent_makes_no_slice_for_all_nodes(writers: Writers) -> None:
    everywhere = a_slice("everywhere")
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    with pytest.raises(Invalid, match=r"Forbidden: (only the agent of a node|the agent of node)"):
        await writers.agent.create(RESOURCE_SLICES, everywhere)


@pytest.mark.parametrize("verb", ["change", "delete"])
async def test_an_agent_leaves_the_slices_of_another_driver_alone(
    writers: Writers, verb: str
) -> None:
    theirs = await writers.admin.create(RESOURCE_SLICES, a_slice(f"their-{verb}", driver=ANOTHER))
    name = theirs["metadata"]["name"]
    wanted = a_slice(name, driver=ANOTHER)
    wanted["spec"]["pool"]["generation"] = 2
    if verb == "delete":
        attempt = writers.agent.delete(RESOURCE_SLICES, name)
    else:
        attempt = writers.agent.apply(RESOURCE_SLICES, wanted, field_manager="test", force=True)
    with pytest.raises(Invalid, match=r"ResourceSlices of the driver vgpu\.dev only"):
        await attempt
    after = await writers.admin.get(RESOURCE_SLICES, name)
    assert after["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    await writers.admin.delete(RESOURCE_SLICES, name)


async def test_an_agent_without_a_node_writes_no_slice(writers: Writers) -> None:
    with pytest.raises(Invalid, match=r'agent of node "" writes|only the agent of a node'):
        await writers.stray.create(RESOURCE_SLICES, a_slice("stray"))


async def test_nobody_else_publishes_devices_of_the_driver_or_without_the_taint(
    writers: Writers,
) -> None:
    with pytest.raises(Invalid, match="only the agent of a node publishes its devices"):
        await writers.admin.create(RESOURCE_SLICES, a_slice("forged"))
    bare = a_slice("bare")
    del bare["spec"]["devices"][0]["taints"]
    with pytest.raises(Invalid, match=r"without the taint vgpu\.dev/ledger"):
        await writers.agent.create(RESOURCE_SLICES, bare)
