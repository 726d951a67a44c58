"""Pods of one tenant that all differ leave a bounded state and do not stop other tenants."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

from builders import a_container, a_node, a_pod
from replica import Replica
from vgpu_api.core import Pod
from vgpu_operator.engine.engine import Engine

pytestmark = pytest.mark.scale

NODES = 16
FULL = 4_500
"""A number of distinct requests or rules that fills every cache."""
A_UID = 8
"""Blocks of memory for the UID of a deleted pod, which is remembered for a long time."""


def shaped(number: int) -> Pod:
    """Return a unique request for more memory than any node has."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 40_000 + number}
    return a_pod(f"p{number}", containers=[a_container(limits=limits)])


def selecting(number: int) -> Pod:
    """Return unique rules: a selector of 10 kB that no node matches."""
    selector = {f"key-{number}-{key}": "x" * 60 for key in range(140)}
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}
    return a_pod(f"p{number}", containers=[a_container(limits=limits)], node_selector=selector)


def come_and_go(replica: Replica, make: Callable[[int], Pod], numbers: range) -> None:
    nodes = frozenset(replica.cache.nodes)
    engine: Engine = replica.engine
    for number in numbers:
        pod = make(number)
        engine.filter(pod, nodes)
        engine.filter_without_effect(pod, nodes)
        replica.news.pod_gone(pod.metadata.uid)
        if number % 100 == 0:
            replica.time += 10.0
            list(engine.round())


@pytest.mark.parametrize(("make", "many"), [(shaped, 10_000), (selecting, FULL + 500)])
async def test_shapes_beyond_those_that_are_remembered_leave_nothing_behind(
    replica: Replica, make: Callable[[int], Pod], many: int
) -> None:
    """Also, a pod of another tenant still gets a device."""
    for number in range(NODES):
        name = f"node-{number}"
        replica.news.node_changed(a_node(name))
        replica.device(uuid=f"GPU-{number}", node=name, memory_mib=16_384)
    come_and_go(replica, make, range(FULL))
    gc.collect()
    full = sys.getallocatedblocks()
    come_and_go(replica, make, range(FULL, many))
    gc.collect()
    assert sys.getallocatedblocks() - full < A_UID * (many - FULL)
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16_384}
    other = replica.pod("other", namespace="b", containers=[a_container(limits=limits)])
    outcome = replica.engine.filter(other, frozenset(replica.cache.nodes))
    assert outcome.node in replica.cache.nodes
