"""The GPUDevice objects of a node are created and kept true; a sick device loses its slots."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_node import (
    GPU_0,
    GPU_1,
    SLOT,
    T4_MIB,
    AgentNode,
    Json,
    a_driver_device,
    a_slot_container,
    allocate,
    an_agent_node,
    condition,
    create_claim,
    create_pod,
    pod_is,
    until,
)
from agent_plane import Server
from vgpu_api.config import ClusterConfig, DeviceFilter, NodeConfig
from vgpu_api.names import HAMI_NODE_REGISTER, device_object_name, device_object_name_on_node
from vgpu_api.resources import GPU_DEVICES, NODES, PODS
from vgpu_client.api import Api
from vgpu_nodeagent.discovery.drivers.base import DeviceEvent, DeviceLink, Repair, Severity

NAME_0 = device_object_name(GPU_0)


@pytest.fixture
async def node(api: Api, tmp_path: Path) -> AsyncIterator[AgentNode]:
    first = dataclasses.replace(
        a_driver_device(), links=(DeviceLink(GPU_1, "NV4", 400),), numa_node=1
    )
    async with an_agent_node(api, tmp_path, devices=[first, a_driver_device(GPU_1, 1)]) as node:
        yield node


def is_ready(device: Json) -> bool:
    return condition(device, "Ready").get("status") == "True"


async def offers(api: Api, count: int) -> Json:
    return await until(
        api, NODES, "n1", lambda n: n["status"].get("allocatable", {}).get(SLOT) == str(count)
    )


async def test_a_device_becomes_an_object_that_says_what_it_is(api: Api, node: AgentNode) -> None:
    device = await until(api, GPU_DEVICES, NAME_0, is_ready)
    assert device["spec"]["nodeName"] == "n1"
    (owner,) = device["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Node", "n1")
    status = device["status"]
    assert (status["uuid"], status["model"], status["index"]) == (GPU_0, "Tesla T4", 0)
    amount = {"memory": "16Gi", "cores": 100, "slots": 10}
    assert status["capacity"] == status["allocatable"] == amount
    assert status["numaNode"] == 1
    assert status["links"] == [{"peer": GPU_1, "type": "NV4", "score": 400}]
    assert condition(device, "Healthy")["status"] == "True"


async def test_a_deleted_object_is_made_again(api: Api, node: AgentNode) -> None:
    first = await until(api, GPU_DEVICES, NAME_0, is_ready)
    await api.delete(GPU_DEVICES, NAME_0)
    uid = first["metadata"]["uid"]
    await until(
        api,
        GPU_DEVICES,
        NAME_0,
        lambda d: not d.get("deleted") and d["metadata"]["uid"] != uid and is_ready(d),
    )


async def test_the_node_lists_its_devices_in_hamis_words_too(api: Api, node: AgentNode) -> None:
    def listed(found: Json) -> list[Json]:
        return json.loads(found["metadata"].get("annotations", {}).get(HAMI_NODE_REGISTER, "[]"))

    shown = await until(api, NODES, "n1", listed)
    device = {"count": 10, "devmem": T4_MIB, "devcore": 100, "type": "NVIDIA-Tesla T4"}
    device |= {"mode": "hami-core", "health": True}
    assert listed(shown) == [
        {"id": GPU_0, "index": 0, "numa": 1, **device},
        {"id": GPU_1, "index": 1, "numa": 0, **device},
    ]
    await node.driver.events.put(DeviceEvent(GPU_1, Severity.FATAL, "XID79", "fell off the bus"))
    await until(api, NODES, "n1", lambda n: [c["health"] for c in listed(n)] == [True, False])
    await api.merge_patch(GPU_DEVICES, NAME_0, {"spec": {"slots": 3, "mode": "MIG"}})
    await until(
        api, NODES, "n1", lambda n: (listed(n)[0]["count"], listed(n)[0]["mode"]) == (3, "mig")
    )


async def test_an_object_that_the_operator_publishes_is_left_alone(
    api: Api, node: AgentNode
) -> None:
    """Another vendor's plugin registers the device; no driver of ours will ever show it."""
    made = {
        "apiVersion": "vgpu.dev/v1alpha1",
        "kind": "GPUDevice",
        "metadata": {"name": "dcu-0"},
        "spec": {"nodeName": "n1"},
    }
    said = {"vendor": "hygon", "uuid": "DCU-0", "conditions": []}
    await api.create(GPU_DEVICES, made)
    obj = {"metadata": {"name": "dcu-0"}, "status": said}
    await api.apply(GPU_DEVICES, obj, field_manager="test", force=True, subresource="status")
    await api.delete(GPU_DEVICES, NAME_0)
    await until(api, GPU_DEVICES, NAME_0, is_ready)  # the agent has checked every device
    assert (await api.get(GPU_DEVICES, "dcu-0"))["status"].get("conditions", []) == []


async def test_an_object_in_which_nothing_changed_is_not_written(
    server: Server, api: Api, node: AgentNode
) -> None:
    await until(api, GPU_DEVICES, NAME_0, is_ready)
    patch = [
        {"op": "add", "path": "/status/allocated", "value": {"memory": "1Gi"}},
        {
            "op": "add",
            "path": "/status/conditions/-",
            "value": {"type": "DuplicateUUID", "status": "False"},
        },
    ]
    await api.json_patch(
        GPU_DEVICES, NAME_0, patch, subresource="status", field_manager="vgpu-operator"
    )
    # A later version that the agent has answered shows that it has seen this one.
    await api.merge_patch(GPU_DEVICES, NAME_0, {"spec": {"slots": 7}})
    device = await until(
        api, GPU_DEVICES, NAME_0, lambda d: d["status"]["allocatable"]["slots"] == 7
    )
    assert device["status"]["allocated"]["memory"] == "1Gi"
    assert condition(device, "DuplicateUUID")["status"] == "False"

    def versions() -> list[dict[str, Any]]:
        events = [event.object for event in server.history() if event.resource.startswith("gpud")]
        return [v for v in events if v["metadata"]["name"] == NAME_0 and "status" in v]

    newest = device["metadata"]["resourceVersion"]
    for _ in range(600):  # on a real server the history follows a watch, so it may lag
        if newest in {version["metadata"]["resourceVersion"] for version in versions()}:
            break
        await asyncio.sleep(0.05)
    since = [v["status"] for v in versions() if "allocated" in v["status"]]
    assert len(since) == 3  # by the operator, the administrator, and the agent in response


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ({"mode": "MIG"}, 'spec.mode: Invalid value: "MIG"'),
        ({"migInstances": "Static"}, 'spec.migInstances: Invalid value: "Static"'),
        ({"memory": "120Gi"}, 'spec.memory: Invalid value: "120Gi"'),
    ],
)
async def test_a_setting_that_cannot_act_on_the_device_is_named_until_it_is_taken_out(
    api: Api, node: AgentNode, setting: Json, field: str
) -> None:
    """A T4 has no MIG, and its driver reports its memory."""
    await until(api, GPU_DEVICES, NAME_0, is_ready)
    await api.merge_patch(GPU_DEVICES, NAME_0, {"spec": setting})
    device = await until(
        api, GPU_DEVICES, NAME_0, lambda d: condition(d, "Configured").get("status") == "False"
    )
    assert condition(device, "Configured")["reason"] == "NoEffect"
    assert condition(device, "Configured")["message"].startswith(field)
    assert device["status"]["capacity"]["memory"] == "16Gi"
    undo = {name: "Shared" if name == "mode" else None for name in setting}
    await api.merge_patch(GPU_DEVICES, NAME_0, {"spec": undo})
    await until(
        api, GPU_DEVICES, NAME_0, lambda d: condition(d, "Configured").get("status") == "True"
    )


async def test_the_administrators_scaling_changes_what_may_be_given_away(
    api: Api, node: AgentNode
) -> None:
    await until(api, GPU_DEVICES, NAME_0, is_ready)
    await api.merge_patch(GPU_DEVICES, NAME_0, {"spec": {"memoryScaling": "1.5", "slots": 4}})
    device = await until(
        api, GPU_DEVICES, NAME_0, lambda d: d["status"]["allocatable"]["memory"] == "24Gi"
    )
    assert device["status"]["capacity"]["memory"] == "16Gi"
    await offers(api, 14)


async def test_a_device_that_another_live_node_has_too_gets_the_other_name(
    api: Api, tmp_path: Path
) -> None:
    await api.create(
        NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "spec": {}}
    )
    await api.create(
        GPU_DEVICES,
        {
            "apiVersion": "vgpu.dev/v1alpha1",
            "kind": "GPUDevice",
            "metadata": {"name": NAME_0},
            "spec": {"nodeName": "n0"},
        },
    )
    async with an_agent_node(api, tmp_path):
        other = device_object_name_on_node(GPU_0, "n1")
        device = await until(api, GPU_DEVICES, other, is_ready)
        assert device["status"]["uuid"] == GPU_0


async def test_a_device_that_falls_off_the_bus_is_not_ready_and_a_new_agent_says_so_too(
    api: Api, node: AgentNode
) -> None:
    await until(api, GPU_DEVICES, NAME_0, is_ready)
    await node.stop_agent()
    node.driver.present = node.driver.present[1:]
    await node.start_agent()
    device = await until(api, GPU_DEVICES, NAME_0, lambda d: not is_ready(d))
    assert condition(device, "Ready")["reason"] == "CardGone"
    assert device["status"]["capacity"]["memory"] == "16Gi"


async def test_a_gpu_without_memory_by_nvml_is_shown_beside_the_others_until_it_is_given_some(
    api: Api, node: AgentNode
) -> None:
    """The node has a T4 and a GB10; NVML cannot tell the memory of the GB10."""
    other = device_object_name(GPU_1)
    await until(api, GPU_DEVICES, other, is_ready)
    await node.stop_agent()
    await api.delete(GPU_DEVICES, other)
    first, _ = node.driver.present
    node.driver.present = (first, a_driver_device(GPU_1, 1, memory_mib=0))
    await node.start_agent()
    await offers(api, 10)
    device = await until(
        api, GPU_DEVICES, other, lambda d: condition(d, "Healthy").get("status") == "False"
    )
    for type_ in ("Ready", "Healthy"):
        assert condition(device, type_)["reason"] == "MemoryUnknown"
    assert "capacity" not in device["status"]
    assert is_ready(await api.get(GPU_DEVICES, NAME_0))
    await api.merge_patch(GPU_DEVICES, other, {"spec": {"memory": "120Gi"}})
    device = await until(api, GPU_DEVICES, other, is_ready)
    assert device["status"]["capacity"]["memory"] == "120Gi"
    await offers(api, 20)


async def test_a_driver_that_does_not_answer_is_a_condition(api: Api, node: AgentNode) -> None:
    await until(api, GPU_DEVICES, NAME_0, is_ready)
    await node.stop_agent()
    node.driver.error = "NVML did not answer within 10 s"
    agent = asyncio.ensure_future(node.run_agent())
    try:
        device = await until(api, GPU_DEVICES, NAME_0, lambda d: not is_ready(d))
    finally:
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
    ready = condition(device, "Ready")
    assert (ready["reason"], ready["message"]) == ("DriverUnavailable", node.driver.error)


async def test_a_fatal_event_takes_the_devices_free_slots_away_but_no_slot_in_use(
    api: Api, node: AgentNode
) -> None:
    claim = await create_claim(api, "c1")
    await allocate(api, claim, await create_pod(api, "p1", a_slot_container()))
    await pod_is(api, "p1", "Running")
    await node.driver.events.put(DeviceEvent(GPU_0, Severity.FATAL, "XID79", "fell off the bus"))
    device = await until(api, GPU_DEVICES, NAME_0, lambda d: not is_ready(d))
    assert condition(device, "Healthy")["reason"] == "XID79"
    # Ten slots of the other device, and one for the slot in use: kube-scheduler subtracts the pod
    # that uses it from the healthy slots.
    await offers(api, 11)
    environment = node.kubelet.environment("default", "p1", "main")
    assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{T4_MIB // 2}M"


def health(pod: Json) -> list[str]:
    """Return the health of the devices of a pod's container, as its status shows it (KEP-4680)."""
    (container,) = pod["status"].get("containerStatuses") or [{}]
    statuses = container.get("allocatedResourcesStatus") or []
    return [each["health"] for status in statuses for each in status["resources"]]


async def a_pod_on(api: Api, name: str, uuid: str, number: int) -> None:
    claim = await create_claim(api, f"c-{name}", requests=[{"name": "main", "memory": "1Gi"}])
    device = {"request": "main", "uuid": uuid, "memory": "1Gi", "cores": 0, "index": 0}
    allocation_id = f"00000000-0000-0000-0000-{number:012}"
    pod = await create_pod(api, name, a_slot_container(), claim=f"c-{name}", restartPolicy="Always")
    await allocate(api, claim, pod, devices=[device], allocation_id=allocation_id)
    await pod_is(api, name, "Running")


async def test_a_pod_whose_gpu_is_lost_shows_it_runs_on_and_starts_again(
    api: Api, node: AgentNode
) -> None:
    await a_pod_on(api, "sick", GPU_0, 1)
    await a_pod_on(api, "well", GPU_1, 2)
    await node.driver.events.put(DeviceEvent(GPU_0, Severity.FATAL, "XID79", "fell off the bus"))
    await until(api, PODS, "sick", lambda pod: health(pod) == ["Unhealthy"])
    assert health(await api.get(PODS, "well", namespace="default")) == ["Healthy"]
    await node.kubelet.kill_container("default", "sick", "main")
    restarted = await until(
        api, PODS, "sick", lambda p: p["status"]["containerStatuses"][0]["restartCount"] == 1
    )
    assert restarted["status"]["phase"] == "Running"
    await a_pod_on(api, "new", GPU_1, 3)
    assert health(await api.get(PODS, "new", namespace="default")) == ["Healthy"]


async def test_a_driver_that_does_not_answer_makes_no_device_of_a_pod_unhealthy(
    api: Api, node: AgentNode
) -> None:
    """Nothing is known about the GPUs then, so pods that run on them are not blamed."""
    await a_pod_on(api, "p1", GPU_0, 1)
    node.driver.error = "NVML did not answer within 10 s"
    await node.driver.events.put(DeviceEvent(GPU_1, Severity.FATAL, "XID79", "fell off the bus"))
    await offers(api, 1)  # the driver has been asked again, and only the slot in use stays
    assert health(await api.get(PODS, "p1", namespace="default")) == ["Healthy"]


async def test_a_programs_own_fault_leaves_the_device_healthy(api: Api, node: AgentNode) -> None:
    await until(api, GPU_DEVICES, NAME_0, is_ready)
    await node.driver.events.put(DeviceEvent(GPU_0, Severity.APPLICATION, "XID31", "page fault"))
    await node.driver.events.put(DeviceEvent(GPU_1, Severity.FATAL, "XID79", "fell off the bus"))
    await until(api, GPU_DEVICES, device_object_name(GPU_1), lambda d: not is_ready(d))
    assert is_ready(await api.get(GPU_DEVICES, NAME_0))


async def test_what_nvml_asks_for_after_an_error_is_the_conditions_reason(
    api: Api, node: AgentNode
) -> None:
    await until(api, GPU_DEVICES, NAME_0, is_ready)
    reset = Repair("GPUResetRequired", "it needs a GPU reset")
    first, second = node.driver.present
    node.driver.present = (dataclasses.replace(first, repair=reset), second)
    await node.driver.events.put(DeviceEvent(GPU_0, Severity.FATAL, "XID95", "XID 95"))
    device = await until(
        api,
        GPU_DEVICES,
        NAME_0,
        lambda d: condition(d, "Healthy").get("reason") == "GPUResetRequired",
    )
    for type_ in ("Ready", "Healthy"):
        found = condition(device, type_)
        assert (found["status"], found["reason"]) == ("False", "GPUResetRequired")
        assert found["message"] == "it needs a GPU reset, after XID 95"
    await offers(api, 10)  # only the other device's slots are left


async def test_what_the_configuration_has_for_nodes_with_these_labels_holds_on_them(
    api: Api, node: AgentNode
) -> None:
    """The configuration's section for these labels applies to the nodes that have them.

    An excluded device is no longer allocated, and its object reports it as absent.
    """
    other = device_object_name(GPU_1)
    await until(api, GPU_DEVICES, other, is_ready)
    await node.stop_agent()
    await api.merge_patch(NODES, "n1", {"metadata": {"labels": {"pool": "a"}}})
    left_out = DeviceFilter(uuid=(GPU_1,))
    here = NodeConfig(
        selector={"pool": "a"},
        device_split_count=4,
        device_memory_scaling=1.5,
        filter_devices=left_out,
    )
    elsewhere = NodeConfig(selector={"pool": "b"}, device_split_count=7)
    cluster = ClusterConfig(nodes=(here, elsewhere))
    node.config = dataclasses.replace(node.config, cluster=cluster)
    await node.start_agent()
    await offers(api, 4)
    amount = {"memory": "24Gi", "cores": 100, "slots": 4}
    await until(api, GPU_DEVICES, NAME_0, lambda d: d["status"]["allocatable"] == amount)
    await until(api, GPU_DEVICES, other, lambda d: not is_ready(d))
