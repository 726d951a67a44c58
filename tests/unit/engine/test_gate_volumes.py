"""Gate mode: a pod goes to its volumes, and waits for PersistentVolumeClaims that are not ready."""

from __future__ import annotations

from typing import Any

from builders import GATE, ROOM, a_container, a_device, a_node, a_pod, use_of
from memory_api import MemoryApi
from replica import Replica
from storage_objects import (
    DRIVER,
    LOCAL,
    ZONE,
    Object,
    a_csi_node,
    a_local_class,
    a_storage_class,
    a_volume,
    a_volume_claim,
    read,
    using,
)
from vgpu_api.core import Pod
from vgpu_api.names import SCHEDULING_GATE
from vgpu_api.resources import PODS
from vgpu_client.errors import Forbidden
from vgpu_operator.node_filter.storage_objects import Volume, VolumeClaim

ZONES = {"one": "a", "two": "b"}


def replica(*objects: Object) -> Replica:
    """Return a replica with a node and a device in each of two zones, and two storage classes."""
    made = Replica(MemoryApi(), config=GATE)
    for name, zone in ZONES.items():
        labels = {"kubernetes.io/hostname": name, ZONE: zone}
        made.news.node_changed(a_node(name, labels=labels, allocatable=ROOM))
        made.news.device_changed(a_device(uuid=f"GPU-{name}", node=name))
    for obj in (a_storage_class(), a_local_class(), *objects):
        made.news.storage_changed(read(obj))
    return made


def gated(world: Replica, name: str = "pod-1", *claims: str, **fields: Any) -> Pod:
    """Return a pod behind the gate, which the operator has seen."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
    container = a_container(limits=limits, requests={"nvidia.com/gpu": 1, "cpu": "1"})
    volumes = fields.pop("volumes", using(*claims)["volumes"])
    pod = a_pod(name, containers=[container], volumes=volumes, **fields)
    gates = [{"name": SCHEDULING_GATE}]
    pod = pod.model_copy(update={"spec": pod.spec.model_copy(update={"scheduling_gates": gates})})
    stored = Pod.model_validate(world.api.put(PODS, pod.to_wire()))
    world.news.pod_changed(stored)
    return stored


def tied(world: Replica, name: str = "pod-1") -> str:
    """Return the node in the pod's affinity; empty if its gate is not lifted."""
    spec = world.api.objects[(PODS.plural, "default", name)]["spec"]
    if spec.get("schedulingGates"):
        return ""
    (required,) = spec["affinity"]["nodeAffinity"].values()
    (term,) = required["nodeSelectorTerms"]
    found: str = term["matchFields"][0]["values"][0]
    return found


def condition(world: Replica, pod: Pod) -> tuple[str, str]:
    """Return reason and message of the condition Allocated of the pod's claim."""
    found = world.claim_of(pod).status.conditions[0]
    return found.reason, found.message


async def test_a_pod_goes_to_the_node_of_its_volume() -> None:
    """The other node comes first by name, and Binpack gives both the same score."""
    world = replica(
        a_volume_claim(volume="v"), a_volume("v", nodes=["two"], claim="data", claim_uid="u")
    )
    gated(world, "pod-1", "data")
    await world.settle()
    assert tied(world) == "two"


async def test_a_pod_whose_claim_is_missing_waits_for_it_and_the_reason_names_it() -> None:
    world = replica()
    pod = gated(world, "pod-1", "data")
    await world.told()
    reason, message = condition(world, pod)
    assert (tied(world), reason) == ("", "VolumeClaimNotReady")
    assert message == "PersistentVolumeClaim data does not exist yet"
    world.news.storage_changed(read(a_volume_claim(volume="v")))
    world.time += 1.0
    await world.settle()
    assert tied(world) == ""
    world.news.storage_changed(read(a_volume("v", zones=["b"])))
    world.time += 1.0
    await world.settle()
    assert tied(world) == "two"


async def test_a_pod_whose_volume_no_node_reaches_waits_and_the_reason_names_the_claim() -> None:
    world = replica(a_volume_claim(volume="v"), a_volume("v", zones=["c"]))
    pod = gated(world, "pod-1", "data")
    await world.told()
    reason, message = condition(world, pod)
    assert reason == "NodeVolumeMismatch"
    assert "2/2 NodeVolumeMismatch" in message
    assert "PersistentVolumeClaim data: volume v is within reach of 0 of 2 nodes" in message
    labels = {"kubernetes.io/hostname": "one", ZONE: "c"}
    world.news.node_changed(a_node("one", labels=labels, allocatable=ROOM, resource_version=2))
    world.time += 1.0
    await world.settle()
    assert tied(world) == "one"


async def test_volumes_that_cannot_be_read_are_named_where_a_claim_finds_none() -> None:
    world = replica(a_volume_claim(class_name=LOCAL))
    for number in range(5):
        world.news.storage_unreadable(Volume, f"v{number}")
    pod = gated(world, "pod-1", "data")
    await world.told()
    reason, message = condition(world, pod)
    assert reason == "NodeVolumeMismatch"
    assert "PersistentVolumeClaim data: a volume for it is within reach of 0 of 2 no" in message
    assert "PersistentVolumes that cannot be read: 5 (v0, v1, v2)" in message


async def test_a_pod_waits_for_a_claim_that_cannot_be_read_and_its_reason_names_why() -> None:
    world = replica(a_volume_claim(volume="v"), a_volume("v"))
    world.news.storage_unreadable(VolumeClaim, "data", "default", why="spec.x: Invalid value: 1")
    pod = gated(world, "pod-1", "data")
    await world.told()
    assert condition(world, pod) == (
        "VolumeClaimNotReady",
        "PersistentVolumeClaim data cannot be read: spec.x: Invalid value: 1",
    )
    world.news.storage_changed(read(a_volume_claim(volume="v")))
    world.time += 1.0
    await world.settle()
    assert tied(world) != ""


async def test_a_claim_that_goes_while_the_pod_waits_for_a_device_is_named() -> None:
    world = replica(a_volume_claim())
    for node in ZONES:
        full = a_device(uuid=f"GPU-{node}", node=node, cordoned=True, resource_version=2)
        world.news.device_changed(full)
    pod = gated(world, "pod-1", "data")
    await world.told()
    assert condition(world, pod)[0] == "CardCordoned"
    world.news.storage_gone(VolumeClaim, "data", "default")
    world.time += 60.0
    await world.settle()
    assert condition(world, pod)[0] == "VolumeClaimNotReady"


async def test_pods_of_local_volumes_get_one_each() -> None:
    world = replica(
        *(a_volume_claim(name, class_name=LOCAL) for name in ("c1", "c2", "c3")),
        *(a_volume(f"v-{node}", class_name=LOCAL, nodes=[node]) for node in ZONES),
    )
    pods = [gated(world, f"pod-{claim}", claim) for claim in ("c1", "c2", "c3")]
    await world.told()
    assert sorted(tied(world, pod.metadata.name) for pod in pods) == ["", "one", "two"]


async def test_a_claim_for_one_pod_at_a_time_is_given_on() -> None:
    world = replica(a_volume_claim(volume="v", access="ReadWriteOncePod"), a_volume("v"))
    first = gated(world, "first", "data")
    await world.settle()
    assert tied(world, "first")
    second = gated(world, "second", "data")
    await world.told()
    assert (tied(world, "second"), condition(world, second)[0]) == ("", "VolumeClaimInUse")
    world.api.vanish(PODS, "first")
    world.news.pod_gone(first.metadata.uid)
    world.time += 1.0
    await world.settle()
    assert tied(world, "second")


async def test_a_node_whose_driver_attaches_no_more_volumes_is_passed_over() -> None:
    world = replica(a_csi_node("one", 0), a_volume_claim(volume="v"), a_volume("v", driver=DRIVER))
    gated(world, "pod-1", "data")
    await world.settle()
    assert tied(world) == "two"
    world.news.storage_changed(read(a_csi_node("two", 0)))
    world.news.storage_changed(read(a_volume_claim("more", volume="w")))
    world.news.storage_changed(read(a_volume("w", driver=DRIVER)))
    pod = gated(world, "pod-2", "more")
    await world.told()
    assert condition(world, pod)[0] == "NodeVolumeLimit"


async def test_a_volume_that_moves_before_the_gate_is_lifted_is_followed() -> None:
    world = replica(a_volume_claim(volume="v"), a_volume("v", zones=["a"]))
    world.api.before = lambda verb, name: (
        Forbidden("no", status=403) if verb == "patch object" else None
    )
    gated(world, "pod-1", "data")
    await world.settle()
    assert use_of(world.ledger, "GPU-one").memory_mib == 8192
    world.news.storage_changed(read(a_volume("v", zones=["b"])))
    world.api.before = lambda verb, name: None
    for _ in range(4):
        world.time += 6.0
        await world.settle()
    assert tied(world) == "two"
    assert use_of(world.ledger, "GPU-one").memory_mib == 0


async def test_devices_are_not_kept_for_a_pod_whose_volume_is_gone() -> None:
    world = replica(a_volume_claim(volume="v"), a_volume("v", zones=["a"]))
    world.api.before = lambda verb, name: (
        Forbidden("no", status=403) if verb == "patch object" else None
    )
    pod = gated(world, "pod-1", "data")
    await world.settle()
    world.news.storage_gone(Volume, "v")
    for _ in range(4):
        world.time += 6.0
        await world.settle()
    assert use_of(world.ledger, "GPU-one").memory_mib == 0
    assert condition(world, pod)[0] == "VolumeClaimNotReady"


async def test_pods_with_volumes_are_judged_again_only_when_a_volume_changes() -> None:
    world = replica()
    pod = gated(world, "pod-1", "data")
    await world.settle()
    seen = []
    judged = world.ledger.filters.volumes.refusal
    world.ledger.filters.volumes.refusal = lambda pod: seen.append(pod) or judged(pod)  # type: ignore
    for _ in range(3):
        world.time += 1.0
        world.submit()
    assert seen == []
    world.news.storage_changed(read(a_volume_claim("of-others")))
    world.time += 1.0
    world.submit()
    assert [each.metadata.uid for each in seen] == [pod.metadata.uid]
    world.api.vanish(PODS, "pod-1")
    world.news.pod_gone(pod.metadata.uid)
    assert world.state.gates.with_volumes == {}
