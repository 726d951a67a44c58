"""The operator publishes and withdraws the devices that vendors' plugins register on Nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import a_claim, a_container, a_device, a_node, a_request, an_allocation, use_of
from replica import Replica
from vgpu_api.core import Node, Pod
from vgpu_api.names import device_object_name
from vgpu_api.resources import GPU_DEVICES, PODS
from vgpu_api.v1alpha1 import GPUDevice
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.extender.wire import BindRequest

DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
REGISTER = "hami.io/node-dcu-register"
TWO = (
    "DCU-A,4,16384,100,DCU-Z100,0,true,0,hami-core:DCU-B,4,16384,100,DCU-Z100,0,false,1,hami-core:"
)
DEVICES = GPU_DEVICES.plural
LIMITS = {"hygon.com/dcunum": 1, "hygon.com/dcumem": 4000, "hygon.com/dcucores": 30}


def a_registering_node(written: str = TWO, *, offered: str = "8", version: int = 1) -> Node:
    node = a_node(allocatable={"hygon.com/dcunum": offered}, resource_version=version)
    metadata = node.metadata.model_copy(update={"annotations": {REGISTER: written}})
    return node.model_copy(update={"metadata": metadata})


async def published(replica: Replica) -> dict[str, GPUDevice]:
    """Settle until every device shows what its node registers; the watch delivers all writes."""
    found: dict[str, GPUDevice] = {}
    for _ in range(3):
        replica.time += 1.0
        await replica.settle()
        made = {
            name: raw for (kind, _, name), raw in replica.api.objects.items() if kind == DEVICES
        }
        for applied in replica.api.applied:
            if applied["status"].get("vendor") == "hygon":
                wire = {**made[applied["metadata"]["name"]], "status": applied["status"]}
                version = applied["metadata"]["resourceVersion"]
                wire["metadata"] = {**wire["metadata"], "resourceVersion": version}
                found[wire["metadata"]["name"]] = GPUDevice.model_validate(wire)
        for device in found.values():
            replica.news.device_changed(device)
    return found


def said(device: GPUDevice) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in device.status.conditions}


async def test_registered_devices_become_objects_of_their_node(replica: Replica) -> None:
    replica.news.node_changed(a_registering_node())
    found = await published(replica)
    assert set(found) == {device_object_name("DCU-A"), device_object_name("DCU-B")}
    first, second = (found[name] for name in sorted(found))
    assert (first.spec.node_name, first.status.vendor, first.status.uuid) == (
        *("node-1", "hygon"),
        "DCU-A",
    )
    assert first.status.allocatable is not None
    assert first.status.allocatable.to_wire() == {"memory": "16Gi", "cores": 100, "slots": 4}
    assert first.metadata.owner_references[0].uid == "uid-of-node-1"
    assert said(first) == {"Ready": ("True", "Registered"), "Healthy": ("True", "Registered")}
    assert said(second)["Healthy"] == ("False", "ReportedUnhealthy")


async def test_a_register_of_more_devices_than_any_host_has_publishes_none(
    replica: Replica,
) -> None:
    many = "".join(f"DCU-{n},4,16384,100,DCU-Z100,0,true,{n},hami-core:" for n in range(65))
    replica.news.node_changed(a_registering_node(many))
    assert await published(replica) == {}


async def test_what_is_published_is_written_once(replica: Replica) -> None:
    replica.news.node_changed(a_registering_node())
    await published(replica)
    before = len(replica.api.applied)
    replica.news.node_changed(a_registering_node(version=2))
    await published(replica)
    assert len(replica.api.applied) == before


async def test_a_device_that_is_registered_no_more_is_not_ready(replica: Replica) -> None:
    replica.news.node_changed(a_registering_node())
    await published(replica)
    replica.news.node_changed(a_registering_node(TWO.partition(":")[0] + ":", version=2))
    found = await published(replica)
    assert said(found[device_object_name("DCU-A")])["Ready"] == ("True", "Registered")
    assert said(found[device_object_name("DCU-B")])["Ready"] == ("False", "NotRegistered")


async def test_devices_whose_plugin_the_kubelet_has_lost_are_not_ready(replica: Replica) -> None:
    replica.news.node_changed(a_registering_node())
    await published(replica)
    replica.news.node_changed(a_registering_node(offered="0", version=2))
    found = await published(replica)
    assert {said(device)["Ready"] for device in found.values()} == {("False", "PluginNotConnected")}


async def test_of_a_register_that_cannot_be_read_nothing_is_given_and_the_node_says_why(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[dict[str, str]] = []
    monkeypatch.setattr(replica.recorder, "record", lambda _, **event: events.append(event))
    replica.news.node_changed(a_registering_node())
    await published(replica)
    replica.news.node_changed(a_registering_node("DCU-A,4,much:", version=2))
    found = await published(replica)
    assert {said(device)["Ready"] for device in found.values()} == {("False", "RegisterUnreadable")}
    (event,) = [event for event in events if event["reason"] == "RegisterUnreadable"]
    assert event["note"] == (
        "nothing is given of its devices: metadata.annotations[hami.io/node-dcu-register]: "
        'Invalid value: "DCU-A,4,much": must be id,count,memory,cores,type,numa,health[,index,mode]'
    )


async def test_words_of_a_node_that_mean_nothing_are_told_once(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[dict[str, str]] = []
    monkeypatch.setattr(replica.recorder, "record", lambda _, **event: events.append(event))

    async def told(version: int, policy: str, **labels: str) -> list[str]:
        events.clear()
        node = a_node(labels=labels, device_policy=policy, resource_version=version)
        replica.news.node_changed(node)
        await published(replica)
        return [event["note"] for event in events if event["reason"] == "UnknownValue"]

    assert await told(1, "binpack, numa") == []
    (note,) = await told(2, "binpack,tight", **{"ack.node.gpu.placement": "Spread"})
    assert note.startswith(
        f'metadata.annotations[{DEVICE_POLICY}]: Unsupported value: "tight": supported values: "bin'
    )
    assert await told(3, "binpack,tight") == []
    (note,) = await told(4, "spread", **{"ack.node.gpu.schedule": "cgpuu"})
    assert note == (
        'metadata.labels[ack.node.gpu.schedule]: Unsupported value: "cgpuu": supported values: '
        '"cgpu", "core_mem", "default", "mig", "mps", "share", "topology"'
    )
    (note,) = await told(5, "", **{"ack.node.gpu.placement": "tight"})
    assert note.endswith('supported values: "binpack", "spread"')


async def test_a_cordon_of_a_device_that_the_node_has_not_is_reported_once(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[dict[str, str]] = []
    monkeypatch.setattr(replica.recorder, "record", lambda _, **event: events.append(event))

    async def told(version: int, *uuids: str) -> list[str]:
        events.clear()
        replica.news.node_changed(a_node(cordoned_uuids=uuids, resource_version=version))
        await published(replica)
        return [event["note"] for event in events if event["reason"] == "UnknownValue"]

    assert await told(1, "GPU-0", "GPU-9") == []  # its devices are unknown so far
    replica.news.device_changed(a_device())
    (note,) = await told(2, "GPU-9", "GPU-0", "GPU-8")
    assert note == (
        'metadata.annotations[hami.io/device-cordon]: Invalid value: "GPU-8, GPU-9": must be UUIDs '
        "of this node's devices, which kubectl get gpudevices lists"
    )
    assert await told(3, "GPU-0", "GPU-8", "GPU-9") == []
    assert await told(4, "GPU-0") == []


async def test_a_pod_gets_a_part_of_a_registered_device_and_gives_it_back(
    replica: Replica,
) -> None:
    """No agent reports it, so a pod that is gone or has ended frees its devices."""
    replica.news.node_changed(a_registering_node())
    await published(replica)
    pod = await a_bound_pod(replica, "pod-1")
    (given,) = claim_status(replica, pod)["allocation"]["devices"]
    assert (given["uuid"], given["memory"], given["cores"]) == ("DCU-A", "4000Mi", 30)
    assert use_of(replica.ledger, "DCU-A").memory_mib == 4000
    replica.news.pod_gone(pod.metadata.uid)
    await replica.settle()
    assert "allocation" not in claim_status(replica, pod)
    assert use_of(replica.ledger, "DCU-A").memory_mib == 0


async def test_a_pod_that_ended_frees_its_devices(replica: Replica) -> None:
    replica.news.node_changed(a_registering_node())
    await published(replica)
    pod = await a_bound_pod(replica, "pod-1")
    known = replica.cache.pod(pod.metadata.uid)
    assert known is not None
    wire = known.pod.to_wire()
    wire["status"]["phase"] = "Succeeded"
    wire["metadata"]["resourceVersion"] = "900"
    replica.news.pod_changed(Pod.model_validate(wire))
    await replica.settle()
    assert "allocation" not in claim_status(replica, pod)


async def test_a_pod_with_a_device_of_nvidias_too_waits_for_the_agent(replica: Replica) -> None:
    replica.device()
    spec = [a_request(name="a"), a_request(name="b", vendor="hygon")]
    going = {
        "deletion_timestamp": "2026-01-01T00:00:00Z",
        "finalizers": ["vgpu.dev/in-use"],
    }
    claim = a_claim("mine", requests=spec, allocation=an_allocation(), metadata=going)
    wire = claim.to_wire()
    wire["status"]["reservedFor"] = {"podName": "pod-1", "podUID": "uid-of-pod-1"}
    replica.claim(type(claim).model_validate(wire))
    await replica.settle()
    assert "allocation" in replica.api.claim("mine")["status"]


async def test_a_full_node_refuses_in_hamis_words(replica: Replica) -> None:
    replica.news.node_changed(a_registering_node())
    await published(replica)
    pod = replica.pod(limits={"hygon.com/dcunum": 1, "hygon.com/dcumem": 40_000})
    refusal = replica.offer(pod)
    assert isinstance(refusal, Refusal)
    assert refusal.on("node-1") == "1/2 CardInsufficientMemory, 1/2 CardNotHealth"


async def a_bound_pod(replica: Replica, name: str) -> Pod:
    pod = replica.offered(name, containers=[a_container(limits=LIMITS)])
    await replica.bound()
    return pod


def claim_status(replica: Replica, pod: Pod) -> Any:
    known = replica.cache.pod(pod.metadata.uid)
    if known is not None:
        return replica.claim_of(pod).status.to_wire()
    (claim,) = replica.cache.claims()
    return replica.api.claim(claim.metadata.name)["status"]


async def test_a_plugin_that_is_not_told_which_pod_it_serves_serves_one_at_a_time(
    replica: Replica,
) -> None:
    """A second Bind on the node fails until the plugin has marked the first pod as served."""
    replica.news.node_changed(a_registering_node())
    await published(replica)
    first, second = (
        replica.offered(name, containers=[a_container(limits=LIMITS)]) for name in ("one", "two")
    )
    assert await bind(replica, first) == ""
    why = "the device plugin of node node-1 serves pod default/one first"
    assert await bind(replica, second) == why
    await see_bound(replica, first, phase="allocating")
    assert await bind(replica, second) == why
    await see_bound(replica, first, phase="success")
    assert await bind(replica, second) == ""


async def let_the_plugin_serve_one(replica: Replica) -> None:
    """Let the plugin on node-1 start to serve pod `one`."""
    replica.news.node_changed(a_registering_node())
    await published(replica)
    first = replica.offered("one", containers=[a_container(limits=LIMITS)])
    assert await bind(replica, first) == ""
    await see_bound(replica, first, phase="allocating")


async def test_a_plugin_that_never_answers_keeps_others_waiting_for_five_minutes(
    replica: Replica,
) -> None:
    await let_the_plugin_serve_one(replica)
    second = replica.offered("two", containers=[a_container(limits=LIMITS)])
    assert "serves pod default/one first" in await bind(replica, second)
    replica.time += 301
    replica.offer(second)
    assert await bind(replica, second) == ""


async def test_whose_turn_it_is_is_found_among_the_pods_of_the_node(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    await let_the_plugin_serve_one(replica)
    second = replica.offered("two", containers=[a_container(limits=LIMITS)])
    known = replica.cache.pod(second.metadata.uid)
    assert known is not None
    monkeypatch.setattr(replica.cache, "pods", None)
    assert replica.engine.waits_for_plugin(known, "node-1") == "default/one"
    assert replica.engine.waits_for_plugin(known, "node-2") == ""


async def bind(replica: Replica, pod: Pod) -> str:
    replica.offer(pod)
    await replica.settle()
    metadata = pod.metadata
    asked = BindRequest("default", metadata.name, metadata.uid, "node-1")
    binding = asyncio.ensure_future(replica.binder.bind(asked))
    while not binding.done():
        await replica.settle()
    return binding.result()


async def see_bound(replica: Replica, pod: Pod, *, phase: str) -> None:
    """Let the watch deliver the pod with its node and the mark."""
    raw = replica.api.objects[("pods", "default", pod.metadata.name)]
    raw["metadata"]["annotations"]["hami.io/bind-phase"] = phase
    replica.news.pod_changed(Pod.model_validate(replica.api.put(PODS, raw)))
    await replica.settle()


async def test_wishes_that_only_the_vendors_plugin_could_grant_are_reported(
    replica: Replica,
) -> None:
    replica.news.node_changed(a_registering_node())
    device = (await published(replica))[device_object_name("DCU-A")]
    spec = device.spec.model_copy(
        update={"memory_scaling": "1.5", "slots": 2, "mig_instances": "Static"}
    )
    metadata = device.metadata.model_copy(update={"resource_version": "5000"})
    wished = device.model_copy(update={"spec": spec, "metadata": metadata})
    replica.news.device_changed(wished)
    replica.time += 1.0
    await replica.settle()
    last = replica.api.applied[-1]["status"]
    (found,) = [each for each in last["conditions"] if each["type"] == "Configured"]
    assert (found["status"], found["reason"]) == ("False", "NoEffect")
    assert found["message"] == (
        "memoryScaling, migInstances of spec: no effect on a device that its vendor's plugin serves"
    )
