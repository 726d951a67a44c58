"""Nodes that go and come back, and nodes that publish the same device, on a whole cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from vgpu_api.resources import NODES, PODS
from vgpu_client.transport import Object
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubelet.node import register_node
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.steps import (
    a_container,
    a_pod,
    claim,
    claim_name,
    create,
    delete_pod,
    is_allocated,
    memory_seen,
    reason,
    running,
    until,
)

pytestmark = pytest.mark.timeout(180)

WHOLE = {"nvidia.com/gpu": 1}
ONE, LEFT, RIGHT = "one", "left", "right"


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    left, right = gpu_node(LEFT, [T4]), gpu_node(RIGHT, [T4])
    twin = replace(right, devices=left.devices)  # for example, a virtual machine that was copied
    with whole_cluster([gpu_node(ONE, [T4]), left, twin]) as cluster:
        yield cluster
        assert excesses(cluster.server.history()) == []


def a_pod_on(node: str, name: str, **limits: int) -> Object:
    selector = {"kubernetes.io/hostname": node}
    return a_pod(name, a_container(limits={**WHOLE, **limits}), nodeSelector=selector)


def devices_of(cluster: LocalCluster, node: str) -> list[Object]:
    found = cluster.objects("gpudevices.vgpu.dev")
    return [device for device in found if device["spec"]["nodeName"] == node]


def node_uid(cluster: LocalCluster, name: str) -> str:
    node = cluster.wait_for(NODES, name, lambda _: True)
    return str(node["metadata"]["uid"])


def delete_node(cluster: LocalCluster, name: str) -> None:
    """Delete the Node, and its devices through their owner reference; its pods keep running."""
    cluster.run(cluster.api.delete(NODES, name))
    until(cluster, lambda: not devices_of(cluster, name))


def register_anew(cluster: LocalCluster, name: str) -> None:
    """Bring the machine back: the kubelet registers its Node, and the agent publishes devices."""
    cluster.run(register_node(cluster.api, cluster.kubelets[name].shape))
    cluster.restart_kubelet(name)
    cluster.wait_ready()


def is_marked(device: Object) -> bool:
    conditions = device.get("status", {}).get("conditions", [])
    return any(c["type"] == "DuplicateUUID" and c["status"] == "True" for c in conditions)


def allocation(found: dict[str, Any]) -> dict[str, Any]:
    return dict(found["status"]["allocation"])


def test_a_running_pod_keeps_its_devices_when_its_node_is_deleted_and_registered_anew(
    cluster: LocalCluster,
) -> None:
    create(cluster, a_pod_on(ONE, "runs"))
    pod = running(cluster, "runs")
    before = claim(cluster, claim_name(pod), is_allocated)
    former = node_uid(cluster, ONE)
    assert allocation(before)["nodeUID"] == former
    delete_node(cluster, ONE)
    register_anew(cluster, ONE)
    successor = node_uid(cluster, ONE)
    assert successor != former
    after = claim(
        cluster,
        claim_name(pod),
        lambda status: status.get("allocation", {}).get("nodeUID") == successor,
    )
    assert allocation(after) == {**allocation(before), "nodeUID": successor}
    assert memory_seen(cluster, "runs") == [16_384]
    create(cluster, a_pod_on(ONE, "waits"))
    waits = cluster.wait_for(PODS, "waits", lambda _: True)
    claim(cluster, claim_name(waits), lambda status: reason(status).startswith("Card"))
    delete_pod(cluster, "runs")
    running(cluster, "waits", limit=60)


def test_a_device_that_two_live_nodes_publish_serves_on_the_first_until_that_is_gone(
    cluster: LocalCluster,
) -> None:
    until(cluster, lambda: len(marked_nodes(cluster)) == 1)
    (later,) = marked_nodes(cluster)
    (first,) = {LEFT, RIGHT} - {later}
    create(cluster, a_pod_on(later, "asks"))
    pod = cluster.wait_for(PODS, "asks", lambda _: True)
    refused = claim(cluster, claim_name(pod), lambda status: reason(status) == "CardUuidDuplicate")
    (why,) = [c for c in refused["status"]["conditions"] if c["type"] == "Allocated"]
    assert "1/1 CardUuidDuplicate" in why["message"]
    create(cluster, a_pod_on(ONE, "elsewhere"))
    running(cluster, "elsewhere")
    delete_node(cluster, first)
    running(cluster, "asks", limit=60)
    register_anew(cluster, first)
    # it counts as the later of the two once it is back
    until(cluster, lambda: marked_nodes(cluster) == {first})
    create(cluster, a_pod_on(first, "in-vain"))
    in_vain = cluster.wait_for(PODS, "in-vain", lambda _: True)
    claim(cluster, claim_name(in_vain), lambda status: reason(status) == "CardUuidDuplicate")
    assert memory_seen(cluster, "asks") == [16_384]  # the node that has the device keeps it


def marked_nodes(cluster: LocalCluster) -> set[str]:
    """Return which of the two nodes have a marked object for the shared device."""
    return {node for node in (LEFT, RIGHT) if any(map(is_marked, devices_of(cluster, node)))}
