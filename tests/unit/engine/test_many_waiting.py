"""Ten thousand waiting pods or claims of a tenant take bounded memory and slow no other tenant."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from types import FrameType

import pytest

from builders import a_claim, a_container, a_node, a_pod, a_request
from replica import Replica
from vgpu_api.core import Pod
from vgpu_operator.engine.scheduling.reservation import Reservation

pytestmark = pytest.mark.scale

FEW, MANY = 100, 10_000
NODES = 8
A_POD = 200
"""Blocks of memory for a waiting pod with its spec and its place in the queue."""
A_UID = 8
"""Blocks that a deleted pod may leave for minutes, so that a late event does not bring it back."""
REMEMBERED = 50_000
"""Blocks for the bounded number of requests and refusals that are remembered."""


def alike(number: int) -> Pod:
    """Return a whole GPU of the larger model."""
    return a_gpu_pod(f"p{number}", 16_384)


def different(number: int) -> Pod:
    """Return a share of a unique size that no GPU has left."""
    return a_gpu_pod(f"p{number}", 6_000 + number)


def a_gpu_pod(name: str, memory_mib: int, *, namespace: str = "tenant") -> Pod:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory_mib}
    return a_pod(name, namespace=namespace, containers=[a_container(limits=limits)])


def full_but_for_one(replica: Replica) -> None:
    """Create nodes whose GPUs are in use, and a node with a small GPU for the other tenant."""
    for number in range(NODES):
        replica.news.node_changed(a_node(f"node-{number}"))
        replica.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16_384)
        taken = replica.pod(f"taken-{number}", limits={"nvidia.com/gpu": 1})
        assert isinstance(replica.offer(taken), Reservation)
    replica.news.node_changed(a_node("small"))
    replica.device(uuid="GPU-small", node="small", memory_mib=4_096)


def wait(replica: Replica, make: Callable[[int], Pod], numbers: Iterable[int]) -> None:
    for number in numbers:
        pod = make(number)
        replica.news.pod_changed(pod)
        assert not isinstance(replica.offer(pod), Reservation)
    list(replica.engine.round())


def work(act: Callable[[], object]) -> int:
    """Return the number of function calls."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def serve_another(replica: Replica, name: str) -> int:
    """Return the work for another tenant's pod, from its creation until it has run and ended."""
    pod = a_gpu_pod(name, 1_024, namespace="other")

    def come_and_go() -> None:
        replica.news.pod_changed(pod)
        outcome = replica.offer(pod)
        assert isinstance(outcome, Reservation)
        assert outcome.node == "small"
        replica.news.pod_gone(pod.metadata.uid)

    return work(come_and_go)


@pytest.mark.parametrize("make", [alike, different])
async def test_ten_thousand_waiting_pods_of_a_tenant_slow_no_other_down_and_leave_nothing(
    replica: Replica, make: Callable[[int], Pod]
) -> None:
    full_but_for_one(replica)
    wait(replica, make, range(FEW))
    serve_another(replica, "first")
    with_few = serve_another(replica, "second")
    gc.collect()
    few = sys.getallocatedblocks()
    wait(replica, make, range(FEW, MANY))
    with_many = serve_another(replica, "third")
    assert with_many < 1.5 * with_few
    gc.collect()
    assert sys.getallocatedblocks() - few < A_POD * (MANY - FEW)
    for number in range(FEW, MANY):
        replica.news.pod_gone(make(number).metadata.uid)
    for _ in range(3):
        replica.time += 700.0  # the timers that were set for them expire
        list(replica.engine.round())
    gc.collect()
    assert sys.getallocatedblocks() - few < A_UID * (MANY - FEW) + REMEMBERED


async def test_a_gpu_that_becomes_free_costs_as_much_with_ten_thousand_alike_as_with_a_hundred(
    replica: Replica,
) -> None:
    """One pod gets it; the others are not examined."""
    full_but_for_one(replica)

    def free(number: int) -> int:
        replica.news.pod_gone(f"uid-of-taken-{number}")
        replica.time += 10.0
        return work(lambda: list(replica.engine.round()))

    wait(replica, alike, range(FEW))
    free(0)
    with_few = free(1)
    wait(replica, alike, range(FEW, MANY))
    free(2)  # by now each was examined once
    assert free(3) < 2 * with_few


async def test_ten_thousand_claims_of_a_tenant_without_pods_slow_no_other_down(
    replica: Replica,
) -> None:
    full_but_for_one(replica)
    serve_another(replica, "first")
    with_none = serve_another(replica, "second")
    for number in range(MANY):
        request = a_request(memory="1Gi")
        replica.news.claim_changed(a_claim(f"c{number}", namespace="tenant", requests=[request]))
    replica.submit()
    assert serve_another(replica, "third") < 1.5 * with_none
