"""In Gate mode, the answer about a new pod is what the operator would report about it."""

from __future__ import annotations

from typing import Any

import pytest

from builders import GATE, ROOM, a_claim, a_device, a_node, a_pod, an_allocation
from memory_api import MemoryApi
from replica import Replica
from storage_objects import (
    DRIVER,
    LOCAL,
    Object,
    a_csi_node,
    a_local_class,
    a_volume,
    a_volume_claim,
    read,
    using,
)
from vgpu_api.core import Pod, Taint
from vgpu_api.names import ANNOTATION_CLAIM
from vgpu_api.resources import PODS
from vgpu_operator.admission.rules import mutate_pod
from vgpu_operator.admission.rules.json_patch import applied
from vgpu_operator.insight.live_cluster import LiveCluster, Unread
from vgpu_operator.insight.question import Outcome, question_of
from vgpu_operator.insight.simulate import answer

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WHY = 'pods is forbidden: User "u" cannot list resource "pods"'


def world(*storage: Object, nodes: tuple[str, ...] = ("one", "two"), **room: str) -> Replica:
    made = Replica(MemoryApi(), config=GATE)
    for name in nodes:
        node = a_node(name, labels={HOSTNAME: name}, allocatable={**ROOM, **room})
        made.news.node_changed(node)
        made.news.device_changed(a_device(uuid=f"GPU-{name}", node=name))
    for obj in (a_local_class(), *storage):
        made.news.storage_changed(read(obj))
    return made


def a_raw_pod(
    name: str = "pod-1",
    *,
    container: Object | None = None,
    labels: Object | None = None,
    **spec: Any,
) -> Object:
    """Return a pod as a user writes it: limits are not repeated as requests."""
    amounts = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
    given = dict(container or {})
    limits = {**amounts, **given.pop("limits", {})}
    main = {"name": "main", "image": "x", "resources": {"limits": limits}, **given}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
        "spec": {"containers": [main], **spec},
    }


def decided(cluster: LiveCluster, raw: Object) -> Outcome:
    question = question_of(raw, cluster, admit=True)
    assert question is not None
    return cluster.decide(question)


def left_out(cluster: LiveCluster, raw: Object, *, admit: bool = True) -> str:
    question = question_of(raw, cluster, admit=admit)
    assert question is not None
    return cluster.not_judged(question)


def create(made: Replica, raw: Object) -> Pod:
    """Return the pod that the API server and the webhook make of an object."""
    raw = applied(raw, mutate_pod(raw, GATE, None))
    for container in raw["spec"]["containers"]:
        container["resources"]["requests"] = dict(container["resources"]["limits"])
        for port in container.get("ports", []) if raw["spec"].get("hostNetwork") else ():
            port["hostPort"] = port["containerPort"]
    pod = Pod.model_validate(made.api.put(PODS, raw))
    made.news.pod_changed(pod)
    return pod


def on(made: Replica, name: str, node: str, raw: Object) -> None:
    """Add a pod without a GPU that runs on a node."""
    raw["metadata"] |= {"uid": f"uid-of-{name}", "resourceVersion": "1"}
    for container in raw["spec"]["containers"]:
        resources = container["resources"]
        resources["requests"] = {k: v for k, v in resources["limits"].items() if "/" not in k}
        resources["limits"] = {}
    raw["spec"]["nodeName"] = node
    made.news.pod_changed(Pod.model_validate(raw))


PORT = {"ports": [{"containerPort": 80, "hostPort": 80}]}
APART = {
    "affinity": {
        "podAntiAffinity": {
            REQUIRED: [{"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "a"}}}]
        }
    }
}
SPREAD = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "a"}},
            "nodeTaintsPolicy": "Honor",
        }
    ]
}
REFUSED: dict[str, tuple[list[Object], Object, str]] = {
    "no claim": ([], a_raw_pod(**using("data")), "VolumeClaimNotReady"),
    "a claim without a class": (
        [a_volume_claim(class_name="none")],
        a_raw_pod(**using("data")),
        "VolumeClaimNotReady",
    ),
    "a volume elsewhere": (
        [a_volume("v", class_name=LOCAL, nodes=["away"]), a_volume_claim(class_name=LOCAL)],
        a_raw_pod(**using("data")),
        "NodeVolumeMismatch",
    ),
    "volumes enough": (
        [
            a_volume("v", driver=DRIVER, claim="data", claim_uid="u"),
            a_volume_claim(volume="v"),
            a_csi_node("one", 0),
            a_csi_node("two", 0),
        ],
        a_raw_pod(**using("data")),
        "NodeVolumeLimit",
    ),
    "cpu": ([], a_raw_pod(container={"limits": {"cpu": "9"}}), "NodeInsufficientResources"),
    "memory": (
        [],
        a_raw_pod(container={"limits": {"memory": "64Gi"}}),
        "NodeInsufficientResources",
    ),
    "ports": ([], a_raw_pod(container=PORT), "NodeInsufficientResources"),
    "the host's network": (
        [],
        a_raw_pod(container={"ports": [{"containerPort": 80}]}, hostNetwork=True),
        "NodeInsufficientResources",
    ),
    "apart": ([], a_raw_pod(**APART), "NodePodRulesMismatch"),
    "a node's name": ([], a_raw_pod(nodeSelector={HOSTNAME: "six"}), "NodeSelectorMismatch"),
    "devices": (
        [],
        a_raw_pod(container={"limits": {"nvidia.com/gpumem": 20_000}}),
        "Impossible",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_pod_is_refused_in_the_words_of_the_condition_that_it_gets(case: str) -> None:
    storage, raw, reason = REFUSED[case]
    made = world(*storage)
    for node in ("one", "two"):
        on(made, f"a-{node}", node, a_raw_pod(f"a-{node}", container=PORT, labels={"app": "a"}))
    said = decided(LiveCluster(made.state), raw).refused
    pod = create(made, raw)
    await made.told()
    condition = made.claim_of(pod).status.conditions[0]
    assert (condition.reason, condition.message) == (reason, said)


@pytest.mark.parametrize(
    ("raw", "node"),
    [
        (a_raw_pod(**using("data")), "two"),
        (a_raw_pod(container={"limits": {"cpu": "3"}}), "two"),
        (a_raw_pod(container=PORT), "two"),
        (a_raw_pod(**APART), "two"),
        (a_raw_pod(labels={"app": "a"}, **SPREAD), "two"),
        (a_raw_pod(), "one"),
    ],
    ids=["volume", "cpu", "port", "apart", "spread", "none of it"],
)
async def test_a_pod_goes_where_the_operator_lets_it_go(raw: Object, node: str) -> None:
    made = world(a_volume("v", class_name=LOCAL, nodes=["two"]), a_volume_claim(class_name=LOCAL))
    holder = a_raw_pod("a", container={"limits": {"cpu": "6"}, **PORT}, labels={"app": "a"})
    on(made, "a", "one", holder)
    assert decided(LiveCluster(made.state), raw).plan.node == node
    pod = create(made, raw)
    await made.settle()
    allocation = made.claim_of(pod).status.allocation
    assert allocation is not None
    assert allocation.node_name == node


def test_a_tainted_node_is_named_beside_one_without_room() -> None:
    made = world()
    taint = Taint(key="k", effect="NoSchedule")
    made.news.node_changed(a_node("two", allocatable=ROOM, taints=[taint], resource_version=2))
    cluster = LiveCluster(made.state)
    question = question_of(a_raw_pod(container={"limits": {"cpu": "9"}}), cluster, admit=True)
    result, _ = answer(question, cluster)
    assert {name: node["reasons"] for name, node in result["nodes"].items()} == {
        "one": "1/1 NodeInsufficientResources",
        "two": "1/1 NodeTainted",
    }
    assert "notJudged" not in result


def test_where_volumes_refuse_a_pod_no_node_is_looked_at() -> None:
    cluster = LiveCluster(world().state)
    result, _ = answer(question_of(a_raw_pod(**using("data")), cluster, admit=True), cluster)
    assert (result["node"], result["devices"], result["nodes"]) == (None, [], {})
    assert result["refused"] == "PersistentVolumeClaim data does not exist yet"


def test_each_pod_finds_what_those_before_it_have_taken_and_nothing_of_it_stays() -> None:
    """They take CPU, a port, and a claim that serves one pod; there are devices for ten."""
    once = a_volume_claim(volume="v", access="ReadWriteOncePod")
    state = world(once, a_volume("v"), nodes=("one",)).state
    cases = [
        (a_raw_pod(container={"limits": {"cpu": "5"}}), "1/1 NodeInsufficientResources"),
        (a_raw_pod(container=PORT), "1/1 NodeInsufficientResources"),
        (
            a_raw_pod(**using("data")),
            "PersistentVolumeClaim data is ReadWriteOncePod: another pod uses it",
        ),
    ]
    for raw, refused in cases:
        with LiveCluster(state) as cluster:
            question = question_of(raw, cluster, admit=True)
            assert question is not None
            cluster.charge(question, cluster.decide(question))
            assert decided(cluster, raw).refused.split(";")[0] == refused
        assert decided(LiveCluster(state), raw).refused == ""


def test_where_pods_may_not_be_read_their_share_and_rules_about_them_are_left_out_by_name() -> None:
    made = world(nodes=("one",))
    cluster = LiveCluster(made.state, lambda _: Unread(pods=WHY))
    raw = a_raw_pod(labels={"app": "b"}, **APART)
    together = {"podAffinity": APART["affinity"]["podAntiAffinity"]}
    line = f"resources that other pods use, and rules about pods, are not judged: {WHY}"
    for pod in (raw, a_raw_pod(affinity=together)):
        assert decided(cluster, pod).refused == ""
        assert left_out(cluster, pod) == line
    too_much = a_raw_pod(container={"limits": {"cpu": "9"}})
    assert decided(cluster, too_much).refused.startswith("1/1 NodeInsufficientResources")


def test_where_volumes_may_not_be_read_pods_with_volumes_alone_have_a_line() -> None:
    cluster = LiveCluster(world().state, lambda _: Unread(volumes="forbidden"))
    with_volume = a_raw_pod(**using("data"))
    assert decided(cluster, with_volume).refused == ""
    assert left_out(cluster, with_volume) == "volumes are not judged: forbidden"
    assert left_out(cluster, a_raw_pod()) == ""


def test_an_unknown_configuration_is_named_with_the_mode_that_is_assumed() -> None:
    state = Replica(MemoryApi()).state
    cluster = LiveCluster(state, lambda _: Unread(config="forbidden", pods="p", volumes="v"))
    assert left_out(cluster, a_raw_pod(**using("data"))) == (
        "the operator's configuration is not known; the defaults are assumed, with scheduling.mode"
        " Extender: forbidden"
    )


def test_a_volume_that_is_made_with_the_pod_is_left_out_and_named() -> None:
    cluster = LiveCluster(world().state)
    raw = a_raw_pod(volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}])
    assert decided(cluster, raw).refused == ""
    assert left_out(cluster, raw) == (
        "ephemeral volumes are not judged: their claims are made with the pod"
    )


async def test_a_claim_that_has_its_node_serves_a_pod_there_or_not_at_all() -> None:
    made = world()
    allocation = an_allocation(node="one")
    made.claim(a_claim("own", binding_mode="Immediate", allocation=allocation))
    raw = a_raw_pod(container={"limits": {"cpu": "9"}})
    del raw["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    del raw["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"]
    raw["metadata"]["annotations"] = {ANNOTATION_CLAIM: "own"}
    said = decided(LiveCluster(made.state), raw)
    assert said.refused == "claim own has its GPUs on one: NodeInsufficientResources"
    raw["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
    assert decided(LiveCluster(made.state), raw).plan.node == "one"


def test_a_pod_that_has_its_node_is_not_judged_again() -> None:
    """The Binding was checked before; only devices of its node can be missing."""
    cluster = LiveCluster(world().state)
    raw = a_raw_pod(container={"limits": {"cpu": "9"}}, nodeName="one", **using("data"))
    question = question_of(raw, cluster, admit=False)
    assert question is not None
    assert cluster.decide(question).refused == ""


def test_behind_no_gate_kube_scheduler_judges_all_that() -> None:
    made = Replica(MemoryApi())
    made.news.node_changed(a_node("one", allocatable=ROOM))
    made.news.device_changed(a_device(uuid="GPU-one", node="one"))
    made.news.pod_changed(a_pod("other", node="one"))
    cluster = LiveCluster(made.state)
    raw = a_raw_pod(container={"limits": {"cpu": "9"}, **PORT}, **using("data"), **APART)
    assert decided(cluster, raw).plan.node == "one"
    assert left_out(cluster, raw) == ""
