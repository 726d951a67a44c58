"""A cached rise of F equals the difference of F before and after an allocation."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from builders import a_request, an_ask, device_facts, give_mix, some_columns
from vgpu_api.effective import Use
from vgpu_operator.demand import Demand, RequestDemand
from vgpu_operator.placement import Columns, place
from vgpu_operator.placement.device_conditions import NodeState
from vgpu_operator.placement.fragmentation import fragmentation, rises_on, score_of_rise

MIB = 1000
BOTH = {"node": "Fragmentation", "device": ["Fragmentation"]}


def a_type(cpu_milli: int = 0, **fields) -> RequestDemand:
    return an_ask(a_request(**fields), cpu_milli=cpu_milli, **BOTH).requests[0]


ONE_DEVICE = ((0.4, a_type(memory="200Mi")), (0.3, a_type(memory="600Mi", cores=30)))
SEVERAL = (*ONE_DEVICE, (0.2, a_type(memory="1000Mi", count=2)))
WITH_CPU = (
    (0.4, a_type(2000, memory="200Mi")),
    (0.3, a_type(6000, memory="600Mi", cores=30)),
    (0.2, a_type(9000, memory="1000Mi", count=2)),
)
MIXES = {"one card": ONE_DEVICE, "several": SEVERAL, "with cpu": WITH_CPU}


def a_fleet(mix: Iterable[tuple[float, RequestDemand]], seed: int) -> Columns:
    """Eight nodes of one to four devices, used at random, some out of use; half of them have
    Fragmentation as their own policy, the others Spread."""
    chance = random.Random(seed)
    devices, used = [], {}
    for number in range(8):
        for index in range(chance.randint(1, 4)):
            uuid = f"node-{number}-{index}"
            devices.append(
                device_facts(uuid, node=f"node-{number}", index=index, memory_mib=MIB,
                       slots=3, healthy=chance.random() > 0.1)
            )  # fmt: skip
            slots = chance.randint(0, 3)
            used[uuid] = Use(slots * chance.choice((100, 200, 333)), slots * 10, slots)
    states = {
        f"node-{number}": NodeState(ready=True, device_policies=(own,))
        for number, own in enumerate(("Fragmentation", "Spread") * 4)
    }
    columns = some_columns(*devices, used=used, states=states)
    for number in range(8):
        columns.set_cpu_free(number, chance.choice((1000, 3000, 7000, 10_000)))
    give_mix(columns.mix, list(mix))
    return columns


def counted_rise(columns: Columns, number: int, request: RequestDemand) -> float:
    """Return the rise of F on the device's node: F with the request minus F without it."""
    node = columns.node_of[number]
    before = fragmentation(columns, node)
    slots, cores, memory = columns.used(number)
    mib = request.memory_on(columns.memory[number])
    columns.set_used(number, slots=slots + 1, cores=cores + request.cores, memory=memory + mib)
    after = fragmentation(columns, node, cpu_milli=request.cpu_milli)
    columns.set_used(number, slots=slots, cores=cores, memory=memory)
    return after - before


def has_room(columns: Columns, number: int, request: RequestDemand) -> bool:
    slots, cores, memory = columns.used(number)
    mib = request.memory_on(columns.memory[number])
    return bool(
        columns.healthy[number]
        and slots < columns.slots[number]
        and memory + mib <= columns.memory[number]
        and cores + request.cores <= columns.cores[number]
    )


def fleets(mix: str) -> Iterator[Columns]:
    return (a_fleet(MIXES[mix], seed) for seed in range(6))


def asks() -> list[Demand]:
    return [
        an_ask(a_request(memory=f"{mib}Mi", cores=cores), cpu_milli=cpu, **BOTH)
        for mib, cores, cpu in ((50, 0, 500), (200, 0, 2000), (334, 10, 0), (700, 60, 6000))
    ]


@pytest.mark.parametrize("mix", MIXES)
def test_a_rise_is_what_counting_before_and_after_says(mix):
    looked_at = 0
    for columns in fleets(mix):
        for demand in asks():
            request = demand.requests[0]
            for number in range(len(columns.uuid)):
                if not has_room(columns, number, request):
                    assert rises_on(columns, (number,), request) == [float("inf")]
                    continue
                looked_at += 1
                for _ in range(2):  # the second time from the cache
                    assert rises_on(columns, (number,), request)[0] == pytest.approx(
                        counted_rise(columns, number, request), abs=1e-6
                    )
    assert looked_at > 150


@pytest.mark.parametrize("device", [["Fragmentation"], None], ids=["the pod's", "the nodes'"])
@pytest.mark.parametrize("mix", MIXES)
def test_of_the_devices_that_nodes_would_give_the_one_where_f_rises_least_is_given(mix, device):
    """Ties go by name; the device policy of the node or the pod selects a node's device."""
    for columns in fleets(mix):
        for wanted in asks():
            request = wanted.requests[0]
            demand = replace(wanted, device_policies=tuple(device or ()))
            least, least_node = None, None
            for node in columns.nodes_with_devices():
                name = columns.node_name[node]
                number = would_give(columns, demand, name)
                if number is None:
                    continue
                key = -score_of_rise(counted_rise(columns, number, request)), name
                if least is None or key < least:
                    least, least_node = key, name
            assert place(columns, demand).node == least_node


def would_give(columns: Columns, demand: Demand, node: str) -> int | None:
    """Return the device that a node would allocate, for Fragmentation by counting F."""
    request = demand.requests[0]
    number = columns.node_id(node)
    assert number is not None
    own = demand.device_policies or columns.node_policies[number]
    if own != ("Fragmentation",):
        grants = place(columns, demand, [node]).grants
        return columns.number_of(grants[0].device) if grants else None
    fitting = [
        number for number in columns.node_devices[number] if has_room(columns, number, request)
    ]
    return max(
        fitting,
        key=lambda number: (score_of_rise(counted_rise(columns, number, request)), -number),
        default=None,
    )


def test_of_devices_where_f_rises_equally_the_first_is_given():
    columns = some_columns(*(device_facts(f"x-{index}", index=index) for index in range(3)))
    give_mix(columns.mix, list(ONE_DEVICE))
    (grant,) = place(columns, asks()[0]).grants
    assert grant.uuid == "x-0"
