"""The what-if page names the pods to evict, judges groups as a whole, and keeps nothing."""

from __future__ import annotations

from typing import Any

from builders import a_container, a_pod, a_pod_group
from vgpu_api.config import ClusterConfig
from vgpu_api.core import PriorityClass
from vgpu_operator.engine import events
from vgpu_operator.insight.priorities import Priorities
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.sight import Sight
from vgpu_operator.web.what_if import MOST_SEARCHES, documents, what_if
from web_world import a_holder, a_mirror

ADMIN = Sight("admin", devices=True, nodes=True, everywhere=True)
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  priorityClassName: {of}
  schedulingGroup: {{podGroupName: {group}}}
  containers:
  - name: main
    image: x
    resources: {{limits: {{nvidia.com/gpu: 1, nvidia.com/gpumem: {memory}}}}}
"""
GROUP = """
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: gang, namespace: default}
spec: {schedulingPolicy: {gang: {minCount: 2}}}
"""
SERVING = PriorityClass.model_validate({"metadata": {"name": "serving"}, "value": 1000})


def a_full_mirror(*, enabled: bool = True) -> Mirror:
    """Return a device of 16 GiB that is filled by two pods, one of another namespace."""
    config = ClusterConfig.model_validate({"scheduling": {"preemption": {"enabled": enabled}}})
    mirror = a_mirror(nodes=1, devices=1, config=config)
    mirror.observe(events.BudgetsListed())
    for name, namespace, priority in (("a", "default", 200), ("b", "other", 100)):
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
        pod = a_pod(
            name,
            namespace=namespace,
            uid=f"{namespace}-{name}",
            node="node-0",
            priority=priority,
            containers=[a_container(limits=limits)],
        )
        mirror.observe(events.PodObserved(pod))
        claim = a_holder(name, namespace=namespace, memory_mib=8192, pod=name)
        mirror.observe(events.ClaimObserved(claim))
    return mirror


def pod(name: str = "late", memory: int = 8192, of: str = "serving", group: str = '""') -> str:
    return POD.format(name=name, memory=memory, of=of, group=group)


def asked(
    mirror: Mirror, text: str, sight: Sight = ADMIN, priorities: Priorities | None = None
) -> list[dict[str, Any]]:
    found = what_if(mirror, sight, documents(text), priorities or Priorities([SERVING]))
    pods: list[dict[str, Any]] = found["pods"]
    return pods


def test_the_pod_that_would_be_evicted_is_named() -> None:
    (answer,) = asked(a_full_mirror(), pod())
    assert answer["node"] == ""
    assert answer["preemption"]["message"] == "Would preempt other/b (priority 100) on node-0"
    assert list(answer["preemption"]["victims"]) == [
        {"pod": "other/b", "claim": "other/b", "priority": 100, "protected": False}
    ]
    (off,) = asked(a_full_mirror(enabled=False), pod())
    assert off["preemption"]["message"].endswith("on node-0 if preemption were enabled")


def test_pods_of_namespaces_that_the_visitor_may_not_read_are_only_counted() -> None:
    sight = Sight("t", devices=True, namespaces=frozenset({"default"}))
    (answer,) = asked(a_full_mirror(), pod(memory=16384), sight)
    assert answer["preemption"]["victimsHidden"] == 1
    assert [each["pod"] for each in answer["preemption"]["victims"]] == ["default/a"]
    assert "other/b" not in str(answer["preemption"])


def test_a_class_that_could_not_be_read_is_named() -> None:
    (answer,) = asked(a_full_mirror(), pod(), priorities=Priorities(unread="forbidden"))
    assert answer["preemption"]["notJudged"] == "PriorityClasses are not known: forbidden"
    (answer,) = asked(a_full_mirror(), pod(of="none"))
    assert answer["preemption"]["notJudged"] == "PriorityClass none does not exist here"


def test_victims_are_searched_for_a_few_pods_only_because_others_wait_for_their_answers() -> None:
    names = [f"p{number}" for number in range(MOST_SEARCHES + 1)]
    *found, last = asked(a_full_mirror(), "---".join(map(pod, names)))
    assert all(each["preemption"]["nodes"] or each["preemption"]["whyNot"] for each in found)
    assert last["preemption"]["notJudged"] == (
        f"victims are searched for no more than {MOST_SEARCHES} pods at a time"
    )


def test_a_second_pod_sees_that_the_victims_of_the_first_are_ending_and_nothing_stays() -> None:
    mirror = a_full_mirror()
    for _ in range(2):
        first, second = asked(mirror, "---".join([pod("one"), pod("two")]))
        assert [each["pod"] for each in first["preemption"]["victims"]] == ["other/b"]
        assert not second["preemption"]["victims"]
    assert not mirror.state.preemptions.open
    assert len(mirror.state.earmarks) == 0


def test_a_group_is_refused_as_a_whole_with_the_member_that_does_not_fit() -> None:
    mirror = a_mirror(nodes=1, devices=1)
    members = [pod(name, 16384, group="gang") for name in ("g-0", "g-1")]
    found = asked(mirror, "---".join([GROUP, *members, pod("lone", 16384)]))
    text = "1 of 2 pods of group gang found a place, and g-1 did not; 2 must start together"
    assert [each["refused"].endswith(text) for each in found] == [True, True, False]
    assert [each["node"] for each in found] == ["", "", "node-0"]
    assert found[0]["group"]["doNotFit"] == ("g-1",)
    assert not mirror.state.cache.pod_groups


def test_a_group_of_the_cluster_counts_with_its_running_pods() -> None:
    mirror = a_mirror(nodes=1, devices=1)
    mirror.observe(events.PodGroupObserved(a_pod_group("gang", least=2)))
    (answer,) = asked(mirror, pod("g-1", group="gang"))
    assert answer["node"] == ""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
    running = a_pod("g-0", node="node-0", group="gang", containers=[a_container(limits=limits)])
    mirror.observe(events.PodObserved(running))
    (answer,) = asked(mirror, pod("g-1", group="gang"))
    assert (answer["node"], answer["group"]["starts"]) == ("node-0", True)


def test_warnings_of_admission_and_claims_of_the_text_are_answered() -> None:
    claim = """
apiVersion: vgpu.dev/v1alpha1
kind: VGPUClaim
metadata: {name: c, namespace: default}
spec: {requests: [{name: main, memory: 2Gi}]}
"""
    user = """
apiVersion: v1
kind: Pod
metadata:
  name: user
  namespace: default
  annotations: {vgpu.dev/claim: c, nvidia.com/use-gputyp: a}
spec: {containers: [{name: main, image: x}]}
"""
    (answer,) = asked(a_mirror(), claim + "---" + user)
    assert answer["devices"][0]["memoryMiB"] == 2048
    assert any("did you mean nvidia.com/use-gputype?" in text for text in answer["warnings"])
