"""Room besides devices: kube-scheduler's own sums for each node."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_container, a_node, a_pod
from vgpu_api.core import Pod
from vgpu_api.core.pod import ResourceRequirements
from vgpu_api.host import requests_of
from vgpu_operator.node_filter.host_demand import HostDemand
from vgpu_operator.node_filter.resources_fit import Room
from vgpu_operator.placement import Columns
from vgpu_operator.placement.columns import NodeState


def pod(name: str = "pod-1", *, ports: list[dict[str, Any]] | None = None, **asks: str) -> Pod:
    container = a_container().model_copy(
        update={"resources": ResourceRequirements(requests=dict(asks)), "ports": ports or []}
    )
    return a_pod(name, containers=[container])


def room(*allocatable: dict[str, str]) -> Room:
    columns = Columns()
    made = Room(columns)
    for number, amounts in enumerate(allocatable):
        node = a_node(f"node-{number}", allocatable={"pods": "110", **amounts})
        columns.put_node(node.metadata.name, NodeState())
        made.apply_node(node)
    return made


def nodes(made: Room, asked: Pod) -> list[int]:
    bits = made.of(HostDemand.of(asked))
    return [number for number in range(8) if bits >> number & 1]


def test_a_node_has_room_for_exactly_what_is_free() -> None:
    made = room({"cpu": "2"}, {"cpu": "1500m"}, {"cpu": "1"})
    made.put(pod("other", cpu="500m"), "node-0")
    assert nodes(made, pod(cpu="1500m")) == [0, 1]
    assert nodes(made, pod(cpu="1501m")) == []


def test_a_resource_that_no_node_has_is_nowhere() -> None:
    assert nodes(room({"cpu": "2"}), pod(**{"example.com/fpga": "1"})) == []


def test_the_number_of_pods_is_a_resource() -> None:
    made = room({"pods": "1"})
    assert nodes(made, pod()) == [0]
    made.put(pod("other"), "node-0")
    assert nodes(made, pod()) == []


def test_what_ends_is_free_again_and_its_node_is_named() -> None:
    made = room({"cpu": "1"})
    assert made.put(pod("other", cpu="1"), "node-0") == ""
    assert made.remove("uid-of-other") == "node-0"
    assert nodes(made, pod(cpu="1")) == [0]


def test_a_pod_that_comes_to_another_node_than_expected_is_counted_there_only() -> None:
    made = room({"cpu": "1"}, {"cpu": "1"})
    made.put(pod("other", cpu="1"), "node-0")
    assert made.put(pod("other", cpu="1"), "node-1") == "node-0"
    assert nodes(made, pod(cpu="1")) == [0]


def test_a_pod_that_is_resized_in_place_counts_with_its_new_amounts() -> None:
    made = room({"cpu": "2"})
    made.put(pod("other", cpu="2"), "node-0")
    smaller = pod("other", cpu="500m")
    metadata = smaller.metadata.model_copy(update={"generation": 2})
    assert made.put(smaller.model_copy(update={"metadata": metadata}), "node-0") == "node-0"
    assert nodes(made, pod(cpu="1500m")) == [0]


def test_a_pod_is_not_in_its_own_way() -> None:
    made = room({"cpu": "1"})
    asked = pod(cpu="1")
    made.put(asked, "node-0")
    assert made.has(asked.metadata.uid, HostDemand.of(asked), 0)
    made.put(pod("other", cpu="1"), "node-0")
    assert not made.has(asked.metadata.uid, HostDemand.of(asked), 0)


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, False),
        ({"hostPort": 80}, {"hostPort": 81}, True),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, False),
        ({"containerPort": 80}, {"containerPort": 80}, True),
    ],
)
def test_a_host_port_is_taken_once(
    one: dict[str, Any], other: dict[str, Any], *, fits: bool
) -> None:
    made = room({})
    made.put(pod("other", ports=[one]), "node-0")
    assert bool(nodes(made, pod(ports=[other]))) == fits


def test_init_containers_sidecars_and_overhead_count_as_kube_scheduler_counts_them() -> None:
    def asking(cpu: str, memory: str, *, sidecar: bool = False) -> Any:
        amounts = ResourceRequirements(requests={"cpu": cpu, "memory": memory})
        policy = "Always" if sidecar else None
        return a_container().model_copy(update={"resources": amounts, "restart_policy": policy})

    asked = a_pod(
        init_containers=[asking("100m", "1Gi", sidecar=True), asking("2", "1Mi")],
        containers=[asking("1", "1Gi")],
        overhead={"cpu": "50m"},
    )
    assert requests_of(asked) == {"cpu": 2150, "memory": 2 << 30, "pods": 1}


COMINGS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 900), st.booleans()),
    max_size=30,
)


@given(comings=COMINGS, asked=st.integers(1, 1000))
def test_what_is_free_is_what_nobody_there_asks_for(
    comings: list[tuple[int, int, int, bool]], asked: int
) -> None:
    """Free CPU is allocatable minus the sum over the current pods, regardless of earlier ones."""
    made = room({"cpu": "1"}, {"cpu": "1"}, {"cpu": "1"})
    there: dict[int, tuple[int, int]] = {}
    for number, node, milli, goes in comings:
        if goes:
            made.remove(f"uid-of-pod-{number}")
            there.pop(number, None)
        elif number not in there or there[number][0] != node:
            made.put(pod(f"pod-{number}", cpu=f"{milli}m"), f"node-{node}")
            there[number] = node, milli
    used = [sum(milli for at, milli in there.values() if at == node) for node in range(3)]
    free = [node for node in range(3) if used[node] + asked <= 1000]
    assert nodes(made, pod(cpu=f"{asked}m")) == free
