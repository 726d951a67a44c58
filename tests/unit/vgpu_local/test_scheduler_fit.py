from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_local.scheduler.fit import (
    Refusal,
    effective_requests,
    explain,
    read_ask,
    read_node,
    refuse,
)
from vgpu_local.scheduler.occupancy import Occupancy
from vgpu_local.scheduler.queue import Backoff, Queue


def a_node(**changes: Any) -> dict[str, Any]:
    node: dict[str, Any] = {
        "metadata": {"name": "n1", "labels": {"zone": "a", "tier": "5"}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10", "ex.dev/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    for key, value in changes.items():
        node[key] = {**node[key], **value}
    return node


def a_pod(*containers: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": _containers(*containers), **spec}}


def _containers(*limits: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": f"c{i}", "resources": {"limits": each}} for i, each in enumerate(limits)]


def reasons(
    pod: dict[str, Any],
    node: dict[str, Any],
    used: dict[str, Fraction] | None = None,
    ignored: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    refusal = refuse(read_ask(pod), read_node(node), used or {}, ignored=ignored)
    return refusal.reasons if refusal else ()


def test_a_pod_that_fits_is_not_refused():
    assert reasons(a_pod({"cpu": "4", "memory": "8Gi", "ex.dev/gpu": "8"}), a_node()) == ()


def test_every_resource_that_is_short_is_named():
    pod = a_pod({"cpu": "4100m", "ex.dev/gpu": "8"}, {"ex.dev/gpu": "1"})
    assert reasons(pod, a_node()) == ("Insufficient cpu", "Insufficient ex.dev/gpu")


def test_what_other_pods_there_ask_for_counts():
    assert reasons(a_pod({"cpu": "1"}), a_node(), {"cpu": Fraction(4)}) == ("Insufficient cpu",)
    assert reasons(a_pod(), a_node(), {"pods": Fraction(10)}) == ("Too many pods",)


def test_a_resource_left_to_the_extender_need_not_exist_on_the_node():
    pod = a_pod({"ex.dev/mem": "4k"})
    assert reasons(pod, a_node()) == ("Insufficient ex.dev/mem",)
    assert reasons(pod, a_node(), ignored=frozenset({"ex.dev/mem"})) == ()


def test_a_cordoned_node_takes_only_pods_that_tolerate_it():
    node = a_node(spec={"unschedulable": True})
    assert reasons(a_pod(), node) == ("node(s) were unschedulable",)
    assert reasons(a_pod(tolerations=[{"operator": "Exists"}]), node) == ()


def test_a_node_that_is_not_ready_is_tainted():
    node = a_node(status={"conditions": [{"type": "Ready", "status": "Unknown"}]})
    assert reasons(a_pod(), node) == (
        "node(s) had untolerated taint {node.kubernetes.io/not-ready: }",
    )


def test_a_preferred_taint_keeps_nobody_off():
    node = a_node(spec={"taints": [{"key": "a", "effect": "PreferNoSchedule"}]})
    assert reasons(a_pod(), node) == ()


def test_a_toleration_must_match_key_value_and_effect():
    node = a_node(spec={"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]})
    good = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    assert reasons(a_pod(tolerations=[good]), node) == ()
    for wrong in ({"key": "cpu"}, {"value": "no"}, {"effect": "NoExecute"}):
        assert reasons(a_pod(tolerations=[{**good, **wrong}]), node)


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, False),
        ({"key": "tier", "operator": "Gt", "values": ["4"]}, True),
        ({"key": "tier", "operator": "Lt", "values": ["4"]}, False),
    ],
)
def test_node_affinity_expressions(expression: dict[str, Any], matches: bool):
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert (reasons(a_pod(affinity=affinity), a_node()) == ()) is matches


def test_the_node_selector_must_match():
    assert reasons(a_pod(nodeSelector={"zone": "a"}), a_node()) == ()
    assert reasons(a_pod(nodeSelector={"zone": "b"}), a_node()) == (
        "node(s) didn't match Pod's node affinity/selector",
    )


def test_a_pod_counts_with_its_hungriest_moment():
    inits = [
        {"name": "i1", "resources": {"limits": {"cpu": "1"}}},
        {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"cpu": "2"}}},
        {"name": "i2", "resources": {"limits": {"cpu": "5"}}},
    ]
    spec = a_pod({"cpu": "3"}, {"cpu": "1", "memory": "1Gi"}, initContainers=inits)["spec"]
    got = effective_requests(spec)
    assert got == {"cpu": 7, "memory": 2**30, "pods": 1}


def test_refusals_are_worded_as_kube_scheduler_words_them():
    refusals = [
        Refusal(("Insufficient cpu", "Too many pods"), resolvable=True),
        Refusal(("Insufficient cpu",), resolvable=True),
        Refusal(("no such GPU",), resolvable=False),
    ]
    assert explain(refusals, 3) == (
        "0/3 nodes are available: 1 Too many pods, 1 no such GPU, 2 Insufficient cpu. "
        "preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, "
        "2 No preemption victims found for incoming pod."
    )


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 9))))
def test_occupancy_is_always_the_sum_of_the_pods_that_are_placed(steps):
    """Invariant: per node, the sum over its pods, however they were placed, moved and removed."""
    occupancy, model = Occupancy(), {}
    for uid, node, amount in steps:
        if amount == 0:
            occupancy.remove(uid)
            model.pop(uid, None)
        else:
            occupancy.place(uid, node, {"cpu": Fraction(amount)})
            model[uid] = (node, amount)
    for node in "xy":
        expected = sum(amount for where, amount in model.values() if where == node)
        assert occupancy.used(node).get("cpu", 0) == expected


def test_a_refused_pod_waits_twice_as_long_each_time_up_to_the_limit():
    queue, now, waits = Queue(Backoff(first=1, last=10)), 0.0, []
    queue.add("a", 0)
    for _ in range(6):
        assert queue.take(now) == "a"
        queue.put_back("a", now, failed=False)
        due = queue.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits == [1, 2, 4, 8, 10, 10]


def test_the_highest_priority_and_then_the_oldest_pod_comes_first():
    queue = Queue(Backoff())
    for uid, priority in (("old", 0), ("new", 0), ("vip", 5)):
        queue.add(uid, priority)
    assert [queue.take(0.0) for _ in range(4)] == ["vip", "old", "new", None]


def test_a_pod_that_changed_itself_is_due_at_once_also_when_it_changed_while_being_tried():
    queue = Queue(Backoff(first=5))
    queue.add("a", 0)
    queue.take(0.0)
    queue.put_back("a", 0.0, failed=False)
    assert queue.take(0.1) is None
    queue.hasten("a")
    assert queue.take(0.1) == "a"
    queue.hasten("a")
    queue.put_back("a", 0.2, failed=False)
    assert queue.take(0.2) == "a"


def test_news_of_others_hasten_the_refused_but_not_those_that_met_an_error():
    queue = Queue(Backoff(first=5, between=0.3))
    for uid, failed in (("refused", False), ("failed", True)):
        queue.add(uid, 0)
        assert queue.take(0.0) == uid
        queue.put_back(uid, 0.0, failed=failed)
    queue.hasten_all()
    assert queue.take(0.2) is None
    assert queue.take(0.3) == "refused"
    assert queue.take(0.3) is None


def test_a_pod_removed_while_being_tried_does_not_come_back():
    queue = Queue(Backoff())
    queue.add("a", 0)
    queue.take(0.0)
    queue.remove("a")
    queue.put_back("a", 0.0, failed=False)
    assert queue.next_due() is None
