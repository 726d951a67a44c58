"""Our rules judge random pods, nodes and quotas as Kubernetes' own code does.

`CASES=100000` in the environment runs more of them, and `SEED` draws others. The oracle is built
from the Go modules of the control plane (`kubernetes_rules`); it knows nothing about our code.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from builders import a_device, a_request, an_ask
from kubernetes_rules import KubernetesRules, is_buildable
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node, Pod, PodScopes, ResourceQuota
from vgpu_api.host import cpu_milli_of
from vgpu_operator.ledger import Ledger
from vgpu_operator.node_filter import HostDemand, NodeRules
from vgpu_operator.placement import refusals_on

CASES = int(os.environ.get("CASES", "300"))
SEED = int(os.environ.get("SEED", "29"))
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

pytestmark = [
    pytest.mark.timeout(max(120, CASES)),
    pytest.mark.skipif(not is_buildable(), reason="there is no Go to build Kubernetes' rules with"),
]

Raw = dict[str, Any]


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[KubernetesRules]:
    with KubernetesRules() as running:
        yield running


class Chance(random.Random):
    """Draws parts of objects, most of them plain."""

    def maybe(self, share: float = 0.5) -> bool:
        return self.random() < share

    def some(self, most: int) -> range:
        return range(self.randint(0, most))


# Quotas.

CLASSES = ("low", "high", "batch")
PLAIN_SCOPES = (
    *("Terminating", "NotTerminating", "BestEffort", "NotBestEffort"),
    *("PriorityClass", "CrossNamespacePodAffinity", "VolumeAttributesClass"),
)


def some_amounts(chance: Chance) -> dict[str, str]:
    of = {"cpu": ("0", "100m", "1"), "memory": ("0", "64Mi"), "nvidia.com/gpu": ("1",)}
    return {name: chance.choice(of[name]) for name in of if chance.maybe(0.3)}


def a_container(chance: Chance, name: str) -> Raw:
    resources = {"requests": some_amounts(chance), "limits": some_amounts(chance)}
    return {"name": name, "resources": resources if chance.maybe(0.7) else {}}


def a_term(chance: Chance) -> Raw:
    term: Raw = {"topologyKey": "zone", "labelSelector": {}}
    if chance.maybe(0.3):
        term["namespaces"] = chance.choice(([], ["other"]))
    if chance.maybe(0.3):
        term["namespaceSelector"] = chance.choice(({}, {"matchLabels": {"team": "a"}}))
    return term


def pod_rules(chance: Chance) -> Raw:
    rules: Raw = {}
    if chance.maybe():
        rules[REQUIRED] = [a_term(chance) for _ in chance.some(2)]
    if chance.maybe():
        rules[PREFERRED] = [
            {"weight": 1, "podAffinityTerm": a_term(chance)} for _ in chance.some(2)
        ]
    return rules


def a_quota_pod(chance: Chance) -> Raw:
    spec: Raw = {
        "containers": [a_container(chance, f"c{at}") for at in range(chance.randint(1, 2))]
    }
    if chance.maybe(0.3):
        spec["initContainers"] = [a_container(chance, "init")]
    if chance.maybe(0.2):
        spec["resources"] = chance.choice(({}, {"requests": some_amounts(chance)}))
    if chance.maybe():
        spec["activeDeadlineSeconds"] = chance.choice((0, 60))
    if chance.maybe(0.6):
        spec["priorityClassName"] = chance.choice(("", *CLASSES))
    if chance.maybe(0.4):
        spec["affinity"] = {
            kind: pod_rules(chance) for kind in ("podAffinity", "podAntiAffinity") if chance.maybe()
        }
    status = {"qosClass": chance.choice(("BestEffort", "Burstable"))} if chance.maybe(0.1) else {}
    return {"metadata": {"name": "p", "namespace": "d"}, "spec": spec, "status": status}


def a_line(chance: Chance) -> Raw:
    scope = chance.choice((*PLAIN_SCOPES, "PriorityClass", "PriorityClass"))
    if scope != "PriorityClass":
        return {"scopeName": scope, "operator": "Exists"}
    operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    values = chance.sample(CLASSES, chance.randint(1, 2)) if operator.endswith("In") else []
    return {"scopeName": scope, "operator": operator, "values": values}


def a_quota(chance: Chance, name: str) -> Raw:
    spec: Raw = {"hard": {"requests.nvidia.com/gpu": "1"}}
    if chance.maybe():
        spec["scopes"] = chance.sample(PLAIN_SCOPES, chance.randint(0, 2))
    if chance.maybe(0.7):
        spec["scopeSelector"] = {"matchExpressions": [a_line(chance) for _ in chance.some(2)]}
    return {"metadata": {"name": name, "namespace": "d", "resourceVersion": "1"}, "spec": spec}


def test_quotas_count_the_pods_that_kubernetes_counts(kubernetes: KubernetesRules) -> None:
    chance, outcomes = Chance(SEED), [0, 0]
    for _ in range(CASES):
        pod = a_quota_pod(chance)
        quotas = [a_quota(chance, f"q{number}") for number in range(8)]
        theirs = kubernetes.counted(pod, quotas)
        scopes = PodScopes.of(Pod.model_validate(pod))
        for raw in quotas:
            ours = ResourceQuota.model_validate(raw).spec.counts(scopes)
            name = raw["metadata"]["name"]
            assert ours == (name in theirs), f"{pod['spec']} {pod['status']} {raw['spec']}"
            outcomes[ours] += 1
    assert min(outcomes) > CASES, "both answers are met often"


# Nodes.

KEYS = ("sla", "team", "node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready")
NUMBERS = ("0", "5", "95", "100", "-3", "007", "+5", "", "9223372036854775808", "high")
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
ZONES = ("a", "b", "95", "5")
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
JUDGED_WITH_A_FILTER = ("NodeUnschedulable", "TaintToleration", "NodeAffinity", "ruled out before")
"""Reasons that we judge although kube-scheduler judges the rest; it checks them first, too."""


def a_taint(chance: Chance) -> Raw:
    taint = {"key": chance.choice(KEYS), "effect": chance.choice(EFFECTS)}
    return {**taint, "value": chance.choice(NUMBERS)} if chance.maybe(0.8) else taint


def a_toleration(chance: Chance) -> Raw:
    operator = chance.choice(("", "Equal", "Exists", "Exists", "Gt", "Lt"))
    toleration: Raw = {"operator": operator} if operator else {}
    if operator != "Exists" or chance.maybe(0.8):
        toleration["key"] = chance.choice(KEYS)
    if operator != "Exists":
        toleration["value"] = chance.choice(NUMBERS)
    if chance.maybe():
        toleration["effect"] = chance.choice(EFFECTS)
    return toleration


def some_requests(chance: Chance) -> dict[str, str]:
    of = {
        "cpu": ("0", "100m", "0.5", "1", "2500m", "4"),
        "memory": ("0", "64Mi", "1Gi", "3e9", "128974848"),
        "ephemeral-storage": ("1Gi",),
        "example.com/widget": ("0", "1", "2"),
        "hugepages-2Mi": ("2Mi", "64Mi"),
    }
    return {name: chance.choice(of[name]) for name in of if chance.maybe(0.25)}


def a_port(chance: Chance) -> Raw:
    port: Raw = {"containerPort": 80, "hostPort": chance.choice((0, 80, 81))}
    if chance.maybe(0.4):
        port["hostIP"] = chance.choice(("0.0.0.0", "10.0.0.1", "10.0.0.2"))
    if chance.maybe(0.3):
        port["protocol"] = chance.choice(("TCP", "UDP"))
    return port


def a_host_container(chance: Chance, name: str) -> Raw:
    container: Raw = {"name": name, "resources": {"requests": some_requests(chance)}}
    if chance.maybe(0.3):
        container["ports"] = [a_port(chance)]
    return container


def containers(chance: Chance) -> Raw:
    spec: Raw = {
        "containers": [a_host_container(chance, f"c{at}") for at in range(chance.randint(1, 2))]
    }
    init = [a_host_container(chance, f"i{at}") for at in chance.some(2)]
    for container in init:
        if chance.maybe():
            container["restartPolicy"] = "Always"
    spec["initContainers"] = init
    if chance.maybe(0.2):
        spec["resources"] = {"requests": {"cpu": chance.choice(("1", "3", "6"))}}
    if chance.maybe(0.2):
        spec["overhead"] = {"cpu": "250m", "memory": "32Mi"}
    return spec


def a_node(chance: Chance, name: str) -> Raw:
    taints = [a_taint(chance) for _ in chance.some(2)] if chance.maybe(0.4) else []
    spec: Raw = {"taints": taints}
    if chance.maybe(0.2):
        spec["unschedulable"] = True
        if chance.maybe(0.7) and CORDON not in taints:
            taints.append(dict(CORDON))
    ready = chance.choice(("True", "True", "True", "True", "True", "True", "False", "Unknown"))
    if ready != "True":  # as the node controller writes it
        key = "not-ready" if ready == "False" else "unreachable"
        taints += [
            {"key": f"node.kubernetes.io/{key}", "effect": effect}
            for effect in ("NoSchedule", "NoExecute")
        ]
    of = {"cpu": ("2", "8", "64"), "memory": ("2Gi", "64Gi"), "example.com/widget": ("1", "9"),
          "ephemeral-storage": ("10Gi",), "hugepages-2Mi": ("64Mi", "1Gi")}  # fmt: skip
    allocatable = {each: chance.choice(of[each]) for each in of if chance.maybe(0.9)}
    allocatable["pods"] = chance.choice(("1", "3", "110"))
    labels = {key: chance.choice(ZONES) for key in ("zone", "rank") if chance.maybe(0.7)}
    return {
        "metadata": {"name": name, "labels": labels, "resourceVersion": "1", "uid": name},
        "spec": spec,
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def a_placed_pod(chance: Chance, name: str, node: str) -> Raw:
    spec = {**containers(chance), "nodeName": node}
    return {
        "metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1"},
        "spec": spec,
        "status": {"phase": "Running", **resize_status(chance, spec)},
    }


def resize_status(chance: Chance, spec: Raw) -> Raw:
    """Draw the status that a kubelet reports of a resize of containers and of the whole pod."""
    status: Raw = {}
    for kind, section in (("containers", "containerStatuses"),
                          ("initContainers", "initContainerStatuses")):  # fmt: skip
        status[section] = [
            {"name": each["name"], **some_sizes(chance)} for each in spec[kind] if chance.maybe(0.4)
        ]
    if chance.maybe(0.2):
        status |= some_sizes(chance)
    if chance.maybe(0.4):
        kind = chance.choice(("PodResizePending", "PodResizeInProgress"))
        reason = chance.choice(("Infeasible", "Deferred", ""))
        status["conditions"] = [{"type": kind, "status": "True", "reason": reason}]
    return status


def some_sizes(chance: Chance) -> Raw:
    sizes: Raw = {}
    if chance.maybe(0.8):
        sizes["resources"] = {"requests": some_requests(chance)}
    if chance.maybe(0.8):
        sizes["allocatedResources"] = some_requests(chance)
    return sizes


def a_requirement(chance: Chance) -> Raw:
    operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    values: list[str] = []
    if operator in ("In", "NotIn"):
        values = chance.sample(ZONES, chance.randint(1, 2))
    elif operator in ("Gt", "Lt"):
        values = [chance.choice(("5", "50"))]
    return {"key": chance.choice(("zone", "rank")), "operator": operator, "values": values}


def a_node_term(chance: Chance, nodes: list[str]) -> Raw:
    term: Raw = {}
    if chance.maybe(0.8):
        term["matchExpressions"] = [a_requirement(chance) for _ in chance.some(2)]
    if chance.maybe(0.2):
        operator = chance.choice(("In", "NotIn"))
        named = [chance.choice(nodes)]
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": named}]
    return term


def a_waiting_pod(chance: Chance, nodes: list[str]) -> Raw:
    spec = containers(chance)
    spec["tolerations"] = [a_toleration(chance) for _ in chance.some(3)]
    if chance.maybe(0.2):
        spec["tolerations"].append({"operator": "Exists"})
    if chance.maybe(0.2):
        spec["nodeSelector"] = {chance.choice(("zone", "rank")): chance.choice(ZONES)}
    if chance.maybe(0.3):
        terms = [a_node_term(chance, nodes) for _ in range(chance.randint(1, 2))]
        spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    return {"metadata": {"name": "p", "namespace": "d", "uid": "p"}, "spec": spec}


def refused_by_us(pod: Pod, nodes: list[Raw], pods: list[Raw], mode: str) -> set[str]:
    """Return the nodes that refuse the pod although each of them has a suitable device."""
    config = ClusterConfig.model_validate({"scheduling": {"mode": mode}})
    ledger = Ledger(config=config)
    for raw in nodes:
        node = Node.model_validate(raw)
        ledger.apply_node(node)
        ledger.apply_device(a_device(uuid=f"GPU-{node.metadata.name}", node=node.metadata.name))
    for raw in pods:
        placed = Pod.model_validate(raw)
        # The policy Fragmentation counts free CPU separately; both must agree on the same pods.
        assert cpu_milli_of(placed) == dict(HostDemand.of(placed).amounts).get("cpu", 0)
        ledger.expect_pod(placed, placed.spec.node_name)
    host_demand = HostDemand.of(pod) if mode == "Gate" else None
    allowed = ledger.filters.of(NodeRules.of(pod), host_demand)
    names = [raw["metadata"]["name"] for raw in nodes]
    return set(refusals_on(ledger.columns, an_ask(a_request(memory="1Gi")), names, nodes=allowed))


def test_nodes_take_the_pods_that_kube_scheduler_would_give_them(
    kubernetes: KubernetesRules,
) -> None:
    chance, outcomes, met = Chance(SEED), [0, 0], Counter[str]()
    for _ in range(CASES):
        names = [f"n{at}" for at in range(6)]
        nodes = [a_node(chance, name) for name in names]
        pods = [
            a_placed_pod(chance, f"on-{name}-{at}", name) for name in names for at in chance.some(2)
        ]
        raw = a_waiting_pod(chance, names)
        theirs = kubernetes.refused(raw, nodes, pods)
        pod = Pod.model_validate(raw)
        judged = {n for n, why in theirs.items() if why.startswith(JUDGED_WITH_A_FILTER)}
        for mode, expected in (("Gate", set(theirs)), ("Extender", judged)):
            differ = refused_by_us(pod, nodes, pods, mode) ^ expected
            assert not differ, f"{mode}: " + json.dumps(
                {
                    "nodes": [each for each in nodes if each["metadata"]["name"] in differ],
                    "theirs": {name: theirs.get(name) for name in differ},
                    "pods": [each for each in pods if each["spec"]["nodeName"] in differ],
                    "pod": raw,
                }
            )
        met.update(why.split(":")[0] for why in theirs.values())
        outcomes[0] += len(theirs)
        outcomes[1] += len(nodes) - len(theirs)
    assert min(outcomes) > CASES / 2, "both answers are met often"
    assert set(met) >= {"NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts"}
