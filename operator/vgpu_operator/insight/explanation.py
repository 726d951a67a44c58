"""Why a claim waits, or why it is where it is, from a state that is kept up to date or read once.

The operator's own text is in the claim's condition. What they were made from is found out anew:
the functions that decide in earnest are asked what they make of each node. What only the operator
remembers is not there: reservations of pods that are being bound are not seen, and devices that an
earmark keeps are taken from the operator's text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime

from vgpu_api import conditions
from vgpu_api.conditions import find
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.demand import Demand
from vgpu_operator.engine.claims.describe import refusal_of_kind
from vgpu_operator.engine.claims.status import summary
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.scheduling.earmarks import HELD
from vgpu_operator.engine.scheduling.gate import refusal_before_nodes, refusal_behind_gate
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.schedule_one import refusal_of, spec_for
from vgpu_operator.engine.state import State
from vgpu_operator.insight.ages import lasting
from vgpu_operator.insight.live_cluster import EVERYTHING_READ, Unread, known_part, not_judged
from vgpu_operator.insight.node_verdicts import NodeVerdict, Reads, every_namespace, verdicts
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.node_filter import NodeRules

_HELD = re.compile(rf"(\d+) on (\S+) {HELD}")


@dataclass(slots=True)
class Explanation:
    """All that is known of one request.

    Attributes:
        subject: `pod NAMESPACE/NAME` or `claim NAMESPACE/NAME`.
        claim: NAMESPACE/NAME; the claim need not exist yet.
        asks: The request in short.
        state: The claim's.
        reason: The condition's.
        message: The condition's: the operator's last report.
        now: Why no node serves it as things are; empty where one does.
        node: Which node it has; empty: none.
        devices: What it has there.
        nodes: Each node that was checked.
        nodes_hidden: So many more were not shown.
        not_shown: Why nodes are not explained.
        not_judged: What of the pod was left out, and why.
    """

    subject: str
    claim: str
    asks: str = ""
    state: str = "Pending"
    reason: str = ""
    message: str = ""
    since: str = ""
    now: str = ""
    node: str = ""
    devices: list[str] = field(default_factory=list)
    nodes: list[NodeVerdict] = field(default_factory=list)
    nodes_hidden: int = 0
    not_shown: str = ""
    not_judged: str = ""


def explained(
    state: State,
    claim: VGPUClaim,
    *,
    now: datetime,
    reads: Reads = every_namespace,
    unread: Unread = EVERYTHING_READ,
) -> Explanation:
    """As `explain`, of a claim in a state that is kept up to date.

    Args:
        state: Left as it is.
        claim: One of its claims.
        now: For how long something has been so.
        reads: Whose claims are named.
        unread: What the state lacks.
    """
    pods = state.cache.pods_of(_key(claim))
    pod = pods[0] if pods else None
    said = from_status(claim, None, now)
    ask_nodes(state, pod, claim, said, reads, unread)
    return said


def from_status(claim: VGPUClaim | None, subject: str | None, now: datetime) -> Explanation:
    """What the claim's status has, if there is one."""
    name = "" if claim is None else "{0.namespace}/{0.name}".format(_key(claim))
    said = Explanation(subject or f"claim {name}", name)
    if claim is not None:
        _repeat(claim, said, now)
    return said


def _repeat(claim: VGPUClaim, said: Explanation, now: datetime) -> None:
    """From the claim's status."""
    status = claim.status
    said.asks = status.summary or summary(claim.spec)
    said.state = claim.shown_state
    condition = find(status.conditions, conditions.ALLOCATED)
    if condition is not None:
        said.reason, said.message = condition.reason, condition.message
        since = condition.last_transition_time
        if since:
            said.since = lasting((now - datetime.fromisoformat(since)).total_seconds())
    if status.allocation is not None:
        said.node = status.allocation.node_name
        said.devices = [
            f"{device.uuid}: {device.memory}"
            + (f", {device.cores} %" if device.cores else "")
            + (f" for {device.request}" if device.request else "")
            for device in status.allocation.devices
        ]


def ask_nodes(
    state: State,
    pod: GPUPod | None,
    claim: VGPUClaim | None,
    said: Explanation,
    reads: Reads,
    unread: Unread,
) -> None:
    """What the nodes make of it."""
    gated = pod if pod is not None and pod.is_gated else None
    scopes = None if pod is None else pod.scopes
    said.not_judged = not_judged(state.config, gated, unread)
    pod = pod if gated is None else known_part(gated, unread)
    spec = claim.spec if pod is None and claim is not None else None
    if pod is not None:
        found = spec_for(state, pod)
        if isinstance(found, Refusal):
            said.now = found.message
            return
        spec = found
        said.claim = said.claim or f"{pod.claim.namespace}/{pod.claim.name}"
    assert spec is not None
    said.asks = said.asks or summary(spec)
    key = pod.claim if pod is not None else _key(claim)
    refused = None if pod is None else _refused_first(state, pod, claim, said)
    if refused is not None:
        said.now = refused.message
        said.reason = said.reason or str(refused.reason)
        if refused.reason is not Reason.RESERVED_ELSEWHERE:
            return
        pod = gated = None  # the claim has its devices, or waits for them, whatever its pod asks
    request = Demand.of(spec, state.config) if pod is None else pod.request(spec, state.config)
    rules = NodeRules() if pod is None else pod.rules
    host_demand = None if pod is None or gated is None else pod.host_demand
    kind = EquivalenceClass(request, rules, key.namespace, host_demand=host_demand, scopes=scopes)
    refusal = None if said.node or refused is not None else refusal_of_kind(key, kind, state)
    if refusal is not None:
        said.now = refusal.message
        said.reason = said.reason or str(refusal.reason)
    nodes = verdicts(state, key, kind, chosen=said.node, reads=reads)
    held = {} if said.node else held_devices(said.message)
    said.nodes = [_without_held(node, held.get(node.name, 0)) for node in nodes]
    said.nodes_hidden = len(state.ledger.nodes()) - len(said.nodes)


def _refused_first(
    state: State, pod: GPUPod, claim: VGPUClaim | None, said: Explanation
) -> Refusal | None:
    """Why a pod goes nowhere, whatever devices there are."""
    if said.node:
        return refusal_before_nodes(state, pod, claim) if pod.is_gated else None
    if pod.is_gated:
        return refusal_behind_gate(state, pod, claim)
    return None if claim is None else refusal_of(state, claim, pod)


def held_devices(message: str) -> dict[str, int]:
    """How many devices of each node an earmark keeps, by a refusal's text."""
    return {node: int(count) for count, node in _HELD.findall(message)}


def _without_held(node: NodeVerdict, held: int) -> NodeVerdict:
    """What is free there, but kept for a request that has waited longer, serves no other."""
    if not held or not node.serves:
        return node
    devices = f"{held} device{'s' if held > 1 else ''}"
    return replace(node, verdict=f"{devices} {HELD}", serves=False)


def _key(claim: VGPUClaim | None) -> ClaimKey:
    assert claim is not None
    return ClaimKey(claim.metadata.namespace or "", claim.metadata.name)
