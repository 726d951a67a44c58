"""Pods wait in order by class, and each class keeps its cached refusals."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from builders import a_request, an_ask
from vgpu_operator.engine.gpu_pod import Standing, rank_of
from vgpu_operator.engine.scheduling.queue import EquivalenceClass, Waiter, WaitQueue
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.node_filter import NodeRules

KINDS = [
    EquivalenceClass(an_ask(a_request(memory=f"{gib}Gi")), NodeRules(), namespace)
    for gib in (1, 2)
    for namespace in ("n1", "n2")
]


def a_waiter(name: str, kind: EquivalenceClass = KINDS[0], *, standing: Standing = Standing.WAITS,
             priority: int = 0, second: int = 0, since: float = 0.0) -> Waiter:  # fmt: skip
    key = ClaimKey(kind.namespace, name)
    created = f"2026-01-01T00:00:{second:02}Z"
    return Waiter(key, f"uid-of-{name}", kind, rank_of(standing, priority, created, key), since)


def names_in_turn(queue: WaitQueue, kind: EquivalenceClass) -> list[str]:
    names = []
    while (of_kind := queue.class_of(kind)) is not None:
        head = of_kind.head()
        assert head is not None
        names.append(head.key.name)
        queue.remove(head.key)
    return names


def test_standing_goes_before_priority_and_priority_before_age():
    queue = WaitQueue()
    queue.put(a_waiter("old", second=1))
    queue.put(a_waiter("older", second=0))
    queue.put(a_waiter("important", priority=5, second=3))
    queue.put(a_waiter("bound", standing=Standing.BOUND, second=9))
    queue.put(a_waiter("doubtful", standing=Standing.DOUBTFUL, priority=9))
    assert names_in_turn(queue, KINDS[0]) == ["bound", "important", "older", "old", "doubtful"]


def test_classes_are_looked_at_in_the_turn_of_their_first():
    queue = WaitQueue()
    queue.put(a_waiter("a", KINDS[0], second=1))
    queue.put(a_waiter("b", KINDS[1], second=2))
    queue.put(a_waiter("c", KINDS[1], priority=1))
    assert [each.kind for _, each in queue.by_rank()] == [KINDS[1], KINDS[0]]


def test_who_waits_again_keeps_its_time_and_who_asks_for_something_else_too():
    queue = WaitQueue()
    queue.put(a_waiter("a", KINDS[0], since=1.0))
    assert queue.put(a_waiter("a", KINDS[0], since=9.0)).since == 1.0
    assert queue.put(a_waiter("a", KINDS[2]._replace(namespace="n1"), since=9.0)).since == 1.0
    assert len(queue) == 1


def test_behind_one_that_waits_for_long_others_come_and_go_and_nothing_is_kept():
    queue = WaitQueue()
    queue.put(a_waiter("stays"))
    of_kind = queue.class_of(KINDS[0])
    assert of_kind is not None
    for number in range(10_000):
        queue.put(a_waiter(f"goes-{number}", second=1))
        queue.remove(ClaimKey("n1", f"goes-{number}"))
        assert len(of_kind.heap) <= 100
    queue.put(a_waiter("next", second=2))
    assert names_in_turn(queue, KINDS[0]) == ["stays", "next"]


def test_after_each_miss_twice_as_many_are_requeued_up_to_a_bound():
    queue = WaitQueue()
    queue.put(a_waiter("a"))
    of_kind = queue.class_of(KINDS[0])
    assert of_kind is not None
    seen = []
    for _ in range(8):
        seen.append(of_kind.at_once(3))
        of_kind.missed(3)
    assert seen == [1, 2, 4, 8, 16, 32, 64, 64]
    assert of_kind.at_once(4) == 1
    of_kind.hit(3)
    assert of_kind.at_once(3) == 1


names = st.sampled_from("abcdef")


class QueueMachine(RuleBasedStateMachine):
    """A comparison with a list that is sorted each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitQueue()
        self.waiting: dict[ClaimKey, Waiter] = {}

    @rule(
        name=names,
        kind=st.sampled_from(KINDS),
        standing=st.sampled_from(Standing),
        priority=st.integers(-1, 2),
        second=st.integers(0, 3),
    )
    def waits(self, name, kind, standing, priority, second):
        waiter = a_waiter(name, kind, standing=standing, priority=priority, second=second)
        self.waiting[waiter.key] = self.queue.put(waiter)

    @rule(name=names, namespace=st.sampled_from(("n1", "n2")))
    def waits_no_more(self, name, namespace):
        key = ClaimKey(namespace, name)
        assert self.queue.remove(key) is self.waiting.pop(key, None)

    @rule()
    def is_passed_over(self):
        """Let a pass take the head out and put it back."""
        for _, of_kind in self.queue.by_rank():
            of_kind.push(of_kind.pop())

    @invariant()
    def agrees(self):
        assert {waiter.key for waiter in self.queue} == set(self.waiting)
        assert len(self.queue) == len(self.waiting)
        for kind in KINDS:
            of_kind = self.queue.class_of(kind)
            expected = sorted(
                (each for each in self.waiting.values() if each.kind == kind),
                key=lambda waiter: waiter.rank,
            )
            if not expected:
                assert of_kind is None
                continue
            assert of_kind is not None
            assert of_kind.head() is expected[0]
            assert len(of_kind) == len(expected)


QueueMachine.TestCase.settings = settings(stateful_step_count=30)
TestQueueMachine = QueueMachine.TestCase
