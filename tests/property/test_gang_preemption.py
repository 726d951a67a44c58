"""A gang preempts the pods whose loss costs least, as many as it needs or none.

Each node has one device, and each pod of the gang takes a whole device. The nodes are therefore
independent and the choice can be made by hand: first free nodes, then the nodes whose most
important pod has the lowest priority, then those with the smallest sum of priorities.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from preemption_town import MIB, Town
from vgpu_api.core import Pod

GANG = 5
"""The priority of the gang."""
_SUM = 2**31
"""The number that kube-scheduler adds to each priority, so that fewer victims cost less."""


@dataclass(frozen=True)
class Case:
    """A drawn case.

    Attributes:
        nodes: The priorities of the pods on each node, none, one or two.
        count: The number of the gang's pods.
        least: The number of them that must start together.
    """

    nodes: list[list[int]]
    count: int
    least: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    priorities = st.lists(st.integers(0, GANG + 1), max_size=2)
    nodes = draw(st.lists(priorities, min_size=1, max_size=6))
    count = draw(st.integers(2, 5))
    return Case(nodes, count, draw(st.integers(2, count)))


def by_hand(case: Case) -> list[tuple[int, int]] | None:
    """Return the costs of the nodes that are freed, or None if too few can be freed."""
    free = sum(not pods for pods in case.nodes)
    costs = sorted(
        (max(pods), sum(each + _SUM for each in pods))
        for pods in case.nodes
        if pods and max(pods) < GANG
    )
    needed = max(case.least - free, 0)
    return costs[:needed] if needed <= len(costs) else None


@pytest.mark.timeout(600)
@given(cases())
def test_a_gang_takes_the_nodes_whose_pods_matter_least_or_none(case: Case) -> None:
    asyncio.run(_judge(case))


async def _judge(case: Case) -> None:
    town, pods = Town(devices=0), dict[str, tuple[int, Pod]]()
    town.device_on(*range(len(case.nodes)))
    for number, priorities in enumerate(case.nodes):
        for index, priority in enumerate(priorities):
            name = f"low-{number}-{index}"
            mib = MIB // len(priorities)
            pods[name] = number, await town.runs(name, mib, priority, node=f"node-{number}")
    wanted = by_hand(case)
    gang = town.gang_waits("g", [MIB] * case.count, least=case.least, priority=GANG)
    gone = await town.evicted(20)
    event("impossible" if wanted is None else f"nodes: {len(wanted)}")
    if not wanted:
        assert gone == []
        return
    nodes = {pods[name][0] for name in gone}
    assert len(gone) == len(set(gone))
    assert set(gone) == {name for name, (number, _) in pods.items() if number in nodes}
    costs = ((max(case.nodes[n]), sum(each + _SUM for each in case.nodes[n])) for n in nodes)
    assert sorted(costs) == wanted
    for name in gone:
        await town.ends(town.replica.cache.pod(pods[name][1].metadata.uid).pod)
    placed = [pod for pod, node in zip(gang, town.tries(gang), strict=True) if node]
    assert len(placed) >= case.least
    assert all(await town.starts(placed))
