"""Rules that hold for every decision, for any fleet and any request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_geometry, a_request, an_ask, bits, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_operator.demand import Demand, RequestDemand
from vgpu_operator.placement import DeviceFacts, Fleet, Grant, Plan, Share, best_of, place

MIB = (0, 1000, 8000, 16_000)
CORES = (0, 30, 50, 100)

A100 = a_geometry(
    ("1g.5gb", 4864, 14, 1, range(7)),
    ("2g.10gb", 9856, 28, 2, (0, 2, 4)),
    ("3g.20gb", 19_968, 42, 4, (0, 4)),
    ("7g.40gb", 39_936, 100, 8, (0,)),
)

devices_of_a_node = st.lists(
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(("tesla t4", "a100-40gb")),
            "numa": st.sampled_from((-1, 0, 1)),
            "slots": st.sampled_from((1, 2, 10)),
            "cores": st.sampled_from((50, 100, 200)),
            "memory_mib": st.sampled_from((50, 16_000)),
            "healthy": st.sampled_from((True, True, True, False)),
            "cordoned": st.sampled_from((False, False, False, True)),
        }
    ),
    max_size=5,
)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[DeviceFacts], dict[str, Use]]:
    """Draw devices of up to four nodes and the use of each."""
    devices: list[DeviceFacts] = []
    used: dict[str, Use] = {}
    for number, facts in enumerate(draw(st.lists(devices_of_a_node, max_size=4))):
        for index, fact in enumerate(facts):
            device = device_facts(
                f"GPU-{number}-{index}", node=f"node-{number}", index=index, **fact
            )
            devices.append(device)
            used[device.uuid] = Use(
                min(draw(st.sampled_from(MIB)), device.memory_mib),
                min(draw(st.sampled_from(CORES)), device.cores),
                min(draw(st.sampled_from((0, 0, 1, 2))), device.slots),
            )
    return devices, used


sizes = st.one_of(
    st.fixed_dictionaries({"memory": st.sampled_from(("1Mi", "1000Mi", "8000Mi", "16000Mi"))}),
    st.fixed_dictionaries({"memory_percent": st.sampled_from((1, 50, 100))}),
    st.just({}),
)


@st.composite
def asks(draw: st.DrawFn) -> Demand:
    """Draw up to three requests and any placement."""
    requests = [
        a_request(
            name=f"c{number}",
            phase=draw(st.sampled_from(("App", "App", "Init"))),
            count=draw(st.integers(1, 3)),
            cores=draw(st.sampled_from((None, *CORES))),
            selector={"models": draw(st.sampled_from(([], ["T4"])))},
            **draw(sizes),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    policies = ("Binpack", "Spread", "BestFit", "IdleFirst", "NUMAFirst", "NUMA", "Mutex")
    return an_ask(
        *requests,
        node=draw(st.sampled_from(("Binpack", "Spread", "NUMAFirst"))),
        device=draw(st.lists(st.sampled_from(policies), max_size=2, unique=True)),
        numa=draw(st.sampled_from(("None", "Prefer", "Require"))),
    )


@given(fleets(), asks())
def test_a_plan_leaves_the_columns_as_it_found_them(fleet, ask):
    columns = some_columns(*fleet[0], used=fleet[1])
    before = columns.state(), list(columns.node_slots_used), list(columns.node_memory_used)
    place(columns, ask)
    after = columns.state(), list(columns.node_slots_used), list(columns.node_memory_used)
    assert after == before


@given(st.data(), fleets(), asks())
def test_equal_inputs_give_the_same_plan_in_whatever_order_they_came(data, fleet, ask):
    devices, used = fleet
    shuffled = data.draw(st.permutations(devices))
    plan = place(some_columns(*devices, used=used), ask)
    again = place(some_columns(*shuffled, used=used), ask)
    assert (again.node, again.grants) == (plan.node, plan.grants)
    assert dict(again.refusals) == dict(plan.refusals)


@given(fleets(), asks())
def test_a_grant_keeps_every_device_within_its_capacity(fleet, ask):
    """The use before plus the claim's effective use is within slots, cores and memory."""
    devices, used = fleet
    plan = place(some_columns(*devices, used=used), ask)
    if plan.refused:
        return
    by_uuid = {device.uuid: device for device in devices}
    check_shape(plan, ask, by_uuid)
    for uuid in {grant.uuid for grant in plan.grants}:
        device = by_uuid[uuid]
        total = used[uuid] + effective(plan, uuid, ask)
        assert total.memory_mib <= device.memory_mib
        assert total.cores <= device.cores
        assert total.slots <= device.slots
        assert device.healthy
        assert not device.cordoned


def check_shape(plan: Plan, ask: Demand, by_uuid: dict[str, DeviceFacts]) -> None:
    """Check that each request has its count of distinct devices, all on the plan's node."""
    for request in ask.requests:
        uuids = [grant.uuid for grant in plan.grants if grant.request == request.name]
        assert len(uuids) == len(set(uuids)) == request.count
        if ask.numa == "Require":
            assert len({by_uuid[uuid].numa for uuid in uuids}) == 1
    assert {by_uuid[grant.uuid].node for grant in plan.grants} == {plan.node}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("4Gi", "9Gi", "15Gi", "30Gi")),
            st.integers(1, 3),
            st.integers(0, 5),
        ),
        max_size=12,
    )
)
def test_no_instance_lies_on_another_and_all_have_a_place_that_their_profile_has(comings):
    """This holds after any sequence of allocations and releases."""
    devices = [
        device_facts(f"GPU-{n}", index=n, mode="MIG", memory_mib=40_960, profiles=A100)
        for n in (0, 1)
    ]
    columns = some_columns(*devices)
    held: list[Grant] = []
    for memory, count, gone in comings:
        del held[:gone]
        for device in devices:
            mine = [grant for grant in held if grant.uuid == device.uuid]
            columns.set_used(
                columns.number_of(device.name),
                slots=len(mine),
                cores=sum(grant.cores for grant in mine),
                memory=sum(grant.memory_mib for grant in mine),
                slices=bits(at for grant in mine for at in lying_on(grant)),
            )
        held += place(columns, an_ask(a_request(memory=memory, count=count))).grants
        for device in devices:
            mine = [grant for grant in held if grant.uuid == device.uuid]
            slices = [at for grant in mine for at in lying_on(grant)]
            assert len(slices) == len(set(slices))
            assert sum(grant.memory_mib for grant in mine) <= device.memory_mib
            assert sum(grant.cores for grant in mine) <= device.cores
            assert len(mine) <= device.slots
    for cut in (grant.instance for grant in held):
        assert cut is not None
        profile = next(p for p in A100 if p.name == cut.profile)
        assert (cut.start, cut.size) in profile.places


def lying_on(grant: Grant) -> range:
    assert grant.instance is not None
    return range(grant.instance.start, grant.instance.start + grant.instance.size)


def effective(plan: Plan, uuid: str, ask: Demand) -> Use:
    """Return the largest use that the claim makes of a device at any moment."""
    grants = {grant.request: grant for grant in plan.grants if grant.uuid == uuid}
    moments = [[]]
    for turn, request in enumerate(ask.requests):
        before = [r.name for r in ask.requests[:turn] if r.phase == "App"]
        moments.append([grants[name] for name in (*before, request.name) if name in grants])
    return Use(
        max(sum(g.memory_mib for g in moment) for moment in moments),
        max(sum(g.cores for g in moment) for moment in moments),
        max(len(moment) for moment in moments),
    )


class KeptShares:
    """Fixed shares that are kept from every claim."""

    def __init__(self, columns: Fleet, uses: Mapping[str, Use]) -> None:
        numbers = {uuid: number for number, uuid in enumerate(columns.uuid)}
        self._on: dict[int, list[Share]] = {}
        for uuid, use in uses.items():
            share = Share(numbers[uuid], use.slots, use.cores, use.memory_mib)
            self._on.setdefault(columns.node_of[share.device], []).append(share)

    @property
    def nodes(self) -> Collection[int]:
        return self._on

    def on(self, node: int) -> Sequence[Share]:
        return self._on.get(node, ())


@given(st.data(), fleets(), asks())
def test_what_is_kept_from_a_claim_counts_on_each_node_as_if_it_were_in_use(data, fleet, ask):
    devices, used = fleet
    uses = st.builds(
        Use, st.sampled_from((0, 1000, 8000)), st.sampled_from((0, 30)), st.sampled_from((0, 1))
    )
    kept = {uuid: use for uuid in used if (use := data.draw(st.none() | uses)) is not None}
    columns = some_columns(*devices, used=used)
    sums = {uuid: use + kept.get(uuid, Use()) for uuid, use in used.items()}
    later = some_columns(*devices, used=sums)
    for number, name in enumerate(columns.node_name):
        beside = best_of(columns, ask, [number], kept=KeptShares(columns, kept))
        in_use = best_of(later, ask, [number])
        assert (beside and (name, beside.grants)) == (in_use and (name, in_use.grants))


@pytest.mark.parametrize(("memory", "is_served"), [("8000Mi", True), ("8001Mi", False)])
def test_a_request_may_fill_what_is_left_beside_what_is_kept(memory, is_served):
    columns = some_columns(device_facts("GPU-0", memory_mib=16_000))
    kept = KeptShares(columns, {"GPU-0": Use(8000, 30, 1)})
    plan = best_of(columns, an_ask(a_request(memory=memory, cores=30)), [0], kept=kept)
    assert (plan is not None) == is_served


@given(fleets(), asks())
def test_every_refusal_has_a_reason_for_every_node(fleet, ask):
    devices, used = fleet
    plan = place(some_columns(*devices, used=used), ask)
    assert plan.node not in plan.refusals
    assert all(bool(tally) and str(tally) for tally in plan.refusals.values())
    if plan.refused:
        assert set(plan.refusals) == {device.node for device in devices}
        assert plan.text
        assert plan.reason


@given(fleets(), asks())
def test_one_request_is_refused_only_where_too_few_devices_could_take_it(fleet, ask):
    """A claim of one request without NUMA or Mutex is placed iff some node has enough devices."""
    devices, used = fleet
    if len(ask.requests) > 1 or ask.numa == "Require" or "Mutex" in ask.device_policies:
        return
    plan = place(some_columns(*devices, used=used), ask)
    assert plan.refused == (not somewhere(devices, used, ask.requests[0]))


def somewhere(devices: Sequence[DeviceFacts], used: dict[str, Use], request: RequestDemand) -> bool:
    able = Counter(device.node for device in devices if takes(device, used[device.uuid], request))
    return any(count >= request.count for count in able.values())


def takes(device: DeviceFacts, use: Use, request: RequestDemand) -> bool:
    memory = request.memory_mib
    if memory is None:
        memory = device.memory_mib * (request.memory_percent or 0) // 100
    shares = request.cores < 100 or not use.slots
    reserved = request.cores == 0 and use.cores >= device.cores
    return (
        device.healthy
        and not device.cordoned
        and all(model in device.model for model in request.models[:1])
        and use.slots + 1 <= device.slots
        and 1 <= memory <= device.memory_mib - use.memory_mib
        and use.cores + request.cores <= device.cores
        and shares
        and not reserved
    )
