"""A refusal states the requested and the largest free amounts, and if no device can ever serve."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_operator.placement import EVERY_NODE, Fleet, NodeFilter, amounts, impossible, place
from vgpu_operator.placement.constraints import only
from vgpu_operator.placement.device_conditions import NodeState


def two_nodes() -> Fleet:
    """Return a node with a full and a half free device, and one with a smaller free device."""
    return some_columns(
        device_facts("GPU-0", node="a", memory_mib=81_920),
        device_facts("GPU-1", node="a", index=1, memory_mib=81_920),
        device_facts("GPU-2", node="b", memory_mib=16_384),
        used={
            "GPU-0": Use(memory_mib=81_920, cores=100, slots=1),
            "GPU-1": Use(memory_mib=41_920, cores=70, slots=1),
        },
    )


def told(columns: Fleet, *requests, nodes: NodeFilter | None = None) -> list[str]:
    chosen = nodes or NodeFilter()
    demand = an_ask(*requests)
    plan = place(columns, demand, nodes=chosen)
    assert plan.refused
    return amounts(columns, demand, plan.text, within=chosen)


def test_of_memory_the_most_that_is_free_on_one_device_is_told_with_its_place():
    assert told(two_nodes(), a_request(memory="50000Mi")) == [
        "asked 50,000 MiB; most free on one device 40,000 MiB (gpu-1 on a)"
    ]


def test_a_percentage_is_told_beside_all_that_the_device_has():
    columns = some_columns(
        device_facts("GPU-0", memory_mib=1_000), used={"GPU-0": Use(memory_mib=600, slots=1)}
    )
    assert told(columns, a_request(memory_percent=50)) == [
        "asked 50 % of a device's memory; most free on one device 400 MiB of 1,000 MiB "
        "(gpu-0 on node-1)"
    ]


def test_of_compute_the_most_that_is_free_is_told():
    columns = two_nodes()
    columns.set_used(columns.number_of("gpu-2"), slots=1, cores=80, memory=0)
    assert told(columns, a_request(memory="1Mi", cores=50)) == [
        "asked 50 % of compute; most free on one device 30 % (gpu-1 on a)"
    ]


def test_of_devices_on_one_node_the_most_that_fit_is_told():
    assert told(two_nodes(), a_request(memory="10000Mi", count=2)) == [
        "asked 2 devices on one node; most that fit on one 1 (a)"
    ]


def test_where_memory_and_compute_are_free_on_different_devices_both_are_told():
    columns = some_columns(
        device_facts("GPU-0", memory_mib=1_000),
        device_facts("GPU-1", index=1, memory_mib=1_000),
        used={"GPU-0": Use(cores=90, slots=1), "GPU-1": Use(memory_mib=900, slots=1)},
    )
    assert told(columns, a_request(memory="500Mi", cores=50)) == [
        "asked 500 MiB; most free on one device 1,000 MiB (gpu-0 on node-1)",
        "asked 50 % of compute; most free on one device 100 % (gpu-1 on node-1)",
    ]


def test_only_devices_of_nodes_that_the_pod_may_go_to_are_told_of():
    columns = two_nodes()
    number = columns.node_id("b")
    assert number is not None
    (text,) = told(columns, a_request(memory="50000Mi"), nodes=NodeFilter(selector=only(number)))
    assert text == "asked 50,000 MiB; most free on one device 16,384 MiB (gpu-2 on b)"


def test_of_several_requests_each_is_told_by_its_container():
    requests = [a_request(name="a", memory="50000Mi"), a_request(name="b", memory="60000Mi")]
    assert [text.split(";")[0] for text in told(two_nodes(), *requests)] == [
        "container a asked 50,000 MiB",
        "container b asked 60,000 MiB",
    ]


def test_of_amounts_that_are_there_nothing_is_told():
    """The refusal has another cause: a quota, or capacity kept for others."""
    columns, demand = two_nodes(), an_ask(a_request(memory="1Gi", count=2))
    columns.set_used(columns.number_of("gpu-0"), slots=0, cores=0, memory=0)
    reasons = "1/2 CardInsufficientMemory, 1/2 AllocatedCardsInsufficientRequest"
    assert amounts(columns, demand, reasons, within=EVERY_NODE) == []


def test_where_no_device_is_of_the_right_kind_no_amount_is_told():
    columns = two_nodes()
    demand = an_ask(a_request(memory="1Gi", selector={"models": ["H100"]}))
    assert amounts(columns, demand, "1/1 CardInsufficientMemory", within=EVERY_NODE) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"memory": "900Gi"},
            "asked 921,600 MiB; the largest device has 81,920 MiB (gpu-0 on a)",
        ),
        (
            {"memory": "1Gi", "count": 3},
            "asked 3 devices on one node; the most that could serve it on one node are 2 (a)",
        ),
        (
            {"memory": "40Gi", "count": 3},
            "asked 3 devices on one node; the most that could serve it on one node are 2 (a)",
        ),
        (
            {"memory": "1Gi", "selector": {"models": ["H100"]}},
            "no device of the cluster is of the kind that is asked for",
        ),
    ],
)
def test_what_no_empty_device_could_serve_is_impossible(fields, text):
    assert impossible(two_nodes(), an_ask(a_request(**fields))) == text


@pytest.mark.parametrize(
    "fields", [{"memory": "80Gi"}, {"memory_percent": 100}, {"count": 2}, {"cores": 100}]
)
def test_what_an_empty_device_could_serve_is_possible_however_full_it_is(fields):
    assert impossible(two_nodes(), an_ask(a_request(**fields))) is None


@pytest.mark.parametrize("state", [{"healthy": False}, {"cordoned": True}, {"duplicate": True}])
def test_a_device_that_is_not_served_now_could_serve_later(state):
    columns = some_columns(
        device_facts(memory_mib=16_384, **state), states={"node-1": NodeState(ready=False)}
    )
    assert impossible(columns, an_ask(a_request(memory="16Gi"))) is None
    assert impossible(columns, an_ask(a_request(memory="17Gi"))) is not None


def test_what_is_possible_follows_the_devices_that_come_change_and_go():
    columns, demand = two_nodes(), an_ask(a_request(memory="900Gi"))
    assert impossible(columns, demand) is not None
    columns.put_device(device_facts("GPU-3", node="c", memory_mib=1_000_000))
    assert impossible(columns, demand) is None
    columns.put_device(device_facts("GPU-3", node="c", memory_mib=100_000))
    assert "the largest device has 100,000 MiB (gpu-3 on c)" in (impossible(columns, demand) or "")
    columns.remove_device("gpu-3")
    assert "the largest device has 81,920 MiB (gpu-0 on a)" in (impossible(columns, demand) or "")


def test_in_a_cluster_without_devices_nothing_is_impossible():
    """Devices may be added."""
    assert impossible(Fleet(), an_ask(a_request(memory="900Gi"))) is None


DEVICES = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([4_096, 16_384]), st.sampled_from([50, 100]),
              st.sampled_from(["tesla t4", "a100"])),
    min_size=1, max_size=6,
)  # fmt: skip
REQUESTS = st.fixed_dictionaries(
    {
        "memory": st.sampled_from(["1Gi", "8Gi", "16Gi", "17Gi"]),
        "cores": st.sampled_from([0, 50, 60, 100]),
        "count": st.integers(1, 4),
        "selector": st.sampled_from([None, {"models": ["A100"]}, {"exclude_models": ["T4"]}]),
    }
)


@given(DEVICES, REQUESTS)
def test_a_request_is_impossible_exactly_if_empty_devices_do_not_serve_it(shapes, fields):
    """Invariant: impossible(columns) is None ⟺ place(the same columns, empty) finds a node."""
    facts = [
        device_facts(
            f"GPU-{index}", node=node, index=index, memory_mib=mib, cores=cores, model=model
        )
        for index, (node, mib, cores, model) in enumerate(shapes)
    ]
    demand = an_ask(a_request(**fields))
    full = {device.uuid: Use(device.memory_mib, device.cores, 1) for device in facts}
    served = not place(some_columns(*facts), demand).refused
    assert (impossible(some_columns(*facts, used=full), demand) is None) == served
