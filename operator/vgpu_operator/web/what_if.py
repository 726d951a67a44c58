"""Answers where pasted pods would go, with the code of `kubectl vgpu simulate`.

Pods pass through admission as if they were being created, and are then placed one by one; each sees
the devices of earlier ones as taken. All of this is undone before the answer is returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pydantic.alias_generators import to_camel

from vgpu_operator.engine.claims.status import summary
from vgpu_operator.insight.documents import manifests_in
from vgpu_operator.insight.live_cluster import LiveCluster, Unread
from vgpu_operator.insight.manifest import Answered, Manifest, Simulation
from vgpu_operator.insight.node_verdicts import Verdicts, verdicts
from vgpu_operator.insight.priorities import Priorities
from vgpu_operator.insight.question import Outcome, Question
from vgpu_operator.insight.simulate import NO_GPU
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.sight import Sight, VisitorRefused

MOST_PODS = 64
MOST_SEARCHES = 8
"""Pods for which victims are searched. Meanwhile no other visitor gets an answer."""
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
    """Return the namespaces of the documents' pods and claims.

    Raises:
        BadDocument: An object is invalid, or there are too many pods.
    """
    return _manifest(found, _ANY_NODE).namespaces


def what_if(
    mirror: Mirror, sight: Sight, found: Sequence[Mapping[str, Any]], priorities: Priorities
) -> dict[str, Any]:
    """Return where each pod would go, and the verdicts on all nodes for the first refused pod.

    If no pod is refused, the verdicts are for the first pod.

    Args:
        mirror: The cluster.
        sight: What the visitor may see.
        found: The documents.
        priorities: The cluster's PriorityClasses.

    Raises:
        BadDocument: An object is invalid, or there are too many pods.
        VisitorRefused: The visitor may not list devices, or claims in the namespace of a pod.
    """
    state = mirror.state
    if not sight.devices:
        raise VisitorRefused(403, f'user "{sight.user}" cannot list gpudevices.vgpu.dev')
    manifest = _manifest(found, state.ledger.nodes())
    for namespace in sorted(manifest.namespaces):
        if not sight.reads(namespace):
            text = f'cannot list vgpuclaims.vgpu.dev in namespace "{namespace}"'
            raise VisitorRefused(403, f'user "{sight.user}" {text}')

    def unread(namespace: str) -> Unread:
        return _unread(mirror, sight, namespace)

    readable = None if sight.everywhere else sight.namespaces
    with LiveCluster(state, unread, priorities, readable) as cluster:
        shown = _WithVerdicts(cluster, manifest, sight)
        answers = list(shown.answers())
        pods = [_document(cluster, answer) for answer in answers]
    of = next((each.item.name for each in answers if each.question is shown.question), None)
    return {
        "pods": pods,
        "of": None if shown.question is None else of,
        "nodes": [asdict(each) for each in shown.nodes.nodes],
        "nodesHidden": shown.nodes.hidden,
        "alike": [asdict(each) for each in shown.nodes.alike],
        "wayOut": shown.nodes.way_out,
    }


class _WithVerdicts(Simulation[None]):
    """A simulation with verdicts on nodes: for the first refused pod, else for the first pod.

    They are computed before the devices are held, so that they match the decision.
    """

    most_searches = MOST_SEARCHES

    def __init__(self, cluster: LiveCluster, manifest: Manifest, sight: Sight) -> None:
        super().__init__(cluster, manifest, admit=True)
        self._live = cluster
        self._sight = sight
        self._is_refused = False
        self.question: Question | None = None
        self.nodes = Verdicts([], [], "")

    def decide(self, question: Question) -> tuple[None, Outcome]:
        outcome = self._live.decide(question)
        is_refused = bool(outcome.refused)
        has_verdicts = question.standing is None and outcome.of_nodes
        if has_verdicts and (self.question is None or (is_refused and not self._is_refused)):
            self.question, self._is_refused = question, is_refused
            kind = self._live.kind(question)
            self.nodes = verdicts(
                self._live.state,
                _NEW,
                kind,
                planned="" if is_refused else outcome.plan.node or "",
                reads=self._sight.reads,
            )
        return None, outcome


def _unread(mirror: Mirror, sight: Sight, namespace: str) -> Unread:
    """Return the parts of a namespace that the mirror lacks or the visitor may not see."""
    unread = mirror.unread
    if unread.volumes or namespace in sight.volumes:
        return unread
    text = f'user "{sight.user}" cannot list persistentvolumeclaims in namespace "{namespace}"'
    return replace(unread, volumes=text)


def _document(cluster: LiveCluster, answer: Answered[None]) -> dict[str, Any]:
    """Return the answer for one pod."""
    question, outcome = answer.question, answer.outcome
    document: dict[str, Any] = {
        "name": answer.item.name,
        "node": "",
        "asks": "",
        "refused": answer.refused or NO_GPU,
        "devices": [],
        "notJudged": "",
        "preemption": answer.preemption and _camel(asdict(answer.preemption)),
        "group": answer.group and _camel(asdict(answer.group)),
        "warnings": answer.warnings,
    }
    if question is None or outcome is None:
        return document
    document |= {
        "asks": summary(question.spec),
        "refused": answer.refused or outcome.refused,
        "notJudged": cluster.not_judged(question),
    }
    if answer.is_placed:
        document["node"] = outcome.plan.node
        document["devices"] = [] if question.standing else _devices(question, outcome)
    return document


def _devices(question: Question, outcome: Outcome) -> list[dict[str, Any]]:
    return [
        {
            "container": question.containers.get(grant.request, grant.request),
            "uuid": grant.uuid,
            "memoryMiB": grant.memory_mib,
            "cores": grant.cores,
            "profile": "" if grant.instance is None else grant.instance.profile,
        }
        for grant in outcome.plan.grants
    ]


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {to_camel(name): value for name, value in fields.items()}


def _manifest(found: Sequence[Mapping[str, Any]], nodes: Sequence[str]) -> Manifest:
    manifest = Manifest(nodes, MOST_PODS)
    manifest.add(found, _SOURCE)
    return manifest
