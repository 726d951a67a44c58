"""Affinity, anti-affinity and spread of pods, judged as kube-scheduler judges them."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_node, a_pod
from vgpu_api.core import Pod
from vgpu_api.core.pod import Affinity
from vgpu_operator.node_filter import NodeFilters
from vgpu_operator.node_filter.pod_affinity import PeerRules, Peers
from vgpu_operator.placement import Columns
from vgpu_operator.placement.columns import NodeState
from vgpu_operator.placement.constraints import ALL

ZONES = {"node-0": "a", "node-1": "a", "node-2": "b", "node-3": "b", "node-4": ""}
"""The last has no zone."""
WEB, DB = {"app": "web"}, {"app": "db"}


def peers(*there: tuple[Pod, str]) -> Peers:
    columns, filters = Columns(), NodeFilters()
    for name, zone in ZONES.items():
        labels = {"host": name, **({"zone": zone} if zone else {})}
        filters.put(columns.put_node(name, NodeState()), a_node(name, labels=labels))
    made = Peers(columns, filters.domains)
    for pod, node in there:
        made.put(pod, node)
    return made


def nodes(made: Peers, pod: Pod, **bits: int) -> list[int]:
    given = {"selected": ALL, "tolerated": ALL, **bits}
    found = made.of(PeerRules.of(pod), **given)
    return [number for number in range(len(ZONES)) if found >> number & 1]


def term(labels: dict[str, str] | None, key: str = "zone", **fields: Any) -> dict[str, Any]:
    selector = None if labels is None else {"matchLabels": labels}
    return {"topologyKey": key, "labelSelector": selector, **fields}


def pod(
    name: str = "pod-1",
    labels: dict[str, str] | None = None,
    *,
    together: list[Any] | None = None,
    apart: list[Any] | None = None,
    spread: list[Any] | None = None,
    **fields: Any,
) -> Pod:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = Affinity(
        pod_affinity={required: together} if together else None,
        pod_anti_affinity={required: apart} if apart else None,
    )
    made = a_pod(name, labels=labels or {}, affinity=affinity, **fields)
    spec = made.spec.model_copy(update={"topology_spread_constraints": spread or []})
    return made.model_copy(update={"spec": spec})


def a_spread(key: str = "zone", **fields: Any) -> dict[str, Any]:
    return {
        "topologyKey": key,
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": WEB},
        **fields,
    }


def test_without_rules_a_pod_goes_anywhere() -> None:
    assert nodes(peers((pod("db", DB), "node-0")), pod()) == [0, 1, 2, 3, 4]


def test_anti_affinity_rules_out_the_domains_of_those_it_names() -> None:
    made = peers((pod("db", DB), "node-0"))
    assert nodes(made, pod(apart=[term(DB)])) == [2, 3, 4]
    assert nodes(made, pod(apart=[term(DB, "host")])) == [1, 2, 3, 4]
    assert nodes(made, pod(apart=[term(WEB)])) == [0, 1, 2, 3, 4]


def test_the_anti_affinity_of_those_that_are_there_counts_too() -> None:
    made = peers((pod("db", DB, apart=[term(WEB)]), "node-2"))
    assert nodes(made, pod(labels=WEB)) == [0, 1, 4]
    assert nodes(made, pod(labels=DB)) == [0, 1, 2, 3, 4]
    made.remove("uid-of-db")
    assert nodes(made, pod(labels=WEB)) == [0, 1, 2, 3, 4]


def test_affinity_wants_a_domain_where_one_is() -> None:
    asked = pod(together=[term(DB)])
    assert nodes(peers((pod("db", DB), "node-3")), asked) == [2, 3]
    assert nodes(peers(), asked) == []


def test_the_first_of_its_kind_goes_wherever_the_label_is() -> None:
    assert nodes(peers(), pod(labels=WEB, together=[term(WEB)])) == [0, 1, 2, 3]


def test_pods_must_match_all_terms_of_an_affinity() -> None:
    asked = pod(together=[term(DB), term({"tier": "1"}, "host")])
    both = pod("both", {**DB, "tier": "1"})
    assert nodes(peers((pod("db", DB), "node-0"), (both, "node-2")), asked) == [2]


@pytest.mark.parametrize(
    ("fields", "is_meant"),
    [
        ({}, False),
        ({"namespaces": ["other"]}, True),
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, False),
    ],
)
def test_a_term_is_about_pods_of_its_own_namespace_unless_it_names_others(
    fields: dict[str, Any], *, is_meant: bool
) -> None:
    made = peers((pod("db", DB, namespace="other"), "node-0"))
    found = nodes(made, pod(apart=[term(DB, "host", **fields)]))
    assert (0 not in found) == is_meant


def test_a_pod_that_goes_elsewhere_is_counted_there() -> None:
    made = peers((pod("db", DB), "node-0"))
    made.put(pod("db", DB), "node-2")
    assert nodes(made, pod(apart=[term(DB)])) == [0, 1, 4]


def test_a_pod_is_not_in_its_own_way() -> None:
    own = pod("web", WEB, apart=[term(WEB, "host")])
    made = peers((own, "node-0"))
    assert 0 not in nodes(made, own)
    rules = PeerRules.of(own)
    assert made.of(rules, selected=ALL, tolerated=ALL, without="uid-of-web") & 1


def test_pods_are_spread_over_the_domains_that_have_the_label() -> None:
    asked = pod(labels=WEB, spread=[a_spread()])
    assert nodes(peers(), asked) == [0, 1, 2, 3]
    made = peers((pod("one", WEB), "node-0"))
    assert nodes(made, asked) == [2, 3]
    made.put(pod("two", WEB), "node-2")
    assert nodes(made, asked) == [0, 1, 2, 3]
    made.put(pod("three", DB), "node-2")
    assert nodes(made, asked) == [0, 1, 2, 3]


def test_a_larger_skew_is_allowed_where_it_is_said() -> None:
    asked = pod(labels=WEB, spread=[a_spread(maxSkew=2)])
    made = peers((pod("one", WEB), "node-0"))
    assert nodes(made, asked) == [0, 1, 2, 3]
    made.put(pod("two", WEB), "node-1")
    assert nodes(made, asked) == [2, 3]


def test_nodes_that_the_pod_cannot_use_are_no_domain_unless_it_says_so() -> None:
    made = peers((pod("one", WEB), "node-0"))
    only_a = 0b00011
    assert nodes(made, pod(labels=WEB, spread=[a_spread()]), selected=only_a) == [0, 1]
    ignoring = a_spread(nodeAffinityPolicy="Ignore")
    assert nodes(made, pod(labels=WEB, spread=[ignoring]), selected=only_a) == [2, 3]
    honoring = a_spread(nodeTaintsPolicy="Honor")
    assert nodes(made, pod(labels=WEB, spread=[honoring]), tolerated=only_a) == [0, 1]


def test_with_too_few_domains_the_least_is_zero() -> None:
    made = peers((pod("one", WEB), "node-0"), (pod("two", WEB), "node-2"))
    assert nodes(made, pod(labels=WEB, spread=[a_spread(minDomains=3)])) == []


def test_pods_that_go_and_pods_of_other_namespaces_are_not_spread() -> None:
    going = pod("one", WEB, deletion_timestamp="2026-01-01T00:00:00Z")
    made = peers((going, "node-0"), (pod("two", WEB, namespace="other"), "node-0"))
    assert nodes(made, pod(labels=WEB, spread=[a_spread()])) == [0, 1, 2, 3]


def test_labels_that_are_named_by_key_narrow_the_spread() -> None:
    spread = [a_spread(matchLabelKeys=["hash", "absent"])]
    made = peers((pod("one", {**WEB, "hash": "1"}), "node-0"))
    assert nodes(made, pod(labels={**WEB, "hash": "1"}, spread=spread)) == [2, 3]
    assert nodes(made, pod(labels={**WEB, "hash": "2"}, spread=spread)) == [0, 1, 2, 3]


def test_what_is_only_preferred_is_kube_schedulers() -> None:
    spread = [a_spread(whenUnsatisfiable="ScheduleAnyway")]
    made = peers((pod("one", WEB), "node-0"))
    assert nodes(made, pod(labels=WEB, spread=spread)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("line", "is_meant"),
    [
        ({"operator": "In", "values": ["web", "db"]}, True),
        ({"operator": "NotIn", "values": ["web"]}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "DoesNotExist"}, False),
    ],
)
def test_selectors_have_four_operators(line: dict[str, Any], *, is_meant: bool) -> None:
    written = {"topologyKey": "host",
               "labelSelector": {"matchExpressions": [{"key": "app", **line}]}}  # fmt: skip
    made = peers((pod("one", WEB), "node-0"))
    assert (0 not in nodes(made, pod(apart=[written]))) == is_meant
