"""Claims mode: pods come and go while answers get lost, news come late and operators are replaced.

kube-scheduler, the garbage collector and the controller of ResourceClaims act on what the API has,
and tenants delete and forge ResourceClaims. Some pods name a ResourceClaim that a tenant has made.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from builders import CLAIMS, a_container, a_device, a_node, a_pod
from comes_back import ROOM
from engine_world import LateApi, World
from replica import Replica
from vgpu_api.core.pod import ResourceRequirements
from vgpu_api.dra import share_id
from vgpu_api.names import (
    ANNOTATION_POD_UID,
    ANNOTATION_RESOURCE_CLAIM,
    ANNOTATION_RESOURCES,
    FINALIZER_IN_USE,
)
from vgpu_api.resources import PODS, RESOURCE_CLAIMS, VGPU_CLAIMS, Resource
from vgpu_client.errors import ApiError
from vgpu_operator.dialects.resource_claims import note_of
from world_states import DEVICES, NAMES, PICK, SETTINGS, WorldStates

MIB = st.sampled_from([2048, 5120, 8192])
MINE = "mine"
"""The ResourceClaim that a tenant has made, which several pods may name."""
FORGED = "00000000-0000-0000-0000-00000000dead"
Raw = dict[str, Any]


class ClaimsReplica(Replica):
    """An operator in Claims mode, whose nodes have room for more than devices."""

    def device(self, **fields: Any) -> None:
        device = a_device(**fields)
        self.news.node_changed(a_node(device.spec.node_name, allocatable=ROOM))
        self.news.device_changed(device)


class ClaimsApi(LateApi):
    """Checks what Kubernetes checks of ResourceClaims, and notes which came too early."""

    def __init__(self) -> None:
        self.shares: set[str] = set()
        """The shares of all allocations that a VGPUClaim has had."""
        self.early: list[str] = []
        """ResourceClaims that were allocated before their VGPUClaims."""
        super().__init__()

    def put(self, resource: Resource, obj: Mapping[str, Any]) -> Raw:
        allocation = obj.get("status", {}).get("allocation")
        if resource is VGPU_CLAIMS and allocation:
            self.shares.add(share_id(allocation["id"], "main"))
        if resource is RESOURCE_CLAIMS and allocation:
            self.early += [
                obj["metadata"]["name"]
                for result in allocation["devices"]["results"]
                if result["shareID"] not in {FORGED, *self.shares}
            ]
        return super().put(resource, obj)

    async def json_patch(self, resource: Resource, name: str, operations: Any, **more: Any) -> Raw:
        before = self.objects.get((resource.plural, more.get("namespace") or "", name))
        if resource is RESOURCE_CLAIMS and before is not None:
            is_reserved = bool(before.get("status", {}).get("reservedFor"))
            if is_reserved and any(each["path"] == "/status/allocation" for each in operations):
                raise ApiError("field is immutable", status=422, reason="Invalid")
        return await super().json_patch(resource, name, operations, **more)


class ClaimsWorld(World):
    """A world in which kube-scheduler binds by ResourceClaims."""

    def new_api(self) -> ClaimsApi:
        return ClaimsApi()

    def new_operator(self) -> Replica:
        return ClaimsReplica(self.api, config=CLAIMS)


class ClaimsStates(WorldStates):
    """No device is over capacity; no pod is bound by a claim that its VGPUClaim does not show."""

    def __init__(self) -> None:
        super().__init__(ClaimsWorld(DEVICES))

    # What the API has.

    def _of(self, pod: Raw) -> Raw | None:
        """Return the pod's ResourceClaim."""
        (entry,) = pod["spec"]["resourceClaims"]
        found: Raw | None = self.api.objects.get(
            (RESOURCE_CLAIMS.plural, "default", entry["resourceClaimName"])
        )
        return found

    def _waiting(self) -> list[tuple[Raw, Raw]]:
        """Return the pods that kube-scheduler may bind, with their allocated ResourceClaims.

        The policy vgpu-reservations lets it reserve one only for the pod that is written on it.
        """
        return [
            (pod, found)
            for pod in self._pods()
            if not pod["spec"].get("nodeName")
            and (found := self._of(pod)) is not None
            and _allocated(found)
            and not found["metadata"].get("deletionTimestamp")
            and found["metadata"]["annotations"][ANNOTATION_POD_UID] == pod["metadata"]["uid"]
        ]

    def _change(self, claim: Raw, **status: Any) -> None:
        new = copy.deepcopy(claim)
        new["status"].update(status)
        new["status"] = {key: value for key, value in new["status"].items() if value}
        self.api.put(RESOURCE_CLAIMS, new)

    # Users.

    def _of_a_tenant(self) -> Raw:
        """Return the ResourceClaim that a tenant has made, which is recreated if it is gone."""
        found: Raw | None = self.api.objects.get((RESOURCE_CLAIMS.plural, "default", MINE))
        if found is not None:
            return found
        self.born += 1
        metadata = {"name": MINE, "namespace": "default", "uid": f"{self.born:08x}-{MINE}"}
        request = {"name": "gpu", "exactly": {"deviceClassName": "vgpu.dev"}}
        spec = {"devices": {"requests": [request]}}
        return self.api.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec})

    @rule(name=NAMES, mib=MIB, cpu=st.sampled_from(["100m", "1", "2"]), names_claim=st.booleans())
    def create_a_pod(self, name: str, mib: int, cpu: str, *, names_claim: bool) -> None:
        if any(pod["metadata"]["name"] == name for pod in self._pods()):
            return
        self.born += 1
        container = a_container().model_copy(
            update={"resources": ResourceRequirements(requests={"cpu": cpu})}
        )
        amounts = json.dumps({"main": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}})
        pod = a_pod(
            name,
            uid=f"{self.born:08x}-{name}",
            containers=[container],
            annotations={ANNOTATION_RESOURCES: amounts},
        ).to_wire()
        claim = f"vgpu-{self.born:012x}"
        pod["spec"]["resourceClaims"] = [{"name": "vgpu", "resourceClaimName": claim}]
        if names_claim:
            noted = note_of("gpu", self._of_a_tenant()["metadata"]["uid"])
            pod["metadata"]["annotations"][ANNOTATION_RESOURCE_CLAIM] = noted
            pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": MINE}]
            pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        self.api.put(PODS, pod)

    @precondition(lambda self: self.api.all(RESOURCE_CLAIMS))
    @rule(pick=PICK)
    def somebody_deletes_a_resource_claim(self, pick: int) -> None:
        found = self.api.all(RESOURCE_CLAIMS)
        self._delete(found[pick % len(found)])

    def _delete(self, claim: Raw) -> None:
        metadata = claim["metadata"]
        if not metadata.get("finalizers"):
            self.api.vanish(RESOURCE_CLAIMS, metadata["name"])
        elif not metadata.get("deletionTimestamp"):
            new = copy.deepcopy(claim)
            new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.api.put(RESOURCE_CLAIMS, new)

    @precondition(lambda self: self._waiting())
    @rule(pick=PICK)
    def somebody_forges_an_allocation(self, pick: int) -> None:
        waiting = self._waiting()
        claim = copy.deepcopy(waiting[pick % len(waiting)][1])
        if not claim["status"].get("reservedFor"):
            claim["status"]["allocation"]["devices"]["results"][0]["shareID"] = FORGED
            self.api.put(RESOURCE_CLAIMS, claim)

    # Kubernetes.

    @precondition(lambda self: self._waiting())
    @rule(pick=PICK, does=st.sampled_from(["bind", "reserve", "take away", "refuse"]))
    def kube_scheduler_has_a_pod(self, pick: int, does: str) -> None:
        self._kube_scheduler_has(pick, does)

    def _kube_scheduler_has(self, pick: int, does: str) -> None:
        waiting = self._waiting()
        pod, claim = map(copy.deepcopy, waiting[pick % len(waiting)])
        consumer = {"resource": "pods", "name": pod["metadata"]["name"]}
        reserved = [{**consumer, "uid": pod["metadata"]["uid"]}]
        if does == "take away":
            if not claim["status"].get("reservedFor"):
                self._change(claim, allocation=None)
            return
        if does == "refuse":
            refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod["status"]["conditions"] = [refused]
            self.api.put(PODS, pod)
            return
        if claim["status"].get("reservedFor", reserved) != reserved:
            return
        self._change(claim, reservedFor=reserved)
        if does == "bind":
            pod["spec"]["nodeName"] = _allocated(claim)
            self.api.put(PODS, pod)

    @rule()
    def the_controllers_run(self) -> None:
        """Collect claims of pods that are gone, and take ended pods off `reservedFor`."""
        live = {
            pod["metadata"]["uid"]
            for pod in self._pods()
            if pod["status"].get("phase") not in ("Succeeded", "Failed")
        }
        there = {pod["metadata"]["uid"] for pod in self._pods()}
        for claim in self.api.all(RESOURCE_CLAIMS):
            reserved = claim.get("status", {}).get("reservedFor") or []
            if reserved and not {each["uid"] for each in reserved} & live:
                self._change(claim, reservedFor=None)
        for claim in self.api.all(RESOURCE_CLAIMS):
            owners = {each["uid"] for each in claim["metadata"].get("ownerReferences", ())}
            if owners and owners.isdisjoint(there):
                self._delete(claim)

    # The world.

    @rule(does=st.sampled_from(["bind", "bind", "reserve", "take away", "nothing"]))
    def all_goes_well(self, does: str) -> None:
        """Let everything succeed, so that many runs get as far as a bound pod."""
        self.api.gate.set()
        self.failures = self.losses = 0
        self.world.turn()
        for _ in range(4):
            self.world.deliver(100)
            self.world.round()
        if does != "nothing" and self._waiting():
            self._kube_scheduler_has(0, does)

    # What must hold.

    @invariant()
    def no_device_is_over_capacity(self) -> None:
        for uuid, use in self.world.held().items():
            assert use.memory_mib <= DEVICES[uuid][1], uuid

    @invariant()
    def nothing_is_freed_in_use(self) -> None:
        held = {
            (claim.metadata.uid, claim.status.allocation.id): claim.status.allocation.devices
            for claim in self.world.claims()
            if claim.status.allocation is not None
        }
        for claim_uid, allocation_id, devices in self.world.running.values():
            assert held[claim_uid, allocation_id] == list(devices)

    @invariant()
    def no_resource_claim_is_allocated_before_its_vgpu_claim(self) -> None:
        assert self.api.early == []

    @invariant()
    def what_kube_scheduler_may_bind_by_is_what_the_vgpu_claim_says(self) -> None:
        """Of a pod without a node the ResourceClaim loses its allocation first."""
        shown = {
            claim.status.reserved_for.pod_uid: claim.status.allocation
            for claim in self.world.claims()
            if claim.status.allocation is not None and claim.status.reserved_for is not None
        }
        for pod, found in self._waiting():
            (result,) = found["status"]["allocation"]["devices"]["results"]
            if result["shareID"] != FORGED:
                allocation = shown[pod["metadata"]["uid"]]
                assert allocation.node_name == _allocated(found)
                assert share_id(allocation.id, "main") == result["shareID"]

    @invariant()
    def an_allocated_resource_claim_has_our_finalizer_while_its_devices_are_held(self) -> None:
        for pod in self._pods():
            found = self._of(pod)
            if found is not None and _allocated(found) and pod["spec"].get("nodeName"):
                if found["metadata"]["annotations"][ANNOTATION_POD_UID] != pod["metadata"]["uid"]:
                    continue
                is_over = pod["status"].get("phase") in ("Succeeded", "Failed")
                assert is_over or FINALIZER_IN_USE in found["metadata"]["finalizers"]

    @invariant()
    def one_pod_at_a_time_holds_the_claim_of_a_tenant(self) -> None:
        on_nodes = [
            pod
            for pod in self._pods()
            if pod["spec"].get("nodeName")
            and pod["spec"]["resourceClaims"][0]["resourceClaimName"] == MINE
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        assert len(on_nodes) <= 1

    def teardown(self) -> None:
        """Delete everything and check for leaks: no allocation, no finalizer, no reservation."""
        try:
            self.failures = self.losses = 0
            self.api.gate.set()
            self.world.turn(200)
            for pod in list(self.api.all(PODS)):
                self.api.vanish(PODS, pod["metadata"]["name"])
            self.the_controllers_run()
            self._delete(self._of_a_tenant())
            self.nothing_is_left()
            self.the_controllers_run()
            for _ in range(4):
                self.world.deliver(1000)
                self.world.operator.time += 10
                self.world.round()
            assert self.api.all(RESOURCE_CLAIMS) == []
            assert self.world.operator.state.resource_claims.writing == {}
        finally:
            self.world.close()


def _allocated(claim: Raw) -> str:
    """Return the node of an allocation; empty if there is none."""
    allocation = claim.get("status", {}).get("allocation")
    return allocation["devices"]["results"][0]["pool"] if allocation else ""


ClaimsStates.TestCase.settings = SETTINGS
TestClaimsStates = pytest.mark.timeout(300)(ClaimsStates.TestCase)
