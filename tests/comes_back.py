"""Rules in which objects of every kind vanish, are recreated, and are reported late."""

from __future__ import annotations

import copy
from collections.abc import Sized
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import storage_objects
from builders import a_device, a_node, an_agent_pod
from engine_world import World
from replica import Replica
from vgpu_api.core import Pod, ResourceQuota
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimStatus
from vgpu_operator.engine import effects, events
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey
from world_states import DEVICES, NAMES, NODES, PICK

NODE = st.sampled_from(NODES)
DEVICE = st.sampled_from(sorted(DEVICES))
STORAGE: tuple[storage_objects.Object, ...] = (
    storage_objects.a_volume_claim("data"),
    storage_objects.a_volume("volume-1", claim="data"),
    storage_objects.a_storage_class(),
    storage_objects.a_csi_node("node-1", 1),
)
ROOM = {"cpu": "3", "pods": "10", "nvidia.com/gpu": "20"}
ANSWERS = (
    "claim written",
    "claim not written",
    "claim deleted",
    "device written",
    "device published",
    "pod read",
    "requeued",
    "gate lifted",
    "bound",
)


_OF_CLAIMS = (
    *("due", "writing", "unsettled", "backoffs", "not_before", "expired", "unusable"),
    *("without_devices", "orphaned", "evicted", "init_refused", "reported", "violated"),
)
_OF_PODS = ("due", "blocked", "requeued", "nominated", "slow", "ended")
_OF_GATES = (
    *("lifting", "backoffs", "not_before", "stuck", "reported", "waiting", "with_volumes"),
    *("alone", "passed", "starting", "resting", "setbacks", "woken"),
)


class ChangingWorld(World):
    """A world whose nodes and devices change; a new operator reads the current ones."""

    def __init__(self, devices: Any) -> None:
        self.nodes = {node: a_node(node, allocatable=ROOM) for node in NODES}
        self.device_nodes = {uuid: node for uuid, (node, _) in devices.items()}
        self.version = 1000
        super().__init__(devices)

    def started(self, time: float) -> Replica:
        operator = super().started(time)
        for node in NODES:
            if node in self.nodes:
                operator.news.node_changed(self.nodes[node])
            else:
                operator.news.node_gone(node)
        for uuid in DEVICES:
            if uuid not in self.device_nodes:
                operator.news.device_gone(a_device(uuid=uuid).metadata.name)
        return operator

    def next_version(self) -> int:
        self.version += 1
        return self.version

    def register(self, node: str, *, anew: bool, **fields: Any) -> None:
        """Register the Node with its former UID or with another."""
        version = self.next_version()
        made = a_node(node, allocatable=ROOM, resource_version=version, **fields)
        known = self.nodes.get(node)
        uid = f"{node}-{version}" if anew or known is None else known.metadata.uid
        metadata = made.metadata.model_copy(update={"uid": uid})
        self.nodes[node] = made.model_copy(update={"metadata": metadata})
        self.operator.news.node_changed(self.nodes[node])

    def lose(self, node: str) -> None:
        self.nodes.pop(node, None)
        self.operator.news.node_gone(node)

    def publish(self, uuid: str, node: str, **fields: Any) -> None:
        self.device_nodes[uuid] = node
        mib = DEVICES[uuid][1]
        version = self.next_version()
        self.operator.news.device_changed(
            a_device(uuid=uuid, node=node, memory_mib=mib, resource_version=version, **fields)
        )

    def take_away(self, uuid: str) -> None:
        self.device_nodes.pop(uuid, None)
        self.operator.news.device_gone(a_device(uuid=uuid).metadata.name)


def kept_of_objects(state: State) -> dict[str, object]:
    """Return the objects that the engine keeps of pods and claims, by the collection's name."""
    claims, pods, gates = state.claims, state.pods, state.gates
    kept: dict[str, Sized] = {
        "queue": state.queue,
        "earmarks": state.earmarks,
        **{f"claims.{name}": getattr(claims, name) for name in _OF_CLAIMS},
        **{f"pods.{name}": getattr(pods, name) for name in _OF_PODS},
        **{f"gates.{name}": getattr(gates, name) for name in _OF_GATES},
    }
    return {name: collection for name, collection in kept.items() if len(collection)}


class ComesBack:
    """Rules that hold for any reported objects, whether or not they are true."""

    world: ChangingWorld
    api: Any

    @property
    def operator(self) -> Replica:
        return self.world.operator

    def observe(self, event: events.Event) -> None:
        self.operator.engine.observe(event)
        self.operator.engine.observe_all()

    # Nodes, devices, agents.

    @rule(node=NODE, at_once=st.booleans())
    def a_node_is_registered_anew(self, node: str, *, at_once: bool) -> None:
        if not at_once:
            self.world.lose(node)
        self.world.register(node, anew=True)

    @rule(node=NODE)
    def a_node_goes(self, node: str) -> None:
        self.world.lose(node)

    @rule(node=NODE, ready=st.booleans(), cordoned=st.booleans())
    def a_node_changes(self, node: str, *, ready: bool, cordoned: bool) -> None:
        self.world.register(node, anew=False, ready=ready, unschedulable=cordoned)

    @rule(node=st.sampled_from([*NODES, "nobody"]))
    def a_node_cannot_be_read(self, node: str) -> None:
        self.observe(events.NodeUnreadable(node, f"unread-{node}"))

    @rule(uuid=DEVICE, node=NODE, healthy=st.booleans())
    def a_device_is_published(self, uuid: str, node: str, *, healthy: bool) -> None:
        """Publish a device, possibly by another node than before."""
        self.world.publish(uuid, node, healthy=healthy)

    @rule(uuid=DEVICE)
    def a_device_goes(self, uuid: str) -> None:
        self.world.take_away(uuid)

    @rule(
        node=st.sampled_from([*NODES, "nobody"]), what=st.sampled_from(["ready", "unready", "gone"])
    )
    def an_agents_pod_changes(self, node: str, what: str) -> None:
        version = self.world.next_version()
        pod = an_agent_pod(node, ready=what == "ready", resource_version=version)
        if what == "gone":
            self.observe(events.PodDeleted(pod.metadata.uid))
        else:
            self.observe(events.PodObserved(pod))

    # Quotas and volumes.

    @rule(name=NAMES, most=st.sampled_from(["0", "1", "100"]), is_there=st.booleans())
    def a_quota_changes(self, name: str, most: str, *, is_there: bool) -> None:
        if not is_there:
            self.observe(events.QuotaDeleted("default", name))
            return
        version = self.world.next_version()
        metadata = {"name": name, "namespace": "default", "uid": f"quota-{version}",
                    "resourceVersion": str(version)}  # fmt: skip
        spec = {"hard": {"requests.nvidia.com/gpu": most}}
        quota = ResourceQuota.model_validate({"metadata": metadata, "spec": spec})
        self.observe(events.QuotaObserved(quota))

    @rule(obj=st.sampled_from(STORAGE), what=st.sampled_from(["there", "gone", "unreadable"]))
    def a_volume_changes(self, obj: storage_objects.Object, what: str) -> None:
        read = storage_objects.read(obj)
        namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        match what:
            case "there":
                self.observe(events.StorageObserved(read))
            case "gone":
                self.observe(events.StorageDeleted(type(read), namespace, name))
            case "unreadable":
                self.observe(events.StorageUnreadable(type(read), namespace, name, "broken"))

    # Claims and pods.

    @precondition(lambda self: self.api.all(VGPU_CLAIMS))
    @rule(pick=PICK)
    def a_claim_vanishes_with_its_finalizers(self, pick: int) -> None:
        claims = self.api.all(VGPU_CLAIMS)
        self.api.vanish(VGPU_CLAIMS, claims[pick % len(claims)]["metadata"]["name"])

    @precondition(lambda self: self.api.all(VGPU_CLAIMS))
    @rule(pick=PICK)
    def a_claim_is_made_again_under_its_name(self, pick: int) -> None:
        claims = self.api.all(VGPU_CLAIMS)
        raw = copy.deepcopy(claims[pick % len(claims)])
        self.api.vanish(VGPU_CLAIMS, raw["metadata"]["name"])
        raw["metadata"]["uid"] = f"again-{self.world.next_version()}"
        raw.pop("status", None)
        raw["metadata"].pop("finalizers", None)
        self.api.put(VGPU_CLAIMS, raw)

    @precondition(lambda self: self.api.all(VGPU_CLAIMS))
    @rule(pick=PICK)
    def a_claim_cannot_be_read(self, pick: int) -> None:
        claims = self.api.all(VGPU_CLAIMS)
        self.observe(events.ClaimUnreadable(copy.deepcopy(claims[pick % len(claims)])))

    @precondition(lambda self: self.api.pods_ever)
    @rule(pick=PICK, what=st.sampled_from(["seen again", "gone", "found missing"]))
    def a_pod_is_heard_of_late(self, pick: int, what: str) -> None:
        pods = sorted(self.api.pods_ever.values(), key=lambda pod: pod.metadata.uid)
        pod = pods[pick % len(pods)]
        is_there = self.world.pod(pod.metadata.uid) is not None
        # an informer does not deliver a pod that was gone before its first list
        was_seen = is_there or self.world.operator.cache.is_deleted(pod.metadata.uid)
        if what == "seen again" and was_seen:
            self.observe(events.PodObserved(pod))
        elif not is_there:
            self.observe(events.PodDeleted(pod.metadata.uid, was_seen=what == "gone"))

    @rule()
    def pods_are_listed(self) -> None:
        there = self.api.all(PODS)
        versions = [int(raw["metadata"]["resourceVersion"]) for raw in there]
        uids = frozenset(raw["metadata"]["uid"] for raw in there)
        for raw in there:
            self.observe(events.PodObserved(Pod.model_validate(raw)))
        self.observe(events.PodsListed(max(versions, default=0), uids))

    @rule(answer=st.sampled_from(ANSWERS), pick=PICK, number=PICK)
    def an_answer_comes_that_nobody_waits_for(self, answer: str, pick: int, number: int) -> None:
        """A former leader sent the request, or its object has been replaced since."""
        uids = sorted([*self.api.pods_ever, "unknown"])
        uid = uids[pick % len(uids)]
        name = uid.partition("-")[2] or uid
        raw = self.api.objects.get((VGPU_CLAIMS.plural, "default", name))
        claim = None if raw is None else VGPUClaim.read(raw)
        is_there = self.world.pod(uid) is not None
        self.observe(_answer(answer, uid, number, claim, is_there=is_there))


def _answer(
    answer: str, uid: str, number: int, claim: VGPUClaim | None, *, is_there: bool
) -> events.Event:
    """Return a true answer about a claim or a pod, to a request whose sender is gone."""
    name, id_ = uid.partition("-")[2] or uid, f"id-{number}"
    key = ClaimKey("default", name)
    match answer:
        case "claim written":
            write = effects.WriteClaim(key, "1", VGPUClaimStatus(), allocation_id=id_)
            if number % 2:
                return events.ClaimWritten(write, "conflict", claim)
            return events.ClaimWritten(write, "unknown", claim, tested="1" * (number % 3))
        case "claim not written":
            write = effects.WriteClaim(key, "1", VGPUClaimStatus(), allocation_id=id_)
            return events.ClaimWritten(write, "refused" if number % 2 else "unsent")
        case "claim deleted":
            return events.ClaimDeletionEnded(effects.DeleteClaim(key, "u", "1"), "no" * number)
        case "device written":
            return events.DeviceWritten(effects.WriteDevice("gpu-9", "nobody", {}), "no" * number)
        case "device published":
            effect = effects.PublishDevice("gpu-9", "nobody", {})
            return events.DeviceWritten(effect, "no" * (number % 2), "1")
        case "pod read":
            read = effects.ReadPod("default", name, uid, id_)
            return events.PodRead(read, "unknown" if is_there else "gone")
        case "requeued":
            requeue = effects.Requeue("default", name, uid, None, wake=False)
            return events.RequeueEnded(requeue, "no" * (number % 2))
        case "gate lifted":
            lift = effects.LiftGate("default", name, uid, "1", id_, ())
            return events.GateEnded(lift, "refused" if number % 2 else "unknown")
        case _:
            return events.BindingEnded(uid, id_, "unknown" if is_there else "gone")
