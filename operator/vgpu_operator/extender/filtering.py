"""Filter: which node may take the pod? Exactly one: where its cards are reserved.

It never writes and never waits. Where the reservation stands on one of the candidates, that is
the answer; else it moves to the best of them; where nothing fits, every node has its reason.
"""

from __future__ import annotations

from pydantic import ValidationError

from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_operator.engine.consumers import Consumer
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.refusals import Refusal
from vgpu_operator.extender.wire import FilterAnswer, FilterRequest


def read_pod(raw: dict[str, object]) -> Pod:
    """The pod of a request.

    Raises:
        BadInput: names the field that cannot be read.
    """
    try:
        return Pod.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(("Pod", *(str(part) for part in first["loc"])))
        raise BadInput(field=path, value=first["input"], expected=first["msg"]) from error


def filter_nodes(engine: Engine, request: FilterRequest) -> FilterAnswer:
    """Answer a Filter call."""
    consumer = engine.intake.pod_told(read_pod(request.pod))
    if consumer is None:
        return FilterAnswer(request.node_names, nodes=request.nodes)
    if request.nodes is not None:
        return _without_effect(engine, consumer, request)
    offered = set(request.node_names)
    outcome = engine.scheduler.reserve(consumer, candidates=offered)
    engine.asked(consumer, outcome, offered=offered)
    if isinstance(outcome, Refusal):
        return FilterAnswer([], outcome.on(request.node_names))
    chosen = outcome.node
    reserved = f"cards are reserved on {chosen}"
    others = dict.fromkeys(request.node_names, reserved)
    others.pop(chosen, None)
    return FilterAnswer([chosen], others)


def _without_effect(engine: Engine, consumer: Consumer, request: FilterRequest) -> FilterAnswer:
    """Full nodes: a scheduler without a cache, or a simulation. Nothing is reserved."""
    refused = engine.scheduler.without_effect(consumer, request.node_names)
    if isinstance(refused, Refusal):
        return FilterAnswer(
            [], dict.fromkeys(request.node_names, refused.message), nodes=request.nodes
        )
    kept = [node for node in request.node_names if node not in refused]
    return FilterAnswer(kept, refused, nodes=request.nodes)
