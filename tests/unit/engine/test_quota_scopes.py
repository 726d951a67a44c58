"""Quotas with scopes count the pods that Kubernetes counts for them, and no claim without a pod."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_claim, a_container, a_pod, a_request
from replica import Replica
from vgpu_api.core import Pod, PodScopes, ResourceQuota
from vgpu_api.resources import PODS
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.reservation import Reservation

GPU = "requests.nvidia.com/gpu"


def a_quota(name: str, devices: int, version: int = 1, **spec: Any) -> ResourceQuota:
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(version)}
    return ResourceQuota.model_validate(
        {"metadata": metadata, "spec": {"hard": {GPU: devices}, **spec}}
    )


def of_classes(operator: str, *values: str) -> dict[str, Any]:
    line = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [line]}}


def a_gpu_pod(name: str, *, version: int = 1, node: str = "", **spec: Any) -> Pod:
    container = a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024})
    pod = a_pod(name, containers=[container], resource_version=version, node=node)
    return pod.model_copy(update={"spec": pod.spec.model_copy(update=spec)})


def asked(replica: Replica, pod: Pod) -> Reservation | Refusal | None:
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    return replica.offer(pod)


def left(replica: Replica, **spec: Any) -> int | None:
    """Return the number of devices that quotas leave for one more pod."""
    return replica.ledger.budget("default", PodScopes.of(a_gpu_pod("more", **spec))).devices


def four_devices(replica: Replica) -> None:
    for number in range(4):
        replica.device(uuid=f"GPU-{number}", index=number)


async def test_a_quota_for_a_class_does_not_stop_a_pod_without_one(replica: Replica) -> None:
    four_devices(replica)
    replica.news.quota_changed(a_quota("of-batch", 0, **of_classes("In", "batch")))
    assert isinstance(asked(replica, a_gpu_pod("plain")), Reservation)
    refused = asked(replica, a_gpu_pod("batch", priority_class_name="batch"))
    assert isinstance(refused, Refusal)
    assert refused.reason == "ResourceQuotaNotFit"


async def test_pods_with_a_deadline_and_pods_without_one_have_quotas_of_their_own(
    replica: Replica,
) -> None:
    """The quotas are those of Kubernetes' manual: few devices for jobs, many for services."""
    four_devices(replica)
    replica.news.quota_changed(a_quota("jobs", 1, scopes=["Terminating"]))
    replica.news.quota_changed(a_quota("services", 2, scopes=["NotTerminating"]))
    for name in ("a", "b"):
        assert isinstance(asked(replica, a_gpu_pod(name)), Reservation)
    assert isinstance(asked(replica, a_gpu_pod("c")), Refusal)
    assert isinstance(asked(replica, a_gpu_pod("job", active_deadline_seconds=60)), Reservation)
    second = a_gpu_pod("second-job", active_deadline_seconds=60)
    assert isinstance(asked(replica, second), Refusal)
    await replica.told()
    (condition, *_) = replica.claim_of(second).status.conditions
    assert f"exceeded quota: jobs, requested: {GPU}=1, used: {GPU}=1, limited: {GPU}=1" in (
        condition.message
    )
    assert "services" not in condition.message


async def test_a_claim_without_a_pod_is_in_no_scope(replica: Replica) -> None:
    four_devices(replica)
    for scope in ("Terminating", "NotTerminating", "BestEffort", "NotBestEffort"):
        replica.news.quota_changed(a_quota(scope.lower(), 0, scopes=[scope]))
    replica.claim(a_claim("mine", requests=[a_request(count=2)], binding_mode="Immediate"))
    await replica.settle()
    assert replica.api.claim("mine")["status"]["allocation"]["nodeName"]


@pytest.mark.parametrize("pods_first", [True, False])
async def test_a_successor_counts_as_its_predecessor_did(pods_first: bool) -> None:
    former = Replica()
    four_devices(former)
    job = a_gpu_pod("job", active_deadline_seconds=60)
    asked(former, job)
    await former.settle()
    claim = former.claim_of(job)
    successor = Replica()
    four_devices(successor)
    successor.news.quota_changed(a_quota("jobs", 3, scopes=["Terminating"]))
    successor.news.quota_changed(a_quota("services", 3, scopes=["NotTerminating"]))
    steps = [lambda: successor.news.pod_changed(job), lambda: successor.news.claim_changed(claim)]
    for step in steps if pods_first else steps[::-1]:
        step()
    assert left(successor, active_deadline_seconds=60) == 2
    assert left(successor) == 3


async def test_a_pod_that_gets_a_deadline_later_counts_for_the_other_quota(
    replica: Replica,
) -> None:
    four_devices(replica)
    replica.news.quota_changed(a_quota("jobs", 3, scopes=["Terminating"]))
    replica.news.quota_changed(a_quota("services", 3, scopes=["NotTerminating"]))
    asked(replica, a_gpu_pod("p"))
    await replica.bound()
    assert (left(replica), left(replica, active_deadline_seconds=1)) == (2, 3)
    grown = replica.ledger.budget_version("default")
    late = a_gpu_pod("p", version=9, node="node-1", active_deadline_seconds=60)
    replica.news.pod_changed(late)
    assert (left(replica), left(replica, active_deadline_seconds=1)) == (3, 2)
    assert replica.ledger.budget_version("default") > grown, "who waits is looked at again"


async def test_devices_of_a_pod_that_is_gone_count_where_they_did_until_they_are_free(
    replica: Replica,
) -> None:
    four_devices(replica)
    replica.news.quota_changed(a_quota("services", 3, scopes=["NotTerminating"]))
    asked(replica, a_gpu_pod("p"))
    await replica.bound()
    replica.news.pod_gone("uid-of-p")
    assert left(replica) == 2


async def test_a_quota_that_changes_its_scopes_counts_anew(replica: Replica) -> None:
    four_devices(replica)
    asked(replica, a_gpu_pod("p"))
    for version, scopes, devices in ((1, [], 3), (2, ["Terminating"], None), (3, [], 3)):
        replica.news.quota_changed(a_quota("some", 4, version, scopes=scopes))
        assert left(replica) == devices
