"""Only the leader exposes claims, as sums that fit the device without a series for each claim."""

from __future__ import annotations

from unittest.mock import Mock

from prometheus_client import CollectorRegistry

from builders import a_claim, a_request, an_allocated_device, an_allocation
from vgpu_api.config import ClusterConfig
from vgpu_api.core import ResourceQuota
from vgpu_api.quantity import MIB
from vgpu_api.v1alpha1 import Condition, VGPUClaim, VGPUClaimStatus
from vgpu_client.clock import Clock
from vgpu_operator.engine.effector import Effector
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.observability.claim_metrics import ClaimsCollector
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import Ledger

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def exposed(
    *claims: VGPUClaim, quota: ResourceQuota | None = None, leads: bool = True
) -> CollectorRegistry:
    registry = CollectorRegistry()
    config = ClusterConfig()
    state = State(config, Ledger(config=config), lambda: "")
    state.unix = NOW
    if quota is not None:
        state.ledger.apply_quota(quota)
    for claim in claims:
        state.cache.put_claim(claim)
        state.ledger.apply_claim(claim)
    engine = Engine(state, Mock(spec=Effector), Clock(), lambda: leads)
    registry.register(ClaimsCollector(engine))
    return registry


def refused(name: str, reason: str, since: str, *, namespace: str = "a") -> VGPUClaim:
    condition = Condition(
        type="Allocated", status="False", reason=reason, last_transition_time=since
    )
    status = VGPUClaimStatus(state="Pending", conditions=[condition])
    return a_claim(name, namespace=namespace, status=status)


def test_claims_are_counted_by_namespace_and_state():
    registry = exposed(a_claim("a"), a_claim("b"), a_claim("c", namespace="other"))
    labels = {"namespace": "default", "state": "Pending"}
    assert registry.get_sample_value("vgpu_claims", labels) == 2
    assert registry.get_sample_value("vgpu_claims", {**labels, "namespace": "other"}) == 1


def test_refused_claims_are_counted_by_reason_and_the_longest_wait_is_shown():
    registry = exposed(
        refused("x", "CardInsufficientMemory", "2025-12-31T23:59:00Z"),
        refused("y", "CardInsufficientMemory", "2025-12-31T23:50:00Z"),
        refused("q", "ResourceQuotaNotFit", "2025-12-31T23:00:00Z"),
        refused("z", "WaitingForPod", "2025-12-31T00:00:00Z"),
    )
    of_quota = {"namespace": "a", "reason": "ResourceQuotaNotFit"}
    assert registry.get_sample_value("vgpu_claims_refused_seconds", of_quota) == 3600
    labels = {"namespace": "a", "reason": "CardInsufficientMemory"}
    assert registry.get_sample_value("vgpu_claims_refused", labels) == 2
    assert registry.get_sample_value("vgpu_claims_refused_seconds", labels) == 600
    waiting = {"namespace": "a", "reason": "WaitingForPod"}
    assert registry.get_sample_value("vgpu_claims_refused", waiting) is None


def a_quota(**hard: str) -> ResourceQuota:
    metadata = {"name": "gpus", "namespace": "default", "resourceVersion": "1"}
    return ResourceQuota.model_validate({"metadata": metadata, "spec": {"hard": hard}})


def test_each_limit_of_a_quota_on_devices_is_shown_with_what_claims_hold_of_it():
    quota = a_quota(**{"limits.nvidia.com/gpumem": "8Gi", "requests.nvidia.com/gpu": "2"})
    allocation = an_allocation(an_allocated_device(request="main", memory_mib=3000))
    claim = a_claim(requests=[a_request(memory="3000Mi")], allocation=allocation)
    registry = exposed(claim, quota=quota)
    for resource, used, hard in (
        ("limits.nvidia.com/gpumem", 3000, 8192),
        ("requests.nvidia.com/gpu", 1, 2),
    ):
        labels = {"namespace": "default", "quota": "gpus", "resource": resource}
        assert registry.get_sample_value("vgpu_quota_used", labels) == used
        assert registry.get_sample_value("vgpu_quota_hard", labels) == hard
    follows = exposed(claim, quota=quota, leads=False)
    assert follows.get_sample_value("vgpu_quota_hard", labels) is None


def test_what_namespaces_hold_of_a_device_counts_init_containers_once():
    init = a_request(name="fetch", phase="Init", memory="4Gi")
    app = a_request(name="train", memory="1Gi", cores=30)
    allocation = an_allocation(
        an_allocated_device(request="fetch", memory_mib=4096),
        an_allocated_device(request="train", memory_mib=1024, cores=30),
    )
    registry = exposed(a_claim(requests=[init, app], allocation=allocation))
    labels = {"namespace": "default", "node": "node-1", "device_uuid": "GPU-0"}
    assert registry.get_sample_value("vgpu_allocated_memory_bytes", labels) == 4096 * MIB
    assert registry.get_sample_value("vgpu_allocated_cores_ratio", labels) == 0.3


def test_a_replica_that_does_not_lead_shows_nothing():
    registry = exposed(a_claim("a"), leads=False)
    assert [sample for family in registry.collect() for sample in family.samples] == []
