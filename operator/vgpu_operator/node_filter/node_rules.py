"""Filters nodes by taints, selectors and node affinity, and counts their free CPU.

The final decision is kube-scheduler's. These filters keep a pod from reserving a node it cannot
use, and are the only knowledge of nodes where Filter is not called. Sources: Kubernetes, Assigning
Pods to Nodes, and Taints and Tolerations.

Each label and each set of taints is an integer with a bit for each node that has it, so a filter is
a few operations on such integers. Pods are not stored. Filters are cached by the pod's rules,
together with the version of the nodes for which they were computed.

Free CPU is allocatable CPU minus the requests of pods on the node or expected there. A pod with a
reservation counts before it is bound; otherwise, the fragmentation policy would send a burst of
pods to one node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vgpu_api.core import Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint
from vgpu_api.core.pod import NodeSelector
from vgpu_api.errors import BadInput
from vgpu_api.host import allocatable_cpu_milli, cpu_milli_of
from vgpu_api.names import ACK_NODE_SCHEDULE, ALLOCATOR_SCHEDULER, LABEL_ALLOCATOR
from vgpu_operator.placement.columns import CPU_UNKNOWN, Columns
from vgpu_operator.placement.constraints import ALL, NodeFilter, any_of, only

_INT64 = range(-(1 << 63), 1 << 63)
_HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
FILTERS_KEPT = 4_096
REQUIREMENTS_READ = 256
"""The most requirements in an affinity. A longer affinity is ignored, because each requirement may
take a look at every node; kube-scheduler checks it anyway.
"""
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_PLAIN_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
"""The only form in which Kubernetes compares numbers in taints and tolerations."""
_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")

_OF_READINESS = frozenset({_NOT_READY.key, "node.kubernetes.io/unreachable"})
_AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
_VALUES = {"In": (1, 1 << 20), "NotIn": (1, 1 << 20), "Exists": (0, 0), "DoesNotExist": (0, 0),
           "Gt": (1, 1), "Lt": (1, 1)}  # fmt: skip
"""By operator, the least and greatest number of values."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement `key operator values`; it is about the node's name if `of_name` is set."""

    key: str
    operator: str
    values: tuple[str, ...]
    of_name: bool = False


@dataclass(frozen=True, slots=True)
class NodeRules:
    """A pod's rules about nodes. Pods with equal rules may use the same nodes.

    Attributes:
        selector: The labels that a node must have.
        terms: A node must match all requirements of one of them. None: no affinity.
        tolerations: The (key, operator, value, effect) of each toleration.
        kinds: The allowed values of ACK's label on a node (`dialects.ack.node_kinds`); None: any.
    """

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[Requirement, ...], ...] | None = None
    tolerations: tuple[tuple[str, str, str, str], ...] = ()
    kinds: frozenset[str] | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Compute the hash once: rules are part of a request class's key, which is hashed often.
        value = hash((self.selector, self.terms, self.tolerations, self.kinds))
        object.__setattr__(self, "_hash", value)

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, pod: Pod, *, kinds: frozenset[str] | None = None) -> NodeRules:
        """Read the rules of a pod.

        Raises:
            BadInput: The affinity has an operator or values that Kubernetes rejects.
        """
        spec = pod.spec
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        required = affinity.required if affinity is not None else None
        terms = None
        if required is not None:
            requirements = sum(
                len(t.match_expressions) + len(t.match_fields) for t in required.terms
            )
            if max(requirements, len(required.terms)) <= REQUIREMENTS_READ:
                terms = terms_of(required, _AFFINITY)
        return cls(
            tuple(sorted(spec.node_selector.items())),
            terms,
            tuple((t.key, t.operator, t.value, t.effect) for t in spec.tolerations),
            kinds,
        )


class NodeFilters:
    """The filters of nodes by pods' rules. Nodes are numbered as in `Columns`."""

    def __init__(self) -> None:
        self._known: dict[int, Node] = {}
        self._labels: dict[str, dict[str, int]] = {}  # key → value → nodes
        self._names: dict[str, int] = {}
        self._taints: dict[tuple[Taint, ...], int] = {}  # NoSchedule and NoExecute taints → nodes
        # taints of nodes that accept no pods → nodes
        self._closed: dict[tuple[Taint, ...], int] = {}
        self._version = 0
        self._filters: dict[NodeRules, tuple[int, NodeFilter]] = {}

    def put(self, number: int, node: Node) -> bool:
        """Record an added or updated node. Return True if its labels or taints have changed."""
        known = self._known.get(number)
        self._known[number] = node
        # Kubelets write their nodes' status all the time; without this check each write would drop
        # all cached filters.
        if known is not None and _rules_of(known) == _rules_of(node):
            return False
        if known is not None:
            self._index(number, known, add=False)
        self._index(number, node, add=True)
        return True

    def remove(self, number: int) -> None:
        """Forget a node, if it is known."""
        known = self._known.pop(number, None)
        if known is not None:
            self._index(number, known, add=False)

    def of(self, rules: NodeRules) -> NodeFilter:
        """Return the nodes that a pod with these rules may use now."""
        known = self._filters.get(rules)
        if known is not None and known[0] == self._version:
            return known[1]
        made = NodeFilter(
            ours=~self._labels.get(LABEL_ALLOCATOR, {}).get(ALLOCATOR_SCHEDULER, 0),
            selector=self._by_selector(rules),
            affinity=ALL if rules.terms is None else self.by_terms(rules.terms),
            taints=~_not_tolerated(self._taints, rules.tolerations) if self._taints else ALL,
            tolerated=self._tolerated(rules.tolerations) if self._closed else 0,
        )
        if known is None and len(self._filters) >= FILTERS_KEPT:
            del self._filters[next(iter(self._filters))]
        self._filters[rules] = self._version, made
        return made

    def _tolerated(self, tolerations: tuple[tuple[str, str, str, str], ...]) -> int:
        """Return the nodes that accept no pods, except those that have these tolerations."""
        return any_of(self._closed.values()) & ~_not_tolerated(self._closed, tolerations)

    def domains(self, key: str) -> Mapping[str, int]:
        """Return the bits of the nodes that have a label, by its value."""
        return self._labels.get(key, {})

    def by_terms(self, terms: Iterable[tuple[Requirement, ...]]) -> int:
        """Return the bits of the nodes that match one of the terms."""
        nodes = 0
        for term in terms:
            of_term = ALL if term else 0  # an empty term matches no node
            for requirement in term:
                of_term &= self._by_requirement(requirement)
            nodes |= of_term
        return nodes

    def named(self, name: str) -> int:
        """Return the bit of a node, or 0 if the node is unknown."""
        return self._names.get(name, 0)

    @property
    def version(self) -> int:
        """Return a number that grows with every change of the nodes' labels or taints."""
        return self._version

    # Rules.

    def _by_selector(self, rules: NodeRules) -> int:
        nodes = ALL
        for key, value in rules.selector:
            nodes &= self._labels.get(key, {}).get(value, 0)
        if rules.kinds is not None:
            for value, of_kind in self._labels.get(ACK_NODE_SCHEDULE, {}).items():
                # Only a label with a value excludes a node: without it, ACK's scheduler places any
                # kind of pod there.
                if value and value not in rules.kinds:
                    nodes &= ~of_kind
        return nodes

    def _by_requirement(self, requirement: Requirement) -> int:
        if requirement.of_name:
            named = any_of(self._names.get(value, 0) for value in requirement.values)
            # Kubernetes allows only In and NotIn for fields, and only the field metadata.name.
            return named if requirement.operator == "In" else ~named
        by_value = self._labels.get(requirement.key, {})
        match requirement.operator:
            case "In":
                return any_of(by_value.get(value, 0) for value in requirement.values)
            case "NotIn":
                # In Kubernetes, a node without the label matches NotIn, too.
                return ~any_of(by_value.get(value, 0) for value in requirement.values)
            case "Exists":
                return any_of(by_value.values())
            case "DoesNotExist":
                return ~any_of(by_value.values())
        return _by_number(by_value, requirement)

    # The index.

    def _index(self, number: int, node: Node, *, add: bool) -> None:
        bit = only(number)

        def change(index: dict[str, int], key: str) -> None:
            nodes = index.get(key, 0) | bit if add else index[key] & ~bit
            if nodes:
                index[key] = nodes
            else:
                del index[key]

        change(self._names, node.metadata.name)
        for key, value in node.metadata.labels.items():
            change(self._labels.setdefault(key, {}), value)
            if not self._labels[key]:
                del self._labels[key]
        for index, taints in zip((self._taints, self._closed), _taints_of(node), strict=True):
            if taints:
                tainted = index.get(taints, 0)
                index[taints] = tainted | bit if add else tainted & ~bit
                if not index[taints]:
                    del index[taints]
        self._version += 1


def _by_number(by_value: Mapping[str, int], requirement: Requirement) -> int:
    """Return the nodes whose label is a number above or below the required one."""
    bound, sign = int(requirement.values[0]), 1 if requirement.operator == "Gt" else -1
    return any_of(
        nodes
        for value, nodes in by_value.items()
        if _INTEGER.fullmatch(value) and sign * int(value) > sign * bound
    )


def _rules_of(node: Node) -> tuple[object, ...]:
    return node.metadata.name, node.metadata.labels, _taints_of(node)


def _taints_of(node: Node) -> tuple[tuple[Taint, ...], tuple[Taint, ...]]:
    """Return the node's taints, and separately those that follow from a cordon or its readiness.

    Kubernetes' controllers add the latter with a delay, so a node that is cordoned or not ready
    counts as having them at once. They are returned separately so that the reported reason is the
    node's state, because a toleration is rarely the right remedy.
    """
    hard = [taint for taint in node.spec.taints if taint.effect in _HARD_EFFECTS]
    closed = [_CORDON] if node.spec.unschedulable else []
    if not node.is_ready:
        of_readiness = [taint for taint in hard if taint.key in _OF_READINESS]
        closed += of_readiness
        if _NOT_READY.effect not in {taint.effect for taint in of_readiness}:
            closed.append(_NOT_READY)
    return tuple(taint for taint in hard if taint not in closed), tuple(closed)


def _not_tolerated(
    index: Mapping[tuple[Taint, ...], int], tolerations: tuple[tuple[str, str, str, str], ...]
) -> int:
    """Return the nodes with a taint that is not tolerated."""
    return any_of(
        tainted
        for taints, tainted in index.items()
        if not all(any(_tolerates(each, taint) for each in tolerations) for taint in taints)
    )


def _tolerates(toleration: tuple[str, str, str, str], taint: Taint) -> bool:
    """Return True if a toleration matches the taint; without a key, it matches all keys."""
    key, operator, value, effect = toleration
    if (effect and effect != taint.effect) or (key and key != taint.key):
        return False
    match operator:
        case "" | "Equal":
            return value == taint.value
        case "Gt" | "Lt":
            return _compares(operator, taint.value, value)
    return operator == "Exists"


def _compares(operator: str, of_taint: str, of_toleration: str) -> bool:
    """Return True if the taint's number is above or below the toleration's (KEP-5471)."""
    if not (_PLAIN_INTEGER.fullmatch(of_taint) and _PLAIN_INTEGER.fullmatch(of_toleration)):
        return False
    taint, bound = int(of_taint), int(of_toleration)
    if taint not in _INT64 or bound not in _INT64:
        return False
    return taint > bound if operator == "Gt" else taint < bound


def terms_of(selector: NodeSelector, path: str) -> tuple[tuple[Requirement, ...], ...]:
    """Return the parsed terms of a node selector; at least one must match.

    Args:
        selector: The node selector.
        path: The path of the field, for errors.

    Raises:
        BadInput: It has an operator or values that Kubernetes rejects.
    """
    return tuple(
        _term(f"{path}.nodeSelectorTerms[{number}]", term)
        for number, term in enumerate(selector.terms)
    )


def _term(path: str, term: NodeSelectorTerm) -> tuple[Requirement, ...]:
    labels = [
        _requirement(f"{path}.matchExpressions[{at}]", each, of_name=False)
        for at, each in enumerate(term.match_expressions)
    ]
    fields = [
        _requirement(f"{path}.matchFields[{at}]", each, of_name=True)
        for at, each in enumerate(term.match_fields)
    ]
    return (*labels, *fields)


def _requirement(path: str, given: NodeSelectorRequirement, *, of_name: bool) -> Requirement:
    operators = ("In", "NotIn") if of_name else tuple(_VALUES)
    if given.operator not in operators:
        raise BadInput.unsupported(f"{path}.operator", given.operator, operators)
    if of_name and given.key != "metadata.name":
        raise BadInput(field=f"{path}.key", value=given.key, expected="metadata.name")
    least, most = (1, 1) if of_name else _VALUES[given.operator]
    if not least <= len(given.values) <= most:
        how_many = "exactly one value" if most == 1 else "no value" if not most else "a value"
        raise BadInput(
            field=f"{path}.values", value=given.values,
            detail=f"must have {how_many} for {given.operator}",
        )  # fmt: skip
    if given.operator in ("Gt", "Lt") and not _INTEGER.fullmatch(given.values[0]):
        raise BadInput(field=f"{path}.values[0]", value=given.values[0], expected="an integer")
    return Requirement(given.key, given.operator, tuple(sorted(given.values)), of_name)


class _Share(NamedTuple):
    node: str
    cpu_milli: int


class Hosts:
    """Records the free CPU of nodes and writes it to the columns.

    Args:
        columns: The columns, including the nodes.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._allocatable: dict[str, int] = {}
        self._requested: dict[str, int] = {}  # node → milli-CPU of all its pods
        self._shares: dict[str, _Share] = {}  # pod UID → its node and CPU

    def apply_node(self, node: Node) -> None:
        """Record an added or updated node that is in the columns."""
        allocatable = allocatable_cpu_milli(node)
        if allocatable is None:
            self._allocatable.pop(node.metadata.name, None)
        else:
            self._allocatable[node.metadata.name] = allocatable
        self._write(node.metadata.name)

    def remove_node(self, name: str) -> None:
        """Forget a node. Its pods are removed individually."""
        self._allocatable.pop(name, None)
        self._write(name)

    def apply_pod(self, pod: Pod) -> bool:
        """Record an added or updated pod. Return True if it is new on its node."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        if pod.is_terminal:
            self.remove_pod(uid)
            return False
        if not node:
            return False
        known = self._shares.get(uid)
        self._put(uid, _Share(node, cpu_milli_of(pod)))
        return known is None or known.node != node

    def remove_pod(self, uid: str) -> None:
        """Forget a pod or its reservation."""
        share = self._shares.pop(uid, None)
        if share is not None:
            self._add(share.node, -share.cpu_milli)

    def expect(self, uid: str, *, node: str, cpu_milli: int) -> None:
        """Count a pod that is expected on a node."""
        self._put(uid, _Share(node, cpu_milli))

    def _put(self, uid: str, share: _Share) -> None:
        if self._shares.get(uid) != share:
            self.remove_pod(uid)
            self._shares[uid] = share
            self._add(share.node, share.cpu_milli)

    def _add(self, node: str, cpu_milli: int) -> None:
        requested = self._requested.get(node, 0) + cpu_milli
        if requested:
            self._requested[node] = requested
        else:
            self._requested.pop(node, None)
        self._write(node)

    def _write(self, name: str) -> None:
        number = self._columns.node_id(name)
        if number is not None:
            allocatable = self._allocatable.get(name)
            free = (
                CPU_UNKNOWN if allocatable is None else allocatable - self._requested.get(name, 0)
            )
            self._columns.set_cpu_free(number, free)
