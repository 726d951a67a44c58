"""Filters nodes by pod affinity, anti-affinity and topology spread.

This applies in Gate mode only, to all pods on a node or expected there. Sources: Kubernetes, the
scheduler's plugins InterPodAffinity and PodTopologySpread. Only required rules count, not preferred
ones. A `namespaceSelector` with labels is ignored, because namespaces are not watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from vgpu_api.core import Pod
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.constraints import ALL, any_of, only

Labels: TypeAlias = tuple[tuple[str, str], ...]
Domains: TypeAlias = Callable[[str], Mapping[str, int]]
"""Returns the nodes for each value of a label, given its key."""

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements `key operator values`, all of which must match; `is_none` selects nothing."""

    lines: tuple[tuple[str, str, frozenset[str]], ...] = ()
    is_none: bool = False

    @classmethod
    def of(cls, written: Any) -> Selector:
        """Parse a LabelSelector. A missing one selects nothing, an empty one everything."""
        if written is None:
            return cls(is_none=True)
        lines = [
            (key, "In", frozenset({value}))
            for key, value in (written.get("matchLabels") or {}).items()
        ]
        for each in written.get("matchExpressions") or ():
            values = frozenset(each.get("values") or ())
            lines.append((each.get("key", ""), each.get("operator", ""), values))
        return cls(tuple(sorted(lines, key=lambda line: (line[0], line[1], sorted(line[2])))))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if an object with these labels is selected."""
        return not self.is_none and all(_holds(line, labels) for line in self.lines)


@dataclass(frozen=True, slots=True)
class Term:
    """A term of pod affinity: pods of some namespaces (None: all), by label, in one domain."""

    key: str
    selector: Selector
    namespaces: frozenset[str] | None

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return True if the term selects a pod with these labels."""
        return (self.namespaces is None or namespace in self.namespaces) and self.selector.matches(
            labels
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint with `whenUnsatisfiable: DoNotSchedule`."""

    key: str
    max_skew: int
    selector: Selector
    min_domains: int
    honors_affinity: bool
    honors_taints: bool


@dataclass(frozen=True, slots=True)
class PeerRules:
    """A pod's rules about other pods, and the labels by which other pods' rules select it."""

    namespace: str = ""
    labels: Labels = ()
    together: tuple[Term, ...] = ()
    apart: tuple[Term, ...] = ()
    spread: tuple[Spread, ...] = ()

    @classmethod
    def of(cls, pod: Pod) -> PeerRules:
        """Parse the rules of a pod."""
        namespace, affinity = pod.metadata.namespace or "", pod.spec.affinity
        together = None if affinity is None else affinity.pod_affinity
        apart = None if affinity is None else affinity.pod_anti_affinity
        return cls(
            namespace,
            tuple(sorted(pod.metadata.labels.items())),
            tuple(_terms(together, namespace)),
            tuple(_terms(apart, namespace)),
            tuple(_spreads(pod)),
        )


@dataclass(frozen=True, slots=True)
class _Peer:
    node: str
    namespace: str
    labels: Mapping[str, str]
    apart: tuple[Term, ...]
    is_going: bool


class Peers:
    """The pods on nodes, by UID.

    Args:
        columns: The numbers of the nodes.
        domains: Returns the nodes for each value of a label.
    """

    def __init__(self, columns: Columns, domains: Domains) -> None:
        self._columns = columns
        self._domains = domains
        self._peers: dict[str, _Peer] = {}
        self._with_terms: dict[str, None] = {}  # UIDs of pods with anti-affinity

    def put(self, pod: Pod, node: str) -> None:
        """Record a pod that is on a node or expected there."""
        uid, labels = pod.metadata.uid, pod.metadata.labels
        is_going, known = pod.metadata.deletion_timestamp is not None, self._peers.get(uid)
        if known is not None and (known.node, known.labels, known.is_going) == (
            node,
            labels,
            is_going,
        ):
            return
        rules = PeerRules.of(pod)
        self.remove(uid)
        self._peers[uid] = _Peer(node, rules.namespace, labels, rules.apart, is_going)
        if rules.apart:
            self._with_terms[uid] = None

    def remove(self, uid: str) -> None:
        """Forget a pod."""
        self._peers.pop(uid, None)
        self._with_terms.pop(uid, None)

    def of(self, rules: PeerRules, *, selected: int, tolerated: int, without: str = "") -> int:
        """Return the nodes that a pod may use, given the other pods.

        Args:
            rules: The pod's rules.
            selected: The nodes that match its node selector and affinity.
            tolerated: The nodes whose taints it tolerates.
            without: The UID of a pod that does not count.
        """
        peers = {uid: peer for uid, peer in self._peers.items() if uid != without}
        labels = dict(rules.labels)
        nodes = ~self._kept_away(rules, peers, labels)
        if rules.together:
            nodes &= self._together(rules, peers, labels)
        if rules.spread:
            nodes &= self._spread(rules, peers, labels, selected, tolerated)
        return nodes

    def _kept_away(
        self, rules: PeerRules, peers: Mapping[str, _Peer], labels: Mapping[str, str]
    ) -> int:
        """Return the domains excluded by the pod's anti-affinity, or by that of other pods."""
        nodes = 0
        # Anti-affinity works in both directions: a pod that is there may exclude this one by a term
        # of its own.
        for peer in (peers[uid] for uid in self._with_terms if uid in peers):
            for term in peer.apart:
                if term.matches(rules.namespace, labels):
                    nodes |= self._domain(term.key, self._bit(peer))
        for term in rules.apart:
            for peer in peers.values():
                if term.matches(peer.namespace, peer.labels):
                    nodes |= self._domain(term.key, self._bit(peer))
        return nodes

    def _together(
        self, rules: PeerRules, peers: Mapping[str, _Peer], labels: Mapping[str, str]
    ) -> int:
        """Return the domains with pods that match all terms.

        The first pod that matches its own terms may use any domain; otherwise, none could ever
        start.
        """
        found = [
            peer
            for peer in peers.values()
            if all(term.matches(peer.namespace, peer.labels) for term in rules.together)
        ]
        is_own = all(term.matches(rules.namespace, labels) for term in rules.together)
        # kube-scheduler makes the same exception (satisfyPodAffinity).
        is_first = is_own and not found
        nodes = ALL
        for term in rules.together:
            of_term = 0
            for bits in self._domains(term.key).values():
                if is_first or any(self._bit(peer) & bits for peer in found):
                    of_term |= bits
            nodes &= of_term
        return nodes

    def _spread(
        self,
        rules: PeerRules,
        peers: Mapping[str, _Peer],
        labels: Mapping[str, str],
        selected: int,
        tolerated: int,
    ) -> int:
        """Return the domains where no constraint's skew becomes too large."""
        nodes = with_keys = ALL
        for each in rules.spread:
            with_keys &= any_of(self._domains(each.key).values())
        for each in rules.spread:
            eligible = with_keys
            eligible &= selected if each.honors_affinity else ALL
            eligible &= tolerated if each.honors_taints else ALL
            # Spread constraints count pods of the pod's own namespace only.
            there = [peer for peer in peers.values() if peer.namespace == rules.namespace]
            counts = self._counts(each, there, eligible)
            # With fewer domains than minDomains the minimum counts as 0, which directs pods to new
            # domains.
            least = min(counts.values(), default=0) if len(counts) >= each.min_domains else 0
            # A pod that its own constraint does not select adds nothing to the skew.
            own = int(each.selector.matches(labels))
            nodes &= any_of(
                bits for bits, count in counts.items() if count + own - least <= each.max_skew
            )
        return nodes

    def _counts(self, spread: Spread, peers: Iterable[_Peer], eligible: int) -> dict[int, int]:
        """Count the pods that a constraint selects, in each eligible domain."""
        found = [
            self._bit(peer)
            for peer in peers
            if not peer.is_going
            and self._bit(peer) & eligible
            and spread.selector.matches(peer.labels)
        ]
        domains = [bits for bits in self._domains(spread.key).values() if bits & eligible]
        return {bits: sum(bool(bit & bits) for bit in found) for bits in domains}

    def _bit(self, peer: _Peer) -> int:
        number = self._columns.node_id(peer.node)
        return 0 if number is None else only(number)

    def _domain(self, key: str, bit: int) -> int:
        """Return the nodes in the same domain as a node; 0 if the node lacks the label."""
        return any_of(bits for bits in self._domains(key).values() if bits & bit)


def _holds(line: tuple[str, str, frozenset[str]], labels: Mapping[str, str]) -> bool:
    key, operator, values = line
    match operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
    return key not in labels


def _terms(affinity: dict[str, Any] | None, namespace: str) -> Iterator[Term]:
    for term in (affinity or {}).get(_REQUIRED) or ():
        named, by_label = frozenset(term.get("namespaces") or ()), term.get("namespaceSelector")
        if by_label is None:
            namespaces: frozenset[str] | None = named or frozenset({namespace})
        elif by_label.get("matchLabels") or by_label.get("matchExpressions"):
            # Namespaces are not watched, so a term that selects them by label alone cannot be
            # judged here; kube-scheduler still applies it.
            if not named:
                continue
            namespaces = named
        else:
            namespaces = None
        yield Term(term.get("topologyKey", ""), Selector.of(term.get("labelSelector")), namespaces)


def _spreads(pod: Pod) -> Iterator[Spread]:
    labels = pod.metadata.labels
    for each in pod.spec.topology_spread_constraints:
        if each.get("whenUnsatisfiable") != "DoNotSchedule":
            continue
        selector = Selector.of(each.get("labelSelector"))
        keys = [key for key in each.get("matchLabelKeys") or () if key in labels]
        if keys and not selector.is_none:
            # `matchLabelKeys` compares pods of the same revision only: the pod's own values are
            # added.
            more = tuple((key, "In", frozenset({labels[key]})) for key in sorted(keys))
            selector = Selector(selector.lines + more)
        yield Spread(
            each.get("topologyKey", ""),
            int(each.get("maxSkew") or 1),
            selector,
            int(each.get("minDomains") or 1),
            each.get("nodeAffinityPolicy", "Honor") == "Honor",
            each.get("nodeTaintsPolicy", "Ignore") == "Honor",
        )
