"""Where would this go, and why not elsewhere? Answered by the function that decides in earnest."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import ValidationError

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput, Fault
from vgpu_api.field_errors import describe
from vgpu_api.reasons import Tally
from vgpu_api.v1alpha1 import Allocation, VGPUClaim, VGPUClaimSpec
from vgpu_operator.admission import Denied, claim_named_by, mutate_pod, validate_claim, validate_pod
from vgpu_operator.admission.jsonpatch import applied
from vgpu_operator.admission.rawpod import read_pod
from vgpu_operator.cli.cluster import Cluster
from vgpu_operator.demand import Demand, PartDemand, RequestDemand
from vgpu_operator.dialects import containers_of_claim, read
from vgpu_operator.ledger.storage import volume_claims_of
from vgpu_operator.placement import Budget, Grant, Plan, refusals_on
from vgpu_operator.placement.order import in_order
from vgpu_operator.placement.parts import on_node
from vgpu_operator.placement.planning import plan_on, policies_on
from vgpu_operator.placement.score import device_score, node_score

Result = dict[str, Any]
NO_GPU = "the pod asks for no GPU"
VOLUMES_NOT_JUDGED = "volumes are not judged"


@dataclass(frozen=True, slots=True)
class Question:
    """A pod or a claim whose place is wanted.

    `pod` is None for a claim. `containers` names the container of each request of a named claim,
    `standing` what that claim holds already.
    """

    spec: VGPUClaimSpec
    namespace: str
    pod: Pod | None
    containers: Mapping[str, str] = field(default_factory=dict)
    standing: Allocation | None = None


class Known(Protocol):
    """What a question is read with: a cluster's configuration and claims."""

    @property
    def config(self) -> ClusterConfig:
        """The cluster's."""

    def claim(self, namespace: str, name: str) -> VGPUClaim | None:
        """A claim, or a template of claims."""


def question_of(document: Mapping[str, Any], cluster: Known, *, admit: bool) -> Question | None:
    """What a pod or a claim asks for; None if it asks for no GPU.

    Args:
        document: As stored in the API server.
        cluster: Where the claim is that a pod names.
        admit: Put a pod through admission first, as if it were being created.

    Raises:
        BadInput: it asks in a way that cannot be understood.
        Denied: admission refuses it.
    """
    raw = dict(document)
    kind = raw.get("kind")
    if kind == "VGPUClaim":
        return _of_claim(raw)
    if kind not in (None, "Pod"):
        raise BadInput.unsupported("kind", kind, ("Pod", "VGPUClaim"))
    pod = read_pod(raw)
    namespace = pod.metadata.namespace or "default"
    if admit:
        named = claim_named_by(raw)
        claim = None if named is None else cluster.claim(namespace, named.name)
        raw = applied(raw, mutate_pod(raw, cluster.config, claim))
        validate_pod(raw, cluster.config)
        pod = read_pod(raw)
    demand = read(pod, cluster.config)
    if demand is None:
        return None
    if demand.spec is not None:
        return Question(demand.spec, namespace, pod)
    assert demand.native is not None
    claim = cluster.claim(namespace, demand.native.name)
    if claim is None:
        raise BadInput(
            field="claim",
            value=demand.native.name,
            fault=Fault.NOT_FOUND,
            detail="the state has no such claim",
        )
    requests = (request.name for request in claim.spec.requests)
    containers = dict(zip(requests, containers_of_claim(pod, claim.spec), strict=True))
    return Question(claim.spec, namespace, pod, containers, _standing(claim, pod))


def _standing(claim: VGPUClaim, pod: Pod) -> Allocation | None:
    """What a claim holds already for the pod that names it.

    Raises:
        BadInput: it serves another.
    """
    reserved = claim.status.reserved_for
    if reserved is not None and reserved.pod_name != pod.metadata.name:
        name = claim.metadata.name
        raise BadInput(field="claim", value=name, detail=f"it serves pod {reserved.pod_name}")
    return claim.status.allocation


def not_judged(question: Question, config: ClusterConfig) -> str:
    """What of a pod the operator would judge besides, and an answer leaves out; empty: nothing.

    Where kube-scheduler asks the operator it has checked volumes itself.
    """
    is_left_out = (
        config.scheduling.mode == "Gate"
        and question.standing is None
        and question.pod is not None
        and volume_claims_of(question.pod) != ()
    )
    return VOLUMES_NOT_JUDGED if is_left_out else ""


def answer(
    question: Question | None, cluster: Cluster, *, explain: bool = True
) -> tuple[Result, Plan | None]:
    """The result as it is printed, and the plan. The cluster is left as it was."""
    if question is None:
        return refusal(NO_GPU), None
    if question.standing is None:
        plan, ruled_out = cluster.decide(
            question.spec, namespace=question.namespace, pod=question.pod
        )
    else:
        plan, ruled_out = cluster.held(question.standing)
    demand = cluster.demand(question.spec, question.pod)
    result: Result = {
        "node": plan.node,
        "requests": [_request(request, question.containers) for request in demand.requests],
        "devices": [
            {
                "container": question.containers.get(grant.request, grant.request),
                "uuid": grant.uuid,
                "memoryMiB": grant.memory_mib,
                "cores": grant.cores,
                **_mig(grant),
                **({"part": grant.part} if grant.part else {}),
            }
            for grant in plan.grants
        ],
        "refused": plan.text if plan.refused else None,
    }
    left_out = not_judged(question, cluster.config)
    if left_out:
        result["notJudged"] = left_out
    if explain:
        known = {**plan.refusals, **ruled_out}
        budget = cluster.budget(question.namespace)
        result["nodes"] = {}
        for name in cluster.nodes:
            if name not in known and name != plan.node:
                known |= refusals_on(cluster.columns, demand, [name], budget=budget)
            result["nodes"][name] = _node(cluster, name, demand, budget, known.get(name))
    return result, plan


def refusal(text: str) -> Result:
    """The result for what does not come as far as placement."""
    return {"node": None, "requests": [], "devices": [], "refused": text, "nodes": {}}


def _of_claim(raw: dict[str, Any]) -> Question:
    validate_claim(copy.deepcopy(raw))
    try:
        claim = VGPUClaim.read(raw)
    except ValidationError as error:
        raise Denied(describe(error)) from error
    return Question(claim.spec, claim.metadata.namespace or "default", None)


def _mig(grant: Grant) -> Result:
    """What of a device in MIG mode it is."""
    instance = grant.instance
    if instance is None:
        return {}
    return {"mig": {"profile": instance.profile, "start": instance.start, "size": instance.size}}


def _requested_part(part: PartDemand | None) -> Result:
    """Which part is asked for, where devices are given in parts."""
    written = {} if part is None else {"partSize": part.size, "partMemory": part.memory}
    return {key: amount for key, amount in written.items() if amount}


def _request(request: RequestDemand, containers: Mapping[str, str]) -> Result:
    return {
        "container": containers.get(request.name, request.name),
        "phase": request.phase,
        "count": request.count,
        "memoryMiB": request.memory_mib,
        "memoryPercent": request.memory_percent,
        "cores": request.cores,
        "vendor": request.vendor,
        "mode": request.mode,
        **({"migProfile": request.mig_profile} if request.mig_profile else {}),
        **_requested_part(request.part),
    }


def _node(
    cluster: Cluster, name: str, demand: Demand, budget: Budget, tally: Tally | None
) -> Result:
    """A node's score, why it does not serve, and its devices in the order of the first request."""
    columns = cluster.columns
    node = columns.node_id(name)
    assert node is not None
    devices = columns.node_devices[node]
    first = demand.requests[0]
    request = on_node(columns, node, first) or first
    # Among nodes, NUMAFirst tries each with one NUMA node required before it tries any without.
    together = demand.node_policy == "NUMAFirst" and not isinstance(
        plan_on(columns, node, demand, "Require", budget), Tally
    )
    order = in_order(
        columns,
        devices,
        request=request,
        policies=policies_on(columns, node, demand),
        one_numa_node=demand.numa == "Require" or together,
        weights=demand.weights,
    )
    return {
        "score": round(node_score(columns, node), 6),
        "reasons": "" if tally is None else str(tally),
        "order": [columns.uuid[device] for device in order],
        "deviceScores": {
            columns.uuid[device]: round(device_score(columns, device, request, demand.weights), 6)
            for device in devices
        },
    }
