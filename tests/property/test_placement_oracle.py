"""Placement gives the same answers as the plain full scan, after any history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plain_placement as plain
from builders import a_geometry, a_request, an_ask, bits, device_facts, give_mix, some_columns
from vgpu_api.effective import Use
from vgpu_operator.demand import Demand
from vgpu_operator.placement import (
    Budget,
    DeviceFacts,
    Fleet,
    Plan,
    best_node,
    device_conditions,
    fit_node,
    place,
    ranking_cache,
)
from vgpu_operator.placement.columns import CPU_UNKNOWN, NodeState
from vgpu_operator.placement.mig_geometry import Instance

SEARCHING = mock.patch.object(fit_node, "_search", fit_node._search)


pytestmark = pytest.mark.usefixtures("in_turn")
POLICIES = (
    *("Binpack", "Spread", "BestFit", "IdleFirst", "NUMAFirst", "NUMA", "Mutex", "Topology"),
    "Fragmentation",
)
NODES = ("node-0", "node-1", "node-2", "node-3")
REASONS = {"NodeNotReady": {"ready": False}, "NodeUnschedulable": {"schedulable": False}}

# The profiles of an A30 (four slices), and some profiles of an A100 (eight).
GEOMETRIES = (
    (),
    a_geometry(("1g.6gb", 5952, 25, 1, (0, 1, 2, 3)), ("2g.12gb", 12_032, 50, 2, (0, 2))),
    a_geometry(
        ("1g.5gb", 4864, 14, 1, range(7)),
        ("2g.10gb", 9856, 28, 2, (0, 2, 4)),
        ("3g.20gb", 19_968, 42, 4, (0, 4)),
        ("7g.40gb", 39_936, 100, 8, (0,)),
    ),
)

facts = st.fixed_dictionaries(
    {
        "model": st.sampled_from(("tesla t4", "a100-40gb")),
        "product": st.sampled_from(("T4", "A100")),
        "vendor": st.sampled_from(("nvidia", "nvidia", "nvidia", "other")),
        "mode": st.sampled_from(("Shared", "Shared", "MIG", "MIG", "Exclusive")),
        "profiles": st.sampled_from(GEOMETRIES),
        "slots": st.sampled_from((1, 2, 10)),
        "cores": st.sampled_from((0, 50, 100, 200)),
        "memory_mib": st.sampled_from((50, 16_000, 40_000)),
        "healthy": st.sampled_from((True, True, True, False)),
        "duplicate": st.sampled_from((False, False, False, False, True)),
        "cordoned": st.sampled_from((False, False, False, True)),
    }
)
uses = st.builds(
    plain.Used,
    slots=st.sampled_from((0, 0, 1, 2)),
    cores=st.sampled_from((0, 30, 50, 100)),
    memory=st.sampled_from((0, 1000, 8000, 16_000)),
    slices=st.sampled_from(((), (), (0,), (2, 3), (4, 5, 6, 7))).map(frozenset),
)
MEMORY = ("1Mi", "1000Mi", "4864Mi", "8000Mi", "16000Mi")
sizes = st.one_of(
    st.fixed_dictionaries(
        {"memory": st.sampled_from(("1Mi", "1000Mi", "4864Mi", "8000Mi", "16000Mi"))}
    ),
    st.fixed_dictionaries({"memory_percent": st.sampled_from((1, 50, 100))}),
    st.just({}),
)


KINDS = [
    {"exclude_model_names": ["A100"], "min_memory": "16000Mi"},
    {"model_names": ["A100"], "max_memory": "16000Mi"},
]


@st.composite
def links(draw: st.DrawFn, uuids: list[str]) -> dict[str, dict[str, int]]:
    """Draw the links that devices report to each other; two reports may disagree."""
    said: dict[str, dict[str, int]] = {uuid: {} for uuid in uuids}
    for at, one in enumerate(uuids):
        for other in uuids[at + 1 :]:
            score = draw(st.sampled_from((None, 10, 20, 100, 250)))
            if score is not None:
                said[one][other] = score
                said[other][one] = draw(st.sampled_from((score, score, score, 0)))
    return said


@st.composite
def devices_of(draw: st.DrawFn, node: str, most: int = 5) -> list[DeviceFacts]:
    """Draw devices of few kinds, as on a real node, because only equal devices make ties."""
    kinds = draw(st.lists(facts, min_size=1, max_size=2))
    numas = draw(st.lists(st.sampled_from((-1, 0, 0, 1)), max_size=most))
    found = [{**draw(st.sampled_from(kinds)), "numa": numa} for numa in numas]
    uuids = [f"GPU-{node}-{index}" for index in range(len(found))]
    said = draw(links(uuids))
    return [
        device_facts(uuid, node=node, index=index, links=said[uuid], **found[index])
        for index, uuid in enumerate(uuids)
    ]


@st.composite
def amounts(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the amount of a request: memory and cores, or a MIG profile."""
    mode = draw(st.sampled_from(("Any", "Any", "Any", "Shared", "MIG")))
    named = (None, "any", "1g.5gb", "2g.10gb")
    profile = draw(st.sampled_from(named)) if mode == "MIG" else None
    if profile is not None:
        return {"mode": mode, "mig_profile": profile}
    cores = draw(st.sampled_from((None, 0, 30, 50, 100)))
    return {"mode": mode, "cores": cores, **draw(sizes)}


@st.composite
def asks(draw: st.DrawFn) -> Demand:
    """Draw up to three requests and any placement."""
    requests = [
        a_request(
            name=f"c{number}",
            phase=draw(st.sampled_from(("App", "App", "Init"))),
            count=draw(st.sampled_from((1, 1, 2, 3))),
            selector={
                "models": draw(st.sampled_from(([], [], ["T4"]))),
                "exclude_models": draw(st.sampled_from(([], [], ["A100"]))),
                "exclude_uuids": draw(st.sampled_from(([], [], ["GPU-node-0-0"]))),
                "kinds": draw(st.sampled_from(([], [], [], KINDS[:1], KINDS))),
            },
            **draw(amounts()),
        )
        for number in range(draw(st.sampled_from((1, 1, 2, 3))))
    ]
    return an_ask(
        *requests,
        cpu_milli=draw(st.sampled_from((0, 0, 1000, 4000))),
        node=draw(st.sampled_from((None, "Binpack", "Spread", "NUMAFirst", "Fragmentation"))),
        device=draw(st.lists(st.sampled_from(POLICIES), max_size=3, unique=True)),
        numa=draw(st.sampled_from(("None", "None", "Prefer", "Require"))),
        weights=draw(st.sampled_from((None, {"slots": 0, "cores": 1, "memory": 3}))),
    )


free_cpu = st.sampled_from((-500, 0, 999, 1000, 3999, 4000, 5000, 64_000))


@st.composite
def fleets(draw: st.DrawFn, most: int = 5) -> plain.Fleet:
    devices = [device for node in NODES for device in draw(devices_of(node, most))]
    used = {device.uuid: replace(draw(uses)) for device in devices}
    return plain.Fleet.of(
        devices,
        used,
        policies=draw(
            st.dictionaries(st.sampled_from(NODES), st.tuples(st.sampled_from(POLICIES)))
        ),
        places=draw(
            st.dictionaries(
                st.sampled_from(NODES), st.sampled_from(("Binpack", "Spread", "NUMAFirst"))
            )
        ),
        unwilling=draw(
            st.dictionaries(st.sampled_from(NODES), st.sampled_from(tuple(REASONS)), max_size=1)
        ),
        mix=[
            (0.5 / count, request)
            for count, ask in enumerate(draw(st.lists(asks(), max_size=3)), start=1)
            for request in ask.requests
        ],
        cpu=draw(st.dictionaries(st.sampled_from(NODES), free_cpu)),
    )


budgets = st.builds(
    plain.Left,
    memory=st.sampled_from((None, None, 0, 1000, 20_000)),
    cores=st.sampled_from((None, None, 0, 60, 150)),
)


def columns_of(fleet: plain.Fleet) -> Fleet:
    devices = [device for devices in fleet.devices.values() for device in devices]
    used = {uuid: Use(use.memory, use.cores, use.slots) for uuid, use in fleet.used.items()}
    states = {node: state_of(fleet, node) for node in NODES}
    slices = {uuid: use.slices for uuid, use in fleet.used.items()}
    columns = some_columns(*devices, used=used, slices=slices)
    for node, state in states.items():
        number = columns.put_node(node, state)
        columns.set_cpu_free(number, fleet.cpu.get(node, CPU_UNKNOWN))
    give_mix(columns.mix, fleet.mix)
    return columns


def state_of(fleet: plain.Fleet, node: str) -> NodeState:
    fields = {"ready": True, **REASONS.get(fleet.unwilling.get(node, ""), {})}
    return NodeState(
        device_policies=fleet.policies.get(node, ("Spread",)),
        node_policy=fleet.places.get(node),
        **fields,
    )


def spelled(instance: Instance | None) -> str:
    return "" if instance is None else f"{instance.profile}@{instance.start}"


def same(plan: Plan, answer: plain.Answer) -> None:
    """Check that plan and answer are equal, including every reason."""
    assert plan.node == answer.node
    grants = tuple(
        (g.request, g.uuid, g.memory_mib, g.cores, spelled(g.instance)) for g in plan.grants
    )
    assert grants == answer.grants
    reasons = {node: str(tally) for node, tally in plan.refusals.items()}
    if plan.refused:
        assert reasons == answer.reasons
    else:
        assert reasons.items() <= answer.reasons.items()


@given(fleets(), asks())
def test_a_decision_is_that_of_the_plain_scan(fleet, ask):
    same(place(columns_of(fleet), ask), plain.decide(fleet, ask))


@given(
    fleets(),
    asks(),
    st.sets(st.sampled_from((*NODES, "nowhere"))),
    st.sampled_from(((0, 256), (0, 1), (16, 256))),
)
def test_candidates_are_chosen_from_as_the_plain_scan_does(fleet, ask, candidates, limits):
    """Candidates are found even if they are few or far down the list."""
    few, far = limits
    with mock.patch.multiple(best_node, _FEW=few, _FAR=far):
        plan = place(columns_of(fleet), ask, sorted(candidates))
    same(plan, plain.decide(fleet, ask, candidates))


@given(fleets(), asks(), budgets)
def test_a_quota_is_kept_as_the_plain_scan_keeps_it(fleet, ask, left):
    plan = place(columns_of(fleet), ask, budget=Budget(left.memory, left.cores))
    same(plan, plain.decide(fleet, ask, left=left))


@st.composite
def histories(draw: st.DrawFn):
    """Draw a fleet and a list of changes to it, with requests between them."""
    steps = st.one_of(
        st.tuples(st.just("use"), st.sampled_from(NODES), st.integers(0, 2), uses),
        st.tuples(st.just("card"), st.sampled_from(NODES), st.integers(0, 2), facts),
        st.tuples(st.just("gone"), st.sampled_from(NODES), st.integers(0, 2), st.none()),
        st.tuples(st.just("node"), st.sampled_from(NODES), st.booleans(), st.none()),
        st.tuples(st.just("cpu"), st.sampled_from(NODES), free_cpu, st.none()),
    )
    classes = draw(st.lists(asks(), min_size=1, max_size=2))
    return draw(fleets(3)), classes, draw(st.lists(steps, max_size=8))


@given(histories(), st.sampled_from((4, 1 << 18)), st.sampled_from(((1, 0), (2, 3), (512, 4096))))
def test_what_was_remembered_never_changes_an_answer(history, conditions_kept, heap):
    """After any history the live columns give the answers of new columns and of the plain scan."""
    best, long = heap
    fleet, classes, steps = history
    live = columns_of(fleet)
    with (
        mock.patch.multiple(best_node, _FEW=0, _FAR=1),
        mock.patch.object(device_conditions, "_CONDITIONS_KEPT", conditions_kept),
        mock.patch.object(best_node, "BEST", best),
        mock.patch.multiple(ranking_cache, BEST=best, _LONG=long),
    ):
        for step in (None, *steps):
            if step is not None:
                fleet = changed(fleet, live, step)
            for ask in classes:
                same(place(live, ask), plain.decide(fleet, ask))
                same(place(live, ask, NODES[:2]), plain.decide(fleet, ask, NODES[:2]))


@given(histories())
def test_what_was_remembered_never_changes_an_answer_of_the_search(history):
    fleet, classes, steps = history
    live = columns_of(fleet)
    with SEARCHING, mock.patch.multiple(best_node, _FEW=0, _FAR=1):
        for step in (None, *steps):
            if step is not None:
                fleet = changed(fleet, live, step)
            for ask in classes:
                assert place(live, ask) == place(columns_of(fleet), ask)


def changed(fleet: plain.Fleet, live: Fleet, step) -> plain.Fleet:
    """Apply one change to the columns and to the fleet."""
    kind, node, at, value = step
    devices = {device.uuid: device for devices in fleet.devices.values() for device in devices}
    used, unwilling, cpu = dict(fleet.used), dict(fleet.unwilling), dict(fleet.cpu)
    uuid = f"GPU-{node}-{at}"
    if kind == "node":
        if at:
            unwilling.pop(node, None)
        else:
            unwilling[node] = "NodeNotReady"
    elif kind == "cpu":
        cpu[node] = at
        number = live.node_id(node)
        assert number is not None
        live.set_cpu_free(number, at)
    elif kind == "card":
        devices[uuid] = device_facts(uuid, node=node, index=at, **value)
        used.setdefault(uuid, plain.Used())
    elif uuid not in devices:
        return fleet
    elif kind == "gone":
        device = devices.pop(uuid)
        live.remove_device(device.name)
    else:
        used[uuid] = value
        number = live.number_of(devices[uuid].name)
        live.set_used(
            number,
            slots=value.slots,
            cores=value.cores,
            memory=value.memory,
            slices=bits(value.slices),
        )
    after = plain.Fleet.of(
        devices.values(),
        used,
        policies=fleet.policies,
        places=fleet.places,
        unwilling=unwilling,
        mix=fleet.mix,
        cpu=cpu,
    )
    if kind == "card":
        live.put_device(devices[uuid])
    if kind in ("card", "node"):
        live.put_node(node, state_of(after, node))
    return after
