"""The soft look at a node before cards are reserved on it."""

from __future__ import annotations

import pytest

from builders import a_node, a_pod
from vgpu_api.core import Taint, Toleration
from vgpu_api.names import ACK_NODE_SCHEDULE
from vgpu_api.reasons import Reason
from vgpu_operator.ledger import node_admits

TAINT = Taint(key="gpu", value="yes", effect="NoSchedule")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({}, None),
        ({"ready": False}, Reason.NODE_NOT_READY),
        ({"unschedulable": True}, Reason.NODE_UNSCHEDULABLE),
        ({"taints": [TAINT]}, Reason.NODE_TAINTED),
        ({"taints": [Taint(key="gpu", effect="NoExecute")]}, Reason.NODE_TAINTED),
        ({"taints": [Taint(key="gpu", effect="PreferNoSchedule")]}, None),
    ],
)
def test_a_plain_pod_is_kept_off_by_the_nodes_state(node, reason):
    assert node_admits(a_pod(), a_node(**node)) is reason


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({"zone": "a", "more": "1"}, None),
        ({"zone": "b"}, Reason.NODE_SELECTOR_MISMATCH),
        ({}, Reason.NODE_SELECTOR_MISMATCH),
    ],
)
def test_a_node_selector_must_be_matched(labels, reason):
    assert node_admits(a_pod(node_selector={"zone": "a"}), a_node(labels=labels)) is reason


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
    verdict = node_admits(a_pod(tolerations=[toleration]), a_node(taints=[TAINT]))
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
    assert node_admits(a_pod(), a_node(labels=labels), kinds=wanted) is reason
