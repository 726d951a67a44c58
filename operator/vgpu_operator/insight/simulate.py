"""Formats the answers of `simulate`: the chosen node and devices, and other nodes' reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpu_api.reasons import Tally
from vgpu_operator.demand import Demand, PartDemand, RequestDemand
from vgpu_operator.insight.question import Judge, Outcome, Question
from vgpu_operator.placement import Budget, Columns, Grant
from vgpu_operator.placement.device_policies import in_order
from vgpu_operator.placement.fit_node import plan_alone_on, policies_on
from vgpu_operator.placement.part_requests import on_node
from vgpu_operator.placement.usage_scores import device_score, node_score

Result = dict[str, Any]
NO_GPU = "the pod asks for no GPU"


def answer(question: Question, cluster: Judge, *, explain: bool = True) -> tuple[Result, Outcome]:
    """Return the result to print, and the outcome. The cluster is not modified."""
    outcome = cluster.decide(question)
    plan, demand = outcome.plan, cluster.demand(question)
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
        "refused": outcome.refused or None,
    }
    not_judged = cluster.not_judged(question)
    if not_judged:
        result["notJudged"] = not_judged
    if explain:
        refusals = cluster.refusals(question) if outcome.of_nodes else {}
        budget = cluster.budget(question)
        result["nodes"] = {
            name: _node(
                cluster.columns,
                name,
                demand,
                budget,
                None if name == plan.node else refusals.get(name),
            )
            for name in (cluster.nodes if outcome.of_nodes else ())
        }
    return result, outcome


def refusal(text: str) -> Result:
    """Return the result for a pod or claim that is refused before placement."""
    return {"node": None, "requests": [], "devices": [], "refused": text, "nodes": {}}


def _mig(grant: Grant) -> Result:
    """Return the MIG instance of a device; empty if it has none."""
    instance = grant.instance
    if instance is None:
        return {}
    return {"mig": {"profile": instance.profile, "start": instance.start, "size": instance.size}}


def _requested_part(part: PartDemand | None) -> Result:
    """Return the requested part, if devices are allocated in parts."""
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
    columns: Columns, name: str, demand: Demand, budget: Budget, tally: Tally | None
) -> Result:
    """Return a node's score, its reasons, and its devices in the order for the first request."""
    node = columns.node_id(name)
    assert node is not None
    devices = columns.node_devices[node]
    first = demand.requests[0]
    request = on_node(columns, node, first) or first
    # NUMAFirst first tries every node with all devices on one NUMA node, and only then the others.
    together = demand.node_policy == "NUMAFirst" and not isinstance(
        plan_alone_on(columns, node, demand, "Require", budget), Tally
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
