"""For any registered parts, a node's devices are published with the parts or refused by name."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from builders import a_node
from register_world import World
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node
from vgpu_api.errors import BadInput
from vgpu_api.vendors import Kind, kind_of
from vgpu_operator.engine.devices.registers import UNREADABLE
from vgpu_operator.vendors import RegisteredDevice, devices_of
from vgpu_operator.vendors.registers import MAX_DEVICES

CONFIG = ClusterConfig()
REGISTER = "enflame.com/gcu-drs-capacity"
WORDS = ("0", "1", "6", "7", " 6 ", "x", "", "-1", "6.0", "1e3", "٣", "99999999999", "2147483647")
GOOD_NAMES = ("1g.8gb", "2g.16gb", "6g.48gb", "3G.24GB", "4g.32gb.plain")
OTHER_NAMES = (
    "full",
    "9g.most",
    "g.8gb",
    "0g.8gb",
    "5g.99999999gb",
    "999999g.8gb",
    ".",
    "",
    "6.48",
)
scalars = st.one_of(
    st.sampled_from(WORDS),
    st.integers(-3, 1200),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none(),
    st.booleans(),
    st.text(max_size=20),
)
names = st.one_of(
    st.sampled_from(GOOD_NAMES),
    st.sampled_from(OTHER_NAMES),
    st.from_regex(r"[0-9]{1,2}g\.[0-9]{1,3}gb", fullmatch=True),
    st.text(max_size=80),
)
profiles = st.one_of(
    st.dictionaries(st.sampled_from(GOOD_NAMES), st.sampled_from(("", "0", "15")), min_size=1),
    st.dictionaries(names, st.one_of(st.text(max_size=150), scalars), max_size=70),
    scalars,
)
good_devices = st.builds(
    lambda index, capacity: {"index": str(index), "minor": "0", "capacity": capacity},
    st.integers(0, 70),
    st.sampled_from((6, "6", 12)),
)
odd_devices = st.dictionaries(st.sampled_from(("index", "minor", "capacity")), scalars)
devices = st.one_of(
    st.lists(good_devices, max_size=8),
    st.lists(st.one_of(good_devices, odd_devices, scalars), max_size=70),
    scalars,
)
documents = st.one_of(
    st.fixed_dictionaries({"devices": devices, "profiles": profiles}),
    st.dictionaries(st.sampled_from(("devices", "profiles", "more")), st.one_of(devices, profiles)),
    st.lists(scalars, max_size=3),
    scalars,
)
registers = st.one_of(documents.map(json.dumps), st.text(max_size=60))


def a_kind() -> Kind:
    kind = kind_of("enflame-drs")
    assert kind is not None
    return kind


def registering(written: str, name: str = "node-1", version: int = 1) -> Node:
    node = a_node(name, allocatable={"enflame.com/drs-gcu": "6"}, resource_version=version)
    metadata = node.metadata.model_copy(update={"annotations": {REGISTER: written}})
    return node.model_copy(update={"metadata": metadata})


def read(node: Node) -> tuple[RegisteredDevice, ...] | BadInput:
    """Return the node's devices or the error of reading them; any other exception is a crash."""
    try:
        return devices_of(a_kind(), node)
    except BadInput as error:
        return error


@given(written=registers)
@example('{"devices": [{"capacity": 6}], "profiles": {"6g.48gb": ""}}')
@example("[" * 100_000)
def test_a_register_of_parts_makes_devices_that_can_hold_each_part_or_is_refused_by_name(
    written: str,
) -> None:
    """Each part fits an empty device by its memory and its compute, and the sizes of parts that
    fit a device together are no more than its slots.
    """
    found = read(registering(written))
    if isinstance(found, BadInput):
        assert str(found).startswith(f"metadata.annotations[{REGISTER}]: ")
        return
    assert len({each.id for each in found}) == len(found) <= MAX_DEVICES
    for each in found:
        assert each.parts
        assert each.memory_mib == max(part.memory_mib for part in each.parts) < 1 << 31
        for part in each.parts:
            assert 1 <= part.cores <= each.cores == 100
            assert part.memory_mib >= 1024
            assert 100 // part.cores * part.size <= each.slots <= 1000


GOOD = json.dumps({"devices": [{"index": "0", "capacity": 6}], "profiles": {"6g.48gb": "0"}})


@given(first=registers, second=registers)
@example(GOOD, GOOD.replace("6g.48gb", "3g.24gb"))
@example(GOOD, "{}")
def test_a_node_has_devices_with_the_parts_that_it_registers_now(first: str, second: str) -> None:
    """This holds for any earlier register, and errors name the value that cannot be read."""
    world, kind = World(CONFIG), a_kind()
    world.observe(registering(GOOD, "node-2"))
    for version, written in enumerate((first, second), start=1):
        node = registering(written, version=version)
        world.observe(node)
        found, ready = read(node), world.ready(kind, "node-1")
        if isinstance(found, BadInput):
            assert ready == {}
            notes = [event.note for event in world.events if event.reason == UNREADABLE]
            assert any(str(found) in note for note in notes)
            continue
        assert set(ready) == {each.id for each in found}
        for each in found:
            shown: list[Any] = [
                (part.name, part.size, part.memory_mib, part.cores)
                for part in ready[each.id].parts or ()
            ]
            assert shown == [
                (part.name, part.size, part.memory_mib, part.cores) for part in each.parts
            ]
        columns = world.state.ledger.columns
        known = {columns.uuid[n]: n for n in map(columns.number_of, columns.state())}
        for each in found:
            facts = columns.conditions.facts[columns.facts[known[each.id]]]
            assert [part.name for part in facts.parts] == [part.name for part in each.parts]
    assert set(world.ready(kind, "node-2")) == {"node-2-enflame-drs-0"}
