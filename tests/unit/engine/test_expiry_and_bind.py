"""Reservations without a confirmed Binding expire, except those that one may have confirmed."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_claim, a_container, a_node, a_pod, a_request, use_of
from replica import Replica
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED, FINALIZER_IN_USE
from vgpu_api.resources import PODS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import ServerError, TooManyRequests, Unknown
from vgpu_client.reflector import ObjectIdentity
from vgpu_operator.engine.scheduling.reservation import OFFERED_S, PINNED_S
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import BindRequest, FilterRequest

GPU = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


def asking(pod: Any, *nodes: str) -> FilterRequest:
    return FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": list(nodes)})


def binding(pod: Any, node: str) -> BindRequest:
    return BindRequest(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, node)


def two_nodes(replica: Replica) -> None:
    replica.device(uuid="GPU-0", node="node-1")
    replica.device(uuid="GPU-1", node="node-2")


async def test_an_expired_reservation_of_a_pod_that_is_bound_after_all_stays(
    replica: Replica,
) -> None:
    """The Binding's answer was lost, all later reads failed, and the watch is behind."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    replica.api.after = lambda verb, _: Unknown("no answer") if verb == "bind" else None
    replica.api.before = lambda verb, _: ServerError("no", status=500) if verb == "get" else None
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    replica.api.before = lambda verb, name: None
    replica.time += PINNED_S + 1
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None
    replica.time += OFFERED_S
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None


@pytest.mark.parametrize("offered", [("node-1",), ("node-2",), ("node-1", "node-2")])
async def test_a_filter_of_a_pod_that_is_bound_leaves_its_claim_alone(
    replica: Replica, offered: tuple[str, ...]
) -> None:
    """Its Binding succeeded and the answer was lost with the leader, so kube-scheduler retries."""
    two_nodes(replica)
    pod = replica.offered()
    await replica.settle()
    before = replica.claim_of(pod).status.allocation
    bound = a_pod("pod-1", node=before.node_name, containers=[a_container(limits=GPU)])
    bound = bound.model_copy(
        update={"metadata": bound.metadata.model_copy(update={"resource_version": "9"})}
    )
    successor = type(replica)(replica.api)
    two_nodes(successor)
    successor.news.claim_changed(replica.claim_of(pod))
    successor.api.put(PODS, bound.to_wire())
    successor.news.pod_changed(bound)
    answer = filter_nodes(successor.engine, asking(pod, *offered))
    assert answer.node_names == []
    said = f"the pod has node {before.node_name} already"
    assert answer.refused == dict.fromkeys(offered, said)
    for _ in range(3):
        successor.time += OFFERED_S + 1
        await successor.settle()
    assert replica.claim_of(pod).status.allocation == before


async def test_an_expired_reservation_stays_while_nobody_can_say_where_its_pod_is(
    replica: Replica,
) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    replica.api.before = lambda verb, _: ServerError("no", status=500) if verb == "get" else None
    replica.time += OFFERED_S
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None
    replica.api.before = lambda verb, name: None
    replica.time += 1
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is None


async def test_a_pod_that_may_have_been_bound_and_is_gone_keeps_its_devices_until_it_is_known(
    replica: Replica,
) -> None:
    """It was bound without an answer and deleted by force, so its containers may still run."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    name = replica.claim_of(pod).metadata.name

    def gone_after(verb: str, _: str) -> Exception | None:
        if verb != "bind":
            return None
        replica.api.vanish(PODS, "pod-1")
        return Unknown("no answer")

    replica.api.after = gone_after
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    replica.time += PINNED_S + 1
    await replica.settle()
    assert "allocation" in replica.api.claim(name)["status"]
    replica.news.pod_changed(
        a_pod("pod-1", node="node-1", resource_version=500, containers=[a_container(limits=GPU)])
    )
    replica.news.pod_gone(pod.metadata.uid)
    replica.time += OFFERED_S
    await replica.settle()
    assert "allocation" in replica.api.claim(name)["status"]


async def test_an_expired_reservation_stays_when_only_a_namesake_of_its_pod_is_found(
    replica: Replica,
) -> None:
    """The pod may have been bound unseen; another pod has its name now."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    name = replica.claim_of(pod).metadata.name
    replica.api.put(PODS, a_pod("pod-1", uid="another", resource_version=500).to_wire())
    replica.time += OFFERED_S
    await replica.settle()
    assert "allocation" in replica.api.claim(name)["status"]


async def test_an_expired_reservation_takes_the_finalizer_off_with_the_devices(
    replica: Replica,
) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    assert replica.claim_of(pod).metadata.finalizers == [FINALIZER_IN_USE]
    replica.time += OFFERED_S
    await replica.settle()
    assert replica.claim_of(pod).metadata.finalizers == []


async def test_after_a_binding_without_an_answer_filter_offers_that_node_only_for_a_minute(
    replica: Replica,
) -> None:
    two_nodes(replica)
    pod = replica.offered()
    replica.api.before = lambda verb, _: Unknown("not sent") if verb == "bind" else None
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    replica.api.before = lambda verb, name: None
    refused = filter_nodes(replica.engine, asking(pod, "node-2"))
    assert refused.refused == {"node-2": "a Binding to node-1 may still come to stand"}
    assert filter_nodes(replica.engine, asking(pod, "node-1", "node-2")).node_names == ["node-1"]
    replica.time += PINNED_S
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is None
    assert filter_nodes(replica.engine, asking(pod, "node-2")).node_names == ["node-2"]


@pytest.mark.parametrize("reads", ["answered", "busy too"])
async def test_a_binding_for_which_the_server_was_too_busy_does_not_pin_its_pod(
    replica: Replica, reads: str
) -> None:
    """429 means that nothing was bound, even if the pod cannot be read."""
    two_nodes(replica)
    pod = replica.offered()
    busy = TooManyRequests("later", status=429, retry_after=3.0)
    verbs = ("bind",) if reads == "answered" else ("bind", "get")
    replica.api.before = lambda verb, _: busy if verb in verbs else None
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    replica.api.before = lambda verb, name: None
    assert filter_nodes(replica.engine, asking(pod, "node-2")).node_names == ["node-2"]
    assert 3.0 in replica.slept


async def test_a_refused_binding_does_not_unpin_a_pod_that_an_earlier_one_may_bind(
    replica: Replica,
) -> None:
    two_nodes(replica)
    pod = replica.offered()
    replica.api.before = lambda verb, _: Unknown("not sent") if verb == "bind" else None
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    busy = TooManyRequests("later", status=429)
    replica.api.before = lambda verb, _: busy if verb == "bind" else None
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    replica.api.before = lambda verb, name: None
    refused = filter_nodes(replica.engine, asking(pod, "node-2"))
    assert refused.refused == {"node-2": "a Binding to node-1 may still come to stand"}
    replica.time += PINNED_S
    await replica.settle()
    assert filter_nodes(replica.engine, asking(pod, "node-2")).node_names == ["node-2"]


async def test_what_is_being_bound_does_not_move_though_a_filter_asks_for_another_node(
    replica: Replica,
) -> None:
    """kube-scheduler retries if its call of Bind was cut off; the Binding may still succeed."""
    two_nodes(replica)
    pod = replica.offered()
    answers: list[Any] = []

    def ask_meanwhile(verb: str, _: str) -> None:
        if verb == "bind":
            answers.append(filter_nodes(replica.engine, asking(pod, "node-2")))

    replica.api.before = ask_meanwhile
    assert await replica.binder.bind(binding(pod, "node-1")) == ""
    replica.api.before = lambda verb, name: None
    assert answers
    for answer in answers:
        assert answer.refused == {"node-2": "a Binding to node-1 may still come to stand"}
    await replica.settle()
    assert replica.claim_of(pod).status.allocation.node_name == "node-1"


async def test_a_pod_bound_elsewhere_meanwhile_gets_its_devices_there(replica: Replica) -> None:
    two_nodes(replica)
    pod = replica.offered()
    await replica.settle()
    assert replica.claim_of(pod).status.allocation.node_name == "node-1"
    bound = a_pod(
        "pod-1", node="node-2", resource_version=500, containers=[a_container(limits=GPU)]
    )
    replica.news.pod_changed(bound)
    await replica.settle()
    assert replica.claim_of(pod).status.allocation.node_name == "node-2"
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


async def test_a_pod_found_bound_without_an_allocation_is_decided_for_its_node(
    replica: Replica,
) -> None:
    two_nodes(replica)
    pod = replica.pod(node="node-2")
    await replica.settle()
    claim = replica.claim_of(pod)
    assert claim.status.allocation.node_name == "node-2"
    replica.time += 10 * OFFERED_S
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None


async def test_a_pod_that_went_unseen_keeps_its_devices_until_the_agent_says_so(
    replica: Replica,
) -> None:
    """A list found it missing; it may have been bound and may still run, unseen by our watch."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    replica.news.pod_gone(pod.metadata.uid, was_seen=False)
    await replica.settle()
    name = next(name for kind, _, name in replica.api.objects if kind == "vgpuclaims")
    assert "allocation" in replica.api.claim(name)["status"]


def test_two_identities_of_one_object_are_equal_however_they_were_found() -> None:
    assert ObjectIdentity("a", "b", "c", was_seen=False) == ObjectIdentity("a", "b", "c")


async def an_immediate_claim_and_its_pod(replica: Replica) -> Any:
    two_nodes(replica)
    replica.claim(a_claim("now", requests=[a_request(memory="8Gi")], binding_mode="Immediate"))
    await replica.settle()
    pod = a_pod(annotations={ANNOTATION_CLAIM: "now", ANNOTATION_SLOTS_ADDED: "main"})
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    await replica.settle()
    return pod


async def test_an_immediate_claim_names_its_pod_from_bind_on_and_not_before(
    replica: Replica,
) -> None:
    pod = await an_immediate_claim_and_its_pod(replica)
    assert filter_nodes(replica.engine, asking(pod, "node-1")).node_names == ["node-1"]
    assert "reservedFor" not in replica.api.claim("now")["status"]
    assert await replica.binder.bind(binding(pod, "node-1")) == ""
    assert replica.api.claim("now")["status"]["reservedFor"]["podUID"] == pod.metadata.uid


async def test_an_immediate_claim_keeps_its_devices_when_its_pod_is_gone_at_bind(
    replica: Replica,
) -> None:
    pod = await an_immediate_claim_and_its_pod(replica)
    before = replica.api.claim("now")["status"]["allocation"]
    replica.api.vanish(PODS, "pod-1")
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    await replica.settle()
    status = replica.api.claim("now")["status"]
    assert status["allocation"] == before
    assert "reservedFor" not in status


async def test_an_immediate_claim_is_free_for_the_next_pod_when_one_goes_unbound(
    replica: Replica,
) -> None:
    pod = await an_immediate_claim_and_its_pod(replica)
    replica.api.before = lambda verb, _: Unknown("not sent") if verb == "bind" else None
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    assert replica.api.claim("now")["status"]["reservedFor"]["podUID"] == pod.metadata.uid
    replica.api.before = lambda verb, name: None
    replica.news.pod_gone(pod.metadata.uid)
    await replica.settle()
    assert "reservedFor" not in replica.api.claim("now")["status"]
    following = a_pod(
        "pod-2", annotations={ANNOTATION_CLAIM: "now", ANNOTATION_SLOTS_ADDED: "main"}
    )
    replica.api.put(PODS, following.to_wire())
    assert filter_nodes(replica.engine, asking(following, "node-1")).node_names == ["node-1"]
    assert await replica.binder.bind(binding(following, "node-1")) == ""


async def test_a_deleted_immediate_claim_without_a_pod_gives_its_devices_back(
    replica: Replica,
) -> None:
    await an_immediate_claim_and_its_pod(replica)
    raw = replica.api.claim("now")
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    replica.claim(VGPUClaim.read(raw))
    replica.news.node_changed(a_node("node-1", resource_version=9))
    await replica.settle()
    assert "allocation" not in replica.api.claim("now")["status"]
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


async def test_an_allocation_that_a_former_leader_left_expires_though_its_pod_was_edited(
    replica: Replica,
) -> None:
    """Its annotation can no longer be read, so it is not decided and its devices are released."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    edited = a_pod(
        "pod-1",
        annotations={ANNOTATION_CLAIM: "no/name"},
        resource_version=500,
        containers=[a_container(limits=GPU)],
    )
    replica.api.put(PODS, edited.to_wire())
    successor = type(replica)(replica.api)
    successor.device()
    successor.news.claim_changed(replica.claim_of(pod))
    successor.news.pod_changed(edited)
    successor.engine.lead()
    await successor.settle()
    assert replica.claim_of(pod).status.allocation is not None
    successor.time += OFFERED_S
    await successor.settle()
    assert replica.claim_of(pod).status.allocation is None


async def test_a_pod_found_bound_with_an_immediate_claim_is_named_by_it(replica: Replica) -> None:
    """A former leader bound the pod without writing its name, which the agent needs."""
    two_nodes(replica)
    replica.claim(a_claim("now", requests=[a_request(memory="8Gi")], binding_mode="Immediate"))
    pod = a_pod(
        node="node-2", annotations={ANNOTATION_CLAIM: "now", ANNOTATION_SLOTS_ADDED: "main"}
    )
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    await replica.settle()
    status = replica.api.claim("now")["status"]
    assert status["allocation"]["nodeName"] == "node-2"
    assert status["reservedFor"]["podUID"] == pod.metadata.uid


async def test_a_pod_that_is_bound_before_its_expiry_was_written_keeps_its_devices(
    replica: Replica,
) -> None:
    """The server was too busy to remove the allocation, and meanwhile the volume was ready."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    busy = TooManyRequests("busy", status=429)
    replica.api.before = lambda verb, _: busy if verb.startswith("patch") else None
    replica.time += OFFERED_S
    await replica.settle()
    replica.api.before = lambda verb, name: None
    assert replica.claim_of(pod).status.allocation is not None
    assert await replica.binder.bind(binding(pod, "node-1")) == ""
    for _ in range(10):
        replica.time += 1
        await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None
    assert replica.api.objects[("pods", "default", "pod-1")]["spec"]["nodeName"] == "node-1"


async def test_a_second_binding_of_a_pod_that_was_deleted_by_force_frees_nothing(
    replica: Replica,
) -> None:
    """kube-scheduler gave up on the first Binding, which succeeded, so its containers may run."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    name = replica.claim_of(pod).metadata.name
    assert await replica.binder.bind(binding(pod, "node-1")) == ""
    assert filter_nodes(replica.engine, asking(pod, "node-1")).node_names == ["node-1"]
    bound = a_pod(
        "pod-1", node="node-1", resource_version=500, containers=[a_container(limits=GPU)]
    )
    replica.news.pod_changed(bound)

    def gone_before(verb: str, _: str) -> None:
        if verb == "bind":
            replica.api.vanish(PODS, "pod-1")
            replica.news.pod_gone(pod.metadata.uid)

    replica.api.before = gone_before
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    replica.time += PINNED_S + OFFERED_S
    await replica.settle()
    assert "allocation" in replica.api.claim(name)["status"]
    assert use_of(replica.ledger, "GPU-0").memory_mib == 8192


@pytest.mark.parametrize("mode", ["WaitForFirstConsumer", "Immediate"])
async def test_a_pod_that_another_scheduler_bound_holds_nothing_where_it_did_not_go(
    replica: Replica, mode: str
) -> None:
    two_nodes(replica)
    replica.pod("busy", node="node-2", limits={"nvidia.com/gpu": 1})  # the whole device
    await replica.settle()
    annotations = {ANNOTATION_CLAIM: "named", ANNOTATION_SLOTS_ADDED: "main"}
    replica.claim(a_claim("named", requests=[a_request(memory="8Gi")], binding_mode=mode))
    await replica.settle()
    pod = a_pod("p", annotations=annotations)
    replica.api.put(PODS, pod.to_wire())
    assert filter_nodes(replica.engine, asking(pod, "node-1")).node_names == ["node-1"]
    await replica.settle()
    bound = a_pod("p", node="node-2", annotations=annotations, resource_version=900)
    replica.news.pod_changed(bound)
    await replica.settle()
    status = replica.api.claim("named")["status"]
    assert "reservedFor" not in status
    assert ("allocation" in status) is (mode == "Immediate")  # the claim keeps it for its next pod


async def test_a_pod_that_is_deleted_before_it_is_bound_frees_its_devices_at_once(
    replica: Replica,
) -> None:
    """A finalizer, such as Kueue's, may keep the pod, but the API server no longer binds it."""
    replica.device()
    pod = replica.offered()
    await replica.settle()
    going = pod.model_copy(
        update={
            "metadata": pod.metadata.model_copy(
                update={"resource_version": "900", "deletion_timestamp": "2026-01-01T00:00:00Z"}
            )
        }
    )
    replica.news.pod_changed(going)
    await replica.settle()
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0
