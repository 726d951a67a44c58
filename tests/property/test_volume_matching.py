"""Local volumes serve waiting claims as a search over all assignments says, on small clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from builders import a_node, a_pod
from storage_objects import (
    HOSTNAME,
    LOCAL,
    a_local_class,
    a_volume,
    a_volume_claim,
    read,
    using,
)
from vgpu_operator.node_filter.node_rules import NodeFilters
from vgpu_operator.node_filter.storage_objects import Volume, VolumeClaim, volume_claims_of
from vgpu_operator.node_filter.volume_binding import Volumes
from vgpu_operator.placement.columns import Columns, NodeState

NODES = ("n0", "n1", "n2")
TIERS = ("fast", "slow")


@dataclass(frozen=True, slots=True)
class Disk:
    """A volume with its size in GiB, its label, and the nodes that reach it."""

    size: int
    tier: str
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Need:
    """A claim with its size in GiB and the label that it selects (empty: any)."""

    size: int
    tier: str


DISKS = st.builds(
    Disk,
    st.integers(1, 3),
    st.sampled_from(TIERS),
    st.frozensets(st.sampled_from(NODES), min_size=1),
)
NEEDS = st.builds(Need, st.integers(1, 3), st.sampled_from(("", *TIERS)))


def a_cluster() -> Volumes:
    columns, filters = Columns(), NodeFilters()
    for number, name in enumerate(NODES):
        columns.put_node(name, NodeState())
        filters.put(number, a_node(name, labels={HOSTNAME: name}))
    made = Volumes(columns, filters)
    made.observe(read(a_local_class()))
    return made


def disk(number: int, made: Disk, *, claim: str = "") -> Volume:
    found = read(
        a_volume(
            f"v{number}",
            class_name=LOCAL,
            nodes=sorted(made.nodes),
            size=f"{made.size}Gi",
            labels={"tier": made.tier},
            claim=claim,
        )
    )
    assert isinstance(found, Volume)
    return found


def a_need(name: str, made: Need) -> VolumeClaim:
    selector = {"selector": {"matchLabels": {"tier": made.tier}}} if made.tier else {}
    found = read(a_volume_claim(name, class_name=LOCAL, size=f"{made.size}Gi", **selector))
    assert isinstance(found, VolumeClaim)
    return found


def serves(made: Disk, asked: Need, node: str) -> bool:
    return made.size >= asked.size and asked.tier in ("", made.tier) and node in made.nodes


def could_serve(disks: Sequence[Disk], needs: Sequence[Need], node: str) -> bool:
    """Return True if each claim can have a disk of its own, by trying all assignments."""
    return any(
        all(serves(made, asked, node) for made, asked in zip(chosen, needs, strict=True))
        for chosen in permutations(disks, len(needs))
    )


def found(cluster: Volumes, needs: Sequence[Need], name: str = "c") -> list[str]:
    for number, made in enumerate(needs):
        cluster.observe(a_need(f"{name}{number}", made))
    pod = a_pod("p", **using(*(f"{name}{number}" for number in range(len(needs)))))
    bits = cluster.of(volume_claims_of(pod)).reached
    return [node for number, node in enumerate(NODES) if bits >> number & 1]


@given(disks=st.lists(DISKS, max_size=5), asked=NEEDS)
def test_one_claim_is_served_exactly_where_a_volume_serves_it(
    disks: list[Disk], asked: Need
) -> None:
    """A node is allowed if and only if a free volume within its reach matches the claim."""
    cluster = a_cluster()
    for number, made in enumerate(disks):
        cluster.observe(disk(number, made))
    assert found(cluster, [asked]) == [n for n in NODES if could_serve(disks, [asked], n)]


@given(disks=st.lists(DISKS, max_size=5), needs=st.lists(NEEDS, min_size=2, max_size=3))
def test_several_claims_are_served_only_where_each_gets_its_own(
    disks: list[Disk], needs: list[Need]
) -> None:
    """No volume is used twice: an allowed node has one for each claim of the pod.

    If the claims select no label, serving the smallest first is best and finds every such node.
    """
    cluster = a_cluster()
    for number, made in enumerate(disks):
        cluster.observe(disk(number, made))
    possible = [node for node in NODES if could_serve(disks, needs, node)]
    allowed = found(cluster, needs)
    assert set(allowed) <= set(possible)
    if not any(made.tier for made in needs):
        assert allowed == possible


@given(
    disks=st.lists(DISKS, max_size=4),
    first=NEEDS,
    second=NEEDS,
    node=st.sampled_from(NODES),
)
def test_what_a_pod_on_its_way_needs_is_left_to_it(
    disks: list[Disk], first: Need, second: Need, node: str
) -> None:
    """On a node that the next pod may use, both pods' claims can be served."""
    cluster = a_cluster()
    for number, made in enumerate(disks):
        cluster.observe(disk(number, made))
    if node not in found(cluster, [first], "a"):
        return
    cluster.put(a_pod("before", **using("a0")), node)
    if node in found(cluster, [second], "b"):
        assert could_serve(disks, [first, second], node)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("disk"), st.integers(0, 3), DISKS, st.sampled_from(("", "c0", "c1"))),
        st.tuples(st.just("disk gone"), st.integers(0, 3)),
        st.tuples(st.just("claim"), st.integers(0, 1), NEEDS),
        st.tuples(st.just("claim gone"), st.integers(0, 1)),
        st.tuples(st.just("pod"), st.integers(0, 1), st.sampled_from(NODES)),
        st.tuples(st.just("pod gone"), st.integers(0, 1)),
    ),
    max_size=20,
)


@given(steps=STEPS)
def test_only_what_is_there_counts_whatever_came_and_went_before(
    steps: list[tuple[object, ...]],
) -> None:
    """Applying a history has the same result as starting from its last state."""
    seen, there = a_cluster(), {}
    for step in steps:
        match step:
            case ("disk", int(number), Disk() as made, str(claim)):
                there["disk", number] = disk(number, made, claim=claim)
                seen.observe(there["disk", number])
            case ("disk gone", int(number)):
                there.pop(("disk", number), None)
                seen.remove(Volume, "", f"v{number}")
            case ("claim", int(number), Need() as asked):
                there["claim", number] = a_need(f"c{number}", asked)
                seen.observe(there["claim", number])
            case ("claim gone", int(number)):
                there.pop(("claim", number), None)
                seen.remove(VolumeClaim, "default", f"c{number}")
            case ("pod", int(number), str(node)):
                there["pod", number] = node
                seen.put(a_pod(f"p{number}", **using(f"c{number}")), node)
            case ("pod gone", int(number)):
                there.pop(("pod", number), None)
                seen.remove_pod(f"uid-of-p{number}")
        _ = [seen.of(volume_claims_of(a_pod(**using(f"c{each}")))) for each in range(2)]
    told = a_cluster()
    for (kind, number), obj in there.items():
        if kind == "pod":
            told.put(a_pod(f"p{number}", **using(f"c{number}")), obj)
        else:
            told.observe(obj)
    for claims in (("c0",), ("c1",), ("c0", "c1")):
        asking = a_pod("asks", **using(*claims))
        assert seen.of(volume_claims_of(asking)) == told.of(volume_claims_of(asking))
        assert seen.refusal(asking) == told.refusal(asking)
