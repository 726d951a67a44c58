"""Nodes that a pod may use, given its node selector, its affinity and the nodes' taints."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from builders import a_node, a_pod
from hypothesis_profiles import fewer_examples
from vgpu_api.core import Node, Pod, Taint, Toleration
from vgpu_api.core.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from vgpu_api.errors import BadInput
from vgpu_api.names import ACK_NODE_SCHEDULE
from vgpu_api.reasons import Reason
from vgpu_operator.node_filter import node_rules
from vgpu_operator.node_filter.node_rules import NodeFilters, NodeRules

TAINT = Taint(key="gpu", value="yes", effect="NoSchedule")


def an_affinity(*terms: NodeSelectorTerm) -> Affinity:
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector(terms=list(terms))))


def a_term(*lines: tuple[str, str, list[str]], names: tuple[str, list[str]] | None = None):
    fields = []
    if names is not None:
        operator, values = names
        fields = [NodeSelectorRequirement(key="metadata.name", operator=operator, values=values)]
    return NodeSelectorTerm(
        match_expressions=[
            NodeSelectorRequirement(key=key, operator=operator, values=values)
            for key, operator, values in lines
        ],
        match_fields=fields,
    )


def refusal(pod: Pod, node: Node, kinds: frozenset[str] | None = None) -> Reason | None:
    """Return one node's refusal of a pod."""
    filters = NodeFilters()
    filters.put(7, node)
    found = filters.of(NodeRules.of(pod, kinds=kinds))
    return None if 7 in found else found.refusal(7)


@pytest.mark.parametrize(
    ("taint", "reason"),
    [
        (TAINT, Reason.NODE_TAINTED),
        (Taint(key="gpu", effect="NoExecute"), Reason.NODE_TAINTED),
        (Taint(key="gpu", effect="PreferNoSchedule"), None),
    ],
)
def test_a_plain_pod_is_kept_off_by_hard_taints(taint, reason):
    assert refusal(a_pod(), a_node(taints=[taint])) is reason


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({"zone": "a", "more": "1"}, None),
        ({"zone": "b"}, Reason.NODE_SELECTOR_MISMATCH),
        ({}, Reason.NODE_SELECTOR_MISMATCH),
    ],
)
def test_a_node_selector_must_be_matched(labels, reason):
    assert refusal(a_pod(node_selector={"zone": "a"}), a_node(labels=labels)) is reason


@pytest.mark.parametrize(
    ("toleration", "borne"),
    [
        (Toleration(key="gpu", value="yes"), True),
        (Toleration(key="gpu", value="yes", effect="NoSchedule"), True),
        (Toleration(key="gpu", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key="gpu", value="no"), False),
        (Toleration(key="gpu", value="yes", effect="NoExecute"), False),
        (Toleration(key="other", operator="Exists"), False),
    ],
)
def test_a_taint_is_borne_by_a_toleration_that_matches_it(toleration, borne):
    verdict = refusal(a_pod(tolerations=[toleration]), a_node(taints=[TAINT]))
    assert (verdict is None) == borne


@pytest.mark.parametrize(
    ("label", "kinds", "reason"),
    [
        ("share", None, None),
        ("share", {"share", "cgpu"}, None),
        ("topology", {"share"}, Reason.NODE_SELECTOR_MISMATCH),
        ("", {"share"}, None),
        (None, {"share"}, None),
    ],
)
def test_a_node_that_wears_acks_label_takes_only_pods_of_its_kind(label, kinds, reason):
    labels = {} if label is None else {ACK_NODE_SCHEDULE: label}
    wanted = None if kinds is None else frozenset(kinds)
    assert refusal(a_pod(), a_node(labels=labels), wanted) is reason


@pytest.mark.parametrize(
    ("term", "takes"),
    [
        (a_term(("zone", "In", ["b", "a"])), True),
        (a_term(("zone", "In", ["b"])), False),
        (a_term(("zone", "NotIn", ["b"])), True),
        (a_term(("rack", "NotIn", ["b"])), True),  # a node without the label passes
        (a_term(("zone", "NotIn", ["a"])), False),
        (a_term(("zone", "Exists", [])), True),
        (a_term(("rack", "Exists", [])), False),
        (a_term(("rack", "DoesNotExist", [])), True),
        (a_term(("memory", "Gt", ["79"])), True),
        (a_term(("memory", "Gt", ["80"])), False),
        (a_term(("memory", "Lt", ["81"])), True),
        (a_term(("zone", "Gt", ["0"])), False),  # not a number
        (a_term(("zone", "In", ["a"]), ("memory", "Lt", ["80"])), False),
        (a_term(names=("In", ["node-1"])), True),
        (a_term(names=("NotIn", ["node-1"])), False),
        (a_term(("zone", "In", ["a"]), names=("In", ["node-2"])), False),
        (a_term(), False),
    ],
)
def test_a_required_affinity_is_read_as_kube_scheduler_reads_it(term, takes):
    node = a_node("node-1", labels={"zone": "a", "memory": "80"})
    verdict = refusal(a_pod(affinity=an_affinity(term)), node)
    assert verdict is (None if takes else Reason.NODE_AFFINITY_MISMATCH)


def test_one_term_of_an_affinity_is_enough_and_no_term_takes_no_node():
    node = a_node(labels={"zone": "a"})
    either = an_affinity(a_term(("zone", "In", ["b"])), a_term(("zone", "Exists", [])))
    assert refusal(a_pod(affinity=either), node) is None
    assert refusal(a_pod(affinity=an_affinity()), node) is Reason.NODE_AFFINITY_MISMATCH


def test_of_an_affinity_with_very_many_requirements_nothing_is_read():
    """Each requirement may cost a scan of every node; kube-scheduler evaluates them."""
    wide = an_affinity(a_term(*[("zone", "Gt", ["1"])] * node_rules.REQUIREMENTS_READ))
    assert NodeRules.of(a_pod(affinity=wide)).terms is not None
    wider = an_affinity(*[a_term(("zone", "Gt", ["1"]))] * (node_rules.REQUIREMENTS_READ + 1))
    assert NodeRules.of(a_pod(affinity=wider)).terms is None


@pytest.mark.parametrize(
    ("term", "field", "detail"),
    [
        (
            a_term(("zone", "Is", ["a"])),
            "matchExpressions[0].operator",
            'supported values: "In", "NotIn"',
        ),
        (a_term(("zone", "In", [])), "matchExpressions[0].values", "must have a value for In"),
        (
            a_term(("zone", "Exists", ["a"])),
            "matchExpressions[0].values",
            "must have no value for Exists",
        ),
        (
            a_term(("m", "Gt", ["1", "2"])),
            "matchExpressions[0].values",
            "must have exactly one value",
        ),
        (a_term(("m", "Gt", ["much"])), "matchExpressions[0].values[0]", "must be an integer"),
        (
            a_term(names=("Exists", [])),
            "matchFields[0].operator",
            'supported values: "In", "NotIn"',
        ),
        (
            a_term(names=("In", ["a", "b"])),
            "matchFields[0].values",
            "must have exactly one value for In",
        ),
    ],
)
def test_an_affinity_that_kubernetes_refuses_is_refused_by_name(term, field, detail):
    with pytest.raises(BadInput) as refused:
        NodeRules.of(a_pod(affinity=an_affinity(term)))
    assert refused.value.field.endswith(f"nodeSelectorTerms[0].{field}")
    assert refused.value.detail.startswith(detail)


# Compare with looking at every node each time.

texts = st.sampled_from(("a", "b", "7", "12", ""))
keys = st.sampled_from(("zone", "memory", ACK_NODE_SCHEDULE))
names = st.sampled_from(("node-1", "node-2", "node-3"))
labels = st.dictionaries(keys, texts)
taints = st.lists(
    st.builds(
        Taint,
        key=st.sampled_from(("gpu", "dedicated")),
        value=st.sampled_from(("", "yes")),
        effect=st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule")),
    ),
    max_size=2,
)
# The API server requires Exists for a toleration without a key, and no value with Exists.
effects_tolerated = st.sampled_from(("", "NoSchedule", "NoExecute"))
tolerations = st.lists(
    st.one_of(
        st.builds(
            Toleration,
            key=st.sampled_from(("gpu", "dedicated")),
            operator=st.sampled_from(("", "Equal")),
            value=st.sampled_from(("", "yes")),
            effect=effects_tolerated,
        ),
        st.builds(
            Toleration,
            key=st.sampled_from(("", "gpu", "dedicated")),
            operator=st.just("Exists"),
            effect=effects_tolerated,
        ),
    ),
    max_size=2,
)
lines = st.one_of(
    st.builds(
        NodeSelectorRequirement,
        key=keys,
        operator=st.sampled_from(("In", "NotIn")),
        values=st.lists(texts, min_size=1, max_size=2),
    ),
    st.builds(
        NodeSelectorRequirement, key=keys, operator=st.sampled_from(("Exists", "DoesNotExist"))
    ),
    st.builds(
        NodeSelectorRequirement,
        key=keys,
        operator=st.sampled_from(("Gt", "Lt")),
        values=st.lists(st.sampled_from(("7", "8", "-1")), min_size=1, max_size=1),
    ),
)
name_lines = st.builds(
    NodeSelectorRequirement,
    key=st.just("metadata.name"),
    operator=st.sampled_from(("In", "NotIn")),
    values=st.lists(names, min_size=1, max_size=1),
)
terms = st.builds(
    NodeSelectorTerm,
    match_expressions=st.lists(lines, max_size=2),
    match_fields=st.lists(name_lines, max_size=1),
)
affinities = st.one_of(st.none(), st.lists(terms, max_size=2).map(lambda some: an_affinity(*some)))
pods = st.builds(
    a_pod,
    node_selector=st.dictionaries(keys, texts, max_size=1),
    tolerations=tolerations,
    affinity=affinities,
)
kinds = st.sampled_from((None, frozenset({"a"}), frozenset({"b", "7"})))


def plain(pod: Pod, node: Node, kinds: frozenset[str] | None) -> Reason | None:
    """Return the verdict on one node, as Kubernetes documents it."""
    worn = node.metadata.labels
    if any(worn.get(key) != value for key, value in pod.spec.node_selector.items()):
        return Reason.NODE_SELECTOR_MISMATCH
    if kinds is not None and worn.get(ACK_NODE_SCHEDULE) not in (None, "", *kinds):
        return Reason.NODE_SELECTOR_MISMATCH
    if pod.spec.affinity is not None:
        required = pod.spec.affinity.node_affinity.required
        if not any(holds(term, node) for term in required.terms):
            return Reason.NODE_AFFINITY_MISMATCH
    for taint in node.spec.taints:
        if taint.effect != "PreferNoSchedule" and not any(
            bears(toleration, taint) for toleration in pod.spec.tolerations
        ):
            return Reason.NODE_TAINTED
    return None


def holds(term: NodeSelectorTerm, node: Node) -> bool:
    if not (term.match_expressions or term.match_fields):
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(line_holds(line, node.metadata.labels) for line in term.match_expressions) and all(
        line_holds(line, fields) for line in term.match_fields
    )


def line_holds(line: NodeSelectorRequirement, worn: dict[str, str]) -> bool:
    has = line.key in worn
    match line.operator:
        case "In":
            return has and worn[line.key] in line.values
        case "NotIn":
            return not has or worn[line.key] not in line.values
        case "Exists":
            return has
        case "DoesNotExist":
            return not has
    try:
        number = int(worn.get(line.key, ""))
    except ValueError:
        return False
    bound = int(line.values[0])
    return number > bound if line.operator == "Gt" else number < bound


def bears(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return (toleration.key, toleration.value) == (taint.key, taint.value)


class NodesThatChange(RuleBasedStateMachine):
    """Nodes come, change and go; every answer is the same as if each node were checked."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[int, Node] = {}
        self.filters = NodeFilters()

    @rule(name=names, labels=labels, taints=taints)
    def a_node_is_seen(self, name, labels, taints):
        number = int(name[-1])
        self.nodes[number] = a_node(name, labels=labels, taints=taints)
        self.filters.put(number, self.nodes[number])

    @rule(name=names)
    def a_node_goes(self, name):
        self.nodes.pop(int(name[-1]), None)
        self.filters.remove(int(name[-1]))

    @rule(pod=pods, kinds=kinds)
    def a_pod_asks(self, pod, kinds):
        self.agrees(pod, kinds)

    @invariant()
    def the_plain_pod_is_answered_right_all_the_time(self):
        self.agrees(a_pod(), None)

    def agrees(self, pod, kinds):
        found = self.filters.of(NodeRules.of(pod, kinds=kinds))
        for number, node in self.nodes.items():
            expected = plain(pod, node, kinds)
            assert (number in found) is (expected is None)
            if expected is not None:
                assert found.refusal(number) is expected


NodesThatChange.TestCase.settings = settings(stateful_step_count=20)
TestNodesThatChange = NodesThatChange.TestCase


@settings(max_examples=fewer_examples(4))
@given(pods, kinds)
def test_rules_that_were_forgotten_are_learned_anew(pod, kinds):
    filters = NodeFilters()
    filters.put(0, a_node("node-1", labels={"zone": "a"}))
    rules = NodeRules.of(pod, kinds=kinds)
    before = filters.of(rules)
    for number in range(node_rules.FILTERS_KEPT):
        filters.of(NodeRules(selector=(("zone", str(number)),)))
    assert filters.of(rules) == before


def test_a_node_whose_labels_and_taints_stay_as_they_are_costs_nothing():
    filters = NodeFilters()
    assert filters.put(0, a_node(labels={"zone": "a"}))
    known = filters.of(NodeRules())
    more = a_node(labels={"zone": "a"}, allocatable={"cpu": "4"}, resource_version=2)
    assert not filters.put(0, more)
    assert filters.of(NodeRules()) is known
