"""Requests for parts of devices: the part they select on a node, and the amounts it takes."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_request, an_ask, device_facts, give_mix, some_columns
from vgpu_api.config import ClusterConfig, NvidiaConfig
from vgpu_api.effective import Use
from vgpu_api.reasons import Reason
from vgpu_operator.demand import Demand, PartDemand
from vgpu_operator.placement import DeviceFacts, Fleet, Share, amounts, impossible, place
from vgpu_operator.placement.constraints import EVERY_NODE, Budget
from vgpu_operator.placement.part_requests import on_device, on_node
from vgpu_operator.vendors.parts import Part, named_parts

KIND = "enflame-drs"
SMALL, _ = named_parts({"1g.6gb": "", "3g.20gb": "", "6g.40gb": ""})
LARGE, _ = named_parts({"1g.10gb": "", "2g.20gb": "", "4g.40gb": "", "8g.80gb": ""})
GIB = 1024


def a_gcu(uuid: str, parts: tuple[Part, ...] = SMALL, **fields: Any) -> DeviceFacts:
    memory_mib = max((part.memory_mib for part in parts), default=GIB)
    slots = max((part.size for part in parts), default=1)
    return device_facts(
        uuid, vendor=KIND, model=KIND, parts=parts, memory_mib=memory_mib, slots=slots, **fields
    )


def sized(size: int, **fields: Any) -> Demand:
    return an_ask(a_request(vendor=KIND, part_size=size, **fields))


def with_amounts(memory: int, cores: int = 0) -> Demand:
    return an_ask(a_request(vendor=KIND, part_memory=memory, cores=cores))


def given(columns: Fleet, demand: Demand) -> list[tuple[str, str, int, int]]:
    plan = place(columns, demand)
    assert not plan.refused, plan.text
    return [(grant.uuid, grant.part, grant.memory_mib, grant.cores) for grant in plan.grants]


@pytest.mark.parametrize(
    ("demand", "small", "large"),
    [
        (sized(1), "1g.6gb", "1g.10gb"),
        (sized(3), "3g.20gb", None),
        (sized(4), None, "4g.40gb"),
        (with_amounts(20), "3g.20gb", "2g.20gb"),
        (with_amounts(20_480), "3g.20gb", "2g.20gb"),
        (with_amounts(60), None, "8g.80gb"),
        (with_amounts(100), "1g.6gb", None),  # 100 MiB of 40 GiB, and 100 GiB of 80 GiB
        (with_amounts(1, 34), "3g.20gb", "4g.40gb"),
        (with_amounts(1, 100), "6g.40gb", "8g.80gb"),
        (an_ask(a_request(vendor=KIND, memory="7Gi", cores=0)), "3g.20gb", "1g.10gb"),
        (an_ask(a_request(vendor=KIND)), "6g.40gb", "8g.80gb"),
    ],
)
def test_a_request_is_one_for_a_part_of_the_node(
    demand: Demand, small: str | None, large: str | None
) -> None:
    for parts, name in ((SMALL, small), (LARGE, large)):
        columns = some_columns(a_gcu("GCU-0", parts))
        found = on_node(columns, 0, demand.requests[0])
        if found is None:
            assert name is None
            assert place(columns, demand).text == "1/1 ModeNotFit"
            continue
        (part,) = [part for part in parts if part.name == name]
        assert found.part is not None
        assert found.part.name == name
        assert (found.memory_mib, found.cores) == (part.memory_mib, part.cores)
        assert given(columns, demand) == [("GCU-0", name, part.memory_mib, part.cores)]


def test_other_requests_and_those_for_a_known_part_stay_as_they_are() -> None:
    columns = some_columns(a_gcu("GCU-0"))
    (other,) = an_ask().requests
    assert on_node(columns, 0, other) is other
    (request,) = sized(3).requests
    known = on_node(columns, 0, request)
    assert known is not None
    assert on_node(columns, 0, known) is known
    assert on_device(columns, 0, known) is known


def test_what_was_found_out_of_a_device_holds_for_all_that_are_alike() -> None:
    columns = some_columns(*(a_gcu(f"GCU-{at}", node=f"node-{at}") for at in range(3)))
    (request,) = sized(3).requests
    assert on_node(columns, 0, request) is on_node(columns, 2, request)


def test_parts_of_devices_that_are_registered_no_more_do_not_count() -> None:
    """Their objects stay with the former parts and are not Ready."""
    columns = some_columns(a_gcu("GCU-old", LARGE, healthy=False), a_gcu("GCU-new", SMALL, index=1))
    assert given(columns, sized(3)) == [("GCU-new", "3g.20gb", 20 * GIB, 50)]
    columns = some_columns(a_gcu("GCU-old", LARGE, healthy=False))
    assert place(columns, sized(4)).text == "1/1 CardNotHealth"
    assert place(columns, sized(3)).text == "1/1 ModeNotFit"


def test_a_device_of_others_has_no_part() -> None:
    columns = some_columns(device_facts("GPU-0"))
    assert place(columns, sized(1)).text == "1/1 NodeInsufficientDevice"
    assert on_node(columns, 0, sized(1).requests[0]) is None
    assert on_device(columns, 0, sized(1).requests[0]) is None


def test_parts_fill_a_device_by_memory_and_compute() -> None:
    used = {"GCU-0": Use(memory_mib=26 * GIB, cores=67, slots=2)}
    columns = some_columns(a_gcu("GCU-0"), used=used)
    assert given(columns, sized(1)) == [("GCU-0", "1g.6gb", 6 * GIB, 17)]
    assert place(columns, sized(3)).text == "1/1 CardInsufficientMemory"
    used = {"GCU-0": Use(memory_mib=12 * GIB, cores=51, slots=3)}
    columns = some_columns(a_gcu("GCU-0"), used=used)
    assert place(columns, sized(3)).text == "1/1 CardInsufficientCore"
    used = {"GCU-0": Use(memory_mib=1, cores=6, slots=6)}
    columns = some_columns(a_gcu("GCU-0"), used=used)
    assert place(columns, sized(1)).text == "1/1 CardTimeSlicingExhausted"


def test_containers_of_a_pod_see_each_others_parts_and_the_plan_leaves_none() -> None:
    columns = some_columns(a_gcu("GCU-0"))
    before = columns.state()
    both = an_ask(
        a_request(name="a", vendor=KIND, part_size=3), a_request(name="b", vendor=KIND, part_size=3)
    )
    assert [part for _, part, _, _ in given(columns, both)] == ["3g.20gb", "3g.20gb"]
    three = an_ask(*(a_request(name=name, vendor=KIND, part_size=3) for name in "abc"))
    assert place(columns, three).text == "1/1 CardInsufficientMemory"
    odd = an_ask(
        a_request(name="a", vendor=KIND, part_size=3), a_request(name="b", vendor=KIND, part_size=4)
    )
    assert place(columns, odd).text == "1/1 ModeNotFit"
    assert columns.state() == before


def test_the_first_container_that_does_not_fit_has_the_reason() -> None:
    used = {"GCU-0": Use(memory_mib=40 * GIB, cores=100, slots=1)}
    columns = some_columns(a_gcu("GCU-0"), used=used)
    demand = an_ask(
        a_request(name="a", vendor=KIND, part_size=1), a_request(name="b", vendor=KIND, part_size=4)
    )
    assert place(columns, demand).text == "1/1 CardInsufficientMemory"


def a_fleet(nodes: int = 40) -> Fleet:
    """Return nodes of two devices, allocated in small and large parts in turn."""
    return some_columns(
        *(
            a_gcu(f"GCU-{node}-{at}", (SMALL, LARGE)[node % 2], node=f"node-{node:02}", index=at)
            for node in range(nodes)
            for at in range(2)
        )
    )


def test_a_part_is_found_among_nodes_with_different_parts() -> None:
    columns = a_fleet()
    assert given(columns, sized(3))[0][:2] == ("GCU-0-1", "3g.20gb")
    assert given(columns, sized(4))[0][:2] == ("GCU-1-1", "4g.40gb")
    for node in range(0, 40, 2):
        for at in range(2):
            number = columns.number_of(f"gcu-{node}-{at}")
            columns.set_used(number, slots=1, cores=100, memory=40 * GIB)
    assert place(columns, sized(3)).refused
    assert given(columns, with_amounts(20_480, 20))[0][:2] == ("GCU-1-1", "2g.20gb")


def test_refusals_of_many_nodes_count_a_missing_part_once_a_node() -> None:
    columns = a_fleet()
    assert place(columns, sized(5)).text == "40/80 ModeNotFit"
    assert place(columns, sized(5)).reason == Reason.MODE_NOT_FIT
    number = columns.number_of("gcu-0-0")
    columns.set_used(number, slots=1, cores=50, memory=20 * GIB)
    demand = sized(3)
    for node in range(0, 40, 2):
        for at in range(2):
            number = columns.number_of(f"gcu-{node}-{at}")
            columns.set_used(number, slots=2, cores=100, memory=40 * GIB)
    assert place(columns, demand).text == "20/80 ModeNotFit, 40/80 CardInsufficientMemory"


def test_a_part_is_impossible_that_no_node_has() -> None:
    columns = a_fleet(4)
    assert impossible(columns, sized(8)) is None
    assert impossible(columns, sized(5)) == (
        "asked a part of size 5; no device is given in parts of which one serves that"
    )
    assert impossible(columns, with_amounts(120)) is None  # MiB on nodes with small parts
    assert impossible(columns, with_amounts(160, 7)) is None
    text = impossible(some_columns(a_gcu("GCU-0", LARGE)), with_amounts(120, 7))
    assert text == (
        "asked a part with 120 GiB or MiB and 7 % of compute; no device is given in parts of which "
        "one serves that"
    )
    exact = an_ask(a_request(vendor=KIND, memory="90Gi", cores=7))
    assert impossible(columns, exact) == (
        "asked a part with 92,160 MiB and 7 % of compute; no device is given in parts of which one "
        "serves that"
    )
    assert impossible(some_columns(device_facts("GPU-0")), sized(1)) == (
        "no device of the cluster is of the kind that is asked for"
    )


def test_a_refusal_has_the_amounts_of_the_part() -> None:
    used = {"GCU-0": Use(memory_mib=30 * GIB, cores=50, slots=1)}
    columns = some_columns(a_gcu("GCU-0"), used=used)
    plan = place(columns, sized(3))
    assert amounts(columns, sized(3), plan.text, within=EVERY_NODE) == [
        "asked part 3g.20gb with 20,480 MiB; most free on one device 10,240 MiB (gcu-0 on node-1)"
    ]
    assert amounts(columns, sized(4), "1/1 ModeNotFit", within=EVERY_NODE) == []


def test_a_quota_counts_what_the_part_takes() -> None:
    columns = some_columns(a_gcu("GCU-0"))
    enough, scarce = Budget(memory_mib=20 * GIB, cores=50), Budget(memory_mib=20 * GIB - 1)
    assert not place(columns, sized(3), budget=enough).refused
    assert place(columns, sized(3), budget=scarce).text == "1/1 ResourceQuotaNotFit"
    assert not place(columns, sized(1), budget=scarce).refused


def test_a_part_is_given_beside_what_is_kept_for_others() -> None:
    columns = some_columns(a_gcu("GCU-0"), a_gcu("GCU-1", node="node-2"))

    class Keeping:
        nodes = frozenset({0, 1})

        def on(self, node: int) -> list[Share]:
            return [Share(node, 1, 17, 6 * GIB)]

    assert place(columns, sized(6), kept=Keeping()).refused
    assert not place(columns, sized(3), kept=Keeping()).refused


@pytest.mark.parametrize("policy", ["Binpack", "Spread", "BestFit", "IdleFirst"])
def test_policies_see_what_the_part_takes(policy: str) -> None:
    used = {"GCU-0": Use(memory_mib=20 * GIB, cores=50, slots=1)}
    columns = some_columns(a_gcu("GCU-0"), a_gcu("GCU-1", index=1), used=used)
    demand = an_ask(a_request(vendor=KIND, part_size=3), device=[policy])
    packs = policy in ("Binpack", "BestFit")
    assert given(columns, demand)[0][0] == ("GCU-0" if packs else "GCU-1")


def test_fragmentation_keeps_what_large_parts_need() -> None:
    """Typical requests for parts count only where a device has those parts."""
    used = {"GCU-0": Use(memory_mib=26 * GIB, cores=67, slots=2)}
    columns = some_columns(
        a_gcu("GCU-0"), a_gcu("GCU-1", index=1), device_facts("GPU-0", index=2), used=used
    )
    give_mix(columns.mix, [(0.9, sized(3).requests[0]), (0.1, sized(4).requests[0])])
    demand = an_ask(
        a_request(vendor=KIND, part_size=1), node="Fragmentation", device=["Fragmentation"]
    )
    assert given(columns, demand) == [("GCU-0", "1g.6gb", 6 * GIB, 17)]


@pytest.mark.parametrize("nodes", [("node-1", "node-1"), ("node-1", "node-2")])
def test_fragmentation_counts_what_the_part_takes_and_what_typical_parts_need(
    nodes: tuple[str, str],
) -> None:
    """The first device has 66 % left; with a small part on it, no large part fits."""
    used = {"GCU-0": Use(memory_mib=12 * GIB, cores=34, slots=2)}
    devices = (a_gcu(f"GCU-{at}", node=node, index=at) for at, node in enumerate(nodes))
    columns = some_columns(*devices, used=used)
    give_mix(columns.mix, [(1.0, sized(3).requests[0])])
    demand = an_ask(
        a_request(vendor=KIND, part_size=1), node="Fragmentation", device=["Fragmentation"]
    )
    assert given(columns, demand) == [("GCU-1", "1g.6gb", 6 * GIB, 17)]


def test_a_look_at_every_device_knows_what_parts_take() -> None:
    """It uses memory and compute of each node's own part for the amount that must become free."""
    used = {
        "GCU-0": Use(memory_mib=1, cores=60, slots=1),
        "GCU-1": Use(memory_mib=70 * GIB, cores=10, slots=1),
    }
    columns = some_columns(
        a_gcu("GCU-0", SMALL, node="node-0"),
        a_gcu("GCU-1", LARGE, node="node-1"),
        device_facts("GPU-0", node="node-2"),
        used=used,
    )

    def serving(demand: Demand) -> list[str]:
        return [columns.node_name[node] for node in columns.may_serve(demand)]

    assert serving(sized(1)) == ["node-0", "node-1"]
    assert serving(sized(3)) == []  # 50 % on node-0, which has 40 % left
    assert serving(sized(2)) == []  # 20 GiB on node-1, which has 10 GiB left
    lacking = [
        (columns.node_name[node], pytest.approx(missing))
        for node, missing in columns.closest(with_amounts(20, 20), 5, EVERY_NODE)
    ]
    assert lacking == [("node-0", 10 / 100), ("node-1", 10 / 80)]


def test_default_compute_of_nvidias_devices_is_none_of_parts() -> None:
    config = ClusterConfig(nvidia=NvidiaConfig(default_cores=60))
    for request in ({"part_size": 1}, {"part_memory": 1}):
        demand = an_ask(a_request(vendor=KIND, **request), config=config)
        assert given(some_columns(a_gcu("GCU-0")), demand)[0][1] == "1g.6gb"


def test_a_part_of_a_request_that_is_not_known_yet_has_no_name() -> None:
    assert PartDemand() == (0, 0, "")
    assert sized(3).requests[0].part == PartDemand(3)
