"""Pods get parts that their node registers, the plugin reads them, and a restart loses none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from builders import a_container, a_node
from replica import Replica
from vendor_vectors import devices_on
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node, Pod
from vgpu_api.resources import PODS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.extender.wire import BindRequest
from vgpu_operator.ledger import Ledger

SIZE, MEMORY, CORES = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
PROFILES = {"1g.6gb": "7", "3g.20gb": "5", "6g.40gb": "2"}
ONE = "node-1-enflame-drs-0"


def registering(profiles: dict[str, str], *, version: int = 1) -> Node:
    node = a_node(allocatable={SIZE: "6"}, resource_version=version)
    register = {
        "devices": [{"index": "0", "minor": "3", "capacity": 6}],
        "profiles": profiles,
    }
    annotations = {"enflame.com/gcu-drs-capacity": json.dumps(register)}
    metadata = node.metadata.model_copy(update={"annotations": annotations})
    return node.model_copy(update={"metadata": metadata})


def register(replica: Replica, node: Node) -> None:
    replica.news.node_changed(node)
    for device in devices_on(node):
        version = node.metadata.resource_version
        metadata = device.metadata.model_copy(update={"resource_version": version})
        replica.news.device_changed(device.model_copy(update={"metadata": metadata}))


async def bind(replica: Replica, pod: Pod) -> str:
    replica.offer(pod)
    await replica.settle()
    requested = BindRequest("default", pod.metadata.name, pod.metadata.uid, "node-1")
    binding = asyncio.ensure_future(replica.binder.bind(requested))
    while not binding.done():
        await replica.settle()
    return binding.result()


def annotations_of(replica: Replica, pod: Pod) -> dict[str, Any]:
    (bound,) = [
        raw for (kind, _, name), raw in replica.api.objects.items()
        if (kind, name) == (PODS.plural, pod.metadata.name)
    ]  # fmt: skip
    found: dict[str, Any] = bound["metadata"]["annotations"]
    return found


async def test_the_allocation_names_the_part_and_the_binding_has_what_the_plugin_reads(
    replica: Replica,
) -> None:
    register(replica, registering(PROFILES))
    containers = [a_container("main", limits={SIZE: 3}), a_container("side", limits={CORES: 10})]
    pod = replica.offered("two", containers=containers)
    assert await bind(replica, pod) == ""
    claim = replica.claim_of(pod)
    assert claim.status.allocation is not None
    given = claim.status.allocation.devices
    assert [(each.part, each.memory_mib, each.cores) for each in given] == [
        ("3g.20gb", 20_480, 50),
        ("1g.6gb", 6144, 17),
    ]
    written = annotations_of(replica, pod)
    assert json.loads(written["assigned-containers"]) == {
        "main": {"allocated": False, "request": 3, "profileID": "5", "profileName": "3g.20gb"},
        "side": {"allocated": False, "request": 1, "profileID": "7", "profileName": "1g.6gb"},
    }
    own = {key: value for key, value in written.items() if key.startswith("enflame.com/")}
    assert own.pop("enflame.com/gcu-assigned-time").endswith("000000000")
    assert own == {
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-id": "0",
        "enflame.com/gcu-assigned-index": "0",
        "enflame.com/gcu-assigned-minor": "3",
        "enflame.com/gcu-request-size": "3",
    }
    assert written["hami.io/enflame-vgpu-devices-allocated"] == (
        f"{ONE},Enflame,20480,50:;{ONE},Enflame,6144,17:;"
    )


async def test_objects_alone_give_the_same_use_again(replica: Replica) -> None:
    node = registering(PROFILES)
    register(replica, node)
    pod = replica.offered("one", containers=[a_container(limits={MEMORY: 20_480, CORES: 40})])
    assert await bind(replica, pod) == ""
    again = Ledger(config=ClusterConfig())
    again.apply_node(node)
    for device in devices_on(node):
        again.apply_device(device)
    again.apply_claim(VGPUClaim.read(replica.claim_of(pod).to_wire()))
    (name,) = again.columns.state()
    assert again.columns.state()[name] == (1, 50, 20_480)
    assert replica.ledger.columns.state() == again.columns.state()


async def test_a_full_node_and_one_without_the_part_refuse_in_hamis_words(replica: Replica) -> None:
    register(replica, registering(PROFILES))
    replica.offered("one", containers=[a_container(limits={SIZE: 6})])
    for size, reason in ((1, "1/1 CardInsufficientMemory"), (2, "1/1 ModeNotFit")):
        refusal = replica.offer(replica.pod(f"more-{size}", limits={SIZE: size}))
        assert isinstance(refusal, Refusal)
        assert refusal.on("node-1") == reason


async def test_a_part_that_is_registered_no_more_is_not_bound(replica: Replica) -> None:
    """The register has changed since the decision, and the plugin no longer makes such a part."""
    register(replica, registering(PROFILES))
    pod = replica.offered("late", containers=[a_container(limits={SIZE: 3})])
    await replica.settle()
    replica.news.node_changed(registering({"2g.12gb": "5", "6g.40gb": "2"}, version=2))
    requested = BindRequest("default", "late", pod.metadata.uid, "node-1")
    binding = asyncio.ensure_future(replica.binder.bind(requested))
    while not binding.done():
        await replica.settle()
    assert 'Not found: "3g.20gb": the node registers no such part of' in binding.result()
