"""`explain` repeats for a gated pod what the operator reports of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from builders import (
    CLAIMS,
    GATE,
    ROOM,
    a_claim,
    a_container,
    a_device,
    a_node,
    a_pod,
    an_allocation,
)
from memory_api import MemoryApi
from replica import Replica
from storage_objects import using
from vgpu_api.config import ClusterConfig
from vgpu_api.core.pod import PodResourceClaim
from vgpu_api.names import (
    ANNOTATION_CLAIM,
    ANNOTATION_GROUP,
    ANNOTATION_GROUP_MIN,
    ANNOTATION_RESOURCES,
    ANNOTATION_SLOTS_ADDED,
    SCHEDULING_GATE,
)
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.insight.explanation import Explanation, ask_nodes, explained
from vgpu_operator.insight.live_cluster import EVERYTHING_READ, Unread

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO_WORDS: Mapping[str, str] = MappingProxyType({})


def said_of(
    claim: VGPUClaim,
    *,
    config: ClusterConfig = GATE,
    cpu: str = "1",
    unread: Unread = EVERYTHING_READ,
    words: Mapping[str, str] = NO_WORDS,
) -> Explanation:
    """Return the answer about a claim that a pod names; the pod has a volume if a part is unread.

    The only node has a device, and CPU for eight.
    """
    made = Replica(MemoryApi(), config=config)
    made.news.node_changed(a_node("one", allocatable=ROOM))
    made.news.device_changed(a_device(node="one"))
    container = a_container(
        limits={"nvidia.com/gpu": 1}, requests={"nvidia.com/gpu": 1, "cpu": cpu}
    )
    annotations = {ANNOTATION_CLAIM: claim.metadata.name, ANNOTATION_SLOTS_ADDED: "main", **words}
    volumes = [] if unread == EVERYTHING_READ else using("data")["volumes"]
    pod = a_pod("p", containers=[container], annotations=annotations, volumes=volumes)
    gates = [{"name": SCHEDULING_GATE}]
    spec = pod.spec.model_copy(update={"scheduling_gates": gates})
    made.news.pod_changed(pod.model_copy(update={"spec": spec}))
    return explained(made.state, made.claim(claim), now=NOW, unread=unread)


def said_of_claimed(*, cpu: str = "1", config: ClusterConfig = CLAIMS) -> Explanation:
    """Return the answer about a pod that waits for its ResourceClaim.

    The only node has CPU for eight.
    """
    made = Replica(MemoryApi(), config=config)
    made.news.node_changed(a_node("one", allocatable=ROOM))
    made.news.device_changed(a_device(node="one"))
    container = a_container(requests={"cpu": cpu})
    amounts = json.dumps({"main": {"nvidia.com/gpu": 1}})
    pod = a_pod("p", containers=[container], annotations={ANNOTATION_RESOURCES: amounts})
    named = PodResourceClaim(name="vgpu", resource_claim_name=f"vgpu-{'0' * 12}")
    spec = pod.spec.model_copy(update={"resource_claims": [named]})
    found = made.news.pod_changed(pod.model_copy(update={"spec": spec}))
    said = Explanation("pod p", claim="", asks="")
    ask_nodes(made.state, found, None, said, lambda _: True, EVERYTHING_READ)
    return said


def test_a_pod_that_waits_for_its_resource_claim_is_judged_as_behind_a_gate() -> None:
    assert [node.serves for node in said_of_claimed().nodes] == [True]
    (node,) = said_of_claimed(cpu="9").nodes
    assert not node.serves
    assert "NodeInsufficientResources" in said_of_claimed(cpu="9").now


def test_where_the_mode_is_another_no_resource_claim_is_allocated() -> None:
    assert said_of_claimed(config=GATE).now == (
        "scheduling.mode is Gate, so no ResourceClaim is allocated; create the pod anew"
    )


def test_where_the_mode_is_extender_no_gate_is_lifted() -> None:
    said = said_of(a_claim("own"), config=ClusterConfig())
    assert said.reason == "Gated"
    assert said.now == "scheduling.mode is Extender, so no gate is lifted; create the pod anew"
    assert said.nodes == []


def test_a_pod_whose_group_lacks_pods_is_told_so_in_mode_gate() -> None:
    words = {ANNOTATION_GROUP: "gang", ANNOTATION_GROUP_MIN: "2"}
    said = said_of(a_claim("own"), words=words)
    assert said.now == "1 of the 2 pods of group gang that must start together exist"
    assert said.group is not None
    assert said.group.message == (
        "1 of 1 waiting pods of group gang would find a place now; 2 must start together"
    )


def test_a_pod_of_an_immediate_claim_waits_for_that_and_the_claim_is_explained() -> None:
    said = said_of(a_claim("own", binding_mode="Immediate"), cpu="9")
    assert (said.reason, said.now) == (
        "ReservedElsewhere",
        "claim own waits for its own devices",
    )
    assert [node.verdict for node in said.nodes] == ["would serve"]


def test_a_pod_that_cannot_go_where_its_claim_has_its_devices_is_explained() -> None:
    claim = a_claim("own", binding_mode="Immediate", allocation=an_allocation(node="one"))
    said = said_of(claim, cpu="9")
    assert said.now == "claim own has its GPUs on one: NodeInsufficientResources"
    assert [node.verdict for node in said.nodes] == ["holds it"]
    assert said_of(claim).now == ""


def test_what_could_not_be_read_is_left_out_of_it_and_named() -> None:
    said = said_of(a_claim("own"), unread=Unread(volumes="forbidden"))
    assert (said.now, said.not_judged) == ("", "volumes are not judged: forbidden")
    said = said_of(a_claim("own"), unread=Unread(config="why"))
    assert said.now == "PersistentVolumeClaim data does not exist yet"
    assert said.not_judged == (
        "the operator's configuration is not known; the defaults are assumed, with scheduling.mode"
        " Gate: why"
    )
