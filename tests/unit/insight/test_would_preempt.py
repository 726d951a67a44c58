"""`explain` names the pods that would be evicted for a waiting pod, before any of them is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest

from builders import a_claim, a_container, a_device, a_node, a_pod, a_pod_group, a_request
from memory_api import MemoryApi
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, PodDisruptionBudget, ResourceQuota
from vgpu_api.names import pod_claim_name
from vgpu_api.v1alpha1.base import OwnerReference
from vgpu_operator.cli.explain import show
from vgpu_operator.cli.printing import Printer
from vgpu_operator.engine import events
from vgpu_operator.insight.explanation import Explanation, ask_nodes, explained, from_status
from vgpu_operator.insight.live_cluster import EVERYTHING_READ
from vgpu_operator.insight.node_verdicts import every_namespace
from vgpu_operator.insight.preemption import WouldPreempt
from web_world import a_holder

NOW = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
MIB = 16384


class Cluster:
    """A node `n1` with a device of 16 GiB, and pods on it."""

    def __init__(self, **rules: Any) -> None:
        config = ClusterConfig.model_validate({"scheduling": {"preemption": rules}})
        self.replica = Replica(MemoryApi(), config=config)
        self.replica.news.node_changed(a_node("n1"))
        self.replica.news.device_changed(a_device(uuid="GPU-0", node="n1", memory_mib=MIB))
        self.replica.engine.observe(events.BudgetsListed())

    def runs(self, name: str, mib: int, priority: int, **fields: Any) -> None:
        """Add a pod that runs with its devices."""
        namespace = fields.get("namespace", "default")
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
        self.replica.news.pod_changed(
            a_pod(
                name,
                uid=f"{namespace}-{name}",
                node="n1",
                priority=priority,
                containers=[a_container(limits=limits)],
                **fields,
            )
        )
        self.replica.news.claim_changed(
            a_holder(
                *(name,), namespace=namespace, uuid="GPU-0", node="n1", memory_mib=mib, pod=name
            )
        )

    def waits(self, priority: int = 1000, mib: int = MIB, **fields: Any) -> Pod:
        """Add a pod that is not bound."""
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
        pod = a_pod("late", priority=priority, containers=[a_container(limits=limits)], **fields)
        self.replica.news.pod_changed(pod)
        return pod

    def explains(self, pod: Pod, reads: Any = every_namespace) -> Explanation:
        """Return the explanation of a pod without a claim."""
        state = self.replica.state
        said = from_status(None, f"pod default/{pod.metadata.name}", NOW)
        known = state.cache.pod(pod.metadata.uid)
        ask_nodes(state, known, None, said, reads, EVERYTHING_READ)
        return said

    def preemption(self, pod: Pod, reads: Any = every_namespace) -> WouldPreempt:
        """Return the preemption of a pod that no node serves."""
        found = self.explains(pod, reads).preemption
        assert found is not None
        return found


def with_two(**rules: Any) -> Cluster:
    """Return a cluster whose device is filled by two pods."""
    cluster = Cluster(**rules)
    cluster.runs("a", 8192, 100)
    cluster.runs("b", 8192, 200)
    return cluster


def test_the_victims_are_named_with_their_priorities() -> None:
    cluster = with_two(enabled=True)
    found = cluster.preemption(cluster.waits())
    assert found.message == (
        "Would preempt default/b (priority 200), default/a (priority 100) on n1"
    )
    assert (found.nodes, found.enabled, found.why_not, found.not_judged) == (("n1",), True, "", "")
    named = [(each.pod, each.claim, each.priority) for each in found.victims]
    assert [(pod, priority) for pod, _, priority in named] == [
        ("default/b", 200),
        ("default/a", 100),
    ]


def test_they_are_named_although_preemption_is_off() -> None:
    cluster = with_two()
    found = cluster.preemption(cluster.waits(mib=8192))
    assert (
        found.message == "Would preempt default/a (priority 100) on n1 if preemption were enabled"
    )
    assert not found.enabled


def test_a_claim_is_explained_with_the_priority_of_its_pod() -> None:
    cluster = with_two(enabled=True)
    pod = cluster.waits(mib=8192)
    name = pod_claim_name(pod.metadata.name, pod.metadata.uid)
    owner = OwnerReference(kind="Pod", name="late", uid=pod.metadata.uid, controller=True)
    claim = a_claim(name, requests=[a_request(memory="8Gi")])
    metadata = claim.metadata.model_copy(update={"owner_references": [owner]})
    claim = cluster.replica.claim(claim.model_copy(update={"metadata": metadata}))
    found = explained(cluster.replica.state, claim, now=NOW).preemption
    assert found is not None
    assert found.message == "Would preempt default/a (priority 100) on n1"
    state = cluster.replica.state
    said = from_status(claim, None, NOW)
    ask_nodes(state, None, claim, said, every_namespace, EVERYTHING_READ)
    assert said.preemption == found


def test_a_claim_without_a_pod_preempts_nobody() -> None:
    cluster = with_two(enabled=True)
    claim = cluster.replica.claim(a_claim("free", requests=[a_request(memory="8Gi")]))
    found = explained(cluster.replica.state, claim, now=NOW).preemption
    assert found is not None
    assert found.message == "Would preempt nobody: a claim without a pod preempts nobody"


def test_a_priority_class_that_never_preempts_is_the_reason() -> None:
    cluster = with_two(enabled=True)
    wire = cluster.waits().to_wire()
    wire["spec"]["preemptionPolicy"] = "Never"
    wire["metadata"]["resourceVersion"] = "2"
    never = Pod.model_validate(wire)
    cluster.replica.news.pod_changed(never)
    found = cluster.preemption(never)
    assert (found.message, found.victims, found.nodes) == (
        "Would preempt nobody: its preemptionPolicy is Never",
        (),
        (),
    )


@pytest.mark.parametrize(
    ("rules", "priority", "why_not"),
    [
        ({}, 100, "no pod with devices has a priority lower than 100"),
        (
            {"minGap": 900},
            1000,
            "no pod with devices has a priority lower than 1000 by more than 900",
        ),
        (
            {},
            200,
            "it would fit on no node even without the less important pods that a disruption budget"
            " lets go",
        ),
        (
            {"budgets": "Prefer", "scope": "Namespace"},
            200,
            "it would fit on no node even without the less important pods of its namespace",
        ),
    ],
)
def test_a_pod_that_nobodys_end_would_help_is_told_why(
    rules: dict[str, Any], priority: int, why_not: str
) -> None:
    cluster = with_two(enabled=True, **rules)
    found = cluster.preemption(cluster.waits(priority))
    assert (found.why_not, found.message) == (why_not, f"Would preempt nobody: {why_not}")


def test_a_gang_whose_pods_are_not_all_there_preempts_nobody() -> None:
    cluster = with_two(enabled=True)
    cluster.replica.news.pod_group_changed(a_pod_group("gang", least=2))
    found = cluster.preemption(cluster.waits(group="gang"))
    assert found.why_not == "too few pods of its group are there to start"


def gang(cluster: Cluster, mib: int) -> Pod:
    """Add a gang of two pods, and return the first."""
    cluster.replica.news.pod_group_changed(a_pod_group("gang", least=2))
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    first, _ = [
        cluster.replica.pod(f"gang-{number}", limits=limits, priority=1000, group="gang")
        for number in range(2)
    ]
    return first


def test_a_gang_names_those_who_make_way_for_all_its_pods() -> None:
    cluster = with_two(enabled=True)
    found = cluster.preemption(gang(cluster, 8192))
    assert found.message == (
        "Would preempt default/b (priority 200), default/a (priority 100) on n1 for group gang"
    )


def test_a_gang_of_which_a_pod_alone_would_fit_names_those_who_make_way() -> None:
    cluster = Cluster(enabled=True)
    cluster.runs("a", 8192, 100)
    found = cluster.preemption(gang(cluster, 8192))
    assert [each.pod for each in found.victims] == ["default/a"]


def test_a_gang_that_fits_preempts_nobody() -> None:
    cluster = Cluster(enabled=True)
    cluster.runs("a", 4096, 100)
    assert cluster.explains(gang(cluster, 4096)).preemption is None


def test_a_gang_that_fits_nowhere_preempts_nobody() -> None:
    cluster = with_two(enabled=True)
    found = cluster.preemption(gang(cluster, MIB))
    assert found.why_not == (
        "its group would not fit even without the less important pods that a disruption budget "
        "lets go, or needs more than 64 devices"
    )


def test_a_quota_is_not_a_reason_to_preempt() -> None:
    cluster = with_two(enabled=True)
    quota = {
        "metadata": {"name": "quota", "namespace": "default", "resourceVersion": "1"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "16Gi"}},
    }
    cluster.replica.news.quota_changed(ResourceQuota.model_validate(quota))
    found = cluster.preemption(cluster.waits(mib=4096))
    assert found.why_not.startswith("the quota of its namespace is used up")


def test_a_protected_pod_is_not_named() -> None:
    cluster = Cluster(enabled=True)
    cluster.runs("a", 8192, 100)
    cluster.runs("b", 8192, 200, labels={"app": "b"})
    budget = {
        "metadata": {"name": "keep", "namespace": "default", "uid": "1"},
        "spec": {"selector": {"matchLabels": {"app": "b"}}},
        "status": {"disruptionsAllowed": 0},
    }
    found = PodDisruptionBudget.model_validate(budget)
    cluster.replica.engine.observe(events.BudgetObserved(found))
    cluster.replica.engine.pod("")  # applies the observed events
    assert cluster.preemption(cluster.waits()).victims == ()
    cluster.replica.state.config = Cluster(enabled=True, budgets="Prefer").replica.state.config
    named = cluster.preemption(cluster.waits()).victims
    assert [(each.pod, each.protected) for each in named] == [
        ("default/b", True),
        ("default/a", False),
    ]


def test_it_is_said_if_budgets_could_not_be_read() -> None:
    cluster = with_two(enabled=True)
    cluster.replica.state.preemptions.budgets.are_listed = False
    found = cluster.preemption(cluster.waits(mib=8192))
    assert found.not_judged == "disruption budgets and PodGroups are not known here"
    assert found.message.endswith("on n1; disruption budgets and PodGroups are not known here")


def test_pods_of_namespaces_that_may_not_be_read_are_only_counted() -> None:
    cluster = Cluster(enabled=True)
    cluster.runs("a", 8192, 100)
    cluster.runs("secret", 8192, 200, namespace="other")
    found = cluster.preemption(cluster.waits(), reads=lambda namespace: namespace == "default")
    assert found.message == (
        "Would preempt default/a (priority 100), 1 pod of other namespaces on n1"
    )
    assert found.victims_hidden == 1
    assert [each.pod for each in found.victims] == ["default/a"]


def test_a_pod_that_fits_preempts_nobody_and_is_not_told_so() -> None:
    cluster = Cluster(enabled=True)
    cluster.runs("a", 8192, 100)
    assert cluster.explains(cluster.waits(mib=8192)).preemption is None


def test_nothing_changes_by_explaining() -> None:
    cluster = with_two(enabled=True)
    pod = cluster.waits()
    first = cluster.preemption(pod)
    assert cluster.preemption(pod) == first
    assert not cluster.replica.state.preemptions.open


def test_json_has_the_victims_as_a_field_and_text_has_a_line() -> None:
    cluster = with_two()
    said = cluster.explains(cluster.waits(mib=8192))
    out = StringIO()
    show(said, Printer(out), "json")
    found = json.loads(out.getvalue())["preemption"]
    assert found["victims"][0]["pod"] == "default/a"
    assert (found["nodes"], found["enabled"]) == (["n1"], False)
    out = StringIO()
    show(said, Printer(out), "text")
    line = "Would preempt default/a (priority 100) on n1 if preemption were enabled"
    assert line in out.getvalue().splitlines()
