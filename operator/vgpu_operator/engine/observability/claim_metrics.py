"""Prometheus metrics about claims: their number, their devices, and the time of refusals.

They are computed during a scrape, in its own thread, so they cost the engine's loop nothing. That
thread only reads immutable values from dictionaries that it copies in one step. Labels are
namespaces, reasons and devices, but never names of claims, so the number of series is bounded by
the number of devices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vgpu_api import conditions
from vgpu_api.conditions import find
from vgpu_api.effective import Use, effective_use
from vgpu_api.quantity import MIB
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.claims.status import refused_reason
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.gpu_pod import GroupKey
from vgpu_operator.engine.preemption.open_preemptions import Result
from vgpu_operator.engine.state import Avoided
from vgpu_operator.errors import NotLeading
from vgpu_operator.ledger.quotas import QuotaAmount


class ClaimsCollector(Collector):
    """A collector of claim metrics.

    Only the leader reports claims; otherwise two replicas would count each claim twice.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as of the engine's last round."""
        state = self._engine.state
        claims: list[VGPUClaim] = []
        avoided: list[tuple[str, Avoided]] = []
        groups: list[GroupKey] = []
        quotas: list[QuotaAmount] = []
        if self._leads():
            groups = state.queue.groups()
            claims = list(state.cache.claims())
            quotas = list(state.ledger.quota_amounts())
            avoided = [
                each for nodes in list(state.avoidance.of.values()) for each in list(nodes.items())
            ]
            yield _preempted(state.preemptions.results)
        yield _states(claims)
        yield from _refusals(claims, state.unix)
        yield from _allocated(claims)
        yield _rejecting(avoided)
        yield _gangs(groups)
        yield from _quota_amounts(quotas)

    def _leads(self) -> bool:
        try:
            self._engine.must_lead()
        except NotLeading:
            return False
        return True


def _states(claims: list[VGPUClaim]) -> Metric:
    family = GaugeMetricFamily("vgpu_claims", "Claims by state.", labels=("namespace", "state"))
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for claim in claims:
        counts[claim.metadata.namespace or "", claim.shown_state] += 1
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _refusals(claims: list[VGPUClaim], unix: float) -> Iterator[Metric]:
    refused = GaugeMetricFamily(
        "vgpu_claims_refused",
        "Claims that wait because nothing fits, by reason.",
        labels=("namespace", "reason"),
    )
    longest = GaugeMetricFamily(
        "vgpu_claims_refused_seconds",
        "The longest time that a claim has been refused for.",
        labels=("namespace", "reason"),
    )
    counts: dict[tuple[str, str], int] = defaultdict(int)
    waits: dict[tuple[str, str], float] = defaultdict(float)
    for claim in claims:
        reason = refused_reason(claim)
        if reason is None:
            continue
        labels = (claim.metadata.namespace or "", reason)
        counts[labels] += 1
        waits[labels] = max(waits[labels], unix - _since(claim, unix))
    for labels, count in counts.items():
        refused.add_metric(labels, count)
    for labels, seconds in waits.items():
        longest.add_metric(labels, seconds)
    yield refused
    yield longest


def _rejecting(avoided: list[tuple[str, Avoided]]) -> Metric:
    family = GaugeMetricFamily(
        "vgpu_node_rejected_controllers",
        "Controllers with a pod that the node's kubelet rejected, and none that started since.",
        labels=("node",),
    )
    for node, count in Counter(name for name, each in avoided if each.rejection).items():
        family.add_metric((node,), count)
    return family


def _gangs(groups: list[GroupKey]) -> Metric:
    family = GaugeMetricFamily(
        "vgpu_gangs_waiting",
        "Groups of pods that wait because too few of their pods exist or fit together.",
        labels=("namespace",),
    )
    for namespace, count in Counter(group.namespace for group in groups).items():
        family.add_metric((namespace,), count)
    return family


def _quota_amounts(quotas: list[QuotaAmount]) -> Iterator[Metric]:
    labels = ("namespace", "quota", "resource")
    used = GaugeMetricFamily(
        "vgpu_quota_used", "What claims hold of a limit of a ResourceQuota.", labels=labels
    )
    hard = GaugeMetricFamily(
        "vgpu_quota_hard", "A limit of a ResourceQuota on devices.", labels=labels
    )
    for each in quotas:
        used.add_metric((each.namespace, each.name, each.resource), each.used)
        hard.add_metric((each.namespace, each.name, each.resource), each.hard)
    yield used
    yield hard


def _preempted(results: Mapping[Result, int]) -> Metric:
    family = CounterMetricFamily(
        "vgpu_preemptions", "Preemptions that have ended, by result.", labels=("result",)
    )
    for result in get_args(Result):
        family.add_metric((result,), results.get(result, 0))
    return family


def _since(claim: VGPUClaim, unix: float) -> float:
    condition = find(claim.status.conditions, conditions.ALLOCATED)
    if condition is None or not condition.last_transition_time:
        return unix
    return datetime.fromisoformat(condition.last_transition_time).timestamp()


def _allocated(claims: list[VGPUClaim]) -> Iterator[Metric]:
    labels = ("namespace", "node", "device_uuid")
    memory = GaugeMetricFamily(
        "vgpu_allocated_memory_bytes", "Memory of a GPU that claims hold.", labels=labels
    )
    cores = GaugeMetricFamily(
        "vgpu_allocated_cores_ratio", "Compute of a GPU that claims hold.", labels=labels
    )
    held: dict[tuple[str, str, str], Use] = defaultdict(Use)
    for claim in claims:
        allocation = claim.status.allocation
        if allocation is None:
            continue
        for uuid, use in effective_use(claim.spec, allocation.devices).items():
            held[claim.metadata.namespace or "", allocation.node_name, uuid] += use
    for key, use in held.items():
        memory.add_metric(key, use.memory_mib * MIB)
        cores.add_metric(key, use.cores / 100)
    yield memory
    yield cores
