"""Pods that request other vendors' devices, on nodes whose vendor plugins register them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from vgpu_api.names import HAMI_BIND_PHASE, device_object_name
from vgpu_api.resources import GPU_DEVICES, NODES, PODS, VGPU_CLAIMS
from vgpu_client.transport import Object
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.nodes import T4, gpu_node
from vgpu_local.programs import ROOT
from vgpu_local.steps import a_container, a_pod, claim_name, create, delete_pod, record, running

EXAMPLES = ROOT / "examples" / "vendors"
DCUS = {
    "mixed": "DCU-M0,4,16384,100,DCU-K100_AI,0,true,0,hami-core:",
    "dcus": "".join(f"DCU-D{n},4,32768,100,DCU-Z100,0,true,{n},hami-core:" for n in range(2)),
}
NPUS = [
    {
        "id": f"NPU-{n}",
        "index": n,
        "count": 4,
        "devmem": 65_536,
        "devcore": 20,
        "type": "Ascend910B3",
        "health": True,
        "custominfo": {"NetworkID": n // 2},
    }
    for n in range(4)
]
COUNTED = {"count": 1, "devmem": 32_768, "devcore": 100, "health": True}
BIRENS = [{"id": "BR-0", "index": 0, "type": "Biren", **COUNTED}]
DIES = [
    {
        "id": f"VA-{n}",
        "index": n,
        "type": "Vastai",
        "custominfo": {"DeviceStrategy": "die", "AIC": f"board-{n // 2}"},
        **COUNTED,
    }
    for n in range(4)
]
OFFERED = {
    "hygon.com/dcunum": 8,
    "huawei.com/Ascend910B3": 16,
    "birentech.com/gpu": 1,
    "vastaitech.com/va": 4,
    "aws.amazon.com/neuron": 2,
    "aws.amazon.com/neuroncore": 4,
    "metax-tech.com/sgpu": 64,
    "enflame.com/drs-gcu": 12,
}
GCUS = {
    "devices": [{"index": str(n), "minor": str(n + 8), "capacity": 6} for n in range(2)],
    "profiles": {"1g.8gb": "0", "2g.16gb": "5", "3g.24gb": "9", "6g.48gb": "12"},
}
GCU_IDS = [f"mixed-enflame-drs-{n}" for n in range(2)]
SGPUS = [
    {
        "uuid": f"SGPU-{n}",
        "model": "MXC500",
        "totalDevCount": 16,
        "totalCompute": 100,
        "totalVRam": 65_536,
        "healthy": True,
        "qosPolicy": "burst-share",
        "linkZone": n // 2 + 1,
    }
    for n in range(6)
]

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    shapes = [NodeShape(name, offered=OFFERED) for name in DCUS]
    with whole_cluster([gpu_node(shape.name, [T4], shape=shape) for shape in shapes]) as cluster:
        for name, written in DCUS.items():
            register(cluster, name, {"hami.io/node-dcu-register": written})
        register(cluster, "mixed", {"hami.io/node-register-Ascend910B3": json.dumps(NPUS)})
        register(cluster, "dcus", {"metax-tech.com/node-gpu-devices": json.dumps(SGPUS)})
        register(cluster, "mixed", {"enflame.com/gcu-drs-capacity": json.dumps(GCUS)})
        counted = {"hami.io/node-biren-register": BIRENS, "hami.io/node-va-register": DIES}
        texts = {key: json.dumps(devices) for key, devices in counted.items()}
        register(cluster, "dcus", texts)
        others = [str(device["id"]) for device in (*NPUS, *BIRENS, *DIES)]
        others += [str(device["uuid"]) for device in SGPUS]
        for uuid in ("DCU-M0", "DCU-D0", "DCU-D1", *GCU_IDS, *others):
            cluster.wait_for(GPU_DEVICES, device_object_name(uuid), is_ready)
        yield cluster


def register(cluster: LocalCluster, node: str, annotations: dict[str, str]) -> None:
    """Write to a Node what a vendor's device plugin writes there."""
    changes = {"metadata": {"annotations": annotations}}
    cluster.run(cluster.api.merge_patch(NODES, node, changes))


def served(cluster: LocalCluster, name: str) -> Object:
    """Return the pod once it runs and the plugin has handed out what its annotations list."""
    pod = running(cluster, name)
    changes = {"metadata": {"annotations": {HAMI_BIND_PHASE: "success"}}}
    return cluster.run(cluster.api.merge_patch(PODS, name, changes, namespace="default")) or pod


def is_ready(device: Object) -> bool:
    conditions = (device.get("status") or {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def is_given(device: Object, memory: str) -> bool:
    return ((device["status"].get("allocated")) or {"memory": "0"})["memory"] == memory


def test_pods_in_hygons_words_get_dcus_and_their_plugin_reads_which(cluster: LocalCluster) -> None:
    part, whole = cluster.apply(EXAMPLES / "hygon.yaml")
    for pod in (part, whole):
        served(cluster, pod["metadata"]["name"])
    annotations = running(cluster, "dcu-whole")["metadata"]["annotations"]
    given = record(annotations["hami.io/dcu-devices-allocated"])
    assert sorted(given) == [("DCU-D0", 32768, 100), ("DCU-D1", 32768, 100)]
    annotations = running(cluster, "dcu-part")["metadata"]["annotations"]
    assert annotations["hami.io/dcu-devices-to-allocate"] == "DCU-M0,DCU,2000,60:;"
    assert annotations["hami.io/vgpu-node"] == "mixed"
    name = device_object_name("DCU-M0")
    cluster.wait_for(GPU_DEVICES, name, lambda device: is_given(device, "2000Mi"))
    delete_pod(cluster, "dcu-part")
    cluster.wait_for(GPU_DEVICES, name, lambda device: is_given(device, "0"))


def test_pods_in_ascends_words_get_a_named_size_or_whole_devices_of_one_network(
    cluster: LocalCluster,
) -> None:
    for pod in cluster.apply(EXAMPLES / "ascend.yaml"):
        served(cluster, pod["metadata"]["name"])
    annotations = running(cluster, "npu-part")["metadata"]["annotations"]
    ((_, memory, cores),) = record(annotations["hami.io/Ascend910B3-devices-allocated"])
    assert (memory, cores) == (16_384, 0)
    (part,) = json.loads(annotations["huawei.com/Ascend910B3"])
    assert (part["temp"], part["memory"]) == ("vir05_1c_16g", 16_384)
    annotations = running(cluster, "npu-whole")["metadata"]["annotations"]
    whole = json.loads(annotations["huawei.com/Ascend910B3"])
    assert [npu["memory"] for npu in whole] == [65_536, 65_536]
    assert len({int(npu["UUID"][-1]) // 2 for npu in whole}) == 1


def test_pods_that_count_devices_get_slots_of_them_and_none_of_their_memory(
    cluster: LocalCluster,
) -> None:
    for pod in cluster.apply(EXAMPLES / "counted.yaml"):
        served(cluster, pod["metadata"]["name"])
    annotations = running(cluster, "biren-one")["metadata"]["annotations"]
    assert annotations["hami.io/Biren-devices-to-allocate"] == "BR-0,Biren,0,0:;"
    annotations = running(cluster, "vastai-two")["metadata"]["annotations"]
    dies = record(annotations["hami.io/Vastai-devices-allocated"])
    assert [(memory, cores) for _, memory, cores in dies] == [(0, 0), (0, 0)]
    assert len({int(uuid[-1]) // 2 for uuid, _, _ in dies}) == 1
    (given,) = [d for d in cluster.objects("gpudevices.vgpu.dev") if d["status"]["uuid"] == "BR-0"]
    assert is_given(given, "0")


def test_pods_get_neuron_cores_by_their_numbers_which_none_has_twice(
    cluster: LocalCluster,
) -> None:
    """Two nodes with two devices of two cores each: three whole devices fit next to two cores."""
    pods = cluster.apply(EXAMPLES / "aws-neuron.yaml")
    written = [running(cluster, pod["metadata"]["name"])["metadata"]["annotations"] for pod in pods]
    core, device, cores = written
    assert core["NEURON_RESOURCE_TYPE"] == "aws.amazon.com/neuroncore"
    assert "NEURON_RESOURCE_TYPE" not in device
    assert device["aws.amazon.com/predicate-node"] == device["hami.io/vgpu-node"]
    given = set[tuple[str, int]]()
    for its, count in ((core, 1), (device, 2), (cores, 2)):
        numbers = [int(each) for each in its["AWS_NEURON_IDS"].split(",")]
        if its is device:
            numbers = [numbers[0] * 2, numbers[0] * 2 + 1]
        of_node = {(its["hami.io/vgpu-node"], each) for each in numbers}
        assert len(of_node) == count
        assert not given & of_node
        given |= of_node
    assert cores["hami.io/aws-neuron-devices-allocated"].count("AWSNeuron,0,") == 2


def test_pods_share_a_metax_gpu_where_their_classes_and_policies_go_together(
    cluster: LocalCluster,
) -> None:
    """One GPU is for the pod with a policy, one for the pods with a class, and two are linked."""
    of = dict[str, set[str]]()
    for pod in cluster.apply(EXAMPLES / "metax-sgpu.yaml"):
        name = pod["metadata"]["name"]
        annotations = served(cluster, name)["metadata"]["annotations"]
        (devices,) = json.loads(annotations["metax-tech.com/gpu-devices-allocated"])
        of[name] = {device["uuid"] for device in devices}
        if name == "sgpu-online":
            assert devices == [{"uuid": next(iter(of[name])), "vRam": 4096}]
            assert "metax-tech.com/sgpu-qos-policy" not in annotations
        if name == "sgpu-offline":
            assert annotations["metax-tech.com/sgpu-qos-policy"] == "best-effort"
    assert of["sgpu-part"].isdisjoint(of["sgpu-offline"])
    assert of["sgpu-part"].isdisjoint(of["sgpu-online"])
    assert len(of["sgpu-two"]) == 2
    assert all(of["sgpu-two"].isdisjoint(its) for name, its in of.items() if name != "sgpu-two")
    (claim,) = [
        each
        for each in cluster.objects("vgpuclaims.vgpu.dev")
        if each["metadata"]["name"].startswith("sgpu-online")
    ]
    assert claim["spec"]["requests"][0]["appClass"] == "Online"
    beside_it = {"metax-tech.com/use-gpuuuid": next(iter(of["sgpu-part"]))}
    limits = {"metax-tech.com/sgpu": 1, "metax-tech.com/vcore": 10, "metax-tech.com/vmemory": 1}
    late = a_pod("sgpu-late", a_container("main", limits), annotations=beside_it)
    cluster.wait_for(
        VGPU_CLAIMS,
        claim_name(create(cluster, late)),
        lambda claim: any(
            "CardQosPolicyMismatch" in condition["message"]
            for condition in (claim.get("status") or {}).get("conditions", [])
        ),
    )
    delete_pod(cluster, "sgpu-part")
    assert served(cluster, "sgpu-late")


def test_pods_get_parts_of_enflame_gcus_that_their_node_registers(cluster: LocalCluster) -> None:
    """Parts are requested by size or by amounts; a size no node registers waits until one does."""
    given = dict[str, list[tuple[str, int]]]()
    for pod in cluster.apply(EXAMPLES / "enflame-drs.yaml"):
        name = pod["metadata"]["name"]
        annotations = served(cluster, name)["metadata"]["annotations"]
        assert annotations["enflame.com/gcu-assigned"] == "false"
        assert int(annotations["enflame.com/gcu-assigned-minor"]) - 8 == int(
            annotations["enflame.com/gcu-assigned-index"]
        )
        parts = json.loads(annotations["assigned-containers"]).values()
        given[name] = [(part["profileName"], part["request"]) for part in parts]
    assert given == {
        "gcu-small": [("1g.8gb", 1)],
        "gcu-by-amounts": [("3g.24gb", 3)],
        "gcu-two-parts": [("2g.16gb", 2), ("1g.8gb", 1)],
    }
    (device, _) = (cluster.run(cluster.api.get(GPU_DEVICES, id_)) for id_ in GCU_IDS)
    assert [part["size"] for part in device["status"]["parts"]] == [1, 2, 3, 6]

    limits = {"enflame.com/drs-gcu": 4}
    late = create(cluster, a_pod("gcu-late", a_container("main", limits)))
    cluster.wait_for(
        VGPU_CLAIMS,
        claim_name(late),
        lambda claim: any(
            "ModeNotFit" in condition["message"]
            for condition in (claim.get("status") or {}).get("conditions", [])
        ),
    )
    more = {**GCUS, "profiles": {**GCUS["profiles"], "4g.16gb": "7"}}
    delete_pod(cluster, "gcu-by-amounts")
    register(cluster, "mixed", {"enflame.com/gcu-drs-capacity": json.dumps(more)})
    annotations = served(cluster, "gcu-late")["metadata"]["annotations"]
    assert json.loads(annotations["assigned-containers"])["main"]["profileID"] == "7"


def test_a_pod_has_devices_of_two_vendors(cluster: LocalCluster) -> None:
    """Both devices are released when the pod is gone, and the agent reports it."""
    containers = (
        a_container("cuda", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}),
        a_container("dtk", {"hygon.com/dcunum": 1, "hygon.com/dcumem": 3000}),
    )
    create(cluster, a_pod("both", *containers))
    annotations = served(cluster, "both")["metadata"]["annotations"]
    assert record(annotations["hami.io/vgpu-devices-allocated"])[0][1] == 1000
    ((uuid, memory, cores),) = record(annotations["hami.io/dcu-devices-allocated"])
    assert (memory, cores) == (3000, 100)
    delete_pod(cluster, "both")
    name = device_object_name(uuid)
    cluster.wait_for(GPU_DEVICES, name, lambda device: is_given(device, "0"), limit=60)
