"""A pod that another scheduler bound waits for devices in the order of priority, then of age.

In Extender mode, the pod names a scheduler that does not call our extender; in Gate mode, a user
has removed our gate. kube-scheduler then binds the pod by its slots, of which there are many.
"""

from __future__ import annotations

from typing import Any

import pytest

from builders import GATE, ROOM, a_claim, a_container, a_device, a_node, a_pod, a_request
from replica import CONFIG, Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED, SCHEDULING_GATE
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.claims.lifecycle import DEVICES_BACK_S
from vgpu_operator.engine.scheduling.reservation import OFFERED_S, TENTATIVE_S

LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16384}
SLOTS = {"nvidia.com/gpu": 1}
"""The name of the resource that a node counts."""
MODES = pytest.mark.parametrize("config", [CONFIG, GATE], ids=["Extender", "Gate"])


class Line:
    """A node whose GPUs are out of service, pods that wait for them, and a pod bound past us."""

    def __init__(self, config: ClusterConfig, *, gpus: int = 1, api: Any = None) -> None:
        self.world = Replica(api, config=config)
        self.world.news.node_changed(a_node("node-1", allocatable=ROOM))
        self.gpus = [f"GPU-{number}" for number in range(gpus)]
        self.versions = 1
        self.set_healthy(False)

    @property
    def is_gated(self) -> bool:
        return self.world.state.config.scheduling.mode == "Gate"

    def set_healthy(self, healthy: bool) -> None:
        self.versions += 1
        for uuid in self.gpus:
            version = self.versions
            device = a_device(
                uuid=uuid, memory_mib=16384, healthy=healthy, resource_version=version
            )
            self.world.news.device_changed(device)

    def pod(self, name: str, second: int, **fields: Any) -> Pod:
        """Return a pod created at that second, which the operator has seen."""
        gates = fields.pop("gates", [])
        fields.setdefault("containers", [a_container(limits=LIMITS, requests=SLOTS)])
        pod = a_pod(name, **fields)
        metadata = pod.metadata.model_copy(
            update={"creation_timestamp": f"2026-01-01T00:00:{second:02d}Z"}
        )
        spec = pod.spec.model_copy(update={"scheduling_gates": gates})
        pod = pod.model_copy(update={"metadata": metadata, "spec": spec})
        stored = Pod.model_validate(self.world.api.put(PODS, pod.to_wire()))
        self.world.news.pod_changed(stored)
        return stored

    def waits(self, name: str, second: int, **fields: Any) -> Pod:
        """Return a waiting pod: behind its gate, or refused by Filter."""
        if self.is_gated:
            gates = [{"name": SCHEDULING_GATE}]
            return self.pod(name, second, scheduler="default-scheduler", gates=gates, **fields)
        pod = self.pod(name, second, **fields)
        self.world.offer(pod)
        return pod

    def sneaks(self, name: str, second: int, **fields: Any) -> Pod:
        """Return a pod that another scheduler has bound."""
        return self.pod(name, second, scheduler="default-scheduler", node="node-1", **fields)

    async def recovers(self) -> list[str]:
        """Let the GPUs recover, and return the pods that get one."""
        await self.world.told()
        self.set_healthy(True)
        await self.world.scheduled()
        return self.served()

    def served(self) -> list[str]:
        """Return the pods with an allocation in the API."""
        claims = [
            VGPUClaim.read(obj)
            for place, obj in self.world.api.objects.items()
            if place[0] == VGPU_CLAIMS.plural
        ]
        return sorted(
            claim.status.reserved_for.pod_name
            for claim in claims
            if claim.status.allocation is not None and claim.status.reserved_for is not None
        )


@MODES
async def test_a_pod_that_came_later_does_not_go_first(config: ClusterConfig) -> None:
    line = Line(config)
    line.waits("waits", 1)
    line.sneaks("sneaks", 2)
    assert await line.recovers() == ["waits"]


@MODES
async def test_a_pod_that_is_more_important_goes_first(config: ClusterConfig) -> None:
    line = Line(config)
    line.sneaks("sneaks", 1, priority=-100)
    line.waits("important", 2, priority=1_000_000)
    assert await line.recovers() == ["important"]


@MODES
async def test_its_own_priority_counts_as_that_of_any_other(config: ClusterConfig) -> None:
    line = Line(config)
    line.waits("waits", 1)
    line.sneaks("important", 2, priority=10)
    assert await line.recovers() == ["important"]


@MODES
async def test_its_age_counts_as_that_of_any_other(config: ClusterConfig) -> None:
    line = Line(config)
    line.sneaks("older", 1)
    line.waits("waits", 2)
    assert await line.recovers() == ["older"]


@MODES
async def test_where_nobody_waits_it_gets_what_is_free(config: ClusterConfig) -> None:
    line = Line(config)
    line.sneaks("sneaks", 1)
    assert await line.recovers() == ["sneaks"]


@MODES
async def test_each_of_several_waits_for_its_own_turn(config: ClusterConfig) -> None:
    """Two GPUs recover at once; waking the first pod does not wake the second."""
    line = Line(config, gpus=2)
    line.sneaks("first", 1)
    line.waits("waits", 2)
    line.sneaks("last", 3)
    assert await line.recovers() == ["first", "waits"]


@MODES
async def test_a_new_leader_lets_it_wait_too(config: ClusterConfig) -> None:
    line = Line(config)
    line.waits("waits", 1)
    line.sneaks("sneaks", 2)
    await line.world.told()
    successor = Line(config, api=line.world.api)
    for place, obj in list(line.world.api.objects.items()):
        if place[0] == VGPU_CLAIMS.plural:
            successor.world.news.claim_changed(VGPUClaim.read(obj))
        elif place[0] == PODS.plural:
            successor.world.news.pod_changed(Pod.model_validate(obj))
    successor.world.engine.lead()
    assert await successor.recovers() == ["waits"]


async def test_a_pod_that_was_requeued_keeps_its_place_until_it_had_time_to_come() -> None:
    line = Line(CONFIG)
    waits = line.waits("waits", 1)
    line.sneaks("sneaks", 2)
    await line.world.told()
    line.set_healthy(True)
    await line.world.settle()
    assert line.served() == []
    line.world.time += TENTATIVE_S + 1
    await line.world.settle()
    assert line.served() == ["sneaks"]
    assert line.world.reservation(waits) is None


@MODES
async def test_an_immediate_claim_is_not_served_first_for_its_sake(config: ClusterConfig) -> None:
    line = Line(config)
    line.waits("waits", 1)
    claim = a_claim(
        "now",
        requests=[a_request(memory="16Gi")],
        binding_mode="Immediate",
        metadata={"creation_timestamp": "2026-01-01T00:00:02Z"},
    )
    line.world.claim(claim)
    annotations = {ANNOTATION_CLAIM: "now", ANNOTATION_SLOTS_ADDED: "main"}
    line.sneaks("sneaks", 2, annotations=annotations, containers=[a_container()])
    assert await line.recovers() == ["waits"]


# Pods that got their devices from us.


@MODES
async def test_a_pod_that_lost_its_devices_goes_first(config: ClusterConfig) -> None:
    """Its node was registered again without its GPU, and another GPU was added."""
    line = Line(config)
    line.set_healthy(True)
    pod = line.waits("runs", 1, priority=-100)
    await line.world.settle()
    line.pod("runs", 1, priority=-100, node="node-1", scheduler="default-scheduler")
    await line.world.settle()
    assert line.served() == ["runs"]
    line.world.news.node_changed(a_node("node-1", uid="uid-of-another", allocatable=ROOM))
    line.world.news.device_gone(a_device(uuid="GPU-0").metadata.name)
    await line.world.settle()
    line.world.time += DEVICES_BACK_S + 1
    await line.world.settle()
    assert line.served() == []
    line.gpus = ["GPU-NEW"]
    line.set_healthy(False)
    line.waits("important", 2, priority=1_000_000)
    assert await line.recovers() == ["runs"]
    assert line.world.claim_of(pod).status.allocation.devices[0].uuid == "GPU-NEW"


async def test_a_pod_of_our_scheduler_that_has_no_claim_goes_first() -> None:
    """After a reinstallation all claims are gone, and their pods still run."""
    line = Line(CONFIG)
    line.waits("important", 1, priority=1_000_000)
    line.pod("runs", 2, node="node-1")
    assert await line.recovers() == ["runs"]


async def test_a_pod_that_took_longer_to_bind_than_its_offer_lasts_goes_first() -> None:
    """Volcano binds the pods of a gang together, which may take any time."""
    line = Line(CONFIG)
    line.set_healthy(True)
    gang = line.pod("gang", 2, scheduler="volcano")
    line.world.offer(gang)
    await line.world.settle()
    line.world.time += OFFERED_S + 1
    await line.world.settle()
    line.set_healthy(False)
    line.waits("important", 1, priority=1_000_000)
    line.pod("gang", 2, scheduler="volcano", node="node-1")
    assert await line.recovers() == ["gang"]
