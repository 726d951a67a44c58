"""The sums in the columns match the devices while devices and nodes are added and removed."""

from __future__ import annotations

import random
from unittest import mock

import pytest

from builders import a_request, an_ask, device_facts, give_mix, some_columns
from vgpu_operator.placement import device_conditions
from vgpu_operator.placement.columns import CPU_UNKNOWN, Columns, NodeState
from vgpu_operator.placement.device_conditions import Findings
from vgpu_operator.placement.target_workload import View


def sums(columns: Columns, node: str) -> tuple[int, ...]:
    """Return a node's sums: its slots, cores and memory, then the parts in use."""
    number = columns.node_id(node)
    assert number is not None
    return (
        columns.node_slots[number],
        columns.node_cores[number],
        columns.node_memory[number],
        columns.node_slots_used[number],
        columns.node_cores_used[number],
        columns.node_memory_used[number],
    )


def added_up(columns: Columns, node: str) -> tuple[int, ...]:
    """Return the same sums, counted device by device."""
    number = columns.node_id(node)
    assert number is not None
    kept = (
        columns.slots,
        columns.cores,
        columns.memory,
        columns.slots_used,
        columns.cores_used,
        columns.memory_used,
    )
    return tuple(sum(column[device] for device in columns.node_devices[number]) for column in kept)


def names_on(columns: Columns, node: str) -> list[str]:
    number = columns.node_id(node)
    assert number is not None
    return [columns.name[device] for device in columns.node_devices[number]]


def test_a_device_is_known_by_everything_that_was_said_of_it():
    columns = Columns()
    device = device_facts(
        "GPU-7",
        index=3,
        vendor="amd",
        model="mi300",
        mode="MIG",
        numa=1,
        slots=4,
        cores=200,
        memory_mib=9000,
        cordoned=True,
        duplicate=True,
        links={"GPU-8": 5},
    )
    for _ in range(2):  # a new device, and one in place of a removed device
        number = columns.put_device(device)
        assert number == columns.number_of("gpu-7") == 0
        assert (columns.uuid[0], columns.index[0], columns.name[0]) == ("GPU-7", 3, "gpu-7")
        assert (columns.vendor[0], columns.model[0], columns.mode[0]) == ("amd", "mi300", "MIG")
        assert (columns.numa[0], columns.links[0]) == (1, {"GPU-8": 5})
        assert (columns.slots[0], columns.cores[0], columns.memory[0]) == (4, 200, 9000)
        flags = (columns.healthy[0], columns.duplicate[0], columns.cordoned[0])
        assert flags == (False, True, True)
        assert columns.used(0) == (0, 0, 0)
        columns.remove_device("gpu-7")
        columns.put_device(device_facts("GPU-other"))
        columns.remove_device("gpu-other")


def test_the_devices_of_a_node_stand_by_index_then_uuid():
    columns = Columns()
    for uuid, index in (("GPU-c", 1), ("GPU-b", 1), ("GPU-a", 2), ("GPU-d", 0)):
        columns.put_device(device_facts(uuid, index=index))
    assert names_on(columns, "node-1") == ["gpu-d", "gpu-b", "gpu-c", "gpu-a"]
    columns.put_device(device_facts("GPU-d", index=5))
    assert names_on(columns, "node-1") == ["gpu-b", "gpu-c", "gpu-a", "gpu-d"]


def test_a_device_that_moves_takes_its_amounts_along_but_not_its_use():
    columns = Columns()
    number = columns.put_device(device_facts("GPU-0"))
    columns.set_used(number, slots=1, cores=30, memory=1024)
    columns.put_device(device_facts("GPU-0", node="node-2"))
    assert names_on(columns, "node-1") == []
    assert names_on(columns, "node-2") == ["gpu-0"]
    assert sums(columns, "node-1") == (0, 0, 0, 0, 0, 0)
    assert sums(columns, "node-2") == (10, 100, 16_384, 0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_after_whatever_comes_and_goes_a_nodes_sums_are_those_of_its_devices(seed):
    chance = random.Random(seed)
    columns, nodes, uuids = Columns(), ("a", "b"), [f"GPU-{n}" for n in range(6)]
    for node in nodes:
        columns.put_node(node, NodeState(ready=True))
    for _ in range(300):
        uuid, node = chance.choice(uuids), chance.choice(nodes)
        match chance.randrange(4):
            case 0:
                columns.remove_device(uuid.lower())
            case 1 if uuid.lower() in columns.state():
                columns.set_used(
                    columns.number_of(uuid.lower()),
                    slots=chance.randrange(4),
                    cores=chance.randrange(100),
                    memory=chance.randrange(9000),
                )
            case _:
                columns.put_device(
                    device_facts(
                        uuid, node=node, slots=chance.randrange(1, 9), cores=chance.randrange(200)
                    )
                )
        for each in nodes:
            assert sums(columns, each) == added_up(columns, each)
    numbers = [device for node in nodes for device in columns.node_devices[columns.node_id(node)]]
    assert len(set(numbers)) == len(numbers) == len(columns.state())
    assert len(columns.name) <= len(uuids)


def test_the_number_of_a_node_that_went_is_given_to_the_next_with_nothing_of_the_former():
    columns = Columns()
    state = NodeState(True, False, ("Binpack",), "Spread")
    former = columns.put_node("former", state)
    columns.set_cpu_free(former, 500)
    assert columns.node_schedulable[former] is False
    assert columns.node_policies[former] == ("Binpack",)
    assert columns.node_policy[former] == "Spread"
    columns.remove_node("former")
    assert columns.node_id("former") is None
    columns.put_device(device_facts(node="next"))
    assert columns.node_id("next") == former
    assert columns.node_name[former] == "next"
    assert columns.node_ready[former] is False
    assert columns.node_cpu_free[former] == CPU_UNKNOWN


def test_a_node_that_goes_before_its_devices_is_only_not_ready():
    columns = Columns()
    columns.put_device(device_facts())
    node = columns.put_node("node-1", NodeState(ready=True))
    columns.remove_node("node-1")
    assert columns.node_id("node-1") == node
    assert columns.node_ready[node] is False


def test_what_is_not_known_cannot_be_removed():
    columns = Columns()
    columns.remove_device("nothing")
    columns.remove_node("nowhere")
    assert columns.state() == {}


def test_only_nodes_with_devices_are_told():
    columns = Columns()
    columns.put_node("empty", NodeState(ready=True))
    columns.put_device(device_facts(node="full"))
    assert [columns.node_name[node] for node in columns.nodes_with_devices()] == ["full"]


def test_devices_that_differ_only_in_use_links_and_place_are_of_one_kind():
    columns = Columns()
    same = [
        columns.put_device(device_facts("GPU-0")),
        columns.put_device(device_facts("GPU-1", index=1, numa=1, links={"GPU-0": 9})),
        columns.put_device(device_facts("GPU-2", node="node-2")),
    ]
    columns.set_used(same[0], slots=1, cores=1, memory=1)
    assert len({columns.kind[device] for device in same}) == 1
    for number, facts in enumerate(
        (
            {"model": "a100"},
            {"vendor": "amd"},
            {"mode": "MIG"},
            {"slots": 2},
            {"cores": 1},
            {"memory_mib": 1},
            {"healthy": False},
            {"cordoned": True},
        )
    ):
        other = columns.put_device(device_facts(f"GPU-9{number}", node="node-3", **facts))
        assert columns.kind[other] != columns.kind[same[0]]


def test_every_change_of_a_node_gives_it_a_new_version_and_a_loan_does_not():
    columns = Columns()
    number = columns.put_device(device_facts())
    versions = columns.rankings.version

    def changes(change) -> bool:
        before = versions[0]
        change()
        return versions[0] > before

    assert changes(lambda: columns.put_node("node-1", NodeState(ready=True)))
    assert changes(lambda: columns.put_device(device_facts(cores=50)))
    assert changes(lambda: columns.set_used(number, slots=1, cores=0, memory=0))
    assert not changes(lambda: columns.set_cpu_free(0, 1000))  # no typical request includes CPU
    asking = an_ask(a_request(memory="1Gi"), cpu_milli=500, node="Fragmentation").requests[0]
    give_mix(columns.mix, [(1.0, asking)])
    assert changes(lambda: columns.set_cpu_free(0, 2000))
    assert not changes(lambda: columns.set_cpu_free(0, 2000))
    assert not changes(lambda: columns.lend(number, 2, 0, 0))
    assert changes(lambda: columns.remove_device("gpu-0"))
    assert changes(lambda: columns.remove_node("node-1"))


def test_what_conditions_a_request_fits_is_remembered_for_equal_requests():
    fitting = Columns().conditions.fitting
    one, equal, other = (
        an_ask(a_request(memory=memory)).requests[0] for memory in ("1Gi", "1024Mi", "2Gi")
    )
    fitting.of(one)[3] = True
    assert fitting.of(equal) == {3: True}
    assert fitting.of(other) == {}


def test_of_too_many_questions_and_of_too_many_answers_what_was_found_is_forgotten():
    findings: Findings[int, str] = Findings(questions=2, answers=3)
    one = findings.of("one")
    one.update(dict.fromkeys(range(3), "found"))
    assert findings.of("one") is one
    one[3] = "found"
    assert findings.of("one") == {}
    for question in ("one", "two"):
        findings.of(question)[0] = "found"
    assert findings.of("two") == findings.of("one") == {0: "found"}
    assert findings.of("three") == {}  # it replaces only the first
    assert findings.of("two") == {0: "found"}
    assert findings.of("one") == {}


def test_devices_of_one_kind_with_equal_amounts_in_use_are_in_one_condition():
    columns = some_columns(
        device_facts("GPU-0"), device_facts("GPU-1", index=1), device_facts("GPU-2", index=2)
    )
    columns.set_used(0, slots=1, cores=10, memory=1024)
    columns.set_used(1, slots=1, cores=10, memory=1024)
    assert columns.condition[0] == columns.condition[1] != columns.condition[2]
    columns.lend(1, 1, 10, 1025)
    assert columns.condition[0] != columns.condition[1]
    columns.lend(1, 1, 10, 1024)
    columns.put_device(device_facts("GPU-1", index=1, cordoned=True))
    assert columns.condition[0] != columns.condition[1]


def test_conditions_of_long_ago_are_forgotten_and_those_of_now_are_not_mixed_up():
    columns = some_columns(device_facts("GPU-0"), device_facts("GPU-1", index=1))
    give_mix(columns.mix, [(1.0, an_ask(a_request(memory="1Gi")).requests[0])])
    columns.mix.views[columns.condition[0]] = View(0.0, 0.0, ())
    columns.conditions.fitting.of("request")[columns.condition[0]] = True
    columns.conditions.scores.of("request")[columns.condition[0]] = 1.0
    with mock.patch.object(device_conditions, "_CONDITIONS_KEPT", 8):
        for memory in range(100):
            columns.set_used(0, slots=1, cores=0, memory=memory)
            assert columns.condition[0] != columns.condition[1]
            assert max(columns.condition) < 10
    assert columns.mix.views == {}
    assert columns.conditions.fitting.of("request") == {}
    assert columns.conditions.scores.of("request") == {}
