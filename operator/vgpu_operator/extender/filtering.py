"""Filter: keep exactly one node for the pod, the one where its devices are reserved.

Filter never writes and never waits. If one of the candidate nodes has the reservation, that is the
answer. Otherwise the reservation moves to the best candidate. If the pod fits nowhere, every node
gets a reason. If a node was chosen, the others get no reason: kube-scheduler looks at reasons only
if no node is left, and it treats a node without one like a node that preemption cannot help
(docs/design/loop-and-cost.md).
"""

from __future__ import annotations

from pydantic import ValidationError

from vgpu_api.core import Pod
from vgpu_api.field_errors import field_errors
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.extender.wire import FilterAnswer, FilterRequest


def read_pod(raw: dict[str, object]) -> Pod:
    """Return the pod of a request.

    Raises:
        BadInput: Names the field that cannot be read.
    """
    try:
        return Pod.model_validate(raw)
    except ValidationError as error:
        raise field_errors(error, within=("Pod",))[0] from error


def filter_nodes(engine: Engine, request: FilterRequest) -> FilterAnswer:
    """Answer a Filter call."""
    if request.nodes is not None:
        return _without_effect(engine, request)
    names = request.node_names
    outcome = engine.filter(known_or_read(engine, request.pod), frozenset(names))
    if outcome is None:
        return FilterAnswer(names)
    if isinstance(outcome, Refusal):
        curable, incurable = outcome.by_cure(names)
        return FilterAnswer([], incurable, curable=curable)
    return FilterAnswer([outcome.node])


def known_or_read(engine: Engine, raw: dict[str, object]) -> Pod:
    """Return the pod; do not parse it again if this version is already known."""
    metadata = raw.get("metadata")
    if isinstance(metadata, dict):
        known = engine.pod(str(metadata.get("uid", "")))
        version = metadata.get("resourceVersion")
        if known is not None and known.pod.metadata.resource_version == version:
            return known.pod
    return read_pod(raw)


def _without_effect(engine: Engine, request: FilterRequest) -> FilterAnswer:
    """Answer for full nodes (a simulation, or a scheduler without a cache); reserve nothing."""
    names = request.node_names
    refused = engine.filter_without_effect(read_pod(request.pod), frozenset(names))
    if refused is None:
        return FilterAnswer(names, nodes=request.nodes)
    if isinstance(refused, Refusal):
        return FilterAnswer([], dict.fromkeys(names, refused.message), nodes=request.nodes)
    kept = [node for node in names if node not in refused]
    return FilterAnswer(kept, refused, nodes=request.nodes)
