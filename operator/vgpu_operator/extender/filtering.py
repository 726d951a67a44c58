"""Filter: which node may take the pod? Exactly one: where its devices are reserved.

It never writes and never waits. Where the reservation stands on one of the candidates, that is the
answer; else it moves to the best of them; where nothing fits, every node has its reason. Nodes that
were not chosen have none: kube-scheduler looks at reasons only where no node is left, and counts a
node without one like those that no other pod's end could help (docs/design/loop-and-cost.md).
"""

from __future__ import annotations

from pydantic import ValidationError

from vgpu_api.core import Pod
from vgpu_api.field_errors import field_errors
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.extender.wire import FilterAnswer, FilterRequest


def read_pod(raw: dict[str, object]) -> Pod:
    """The pod of a request.

    Raises:
        BadInput: names the field that cannot be read.
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
    """The pod; the version that is known already is not read once more."""
    metadata = raw.get("metadata")
    if isinstance(metadata, dict):
        known = engine.pod(str(metadata.get("uid", "")))
        version = metadata.get("resourceVersion")
        if known is not None and known.pod.metadata.resource_version == version:
            return known.pod
    return read_pod(raw)


def _without_effect(engine: Engine, request: FilterRequest) -> FilterAnswer:
    """Full nodes: a scheduler without a cache, or a simulation. Nothing is reserved."""
    names = request.node_names
    refused = engine.filter_without_effect(read_pod(request.pod), frozenset(names))
    if refused is None:
        return FilterAnswer(names, nodes=request.nodes)
    if isinstance(refused, Refusal):
        return FilterAnswer([], dict.fromkeys(names, refused.message), nodes=request.nodes)
    kept = [node for node in names if node not in refused]
    return FilterAnswer(kept, refused, nodes=request.nodes)
