"""Nodes that a pod's selector or their taints rule out, remembered by class of pods."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from builders import a_node, a_pod
from vgpu_api.core import Node, Taint, Toleration
from vgpu_api.names import ACK_NODE_SCHEDULE
from vgpu_api.reasons import Tally
from vgpu_operator.engine import barred
from vgpu_operator.engine.barred import Barred
from vgpu_operator.ledger import barred_by

names = st.sampled_from(("node-1", "node-2", "node-3"))
labels = st.sampled_from(({}, {"zone": "a"}, {"zone": "b", ACK_NODE_SCHEDULE: "share"}))
kinds = st.sampled_from((None, frozenset({"share"}), frozenset({"cgpu"})))
taints = st.sampled_from(((), (Taint(key="gpu", value="yes", effect="NoSchedule"),)))
PODS = (
    a_pod("plain"),
    a_pod("picky", node_selector={"zone": "a"}),
    a_pod("tolerant", tolerations=[Toleration(key="gpu", operator="Exists")]),
    a_pod("both", node_selector={"zone": "b"}, tolerations=[Toleration(operator="Exists")]),
)


class BarredMachine(RuleBasedStateMachine):
    """Against looking at every node each time."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, Node] = {}
        self.barred = Barred(self.nodes)

    @rule(name=names, labels=labels, taints=taints)
    def a_node_is_seen(self, name, labels, taints):
        self.nodes[name] = a_node(name, labels=labels, taints=taints)
        self.barred.changed(name)

    @rule(name=names)
    def a_node_goes(self, name):
        self.nodes.pop(name, None)
        self.barred.changed(name)

    @rule(pod=st.sampled_from(PODS), kinds=kinds)
    def a_pod_asks(self, pod, kinds):
        self.agrees(pod, kinds)

    @invariant()
    def the_plain_pod_is_answered_right_all_the_time(self):
        self.agrees(PODS[0])

    def agrees(self, pod, kinds=None):
        expected = {
            name: Tally.of_node(reason)
            for name, node in self.nodes.items()
            if (reason := barred_by(pod, node, kinds=kinds)) is not None
        }
        assert self.barred.to(pod, kinds=kinds) == expected


BarredMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestBarred = BarredMachine.TestCase


def test_a_class_that_was_forgotten_is_learned_anew(monkeypatch):
    monkeypatch.setattr(barred, "_CLASSES_KEPT", 1)
    known = Barred({"node-1": a_node("node-1")})
    for _ in range(2):
        assert known.to(PODS[0]) == {}
        assert list(known.to(PODS[1])) == ["node-1"]


def test_only_what_changed_is_looked_at_again():
    looked: list[str] = []

    class Nodes(dict[str, Node]):
        def get(self, name, default=None):
            looked.append(name)
            return super().get(name, default)

    known = Barred(Nodes({name: a_node(name) for name in ("node-1", "node-2")}))
    known.to(PODS[0])
    known.changed("node-2")
    looked.clear()
    for _ in range(3):
        known.to(PODS[0])
    assert looked == ["node-2"]
