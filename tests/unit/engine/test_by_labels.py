"""For pods with ACK's resource names, node labels decide the order of devices."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_container, a_device, a_node, a_pod
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.names import ACK_NODE_PLACEMENT, ACK_NODE_SCHEDULE, HAMI_DEVICE_POLICY
from vgpu_operator.dialects import follows_labels
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import FilterRequest

LINKS = {
    "GPU-0": {"GPU-1": 10, "GPU-2": 10},
    "GPU-1": {"GPU-0": 10, "GPU-2": 200},
    "GPU-2": {"GPU-0": 10, "GPU-1": 200},
}
FULLER_FIRST, EMPTIER_FIRST = {"GPU-0"}, {"GPU-1"}


async def devices_for(
    labels: dict[str, str], limits: dict[str, Any], annotations: dict[str, str] | None = None
) -> set[str]:
    """Return the devices allocated on a node with three devices, the first slightly in use."""
    replica = Replica()
    replica.news.node_changed(a_node())
    for index, (uuid, links) in enumerate(LINKS.items()):
        device = a_device(uuid=uuid, index=index, numa=2 - index, links=links)
        replica.news.device_changed(device)
    if "aliyun.com/gpu-count" not in limits:
        replica.offered("first", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024},
                    annotations={"nvidia.com/use-gpuuuid": "GPU-0"})  # fmt: skip
        await replica.settle()
    replica.news.node_changed(a_node(labels=labels, resource_version=2))
    pod = replica.pod(
        "asks", containers=[a_container(limits=limits)], annotations=annotations or {}
    )
    filter_nodes(
        replica.engine, FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": ["node-1"]})
    )
    held = replica.state.reservations.of_pod(pod.metadata.uid)
    assert held is not None
    assert held.allocation is not None
    return {device.uuid for device in held.allocation.devices}


ACK = {"aliyun.com/gpu-mem": 2}
HAMI = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048}


@pytest.mark.parametrize(
    ("labels", "limits", "annotations", "expected"),
    [
        ({}, ACK, {}, FULLER_FIRST),
        ({ACK_NODE_PLACEMENT: "binpack"}, ACK, {}, FULLER_FIRST),
        ({ACK_NODE_PLACEMENT: "spread"}, ACK, {}, EMPTIER_FIRST),
        ({ACK_NODE_PLACEMENT: "spread"}, ACK, {HAMI_DEVICE_POLICY: "binpack"}, FULLER_FIRST),
        ({ACK_NODE_PLACEMENT: "spread"}, ACK, {HAMI_DEVICE_POLICY: " , "}, EMPTIER_FIRST),
        ({ACK_NODE_PLACEMENT: "anything"}, ACK, {}, FULLER_FIRST),
        ({ACK_NODE_PLACEMENT: "binpack"}, HAMI, {}, EMPTIER_FIRST),
        ({ACK_NODE_SCHEDULE: "topology"}, HAMI, {}, EMPTIER_FIRST),
        ({ACK_NODE_SCHEDULE: "topology"}, {"aliyun.com/gpu-count": 2}, {}, {"GPU-1", "GPU-2"}),
        ({ACK_NODE_SCHEDULE: "topology"}, {"aliyun.com/gpu-count": 1}, {}, {"GPU-0"}),
        ({ACK_NODE_SCHEDULE: "default"}, {"aliyun.com/gpu-count": 1}, {}, {"GPU-0"}),
    ],
)
async def test_a_nodes_labels_decide_for_pods_in_acks_words(labels, limits, annotations, expected):
    assert await devices_for(labels, limits, annotations) == expected


def test_the_pods_first_asking_container_decides_whose_words_they_are():

    ack, hami = a_container("a", limits=ACK), a_container("h", limits=HAMI)
    idle, config = a_container("idle"), ClusterConfig()
    assert follows_labels(a_pod(containers=[idle, ack, hami]), config)
    assert not follows_labels(a_pod(containers=[hami, ack]), config)
    assert follows_labels(a_pod(init_containers=[ack], containers=[hami]), config)
    assert not follows_labels(a_pod(containers=[idle]), config)
