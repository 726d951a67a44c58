"""Filter answers with one node at once, and Bind writes the claim before the Binding."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_claim, a_container, a_pod, a_request, use_of
from replica import Replica
from vgpu_api.errors import BadInput
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED, pod_claim_name
from vgpu_api.resources import PODS
from vgpu_client.errors import Unknown
from vgpu_operator.errors import NotLeading
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import BindRequest, FilterRequest


def asking(pod: Any, *nodes: str) -> FilterRequest:
    return FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": list(nodes)})


def binding(pod: Any, node: str) -> BindRequest:
    metadata = pod.metadata
    return BindRequest(metadata.namespace, metadata.name, metadata.uid, node)


async def two_nodes(replica: Replica) -> Any:
    replica.device(uuid="GPU-0", node="node-1")
    replica.device(uuid="GPU-1", node="node-2")
    pod = replica.offered()
    await replica.settle()
    return pod


async def test_filter_answers_the_reserved_node_and_no_word_on_the_others(replica: Replica) -> None:
    """Reasons for 500 candidates would be most of the answer, and kube-scheduler ignores them."""
    pod = await two_nodes(replica)
    answer = filter_nodes(replica.engine, asking(pod, "node-2", "node-1")).to_wire()
    assert answer["NodeNames"] == ["node-1"]
    assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == {}


async def test_a_reservation_moves_when_its_node_is_no_candidate(replica: Replica) -> None:
    pod = await two_nodes(replica)
    answer = filter_nodes(replica.engine, asking(pod, "node-2"))
    assert answer.node_names == ["node-2"]
    await replica.settle()
    assert replica.claim_of(pod).status.allocation.node_name == "node-2"
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0
    assert use_of(replica.ledger, "GPU-1").memory_mib == 8192


async def test_a_reservation_moves_while_its_first_write_is_still_under_way(
    replica: Replica,
) -> None:
    replica.device(uuid="GPU-0", node="node-1")
    replica.device(uuid="GPU-1", node="node-2")
    replica.api.gate.clear()
    pod = replica.offered()
    replica.submit()
    assert filter_nodes(replica.engine, asking(pod, "node-2")).node_names == ["node-2"]
    replica.api.gate.set()
    await replica.settle()
    assert replica.claim_of(pod).status.allocation.node_name == "node-2"
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0


async def test_filter_gives_each_node_its_reason_when_nothing_fits(replica: Replica) -> None:
    replica.device(memory_mib=4096)
    pod = replica.pod()
    answer = filter_nodes(replica.engine, asking(pod, "node-1", "cpu-node"))
    assert answer.node_names == []
    assert answer.refused == {
        "node-1": "1/1 CardInsufficientMemory",
        "cpu-node": "1/1 NodeInsufficientDevice",
    }


async def test_only_what_the_end_of_others_could_cure_is_open_to_preemption(
    replica: Replica,
) -> None:
    for node, fields in {"full": {}, "ill": {"healthy": False}, "other": {"model": "A100"}}.items():
        replica.device(uuid=f"GPU-{node}", node=node, memory_mib=16384, **fields)
    holder = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16384}
    replica.offer(replica.pod("holder", limits=holder), "full")
    pod = replica.pod(annotations={"nvidia.com/nouse-gputype": "A100"})
    nodes = ("full", "ill", "other", "cpu-node")
    answer = filter_nodes(replica.engine, asking(pod, *nodes)).to_wire()
    assert answer["FailedNodes"] == {"full": "1/1 CardInsufficientMemory"}
    assert set(answer["FailedAndUnresolvableNodes"]) == {"ill", "other", "cpu-node"}


async def test_nodes_alike_are_refused_in_equal_words_and_amounts_are_in_the_pods_own_event(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kube-scheduler counts nodes by their text: `3 1/1 CardInsufficientMemory`.

    See docs/design/placement.md.
    """
    notes: list[str] = []
    monkeypatch.setattr(replica.recorder, "record", lambda _, **event: notes.append(event["note"]))
    nodes = [f"node-{number}" for number in range(3)]
    for number, node in enumerate(nodes):
        replica.device(uuid=f"GPU-{number}", node=node)
        amount = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9000 + number}
        replica.offer(replica.pod(f"holder-{number}", limits=amount), node)
    await replica.settle()
    pod = replica.pod()
    answer = filter_nodes(replica.engine, asking(pod, *nodes))
    assert set(answer.refused.values()) == {"1/1 CardInsufficientMemory"}
    await replica.told()
    assert notes == [
        "3/3 CardInsufficientMemory; asked 8,192 MiB; most free on one device 7,384 MiB "
        "(gpu-0 on node-0)"
    ]


async def test_filter_lets_a_pod_without_a_gpu_go_anywhere(replica: Replica) -> None:
    answer = filter_nodes(replica.engine, asking(a_pod(), "node-1", "node-2"))
    assert answer.node_names == ["node-1", "node-2"]


async def test_filter_on_full_nodes_reserves_nothing(replica: Replica) -> None:
    replica.device()
    pod = a_pod(containers=[a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1})])
    request = FilterRequest.read(
        {"Pod": pod.to_wire(), "Nodes": {"items": [{"metadata": {"name": "node-1"}}]}}
    )
    answer = filter_nodes(replica.engine, request)
    assert [node["metadata"]["name"] for node in answer.to_wire()["Nodes"]["items"]] == ["node-1"]
    assert replica.state.reservations.of_pod(pod.metadata.uid) is None


@pytest.mark.parametrize("policy", ["binpack", "spread"])
async def test_filter_on_full_nodes_keeps_each_that_serves_and_no_other(
    replica: Replica, policy: str
) -> None:
    """The order of the nodes makes no difference."""
    for node, memory in (("node-1", 16_384), ("node-2", 1024), ("node-3", 16_384)):
        replica.device(uuid=f"GPU-{node}", node=node, memory_mib=memory)
    pod = a_pod(
        annotations={"hami.io/node-scheduler-policy": policy},
        containers=[a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048})],
    )
    names = ["node-1", "node-2", "node-3", "node-4"]
    items = [{"metadata": {"name": name}} for name in names]
    answer = filter_nodes(
        replica.engine, FilterRequest.read({"Pod": pod.to_wire(), "Nodes": {"items": items}})
    )
    assert answer.node_names == ["node-1", "node-3"]
    assert answer.refused == {
        "node-2": "1/1 CardInsufficientMemory",
        "node-4": "1/1 NodeInsufficientDevice",
    }


async def test_filter_refuses_a_pod_it_cannot_understand_and_names_the_field(
    replica: Replica,
) -> None:
    replica.device()
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "much"}
    pod = a_pod(containers=[a_container(limits=limits)])
    answer = filter_nodes(replica.engine, asking(pod, "node-1"))
    assert "spec.containers[0].resources.limits[nvidia.com/gpumem]" in answer.refused["node-1"]


async def test_the_claim_is_written_before_the_binding(replica: Replica) -> None:
    replica.device()
    pod = replica.offered()
    assert await replica.binder.bind(binding(pod, "node-1")) == ""
    verbs = [verb for verb, _ in replica.api.log]
    assert verbs.index("patch status") < verbs.index("bind")
    stored = replica.api.objects[(PODS.plural, "default", "pod-1")]
    annotations = stored["metadata"]["annotations"]
    assert annotations["hami.io/vgpu-devices-allocated"] == "GPU-0,NVIDIA,8192,0:;"
    assert annotations["hami.io/vgpu-node"] == "node-1"


async def test_bind_without_a_reservation_decides_on_the_chosen_node(replica: Replica) -> None:
    replica.device(uuid="GPU-0", node="node-1")
    replica.device(uuid="GPU-1", node="node-2")
    pod = replica.pod()
    assert await replica.binder.bind(binding(pod, "node-2")) == ""
    assert replica.claim_of(pod).status.allocation.node_name == "node-2"


async def test_bind_errs_where_the_node_is_full(replica: Replica) -> None:
    replica.device(memory_mib=4096)
    pod = replica.pod()
    error = await replica.binder.bind(binding(pod, "node-1"))
    assert error == "CardInsufficientMemory: 1/1 CardInsufficientMemory"
    assert "bind" not in [verb for verb, _ in replica.api.log]


async def test_a_pod_that_went_meanwhile_gives_its_devices_back(replica: Replica) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    name = replica.claim_of(pod).metadata.name
    replica.api.vanish(PODS, "pod-1")
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    await replica.settle()
    assert "allocation" not in replica.api.claim(name)["status"]


async def test_a_namesake_is_not_bound_with_anothers_devices(replica: Replica) -> None:
    replica.device()
    pod = replica.offered(uid="the-first")
    await replica.settle()
    replica.api.put(PODS, a_pod("pod-1", uid="the-second").to_wire())
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    stored = replica.api.objects[(PODS.plural, "default", "pod-1")]
    assert not stored["spec"].get("nodeName")


async def test_a_binding_whose_answer_was_lost_is_found_bound(replica: Replica) -> None:
    replica.device()
    pod = replica.pod()
    replica.api.after = lambda verb, _: Unknown("no answer") if verb == "bind" else None
    assert await replica.binder.bind(binding(pod, "node-1")) == ""
    assert replica.claim_of(pod).status.allocation is not None


async def test_a_binding_that_was_never_done_keeps_its_reservation(replica: Replica) -> None:
    replica.device()
    pod = replica.pod()
    replica.api.before = lambda verb, _: Unknown("not sent") if verb == "bind" else None
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    assert filter_nodes(replica.engine, asking(pod, "node-1")).node_names == ["node-1"]


async def test_an_immediate_claim_is_offered_on_its_node_only_and_named_at_bind(
    replica: Replica,
) -> None:
    replica.device(uuid="GPU-0", node="node-1")
    replica.device(uuid="GPU-1", node="node-2")
    replica.claim(a_claim("now", requests=[a_request(memory="8Gi")], binding_mode="Immediate"))
    await replica.settle()
    pod = a_pod(annotations={ANNOTATION_CLAIM: "now", ANNOTATION_SLOTS_ADDED: "main"})
    replica.api.put(PODS, pod.to_wire())
    refused = filter_nodes(replica.engine, asking(pod, "node-2"))
    assert refused.refused == {"node-2": "claim now has its GPUs on node-1"}
    assert filter_nodes(replica.engine, asking(pod, "node-1")).node_names == ["node-1"]
    assert await replica.binder.bind(binding(pod, "node-1")) == ""
    assert replica.api.claim("now")["status"]["reservedFor"]["podUID"] == pod.metadata.uid


async def test_a_claim_of_the_same_name_that_is_not_the_pods_own_is_not_taken(
    replica: Replica,
) -> None:
    replica.device()
    pod = a_pod(containers=[a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 64})])
    name = pod_claim_name(pod.metadata.name, pod.metadata.uid)
    replica.claim(a_claim(name, requests=[a_request(name="main", memory="64Mi")]))
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    assert await replica.binder.bind(binding(pod, "node-1")) != ""
    assert not replica.api.claim(name)["status"].get("allocation")


async def test_a_replica_that_does_not_lead_answers_nothing(replica: Replica) -> None:
    replica.leading = False
    with pytest.raises(NotLeading):
        filter_nodes(replica.engine, asking(a_pod(), "node-1"))
    with pytest.raises(NotLeading):
        await replica.binder.bind(binding(a_pod(), "node-1"))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({"NodeNames": ["a"]}, "Pod"),
        ({"Pod": {}, "NodeNames": "a"}, "NodeNames"),
        ({"Pod": {}}, "NodeNames"),
    ],
)
def test_a_filter_request_that_cannot_be_read_names_the_field(body: Any, field: str) -> None:
    with pytest.raises(BadInput) as error:
        FilterRequest.read(body)
    assert error.value.field == field


def test_a_bind_request_without_a_uid_is_refused() -> None:
    with pytest.raises(BadInput, match="PodUID"):
        BindRequest.read({"PodName": "a", "PodNamespace": "b", "Node": "c"})
