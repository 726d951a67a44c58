"""An earmark is for the devices on which the least capacity must still become free."""

from __future__ import annotations

from typing import Any

from builders import a_request, a_spec
from vgpu_api.config import ClusterConfig
from vgpu_operator.demand import Demand
from vgpu_operator.engine.scheduling.earmarks import choose, explain
from vgpu_operator.engine.scheduling.kept import Earmark, Earmarks
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import DeviceFacts, Fleet
from vgpu_operator.placement.columns import NodeState
from vgpu_operator.placement.constraints import EVERY_NODE
from vgpu_operator.vendors.parts import named_parts


def columns_of(*devices: tuple[str, str, int], **more: Any) -> Fleet:
    """Return columns of devices of 16 GiB, given as (node, name, MiB in use)."""
    columns = Fleet()
    for index, (node, name, used) in enumerate(devices):
        columns.put_node(node, NodeState(ready=True))
        fields: dict[str, Any] = {
            "name": name,
            "node": node,
            "uuid": f"uuid-of-{name}",
            "index": index,
            "vendor": "nvidia",
            "model": "tesla t4",
            "mode": "Shared",
            "numa": 0,
            "slots": 10,
            "cores": 100,
            "memory_mib": 16384,
            "healthy": True,
            "cordoned": False,
        }
        number = columns.put_device(DeviceFacts(**{**fields, **more.get(name, {})}))
        columns.set_used(number, slots=1 if used else 0, cores=0, memory=used)
    return columns


def ask_of(*requests: Any, **fields: Any) -> Demand:
    return Demand.of(a_spec(requests, **fields), ClusterConfig())


def chosen(columns: Fleet, demand: Demand, taken: tuple[str, ...] = ()) -> Earmark | None:
    earmarks = Earmarks()
    if taken:
        earmarks.put(Earmark(ClaimKey("default", "other"), "a", 0, taken))
    return choose(columns, demand, ClaimKey("default", "mine"), EVERY_NODE, earmarks)


def test_the_node_is_taken_where_the_least_is_missing() -> None:
    columns = columns_of(("a", "a0", 16000), ("b", "b0", 9000), ("b", "b1", 16000))
    target = chosen(columns, ask_of(a_request(memory="12Gi")))
    assert target is not None
    assert (target.node, target.devices) == ("b", ("b0",))


def test_several_devices_are_weighed_together() -> None:
    columns = columns_of(
        ("a", "a0", 0), ("a", "a1", 16384), ("b", "b0", 6000), ("b", "b1", 6000), ("b", "b2", 16384)
    )
    target = chosen(columns, ask_of(a_request(memory="12Gi", count=2)))
    assert target is not None
    assert target.devices == ("b0", "b1")


def test_who_wants_a_device_alone_waits_for_the_one_with_the_least_on_it() -> None:
    columns = columns_of(("a", "a0", 8000), ("b", "b0", 4000))
    target = chosen(columns, ask_of(a_request(memory="1Gi", cores=100)))
    assert target is not None
    assert target.devices == ("b0",)


def test_a_tie_goes_to_the_first_node_by_name() -> None:
    columns = columns_of(("b", "b0", 9000), ("a", "a0", 9000))
    target = chosen(columns, ask_of(a_request(memory="12Gi")))
    assert target is not None
    assert target.node == "a"


def test_devices_that_never_could_serve_the_request_are_no_target() -> None:
    columns = columns_of(
        ("a", "a0", 0), ("b", "b0", 0), a0={"healthy": False}, b0={"model": "tesla v100"}
    )
    assert chosen(columns, ask_of(a_request(memory="1Gi", selector={"models": ["T4"]}))) is None
    assert chosen(columns, ask_of(a_request(memory="17Gi"))) is None
    assert chosen(columns, ask_of(a_request(memory="1Gi", count=2))) is None


def test_what_is_held_for_another_is_no_target() -> None:
    columns = columns_of(("a", "a0", 100), ("b", "b0", 9000))
    target = chosen(columns, ask_of(a_request(memory="16Gi")), taken=("a0",))
    assert target is not None
    assert target.devices == ("b0",)


def test_where_one_numa_node_is_required_the_devices_are_of_one() -> None:
    columns = columns_of(
        ("a", "a0", 0), ("a", "a1", 9000), ("a", "a2", 100), a1={"numa": 1}, a2={"numa": 1}
    )
    demand = ask_of(a_request(memory="12Gi", count=2), placement={"numa": "Require"})
    target = chosen(columns, demand)
    assert target is not None
    assert target.devices == ("a1", "a2")


def test_requests_of_one_claim_add_up_on_a_device_and_init_containers_do_not() -> None:
    columns = columns_of(("a", "a0", 0))
    two = [a_request(name="x", memory="9Gi"), a_request(name="y", memory="9Gi")]
    assert chosen(columns, ask_of(*two)) is None  # together they never fit anywhere
    first = a_request(name="x", memory="9Gi", phase="Init")
    target = chosen(columns, ask_of(first, two[1]))
    assert target is not None
    assert target.devices == ("a0",)


def test_the_parts_of_a_claim_get_devices_that_serve_them_together() -> None:
    columns = columns_of(("a", "a0", 9000), ("a", "a1", 9000), ("b", "b0", 16000))
    target = chosen(columns, ask_of(*[a_request(name=n, memory="9Gi") for n in ("x", "y")]))
    assert target is not None
    assert target.devices == ("a0", "a1")


def test_a_request_for_a_part_waits_for_what_the_part_takes_on_each_node() -> None:
    """A part of size 2 has 8 GiB on a and 4 GiB on b, and c has no such part."""
    parts = {
        "a0": {"1g.4gb": "", "2g.8gb": "", "4g.16gb": ""},
        "b0": {"1g.2gb": "", "2g.4gb": "", "8g.16gb": ""},
        "c0": {"1g.4gb": ""},
    }
    more: dict[str, Any] = {
        name: {"vendor": "enflame-drs", "parts": named_parts(ids)[0]} for name, ids in parts.items()
    }
    columns = columns_of(("a", "a0", 11_000), ("b", "b0", 13_000), ("c", "c0", 0), **more)
    demand = ask_of(a_request(vendor="enflame-drs", part_size=2))
    target = chosen(columns, demand)
    assert target is not None
    assert (target.node, target.devices) == ("b", ("b0",))
    columns.set_used(columns.number_of("b0"), slots=8, cores=100, memory=16_384)
    target = chosen(columns, demand)
    assert target is not None
    assert target.node == "a"
    assert chosen(columns, ask_of(a_request(vendor="enflame-drs", part_size=3))) is None

    fuller = columns_of(("a", "a0", 15_000), ("a", "a1", 9000), a0=more["a0"], a1=more["a0"])
    target = chosen(fuller, demand)
    assert target is not None
    assert target.devices == ("a1",)

    earmarks = Earmarks()
    for number, name in enumerate(("a0", "c0")):
        earmarks.put(Earmark(ClaimKey("default", name), name[0], number, (name,)))
    columns.set_used(columns.number_of("a0"), slots=1, cores=50, memory=8192)
    mine = ClaimKey("default", "mine")
    assert list(explain(columns, earmarks, mine, demand)) == ["a"]
    assert list(explain(columns, earmarks, mine, demand, priority=1)) == []
    columns.set_used(columns.number_of("a0"), slots=1, cores=50, memory=8193)
    assert list(explain(columns, earmarks, mine, demand)) == []
