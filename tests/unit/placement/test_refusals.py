"""The reasons of nodes are the same if they are judged one by one or as a whole fleet."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_geometry, a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_api.reasons import Reason, Tally
from vgpu_operator.demand import Demand
from vgpu_operator.placement import Budget, Columns, NodeFilter, place, refusals_on
from vgpu_operator.placement.device_conditions import NodeState
from vgpu_operator.placement.refusal_counts import row_numbers

SMALL = a_request(memory="1Gi")


def some_nodes() -> Columns:
    """Return nodes with a device each: `free`, `full`, `late` (not ready) and `shut`."""
    return some_columns(
        *(device_facts(f"GPU-{node}", node=node) for node in ("free", "full", "late", "shut")),
        used={"GPU-full": Use(memory_mib=16_000, slots=1)},
        states={
            "late": NodeState(ready=False),
            "shut": NodeState(ready=True, schedulable=False),
        },
    )


def in_words(refusals: dict[str, Tally]) -> dict[str, str]:
    return {node: str(tally) for node, tally in refusals.items()}


def test_each_candidate_that_does_not_serve_says_why_and_no_other_node_is_named():
    columns = some_nodes()
    assert in_words(refusals_on(columns, an_ask(SMALL), ["free", "full", "gone"])) == {
        "full": "1/1 CardInsufficientMemory",
        "gone": str(Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE)),
    }
    assert in_words(refusals_on(columns, an_ask(SMALL), ["shut", "late"])) == {
        "late": str(Tally.of_node(Reason.NODE_NOT_READY)),
        "shut": str(Tally.of_node(Reason.NODE_UNSCHEDULABLE)),
    }


def test_what_the_caller_rules_out_has_the_callers_reason():
    columns = some_nodes()
    nodes = NodeFilter(taints=~(1 << columns.node_id("full") | 1 << columns.node_id("late")))
    told = refusals_on(columns, an_ask(SMALL), ["free", "full"], nodes=nodes)
    assert told == {"full": Tally.of_node(Reason.NODE_TAINTED)}


@pytest.mark.parametrize(("mib", "told"), [(1024, {}), (1023, {"free": "1/1 ResourceQuotaNotFit"})])
def test_a_candidate_that_only_the_quota_rules_out_says_so(mib, told):
    refusals = refusals_on(some_nodes(), an_ask(SMALL), ["free"], budget=Budget(mib))
    assert in_words(refusals) == told


def test_a_claim_that_must_stay_in_one_numa_node_is_told_of_numa():
    columns = some_columns(device_facts("x"), device_facts("y", index=1, numa=1))
    demand = an_ask(a_request(memory="1Gi", count=2), numa="Require")
    (told,) = in_words(refusals_on(columns, demand, ["node-1"])).values()
    assert "NumaNotFit" in told
    assert not refusals_on(columns, an_ask(a_request(memory="1Gi", count=2)), ["node-1"])


USES = (Use(), Use(1, 0, 1), Use(16_000, 0, 1), Use(0, 100, 1), Use(0, 0, 10))
KINDS = ({}, {"vendor": "ascend"}, {"healthy": False}, {"numa": 1},
         {"mode": "MIG", "profiles": a_geometry(("1g.1gb", 512, 14, 1, range(7)))})  # fmt: skip


def a_mixed_fleet() -> Columns:
    """Return nodes with every pair of uses and kinds; every other node has its own Mutex."""
    pairs = list(product(product(USES, KINDS), repeat=2))
    devices, used, states = [], {}, {}
    for number, pair in enumerate(pairs):
        node = f"node-{number:03}"
        for index, (use, kind) in enumerate(pair):
            uuid = f"{node}-{index}"
            devices.append(device_facts(uuid, node=node, index=index, **kind))
            used[uuid] = use
        own = ("Mutex",) if number % 2 else ("Spread",)
        states[node] = NodeState(ready=True, device_policies=own)
    return some_columns(*devices, used=used, states=states)


FLEET = a_mixed_fleet()


@pytest.mark.parametrize(
    "demand",
    [
        an_ask(a_request(memory="16Gi", count=2, cores=1), device=["Mutex"]),
        an_ask(a_request(memory="2Gi", count=3)),
        an_ask(a_request(memory="16Gi", count=2, cores=100), numa="Require"),
        an_ask(a_request(memory="1Gi", selector={"uuids": ["node-000-0", "node-001-1"]})),
        an_ask(a_request(memory="1Gi", count=2, selector={"exclude_uuids": ["node-001-1"]})),
        an_ask(a_request(memory="1Gi", count=2)),
        an_ask(a_request(name="a", memory="2Gi"), a_request(name="b", memory="15Gi", count=2)),
    ],
    ids=range(7),
)
def test_a_fleet_told_of_at_once_hears_what_each_node_alone_would_say(demand: Demand):
    """A reason found for one device is reused for all equal devices."""
    names = [FLEET.node_name[node] for node in FLEET.nodes_with_devices()]
    alone = refusals_on(FLEET, demand, names)
    assert len(alone) > 500
    assert place(FLEET, demand, alone).refusals == alone
    assert place(FLEET, demand, alone).refusals == alone  # from the cache


TIGHT = (Budget(0), Budget(1023), Budget(cores=5), Budget(devices=0), Budget(-1), Budget(20_000))


@pytest.mark.parametrize("budget", TIGHT, ids=range(len(TIGHT)))
@pytest.mark.parametrize(
    "demand",
    [
        an_ask(a_request(memory="1Gi", cores=10)),
        an_ask(a_request(memory="1Gi", cores=10, count=2)),
        an_ask(a_request()),
        an_ask(a_request(memory="1Gi", mode="Exclusive")),
        an_ask(a_request(memory="1Gi", count=2), device=["Mutex"]),
    ],
    ids=range(5),
)
def test_a_fleet_refused_by_quota_hears_what_each_node_alone_would_say(
    demand: Demand, budget: Budget
):
    names = [FLEET.node_name[node] for node in FLEET.nodes_with_devices()]
    alone = refusals_on(FLEET, demand, names, budget=budget)
    plan = place(FLEET, demand, names, budget=budget)
    assert plan.refused == (len(alone) == len(names))
    assert plan.node not in alone
    assert plan.refusals == (alone if plan.refused else {})


def calls_of(columns: Columns, demand: Demand, budget: Budget) -> int:
    """Return the number of Python functions that a refusal with its reasons calls."""
    names = [columns.node_name[node] for node in columns.nodes_with_devices()]
    place(columns, demand, names, budget=budget).text  # noqa: B018 what is remembered is not counted
    called = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal called
        called += event == "call"

    sys.setprofile(count)
    try:
        plan = place(columns, demand, names, budget=budget)
        groups = plan.groups
    finally:
        sys.setprofile(None)
    assert plan.refused
    assert groups
    return called


@pytest.mark.parametrize(
    ("demand", "budget"),
    [
        (an_ask(a_request(memory="1Gi")), Budget(0)),
        (an_ask(a_request()), Budget(100)),
        (an_ask(a_request(memory="1Gi")), Budget(devices=0)),
        (an_ask(a_request(memory="1Gi", cores=10)), Budget(cores=5)),
        (
            an_ask(a_request(name="a", memory="1Gi"), a_request(name="b", memory="1Gi")),
            Budget(1500),
        ),
    ],
    ids=("memory", "whole", "devices", "cores", "two containers"),
)
def test_a_refusal_by_quota_looks_at_no_node_on_its_own(demand: Demand, budget: Budget):
    """An exhausted quota would otherwise block the loop for a time proportional to the nodes."""
    few, many = (
        some_columns(*(device_facts(f"GPU-{n}", node=f"node-{n:03}") for n in range(nodes)))
        for nodes in (20, 200)
    )
    assert calls_of(many, demand, budget) - calls_of(few, demand, budget) < 180


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 2, 90, 1 << 40]), min_size=4, max_size=4), min_size=1)
)
def test_rows_of_counts_have_the_same_number_if_and_only_if_they_are_equal(rows):
    """This also holds for large counts, which as digits of one number would exceed 64 bits."""
    numbers = row_numbers(np.array(rows, dtype=np.int64)).tolist()
    for one, number in zip(rows, numbers, strict=True):
        assert [other == one for other in rows] == [other == number for other in numbers]
