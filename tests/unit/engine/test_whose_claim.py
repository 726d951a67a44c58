"""A pod uses its own claim, a copy of a template, or the first claim assigned to it."""

from __future__ import annotations

from typing import Any

from builders import a_claim, a_container, a_node, a_pod, a_request, use_of
from replica import Replica
from vgpu_api.conditions import ALLOCATED, find
from vgpu_api.names import (
    ANNOTATION_CLAIM,
    ANNOTATION_CLAIM_TEMPLATE,
    ANNOTATION_SLOTS_ADDED,
    pod_claim_name,
)
from vgpu_api.reasons import Reason
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation

GPU = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


def a_pod_of(template: str, name: str = "pod-1", *, recorded: str = "main", **fields: Any) -> Any:
    annotations = {ANNOTATION_CLAIM_TEMPLATE: template, ANNOTATION_SLOTS_ADDED: recorded}
    return a_pod(name, annotations=annotations, **fields)


def a_pod_with(claim: str, name: str = "pod-1", **fields: Any) -> Any:
    annotations = {ANNOTATION_CLAIM: claim, ANNOTATION_SLOTS_ADDED: "main"}
    return a_pod(name, annotations=annotations, **fields)


def see(replica: Replica, pod: Any) -> Any:
    replica.api.put(PODS, pod.to_wire())
    return replica.news.pod_changed(pod)


def says(replica: Replica, claim: str) -> tuple[str, str]:
    conditions = VGPUClaim.read(replica.api.claim(claim)).status.conditions
    found = find(conditions, ALLOCATED)
    assert found is not None
    return found.status, found.reason


async def test_each_pod_of_a_template_gets_an_owned_copy_and_all_run_at_once(
    replica: Replica,
) -> None:
    replica.device()
    spec = {"requests": [a_request(memory="4Gi", cores=10)], "ttl_seconds_after_unused": 9}
    template = replica.claim(a_claim("shape", **spec))
    pods = [a_pod_of("shape", f"web-{number}") for number in range(3)]
    for pod in pods:
        replica.offer(see(replica, pod))
    await replica.settle()
    for pod in pods:
        claim = replica.claim_of(pod)
        assert claim.status.allocation is not None
        assert claim.spec == template.spec
        assert claim.metadata.name == pod_claim_name(pod.metadata.name, pod.metadata.uid)
        assert claim.metadata.owner_references[0].uid == pod.metadata.uid


async def test_a_template_is_never_decided_itself_and_is_shown_as_such(replica: Replica) -> None:
    replica.device()
    replica.claim(a_claim("shape", requests=[a_request(memory="4Gi")]))
    pod = see(replica, a_pod_of("shape")).pod
    await replica.settle()
    assert says(replica, "shape") == ("False", "Template")
    assert "allocation" not in replica.api.claim("shape")["status"]
    replica.news.pod_gone(pod.metadata.uid)  # scaled to zero, and still a template
    replica.engine.lead()
    await replica.settle()
    assert says(replica, "shape") == ("False", "Template")


async def test_a_pod_that_names_a_template_as_its_claim_is_refused(replica: Replica) -> None:
    replica.device()
    replica.claim(a_claim("shape", requests=[a_request(memory="4Gi")]))
    see(replica, a_pod_of("shape"))
    refusal = replica.offer(see(replica, a_pod_with("shape", "pod-2")))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.TEMPLATE
    await replica.settle()


async def test_an_immediate_claim_is_no_template(replica: Replica) -> None:
    replica.device()
    replica.claim(a_claim("now", requests=[a_request()], binding_mode="Immediate"))
    refusal = replica.offer(see(replica, a_pod_of("now")))
    assert isinstance(refusal, Refusal)
    assert refusal.message == "claim now is Immediate; a template must not be"


async def test_a_template_for_other_containers_is_refused_before_a_copy_is_made(
    replica: Replica,
) -> None:
    replica.device()
    replica.claim(a_claim("shape", requests=[a_request(name="other", memory="4Gi")]))
    consumer = see(replica, a_pod_of("shape"))
    await replica.settle()
    refusal = replica.offer(consumer)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.REQUEST_MISMATCH
    assert (VGPU_CLAIMS.plural, *consumer.claim) not in replica.api.objects


async def test_a_pod_waits_for_its_template_and_goes_on_when_it_is_there(replica: Replica) -> None:
    replica.device()
    pod = see(replica, a_pod_of("shape")).pod
    assert isinstance(replica.offer(pod), Refusal)
    await replica.settle()
    replica.claim(a_claim("shape", requests=[a_request(memory="4Gi")]))
    await replica.settle()
    replica.offer(pod)
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None


async def test_a_claim_of_the_pods_uid_name_that_it_owns_is_adopted(replica: Replica) -> None:
    """A leader made it and ended before it wrote the status."""
    replica.device()
    pod = a_pod(containers=[a_container(limits=GPU)])
    name = pod_claim_name(pod.metadata.name, pod.metadata.uid)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod-1", "uid": pod.metadata.uid}
    made = a_claim(
        name,
        requests=[a_request(name="main", memory="8Gi", cores=0)],
        metadata={"owner_references": [owner], "finalizers": ["vgpu.dev/in-use"]},
    )
    replica.api.put(VGPU_CLAIMS, made.to_wire())  # not yet seen, but found on create
    replica.offer(see(replica, pod))
    await replica.settle()
    adopted = replica.claim_of(pod)
    assert adopted.metadata.uid == f"uid-of-{name}"
    assert adopted.status.allocation is not None
    assert replica.api.log == [("create vgpuclaims", name), ("patch status", name)]


async def test_a_claim_of_its_own_that_asks_for_something_else_is_decided_as_it_stands(
    replica: Replica,
) -> None:
    """A leader of another release made it, and it is found on create."""
    replica.device()
    pod = a_pod(containers=[a_container(limits=GPU)])
    name = pod_claim_name(pod.metadata.name, pod.metadata.uid)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod-1", "uid": pod.metadata.uid}
    requests = [a_request(name="main", memory="2Gi")]
    made = a_claim(name, requests=requests, metadata={"owner_references": [owner]})
    replica.api.put(VGPU_CLAIMS, made.to_wire())
    replica.offer(see(replica, pod))
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is None
    assert isinstance(replica.engine.begin_bind(see(replica, pod), "node-1"), Reservation)
    await replica.settle()
    allocation = replica.claim_of(pod).status.allocation
    assert allocation is not None
    assert [device.memory_mib for device in allocation.devices] == [2048]


async def test_a_claim_that_a_namesake_pod_owns_is_not_this_pods(replica: Replica) -> None:
    """Claim names contain only the start of the UID, but the whole UID decides about ownership."""
    replica.device()
    uids = [f"0f5a3c1e-1111-4222-8333-44445555666{number}" for number in range(2)]
    former, pod = (a_pod(uid=uid, containers=[a_container(limits=GPU)]) for uid in uids)
    name = pod_claim_name(pod.metadata.name, pod.metadata.uid)
    assert name == pod_claim_name(former.metadata.name, former.metadata.uid)
    owner = {"kind": "Pod", "name": former.metadata.name, "uid": former.metadata.uid}
    requests = [a_request(name="main", memory="8Gi")]
    replica.claim(a_claim(name, requests=requests, metadata={"owner_references": [owner]}))
    refusal = replica.offer(see(replica, pod))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.CLAIM_NOT_OWNED


async def test_a_claim_of_the_pods_name_that_is_anothers_is_refused_and_left_alone(
    replica: Replica,
) -> None:
    replica.device()
    pod = a_pod(containers=[a_container(limits=GPU)])
    name = pod_claim_name(pod.metadata.name, pod.metadata.uid)
    replica.claim(a_claim(name, requests=[a_request(name="main", memory="8Gi")]))
    consumer = see(replica, pod)
    replica.claim(a_claim("bystander", requests=[a_request()]))
    await replica.settle()
    refusal = replica.offer(consumer)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.CLAIM_NOT_OWNED
    assert [verb for verb, written in replica.api.log if written == name] == []


async def test_a_forged_status_is_not_created_with_a_claim(replica: Replica) -> None:
    """The API server drops a status on create, so all status comes from later writes."""
    replica.device()
    pod = see(replica, a_pod(containers=[a_container(limits=GPU)])).pod
    replica.offer(pod)
    await replica.effector.drain()
    verbs = [verb for verb, _ in replica.api.log]
    assert verbs.index("create vgpuclaims") < verbs.index("patch status")
    assert replica.claim_of(pod).status.allocation is not None


async def test_an_annotation_changed_later_does_not_change_the_claim(replica: Replica) -> None:
    replica.device()
    for name in ("first", "second"):
        replica.claim(a_claim(name, requests=[a_request(memory="4Gi")]))
    replica.offer(see(replica, a_pod_with("first")))
    await replica.settle()
    see(replica, a_pod_with("second", resource_version=500, node="node-1"))
    await replica.settle()
    assert "allocation" in replica.api.claim("first")["status"]
    assert "allocation" not in replica.api.claim("second")["status"]


async def test_a_new_leader_finds_the_claim_of_a_pod_that_was_edited(replica: Replica) -> None:
    """It reads pods and claims in any order, and the annotation has changed since."""
    replica.device()
    for name in ("first", "second"):
        replica.claim(a_claim(name, requests=[a_request(memory="4Gi")]))
    replica.offer(see(replica, a_pod_with("first")))
    await replica.settle()
    edited = a_pod_with("second", resource_version=500, node="node-1")
    for claims_first in (True, False):
        successor = type(replica)()
        successor.api.objects = replica.api.objects
        successor.device()
        claims = [VGPUClaim.read(replica.api.claim(name)) for name in ("first", "second")]
        if not claims_first:
            successor.news.pod_changed(edited)
        for claim in claims:
            successor.news.claim_changed(claim)
        if claims_first:
            successor.news.pod_changed(edited)
        successor.engine.lead()
        await successor.settle()
        assert "allocation" not in replica.api.claim("second")["status"]
        assert use_of(successor.ledger, "GPU-0").memory_mib == 4096


async def test_a_pod_whose_annotation_was_taken_off_is_still_known(replica: Replica) -> None:
    replica.device()
    replica.claim(a_claim("mine", requests=[a_request(memory="4Gi")]))
    replica.offer(see(replica, a_pod_with("mine")))
    await replica.settle()
    replica.news.pod_changed(a_pod("pod-1", phase="Failed", resource_version=500))
    await replica.settle()
    assert "allocation" not in replica.api.claim("mine")["status"]


async def test_a_claim_that_cannot_be_read_keeps_its_devices_and_is_left_alone(
    replica: Replica,
) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    name = replica.claim_of(pod).metadata.name
    raw = replica.api.claim(name)
    good = dict(raw["spec"])
    raw["spec"] = {"requests": [{"memory": "nonsense"}]}
    ruined = replica.api.put(VGPU_CLAIMS, raw)
    replica.news.claim_unreadable(ruined)
    before = list(replica.api.log)
    replica.news.pod_gone(pod.metadata.uid)
    other = replica.offered("pod-2")
    await replica.told()
    assert [entry for entry in replica.api.log if entry[1] == name] == [
        entry for entry in before if entry[1] == name
    ]
    assert replica.claim_of(other).status.allocation is None  # the device counts as full
    mended = replica.api.claim(name)
    mended["spec"] = good
    replica.claim(VGPUClaim.read(mended))
    await replica.settle()
    assert "allocation" not in replica.api.claim(name)["status"]
    replica.offer(other)
    await replica.settle()
    assert replica.claim_of(other).status.allocation is not None


async def test_a_pod_whose_claim_cannot_be_read_is_refused_and_says_so(replica: Replica) -> None:
    replica.device()
    raw = a_claim("mine", requests=[a_request(memory="4Gi")]).to_wire()
    raw["spec"] = {"requests": "none"}
    ruined = replica.api.put(VGPU_CLAIMS, raw)
    replica.news.claim_unreadable(ruined)
    consumer = see(replica, a_pod_with("mine"))
    await replica.settle()
    refusal = replica.offer(consumer)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.CLAIM_UNREADABLE
    assert replica.api.log == []
    replica.news.claim_gone(consumer.claim, ruined["metadata"]["uid"])
    replica.claim(a_claim("mine", uid="another", requests=[a_request(memory="4Gi")]))
    replica.news.node_changed(a_node("node-1", resource_version=7))
    await replica.settle()
    outcome = replica.offer(consumer)
    assert isinstance(outcome, Reservation)
