"""For any capacity in a node's status, its devices are either published or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from hypothesis import example, given
from hypothesis import strategies as st

from builders import a_node, a_request, a_spec
from register_world import World
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node
from vgpu_api.errors import BadInput, shown
from vgpu_api.vendors import Kind, kinds
from vgpu_operator.demand import Demand
from vgpu_operator.engine.devices.registers import UNREADABLE
from vgpu_operator.engine.effects import RecordEvent
from vgpu_operator.placement import place
from vgpu_operator.vendors import devices_of, silence_of
from vgpu_operator.vendors.registers import MAX_DEVICES

CONFIG = ClusterConfig()
KINDS = tuple(kind for kind in kinds() if kind.register_.capacity is not None)
WORDS = (
    *("0", "1", "2", "16", "64", "100", "6400", "6401", "-1", "1500m", "8Gi", "1k", "x", "", "1.5"),
    *("1e3", "1e18", "1e40", "1e999", "2E", "9223372036854775808", "99999999999999999999Ei"),
)
VCORE, VMEMORY = "cambricon.com/mlu.smlu.vcore", "cambricon.com/mlu.smlu.vmemory"
quantities = st.one_of(
    st.sampled_from(WORDS),
    st.integers(-5, 200),
    st.integers(-(1 << 70), 1 << 70),
    st.text(max_size=80),
)


def _resources(kind: Kind) -> tuple[str, ...]:
    by = kind.register_.capacity
    assert by is not None
    return tuple(filter(None, (by.resource, by.memory, by.cores)))


RESOURCES = tuple(dict.fromkeys(name for kind in KINDS for name in _resources(kind)))
OFFERED = tuple(dict.fromkeys(kind.register_.alive or kind.count for kind in KINDS))
Quantities: TypeAlias = Mapping[str, str | int]
Registered: TypeAlias = tuple[Quantities, Quantities, str]
capacities = st.dictionaries(st.sampled_from(RESOURCES), quantities)
offers = st.dictionaries(st.sampled_from(OFFERED), quantities)
GOOD = (
    dict.fromkeys(RESOURCES, "2") | {VCORE: "200", "mthreads.com/sgpu-core": "32"},
    dict.fromkeys(OFFERED, "2"),
)
OTHER = "node-2"
names = st.one_of(
    st.just("node-1"), st.from_regex(r"[a-z]([-a-z0-9]{0,150}[a-z0-9])?", fullmatch=True)
)


def registering(
    name: str,
    capacity: Quantities,
    offered: Quantities,
    machine: str = "m5.large",
) -> Node:
    node = a_node(name, labels={"node.kubernetes.io/instance-type": machine})
    status = node.status.model_copy(
        update={"capacity": dict(capacity), "allocatable": dict(offered)}
    )
    return node.model_copy(update={"status": status})


def refusal_of(kind: Kind, node: Node) -> BadInput | None:
    """Return the reason for which a register cannot be read; any other exception is a crash."""
    try:
        devices_of(kind, node)
    except BadInput as error:
        return error
    return None


def check(world: World, node: Node) -> None:
    """Check that each readable register has all of its devices on the node, and no others."""
    name = node.metadata.name
    for kind in KINDS:
        ready, refused = world.ready(kind, name), refusal_of(kind, node)
        if refused is not None:
            fields = {f"status.capacity[{resource}]" for resource in _resources(kind)}
            assert refused.field in fields
            assert any(_reports(event, name, refused) for event in world.events)
        found = () if refused is not None or silence_of(kind, node) else devices_of(kind, node)
        assert set(ready) == {each.id for each in found}
        for each in found:
            status = ready[each.id]
            assert status.allocatable is not None
            assert status.allocatable.memory_mib == each.memory_mib
            assert len(status.links) == (len(found) - 1 if each.group else 0)
        request = Demand.of(a_spec([a_request(vendor=kind.name)]), CONFIG)
        plan = place(world.state.ledger.columns, request, None)
        assert plan.refused or plan.node in ("node-1", OTHER)


def _reports(event: RecordEvent, node: str, refused: BadInput) -> bool:
    regarding = event.regarding
    return (
        (regarding.kind, regarding.name, event.reason) == ("Node", node, UNREADABLE)
        and str(refused) in event.note
        and shown(refused.value) in event.note
    )


@given(kind=st.sampled_from(KINDS), capacity=capacities, name=names)
@example(KINDS[0], {"aws.amazon.com/neuron": 1, "aws.amazon.com/neuroncore": 1 << 63}, "node-1")
def test_a_capacity_makes_devices_of_sizes_that_exist_or_is_refused_by_name(
    kind: Kind, capacity: Quantities, name: str
) -> None:
    """The number of devices equals the count, or the error names the wrong value."""
    node = registering(name, capacity, {})
    refused = refusal_of(kind, node)
    if refused is not None:
        assert refused.field in {f"status.capacity[{each}]" for each in _resources(kind)}
        assert str(refused).startswith(f"{refused.field}: Invalid value: {shown(refused.value)}: ")
        return
    found = devices_of(kind, node)
    assert len({each.id for each in found}) == len(found) <= MAX_DEVICES
    assert [each.index for each in found] == list(range(len(found)))
    for each in found:
        assert max(each.memory_mib, each.cores, each.slots) < 1 << 31
        assert min(each.memory_mib, each.cores, each.slots) >= 0


registers = st.tuples(capacities, offers, st.sampled_from(("m5.large", "inf2.xlarge")))


@given(first=registers, second=registers)
@example(({VCORE: "100", VMEMORY: "1e18"}, {VCORE: "100"}, ""), ({}, {}, ""))
@example((*GOOD, "m5.large"), (*GOOD, "inf2.xlarge"))
@example((*GOOD, ""), ({**GOOD[0], "aws.amazon.com/neuroncore": "x"}, GOOD[1], ""))
def test_a_node_has_the_devices_of_each_register_whole_or_none_of_them(
    first: Registered, second: Registered
) -> None:
    """This holds for any register before and after; another node keeps its devices."""
    world = World(CONFIG)
    other = registering(OTHER, *GOOD)
    world.observe(other)
    for registered in (first, second):
        node = registering("node-1", *registered)
        world.observe(node)
        check(world, node)
        check(world, other)
        assert all(len(world.ready(kind, OTHER)) == 2 for kind in KINDS)
