"""The ledger against an API server whose events come late, twice and out of order.

A small model of the server keeps the truth: objects with versions, and writes that succeed only on
the version they were based on and whose answers may be lost. The ledger sees delivered events only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from builders import a_claim, a_device, a_node, a_request, allocation_id, an_ask, use_of
from oracle import needed_by
from vgpu_api.config import ClusterConfig
from vgpu_api.effective import Use
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_operator.ledger import Assumption, Ledger
from vgpu_operator.placement import place

NODES = {"node-1": ("GPU-0", "GPU-1"), "node-2": ("GPU-2",)}
UUIDS = tuple(uuid for uuids in NODES.values() for uuid in uuids)
CAPACITY = Use(memory_mib=4096, cores=100, slots=3)
NAMES = ("a", "b", "c", "d")
NAMESPACE = "default"

requests = st.lists(
    st.tuples(
        st.sampled_from(("App", "App", "Init")),
        st.sampled_from((1, 1, 2)),
        st.sampled_from(("1Gi", "2Gi", "4Gi")),
        st.sampled_from((0, 50, 100)),
    ),
    min_size=1,
    max_size=2,
)
SHAPES = [
    an_ask(a_request(memory="1Gi")),
    an_ask(a_request(memory="2Gi", cores=50, count=2)),
    an_ask(a_request(memory="4Gi", cores=100)),
    an_ask(a_request(memory="1Gi"), device=["Mutex"]),
]
Wanted: TypeAlias = list[tuple[str, int, str, int]]


@dataclass
class Write:
    """A status write in progress, which succeeds only if the object still has version `base`.

    `replaces` is the allocation at the time of the decision.
    """

    assumption: Assumption
    name: str
    uid: str
    base: int
    allocation: Allocation
    replaces: Allocation | None
    landed: bool = False
    answer: VGPUClaim | None = None


class LedgerMachine(RuleBasedStateMachine):
    """Invariants: no device over capacity, in truth or in the ledger; the ledger never below the
    truth; the columns equal to what a plain recomputation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(config=ClusterConfig())
        self.server: dict[str, VGPUClaim] = {}
        self.version = 1
        self.made = 0
        self.events: list[tuple[str, VGPUClaim]] = []
        self.delivered = 0
        self.writes: list[Write] = []
        # The model: the newest delivered versions, deleted objects, assumed allocations.
        self.told: dict[str, VGPUClaim] = {}
        self.gone: set[str] = set()
        self.assumed: dict[int, tuple[str, VGPUClaim]] = {}
        # For each shape and node without room for it: the last release of devices that it saw.
        self.no_room: dict[tuple[int, str], int] = {}

    @initialize(wanted=st.tuples(*(requests for _ in NAMES)))
    def a_cluster_with_claims(self, wanted) -> None:
        for node, uuids in NODES.items():
            self.ledger.apply_node(a_node(node))
            for uuid in uuids:
                self._show(uuid)
        for name, asked in zip(NAMES, wanted, strict=True):
            self._create(name, asked)
        self.the_watch_delivers(len(NAMES))

    def _show(self, uuid: str, **fields: bool) -> None:
        self.version += 1
        node = next(node for node, uuids in NODES.items() if uuid in uuids)
        self.ledger.apply_device(
            a_device(
                uuid=uuid,
                node=node,
                index=int(uuid[-1]),
                memory_mib=CAPACITY.memory_mib,
                cores=CAPACITY.cores,
                slots=CAPACITY.slots,
                resource_version=self.version,
                **fields,
            )
        )

    # Actions of the server.

    def _put(self, claim: VGPUClaim) -> VGPUClaim:
        self.version += 1
        metadata = claim.metadata.model_copy(update={"resource_version": str(self.version)})
        claim = claim.model_copy(update={"metadata": metadata})
        self.server[claim.metadata.name] = claim
        self.events.append(("MODIFIED", claim))
        return claim

    def _create(self, name: str, wanted: Wanted) -> None:
        self.made += 1
        asked = [
            a_request(name=f"c{number}", phase=phase, count=count, memory=memory, cores=cores)
            for number, (phase, count, memory, cores) in enumerate(wanted)
        ]
        self._put(a_claim(name, namespace=NAMESPACE, uid=f"uid-{self.made}", requests=asked))

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(("touch", "release", "release")))
    def a_claim_changes(self, name, how) -> None:
        claim = self.server[name]
        self._put(with_allocation(claim, None) if how == "release" else claim)

    @rule(name=st.sampled_from(NAMES), wanted=requests)
    def a_claim_is_deleted_and_made_anew(self, name, wanted) -> None:
        self.version += 1
        self.events.append(("DELETED", self.server.pop(name)))
        self._create(name, wanted)

    # Events of the watch.

    @rule(count=st.integers(1, 4))
    def the_watch_delivers(self, count) -> None:
        for _ in range(min(count, len(self.events) - self.delivered)):
            self._deliver(self.delivered)
            self.delivered += 1

    @rule(back=st.integers(1, 8))
    def an_old_event_comes_again(self, back) -> None:
        self._deliver(max(0, self.delivered - back))

    def _deliver(self, position: int) -> None:
        kind, claim = self.events[position]
        if kind == "DELETED":
            self.ledger.remove_claim(claim.metadata.uid)
            self.gone.add(claim.metadata.uid)
        else:
            self.ledger.apply_claim(claim)
            self._tell(claim)

    def _tell(self, claim: VGPUClaim) -> None:
        name, known = claim.metadata.name, self.told.get(claim.metadata.name)
        if claim.metadata.uid in self.gone or (known is not None and at(claim) <= at(known)):
            return
        self.told[name] = claim
        if known is not None and known.metadata.uid != claim.metadata.uid:
            self.gone.add(known.metadata.uid)

    # Decisions and their writes.

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
    def claims_are_decided(self, names) -> None:
        for name in names:
            self._decide(name)

    def _decide(self, name: str) -> None:
        claim = self.told[name]
        if claim.metadata.uid in self.gone:
            return
        before = self.ledger.columns.state()
        with self.ledger.without((NAMESPACE, name)):
            plan = place(self.ledger.columns, an_ask(*claim.spec.requests, node="Spread"))
        assert self.ledger.columns.state() == before
        if plan.refused:
            assert plan.text
            return
        self.made += 1
        allocation = plan.allocation().model_copy(update={"id": allocation_id(self.made)})
        assumption = self.ledger.assume((NAMESPACE, name), claim.spec, allocation)
        self.assumed[assumption.number] = (name, with_allocation(claim, allocation))
        self.writes.append(
            Write(
                assumption=assumption,
                name=name,
                uid=claim.metadata.uid,
                base=at(claim),
                allocation=allocation,
                replaces=claim.status.allocation,
            )
        )

    @rule(
        steps=st.lists(
            st.tuples(
                st.integers(0, 3),
                st.sampled_from(("finalizer", "land", "land", "answer", "answer", "lost answer")),
            ),
            min_size=2,
            max_size=6,
        )
    )
    def writes_go_on(self, steps) -> None:
        for number, what in steps:
            ready = [write for write in self.writes if write.landed == what.endswith("answer")]
            if not ready:
                continue
            write = ready[number % len(ready)]
            if what.endswith("answer"):
                self._answer(write, lost=what == "lost answer")
            else:
                self._land(write, finalizer=what == "finalizer")

    def _land(self, write: Write, *, finalizer: bool) -> None:
        """Apply a write, and retry one that is based on an older version if that is allowed."""
        claim = self.server[write.name]
        standing = claim.status.allocation
        if claim.metadata.uid != write.uid or standing not in (None, write.replaces):
            write.landed = True  # and refused
        elif at(claim) != write.base:
            write.base = at(claim)
        elif finalizer:
            write.base = at(self._put(claim))
        else:
            write.landed = True
            write.answer = self._put(with_allocation(claim, write.allocation))

    def _answer(self, write: Write, *, lost: bool) -> None:
        """Deliver the answer of a write; if it was lost, the object is read instead."""
        self.writes.remove(write)
        self.assumed.pop(write.assumption.number, None)
        shown = self.server[write.name] if lost else write.answer
        if shown is None:
            self.ledger.forget(write.assumption)
        else:
            self.ledger.confirm(write.assumption, shown)
            self._tell(shown)

    # Devices come and go.

    @rule(uuid=st.sampled_from(UUIDS), cordoned=st.booleans(), healthy=st.booleans())
    def a_device_changes(self, uuid, cordoned, healthy) -> None:
        self._show(uuid, cordoned=cordoned, healthy=healthy)

    @rule(uuid=st.sampled_from(UUIDS))
    def a_device_vanishes_and_comes_back(self, uuid) -> None:
        self.ledger.remove_device(uuid.lower())
        assert uuid.lower() not in self.ledger.columns.state()
        self._show(uuid)

    # Invariants.

    @invariant()
    def no_device_is_over_capacity_in_truth(self) -> None:
        for uuid, use in total(self.server.values()).items():
            assert within(use), (uuid, use)

    @invariant()
    def the_ledger_never_holds_less_than_the_truth(self) -> None:
        for uuid, use in total(self.server.values()).items():
            assert use_of(self.ledger, uuid).peak(use) == use_of(self.ledger, uuid)

    @invariant()
    def no_device_is_over_capacity_in_the_ledger(self) -> None:
        for uuid in UUIDS:
            assert within(use_of(self.ledger, uuid))

    @invariant()
    def the_columns_equal_a_recomputation(self) -> None:
        expected = dict.fromkeys(UUIDS, Use())
        names = {*self.told, *(name for name, _ in self.assumed.values())}
        for name in names:
            possible = [claim for owner, claim in self.assumed.values() if owner == name]
            told = self.told.get(name)
            if told is not None and told.metadata.uid not in self.gone:
                possible.append(told)
            peak: dict[str, Use] = {}
            for claim in possible:
                for uuid, use in total([claim]).items():
                    peak[uuid] = use.peak(peak.get(uuid, Use()))
            for uuid, use in peak.items():
                expected[uuid] += use
        state = self.ledger.columns.state()
        for uuid, use in expected.items():
            if uuid.lower() in state:
                assert state[uuid.lower()] == (use.slots, use.cores, use.memory_mib)

    @invariant()
    def who_had_no_room_and_has_some_now_is_told_of_the_node(self) -> None:
        _, cursor = self.ledger.cursors
        for number, ask in enumerate(SHAPES):
            for node in NODES:
                refused = place(self.ledger.columns, ask, {node}).refused
                since = self.no_room.pop((number, node), None)
                if refused:
                    self.no_room[number, node] = cursor
                elif since is not None:
                    assert node in self.ledger.freed_since(since)[1]


def with_allocation(claim: VGPUClaim, allocation: Allocation | None) -> VGPUClaim:
    status = claim.status.model_copy(update={"allocation": allocation})
    return claim.model_copy(update={"status": status})


def at(claim: VGPUClaim) -> int:
    return int(claim.metadata.resource_version)


def total(claims) -> dict[str, Use]:
    uses: dict[str, Use] = {}
    for claim in claims:
        for uuid, amounts in needed_by(claim, None).items():
            uses[uuid] = uses.get(uuid, Use()) + Use(*amounts)
    return uses


def within(use: Use) -> bool:
    return use.peak(CAPACITY) == CAPACITY


TestLedgerStates = LedgerMachine.TestCase
TestLedgerStates.settings = settings(stateful_step_count=50)
