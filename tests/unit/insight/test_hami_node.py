"""A node of HAMi's can be taken over if the use of its pods fits our devices."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from builders import a_container, a_node, a_pod
from vgpu_api.config import ClusterConfig, read_cluster_config
from vgpu_api.core import Node, Pod
from vgpu_api.effective import effective_use
from vgpu_api.names import HAMI, LABEL_HELD_FOR, device_object_name, pod_claim_name
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.insight.hami_node import BothConfigs, judge
from vgpu_operator.insight.held_claims import claim_to_hold, status_to_hold

GPU = "GPU-0"
NONE = ClusterConfig()


def a_hami_node(*, mib: int = 16000, mode: str = "hami-core", register: str | None = None) -> Node:
    node = a_node("n1")
    entry = {"id": GPU, "index": 3, "count": 10, "devmem": mib, "devcore": 100, "mode": mode}
    text = json.dumps([entry]) if register is None else register
    annotations = {"hami.io/node-nvidia-register": text}
    metadata = node.metadata.model_copy(update={"annotations": annotations})
    return node.model_copy(update={"metadata": metadata})


def a_hami_pod(
    name: str = "a", mib: int = 1000, cores: int = 0, *, uuid: str = GPU, phase: str = "Running"
) -> Pod:
    annotations = {"hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,{mib},{cores}:;"}
    return a_pod(
        name,
        node="n1",
        phase=phase,
        admitted=False,
        annotations=annotations,
        containers=[a_container(limits={"nvidia.com/gpu": 1})],
    )


def obstacles(
    *pods: Pod,
    node: Node | None = None,
    hami: ClusterConfig = NONE,
    ours: ClusterConfig = NONE,
) -> Sequence[str]:
    return judge(node or a_hami_node(), pods, BothConfigs(hami, ours)).obstacles


def config(text: str) -> ClusterConfig:
    return read_cluster_config({"nvidia": json.loads(text)})


def test_pods_that_fit_are_counted_and_ended_ones_are_not():
    pods = [a_hami_pod("a", 6000, 50), a_hami_pod("b", 10000, 50), a_hami_pod("c", phase="Failed")]
    found = judge(a_hami_node(), pods, BothConfigs(NONE, NONE))
    assert found.obstacles == []
    assert [pod.place for pod in found.pods] == ["default/a", "default/b"]


def test_one_that_is_starting_is_counted_apart():
    found = judge(a_hami_node(), [a_hami_pod(phase="Pending")], BothConfigs(NONE, NONE))
    assert ([p.place for p in found.pods], [p.place for p in found.starting]) == ([], ["default/a"])


def test_records_that_add_up_to_more_than_hami_gives_away_are_named():
    (said,) = obstacles(a_hami_pod("a", 9000), a_hami_pod("b", 8000))
    assert said == (
        "GPU GPU-0: the records of its pods add up to 17000 MiB, and HAMi gives away 16000 MiB "
        "(pods default/a, default/b)"
    )


def test_a_gpu_that_hamis_scaling_over_commits_is_named():
    scaled = config('{"deviceMemoryScaling": 2}')
    node = a_hami_node(mib=32000)
    pods = a_hami_pod("a", 12000), a_hami_pod("b", 12000)
    (said,) = obstacles(*pods, node=node, hami=scaled)
    assert said.startswith(
        "GPU GPU-0 has 16000 MiB, and HAMi's deviceMemoryScaling of 2 has let its pods ask for "
        "24000 MiB (pods default/a, default/b): end some, or set"
    )
    assert obstacles(*pods, node=node, hami=scaled, ours=scaled) == []
    assert obstacles(a_hami_pod("a", 16000), node=node, hami=scaled) == []


def test_the_scaling_of_one_node_counts():
    scaled = read_cluster_config({"nodeconfig": [{"name": "n1", "devicememoryscaling": 2}]})
    assert obstacles(a_hami_pod("a", 17000), node=a_hami_node(mib=32000), hami=scaled)


def test_more_compute_or_containers_than_we_give_away_are_named():
    (said,) = obstacles(a_hami_pod("a", 1, 80), a_hami_pod("b", 1, 80))
    assert "its pods have 160 % of the compute, and we give away 100 %" in said
    (said,) = obstacles(a_hami_pod("a"), a_hami_pod("b"), ours=config('{"deviceSplitCount": 1}'))
    assert "2 containers share it, and we let 1 share a GPU" in said


def test_a_gpu_that_our_configuration_leaves_out_is_named_if_it_is_used():
    ours = read_cluster_config({"nodeconfig": [{"name": "n1", "filterdevices": {"uuid": [GPU]}}]})
    (said,) = obstacles(a_hami_pod(), ours=ours)
    assert "filterDevices of our configuration leaves it out" in said
    assert obstacles(ours=ours) == []


@pytest.mark.parametrize("mode", ["mig", "mps"])
def test_a_gpu_in_another_mode_is_named(mode: str):
    (said,) = obstacles(node=a_hami_node(mode=mode))
    assert said.startswith(f"node n1: GPU GPU-0 is in HAMi's mode {mode}: ")


def test_everything_that_cannot_be_read_is_named_with_its_object():
    found = obstacles(
        a_hami_pod("odd", uuid="GPU-9"),
        a_pod("stranger", node="n1", phase="Running", admitted=False,
              containers=[a_container(limits={"nvidia.com/gpu": 1})]),
        a_hami_pod("many", 1, 101),
        a_pod("plain", node="n1", phase="Running", admitted=False),
        a_pod("ours", node="n1", phase="Running",
              containers=[a_container(limits={"nvidia.com/gpu": 1})]),
    )  # fmt: skip
    assert sorted(line.split(":")[0] for line in found) == [
        "pod default/many",
        "pod default/odd",
        "pod default/stranger",
    ]
    (said,) = obstacles(node=a_hami_node(register="?"))
    assert said.startswith("node n1: metadata.annotations[hami.io/node-nvidia-register]: Invalid")


# The claims that hold what a pod uses.


def test_a_held_claim_has_what_the_pod_uses_and_belongs_to_it():
    pod = a_hami_pod("a", 5000, 30)
    (recorded,) = judge(a_hami_node(), [pod], BothConfigs(NONE, NONE)).pods
    made = claim_to_hold(recorded)
    claim = VGPUClaim.read(made)
    status = status_to_hold(
        claim,
        recorded,
        node_uid="uid-of-n1",
        indices={GPU: 3},
        allocation_id="00000000-0000-0000-0000-000000000001",
        unix=0.0,
    )
    assert made["metadata"]["name"] == pod_claim_name("a", pod.metadata.uid)
    assert made["metadata"]["labels"] == {LABEL_HELD_FOR: HAMI}
    assert made["metadata"]["ownerReferences"][0]["uid"] == pod.metadata.uid
    assert claim.held_for == HAMI
    allocation = status.allocation
    assert allocation is not None
    assert status.reserved_for is not None
    assert (allocation.node_name, allocation.node_uid) == ("n1", "uid-of-n1")
    assert status.reserved_for.pod_uid == pod.metadata.uid
    (device,) = allocation.devices
    assert (device.name, device.uuid, device.index) == (device_object_name(GPU), GPU, 3)
    use = effective_use(claim.spec, allocation.devices)[GPU]
    assert (use.memory_mib, use.cores, use.slots) == (5000, 30, 1)
