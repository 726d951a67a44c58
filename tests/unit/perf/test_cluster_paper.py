"""The operator reads simulated nodes and devices like real ones."""

from __future__ import annotations

from collections import Counter

import pytest

from builders import a_request, a_spec
from perf.cluster_bench.allocated import FILLED, copies
from perf.cluster_bench.load import DEVICES, a_pod
from perf.cluster_bench.paper import (
    DEVICES_PER_NODE,
    MEMORY_MIB,
    SLOTS,
    device_status,
    node_name,
    paper_node,
)
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node, Pod
from vgpu_api.names import device_object_name, pod_claim_name
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_local.nodes import device_uuid
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import read
from vgpu_operator.ledger import Ledger
from vgpu_operator.placement import place

pytestmark = pytest.mark.scale


def test_a_paper_node_is_ready_and_offers_a_slot_for_each_that_its_devices_have() -> None:
    node = Node.model_validate(paper_node(3))
    assert node.is_ready
    assert node.status.allocatable["nvidia.com/gpu"] == str(DEVICES_PER_NODE * SLOTS)


def test_the_operator_can_place_on_every_paper_device() -> None:
    ledger, name = Ledger(config=ClusterConfig()), node_name(0)
    ledger.apply_node(Node.model_validate(paper_node(0)))
    for index in range(DEVICES_PER_NODE):
        status = device_status(name, index)
        device = {
            "metadata": {"name": f"gpu-{index}"},
            "spec": {"nodeName": name},
            "status": status,
        }
        ledger.apply_device(GPUDevice.model_validate(device))
    whole = a_request(memory=f"{MEMORY_MIB}Mi", cores=100, count=DEVICES_PER_NODE)
    plan = place(ledger.columns, Demand.of(a_spec([whole]), ClusterConfig()))
    assert len(plan.allocation().devices) == DEVICES_PER_NODE


def test_a_pod_with_devices_asks_for_them_and_a_plain_one_does_not() -> None:
    config = ClusterConfig()
    demand = read(Pod.model_validate(a_pod("r", 1, with_devices=True)), config)
    assert demand is not None
    assert demand.spec is not None
    assert demand.spec.requests[0].memory_mib == DEVICES["nvidia.com/gpumem"]
    assert read(Pod.model_validate(a_pod("r", 1, with_devices=False)), config) is None


POD_UID = "6d1f3c58-2b94-4e0a-b7c5-90ad41e6f287"


def test_copies_of_a_pod_hold_slices_of_their_own_and_fill_one_device_after_the_other() -> None:
    nodes = {node_name(number): f"uid-{number}" for number in range(2)}
    uuid = device_uuid(node_name(1), 3)
    pod = {
        "metadata": {"name": "warm-0", "uid": POD_UID, "namespace": "default"},
        "spec": {"nodeName": node_name(1), "containers": []},
    }
    device = {
        "name": device_object_name(uuid),
        "uuid": uuid,
        "index": 3,
        "memory": "8000Mi",
        "cores": 10,
    }
    claim = {
        "metadata": {
            "name": pod_claim_name("warm-0", POD_UID),
            "uid": "3e7c1a90-0b0b-4d5e-8a77-5d9a0c1b2f34",
        },
        "spec": {"requests": [{}]},
        "status": {
            "reservedFor": {"podName": "warm-0", "podUID": POD_UID},
            "allocation": {
                "id": "b94f0d52-7c61-4b0e-9f6e-11c2a8de7f05",
                "nodeName": node_name(1),
                "nodeUID": "uid-1",
                "devices": [device],
            },
        },
    }
    made = dict(copies(pod, claim, nodes, 2 * FILLED + 2))
    pods = [made[f"/registry/pods/default/before-{n}"] for n in range(2 * FILLED + 2)]
    taken = Counter[tuple[str, int]]()
    for each in pods:
        name, uid = each["metadata"]["name"], each["metadata"]["uid"]
        own = made[f"/registry/vgpu.dev/vgpuclaims/default/{pod_claim_name(name, uid)}"]
        status = VGPUClaim.read(own).status
        assert status.reserved_for is not None
        assert (status.reserved_for.pod_name, status.reserved_for.pod_uid) == (name, uid)
        assert status.allocation is not None
        node = status.allocation.node_name
        assert each["spec"]["nodeName"] == node
        assert status.allocation.node_uid == nodes[node]
        (given,) = status.allocation.devices
        assert given.uuid == device_uuid(node, given.index)
        assert given.name == device_object_name(given.uuid)
        taken[node, given.index] += 1
    assert taken == {(node, 0): FILLED for node in nodes} | {(node, 1): 1 for node in nodes}
    assert len(made) == 2 * len(pods)
