"""Answers where pasted pods would go, with the code of `kubectl vgpu simulate`.

Pods pass through admission as if they were being created, and are then placed one by one; each sees
the devices of earlier ones as taken. All of this is undone before the answer is returned.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vgpu_api.errors import BadInput, VgpuError
from vgpu_operator.engine.claims.status import summary
from vgpu_operator.insight.documents import BadDocument, manifests_in
from vgpu_operator.insight.live_cluster import LiveCluster, Unread
from vgpu_operator.insight.node_verdicts import NodeVerdict, verdicts
from vgpu_operator.insight.question import Outcome, Question, question_of
from vgpu_operator.insight.simulate import NO_GPU
from vgpu_operator.insight.workloads import pods_of
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.sight import Sight, VisitorRefused

MOST_PODS = 64
_SOURCE = "the text"
_NEW = ClaimKey("", "")
"""The key of a claim that does not exist."""
_ANY_NODE = ("node",)
"""Stands for the cluster's nodes when only the namespaces of a DaemonSet's pods matter."""


def documents(text: str) -> list[dict[str, Any]]:
    """Return the pods, claims and workloads in YAML or JSON.

    Raises:
        BadDocument: The text is invalid, or has none of them.
    """
    return manifests_in(text, source=_SOURCE)


def namespaces(found: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the namespaces of the documents' pods.

    Raises:
        BadInput: A workload is invalid, or there are too many pods.
    """
    return {_namespace(pod) for pod in _pods(found, _ANY_NODE)}


def what_if(mirror: Mirror, sight: Sight, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return where each pod would go, and the verdicts on all nodes for the first refused pod.

    If no pod is refused, the verdicts are for the first pod.

    Raises:
        BadInput: A workload is invalid, or there are too many pods.
        VisitorRefused: The visitor may not list devices, or claims in the namespace of a pod.
    """
    state = mirror.state
    if not sight.devices:
        raise VisitorRefused(403, f'user "{sight.user}" cannot list gpudevices.vgpu.dev')
    pods = _pods(found, state.ledger.nodes())
    for pod in pods:
        if not sight.reads(_namespace(pod)):
            text = f'cannot list vgpuclaims.vgpu.dev in namespace "{_namespace(pod)}"'
            raise VisitorRefused(403, f'user "{sight.user}" {text}')
    answers: list[_Answer] = []
    first: _Answer | None = None
    nodes: list[NodeVerdict] = []
    with LiveCluster(state, lambda namespace: _unread(mirror, sight, namespace)) as cluster:
        for pod in pods:
            answer = _answered(cluster, pod)
            answers.append(answer)
            if answer.question is None or answer.outcome is None:
                continue
            # Compute the verdicts before the devices are held, so that they match the decision.
            if first is None or (answer.outcome.refused and not first.document["refused"]):
                first, kind = answer, cluster.kind(answer.question)
                nodes = verdicts(state, _NEW, kind, reads=sight.reads)
            if not answer.outcome.refused:
                cluster.charge(answer.question, answer.outcome)
    return {
        "pods": [answer.document for answer in answers],
        "of": None if first is None else first.document["name"],
        "nodes": [asdict(each) for each in nodes],
        "nodesHidden": len(state.ledger.nodes()) - len(nodes) if nodes else 0,
    }


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer for one pod, with the decision if nodes were checked."""

    document: dict[str, Any]
    question: Question | None = None
    outcome: Outcome | None = None


def _unread(mirror: Mirror, sight: Sight, namespace: str) -> Unread:
    """Return the parts of a namespace that the mirror lacks or the visitor may not see."""
    unread = mirror.unread
    if unread.volumes or namespace in sight.volumes:
        return unread
    text = f'user "{sight.user}" cannot list persistentvolumeclaims in namespace "{namespace}"'
    return replace(unread, volumes=text)


def _answered(cluster: LiveCluster, pod: Mapping[str, Any]) -> _Answer:
    """Answer for one pod without holding its devices."""
    document: dict[str, Any] = {
        "name": _name(pod),
        "node": "",
        "asks": "",
        "refused": "",
        "devices": [],
        "notJudged": "",
    }
    try:
        question = question_of(pod, cluster, admit=True)
        if question is None:
            return _Answer({**document, "refused": NO_GPU})
        outcome = cluster.decide(question)
    except VgpuError as error:
        return _Answer({**document, "refused": str(error)})
    document |= {
        "asks": summary(question.spec),
        "node": outcome.plan.node or "",
        "refused": outcome.refused,
        "notJudged": cluster.not_judged(question),
    }
    if question.standing is not None or not outcome.of_nodes:
        return _Answer(document)
    document["devices"] = [
        {
            "container": question.containers.get(grant.request, grant.request),
            "uuid": grant.uuid,
            "memoryMiB": grant.memory_mib,
            "cores": grant.cores,
            "profile": "" if grant.instance is None else grant.instance.profile,
        }
        for grant in outcome.plan.grants
    ]
    return _Answer(document, question, outcome)


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


def _namespace(pod: Mapping[str, Any]) -> str:
    return _text_of(pod, "namespace") or "default"


def _name(pod: Mapping[str, Any]) -> str:
    return _text_of(pod, "name") or "without a name"


def _text_of(pod: Mapping[str, Any], key: str) -> str:
    metadata = pod.get("metadata")
    value = metadata.get(key) if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else ""
