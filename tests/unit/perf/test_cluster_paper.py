"""Paper nodes and devices are read by the operator as those of real ones are."""

from __future__ import annotations

from builders import a_request, a_spec
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
from vgpu_api.v1alpha1 import GPUDevice
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import read
from vgpu_operator.ledger import Ledger
from vgpu_operator.placement import place


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
