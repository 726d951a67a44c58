"""Checks if a pod fits on a node by the rules of kube-scheduler's own filters. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vgpu_api.quantity import parse
from vgpu_local.scheduler.occupancy import Amounts, most, plus

_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_NOT_READY = "node.kubernetes.io/not-ready"


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the scheduler sees it; equal versions mean that no pod needs to be retried."""

    name: str
    labels: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]
    allocatable: tuple[tuple[str, Fraction], ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """The demands of a pod on a node.

    Attributes:
        requests: The effective requests, including init containers.
        terms: The node affinity terms; if there are any, one must match.
    """

    requests: tuple[tuple[str, Fraction], ...]
    selector: tuple[tuple[str, str], ...]
    terms: tuple[Mapping[str, Any], ...]
    tolerations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a node is not suitable.

    Attributes:
        resolvable: True if evicting other pods could help.
    """

    reasons: tuple[str, ...]
    resolvable: bool


def read_node(node: Mapping[str, Any]) -> NodeView:
    """Read a Node; one that is not Ready counts as tainted, as there is no node controller."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    taints = [
        Taint(t["key"], t.get("value") or "", t["effect"])
        for t in spec.get("taints") or ()
        if t["effect"] != "PreferNoSchedule"
    ]
    if spec.get("unschedulable"):
        taints.append(Taint(_UNSCHEDULABLE, "", "NoSchedule"))
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    if conditions.get("Ready") != "True":
        taints.append(Taint(_NOT_READY, "", "NoSchedule"))
    return NodeView(
        name=node["metadata"]["name"],
        labels=tuple(sorted((node["metadata"].get("labels") or {}).items())),
        taints=tuple(taints),
        allocatable=tuple(
            sorted((name, parse(v)) for name, v in (status.get("allocatable") or {}).items())
        ),
    )


def read_ask(pod: Mapping[str, Any]) -> Demand:
    """Return the demands of a Pod object."""
    spec = pod["spec"]
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return Demand(
        requests=tuple(sorted(effective_requests(spec).items())),
        selector=tuple(sorted((spec.get("nodeSelector") or {}).items())),
        terms=tuple(affinity.get("nodeSelectorTerms") or ()),
        tolerations=tuple(spec.get("tolerations") or ()),
    )


def effective_requests(spec: Mapping[str, Any]) -> Amounts:
    """Return a pod's requests: its containers and sidecars, or an init container that has more."""
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        asked = plus(sidecars, _requests(container))
        peak = most(peak, asked)
        if container.get("restartPolicy") == "Always":
            sidecars = asked
    together = sidecars
    for container in spec.get("containers") or ():
        together = plus(together, _requests(container))
    return {**most(peak, together), "pods": Fraction(1)}


def refuse(
    ask: Demand, node: NodeView, used: Amounts, *, ignored: frozenset[str]
) -> Refusal | None:
    """Return the first filter's reason why a pod cannot go to a node, or None if it can.

    Args:
        ask: The pod's demands.
        node: The node.
        used: The sum of the requests on the node.
        ignored: The resources that only an extender checks.
    """
    for taint in node.taints:
        if not any(_tolerates(toleration, taint) for toleration in ask.tolerations):
            if taint.key == _UNSCHEDULABLE:
                return Refusal(("node(s) were unschedulable",), resolvable=False)
            text = f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
            return Refusal((text,), resolvable=False)
    labels = dict(node.labels)
    if not _selected(ask, labels, node.name):
        text = "node(s) didn't match Pod's node affinity/selector"
        return Refusal((text,), resolvable=False)
    allocatable = dict(node.allocatable)
    short = [
        "Too many pods" if name == "pods" else f"Insufficient {name}"
        for name, amount in ask.requests
        if name not in ignored and used.get(name, 0) + amount > allocatable.get(name, 0)
    ]
    return Refusal(tuple(short), resolvable=True) if short else None


def load(ask: Demand, node: NodeView, used: Amounts) -> Fraction:
    """Return the mean share of CPU and memory in use once the pod is there; 0 if idle."""
    requests, allocatable = dict(ask.requests), dict(node.allocatable)
    shares = [
        (used.get(name, Fraction(0)) + requests.get(name, 0)) / allocatable[name]
        for name in ("cpu", "memory", "pods")
        if allocatable.get(name)
    ]
    return sum(shares, Fraction(0)) / max(len(shares), 1)


def explain(refusals: Sequence[Refusal], nodes: int) -> str:
    """Return the message about all nodes' refusals as kube-scheduler writes it."""
    if not nodes:
        return "no nodes available to schedule pods"
    reasons = Counter(reason for refusal in refusals for reason in refusal.reasons)
    victims = sum(refusal.resolvable for refusal in refusals)
    preemption = Counter(
        {
            "No preemption victims found for incoming pod": victims,
            "Preemption is not helpful for scheduling": len(refusals) - victims,
        }
    )
    head = f"0/{nodes} nodes are available:"
    return f"{head} {_histogram(reasons)}. preemption: {head} {_histogram(preemption)}."


def _histogram(reasons: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items() if count))


def _requests(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources") or {}
    given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    amounts = {name: parse(value) for name, value in given.items()}
    return {name: amount for name, amount in amounts.items() if amount}


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.effect:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.key)
    return toleration.get("key") == taint.key and (toleration.get("value") or "") == taint.value


def _selected(ask: Demand, labels: Mapping[str, str], name: str) -> bool:
    if any(labels.get(key) != value for key, value in ask.selector):
        return False
    return not ask.terms or any(_term_matches(term, labels, name) for term in ask.terms)


def _term_matches(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    expressions: Iterable[Mapping[str, Any]] = term.get("matchExpressions") or ()
    fields: Iterable[Mapping[str, Any]] = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_expression_matches(e, labels) for e in expressions) and all(
        _expression_matches(f, {"metadata.name": name}) for f in fields
    )


def _expression_matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
        case other:
            raise ValueError(f"node affinity operator {other}")
