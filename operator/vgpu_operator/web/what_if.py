"""What would become of pasted pods now: the code of `kubectl vgpu simulate`, on the mirror's state.

Pods go through admission, as if they were created, and then one after the other through placement;
each finds what those before it have taken. Everything is undone before the answer is returned.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_api.errors import BadInput, VgpuError
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.cli.documents import BadDocument, manifests_in
from vgpu_operator.cli.explain import NodeVerdict, verdicts
from vgpu_operator.cli.simulate import NO_GPU, Question, not_judged, question_of
from vgpu_operator.cli.workloads import pods_of
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import follows_labels
from vgpu_operator.dialects.ack import node_kinds
from vgpu_operator.engine.claims.describe import refusal_of_kind
from vgpu_operator.engine.claims.status import summary
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey, NodeRules
from vgpu_operator.placement import place
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.sight import Sight, VisitorRefused

MOST_PODS = 64
_SOURCE = "the text"
_ANY_NODE = ("node",)
"""In place of the cluster's, where only the namespace of a DaemonSet's pods matters."""


def documents(text: str) -> list[dict[str, Any]]:
    """The pods, claims and workloads of a text, YAML or JSON.

    Raises:
        BadDocument: It cannot be read, or has none.
    """
    return manifests_in(text, source=_SOURCE)


def namespaces(found: Sequence[Mapping[str, Any]]) -> set[str]:
    """Those that the documents are for.

    Raises:
        BadInput: A workload cannot be read, or there are more pods than can be meant.
    """
    return {_namespace(pod) for pod in _pods(found, _ANY_NODE)}


def what_if(mirror: Mirror, sight: Sight, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where each pod would go, and what nodes make of the first that is refused, or of the first.

    Raises:
        BadInput: A workload cannot be read, or there are more pods than can be meant.
        VisitorRefused: He may not list devices, or not the claims of a pod's namespace.
    """
    state = mirror.state
    if not sight.devices:
        raise VisitorRefused(403, f'user "{sight.user}" cannot list gpudevices.vgpu.dev')
    pods = _pods(found, state.ledger.nodes())
    for pod in pods:
        if not sight.reads(_namespace(pod)):
            text = f'cannot list vgpuclaims.vgpu.dev in namespace "{_namespace(pod)}"'
            raise VisitorRefused(403, f'user "{sight.user}" {text}')
    with ExitStack() as held:
        answers = [
            _answered(state, pod, _key(pod, number), held) for number, pod in enumerate(pods)
        ]
        explained = [number for number, answer in enumerate(answers) if answer.kind is not None]
        refused = [number for number in explained if answers[number].document["refused"]]
        first = next(iter(refused or explained), None)
        nodes: list[NodeVerdict] = []
        if first is not None and (kind := answers[first].kind) is not None:
            nodes = verdicts(state, _key(pods[first], first), kind, reads=sight.reads)
    return {
        "pods": [answer.document for answer in answers],
        "of": None if first is None else answers[first].document["name"],
        "nodes": [asdict(each) for each in nodes],
        "nodesHidden": len(state.ledger.nodes()) - len(nodes) if nodes else 0,
    }


@dataclass(frozen=True, slots=True)
class _Answer:
    """What became of one pod; `kind` is None where placement was not asked."""

    document: dict[str, Any]
    kind: EquivalenceClass | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    """What questions are read with."""

    state: State

    @property
    def config(self) -> ClusterConfig:
        return self.state.config

    def claim(self, namespace: str, name: str) -> VGPUClaim | None:
        return self.state.cache.claim(ClaimKey(namespace, name))


def _answered(state: State, pod: Mapping[str, Any], key: ClaimKey, held: ExitStack) -> _Answer:
    """One of them; what it would get is held until the stack is closed."""
    document = {
        "name": _name(pod),
        "node": "",
        "asks": "",
        "refused": "",
        "devices": [],
        "notJudged": "",
    }
    try:
        question = question_of(pod, _Reading(state), admit=True)
    except VgpuError as error:
        return _Answer({**document, "refused": str(error)})
    if question is None:
        return _Answer({**document, "refused": NO_GPU})
    document["asks"] = summary(question.spec)
    document["notJudged"] = not_judged(question, state.config)
    if question.standing is not None:
        return _Answer({**document, "node": question.standing.node_name})
    kind = _kind(state, question)
    plan = place(
        state.ledger.columns,
        kind.request,
        None,
        nodes=state.ledger.node_filters.of(kind.rules),
        budget=state.ledger.budget(kind.namespace),
    )
    if plan.refused:
        refusal = refusal_of_kind(key, kind, state)
        text = plan.text if refusal is None else refusal.message
        return _Answer({**document, "refused": text}, kind)
    assumption = state.ledger.assume(key, question.spec, plan.allocation())
    held.callback(state.ledger.forget, assumption)
    devices = [
        {
            "container": question.containers.get(grant.request, grant.request),
            "uuid": grant.uuid,
            "memoryMiB": grant.memory_mib,
            "cores": grant.cores,
            "profile": "" if grant.instance is None else grant.instance.profile,
        }
        for grant in plan.grants
    ]
    return _Answer({**document, "node": plan.node, "devices": devices}, kind)


def _kind(state: State, question: Question) -> EquivalenceClass:
    pod, config = question.pod, state.config
    rules, by_labels = NodeRules(), False
    if pod is not None:
        rules = NodeRules.of(pod, kinds=node_kinds(pod, config))
        by_labels = follows_labels(pod, config)
    request = Demand.of(question.spec, config, by_labels=by_labels)
    return EquivalenceClass(request, rules, question.namespace)


def _pods(found: Sequence[Mapping[str, Any]], nodes: Sequence[str]) -> list[Mapping[str, Any]]:
    try:
        every = itertools.chain.from_iterable(pods_of(each, nodes) for each in found)
        pods = list(itertools.islice(every, MOST_PODS + 1))
    except BadInput as error:
        raise BadDocument(f"{_SOURCE}: {error}") from error
    if len(pods) > MOST_PODS:
        raise BadDocument(
            f"{_SOURCE}: more than {MOST_PODS} pods; `kubectl vgpu simulate` takes more"
        )
    return pods


def _key(pod: Mapping[str, Any], number: int) -> ClaimKey:
    """Of a claim that no cluster can have: names have no slash."""
    return ClaimKey(_namespace(pod), f"{number}/{_name(pod)}")


def _namespace(pod: Mapping[str, Any]) -> str:
    return _text_of(pod, "namespace") or "default"


def _name(pod: Mapping[str, Any]) -> str:
    return _text_of(pod, "name") or "without a name"


def _text_of(pod: Mapping[str, Any], key: str) -> str:
    metadata = pod.get("metadata")
    value = metadata.get(key) if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else ""
