"""A leader whose clock stands still never sees its lease expire; the agent's sum still protects."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_bench import a_bench, a_bound_pod
from agent_node import GPU_0
from builders import a_container, a_pod
from replica import Replica
from set_clock import SetClock
from vgpu_api.core import Pod
from vgpu_api.effective import Use, effective_use
from vgpu_api.quantity import MIB
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.lease import Elector, LeaseTimes
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.state.slots import Binding, ClaimAllocation, SlotState, allocate, grant

DEVICE_MIB = 16384


class Clock(SetClock):
    """A clock that advances only while a task sleeps, or never."""

    def __init__(self, *, stands: bool) -> None:
        super().__init__(100.0)
        self._stands = stands

    async def sleep(self, seconds: float) -> None:
        if not self._stands:
            self.time += seconds
        await asyncio.sleep(0)


def an_elector(replica: Replica, name: str, clock: Clock) -> Elector:
    return Elector(
        replica.api,
        namespace="vgpu-system",
        name="vgpu-operator",
        identity=name,
        times=LeaseTimes(),
        clock=clock,
    )


def a_pod_asking(name: str, mib: int) -> Pod:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    return a_pod(name, containers=[a_container(limits=limits)])


async def decide(replica: Replica, name: str, *, mib: int = 10_000) -> VGPUClaim:
    """Return the claim that this replica allocated for a pod that the other has not seen."""
    pod = a_pod_asking(name, mib)
    replica.news.pod_changed(pod)
    replica.offer(pod)
    await replica.settle()
    claim: VGPUClaim = replica.claim_of(pod)
    return claim


def shares_of(claim: VGPUClaim) -> ClaimAllocation:
    allocation, reserved = claim.status.allocation, claim.status.reserved_for
    assert allocation is not None
    assert reserved is not None
    return ClaimAllocation(
        claim_uid=claim.metadata.uid,
        namespace=claim.metadata.namespace or "",
        claim_name=claim.metadata.name,
        allocation_id=allocation.id,
        pod_uid=reserved.pod_uid,
        pod_name=reserved.pod_name,
        use=dict(effective_use(claim.spec, allocation.devices)),
    )


async def two_leaders(replica: Replica) -> tuple[Any, Any]:
    """Return two leaders: one whose clock stands still, and its successor."""
    former, former_clock = type(replica)(replica.api), Clock(stands=True)
    first = an_elector(former, "operator-0", former_clock)
    second = an_elector(replica, "operator-1", Clock(stands=False))
    await first.acquire()
    await second.acquire()
    former.leading, replica.leading = first.is_leading(), second.is_leading()
    assert (former.leading, replica.leading) == (True, True)
    return former, replica


async def test_a_leader_whose_clock_stands_still_over_grants_no_container(
    replica: Replica, tmp_path: Path
) -> None:
    """Both allocate the same device repeatedly; the started containers never exceed it."""
    leaders = await two_leaders(replica)
    bench = await a_bench(tmp_path)
    for each in leaders:
        each.device(uuid=GPU_0, node="n1", memory_mib=DEVICE_MIB)
    claims = []
    for number in range(3):
        for name, each in zip(("early", "later"), leaders, strict=True):
            claims.append(await decide(each, f"{name}-{number}", mib=5_000))
    given = sum(shares_of(claim).use[GPU_0].memory_mib for claim in claims)
    assert given == 30_000 > DEVICE_MIB

    refused: list[Why] = []
    for number, claim in enumerate(claims):
        reserved = claim.status.reserved_for
        assert reserved is not None
        pod = a_bound_pod(reserved.pod_name, uid=reserved.pod_uid)
        bench.view.pods.added(pod)
        bench.view.claims.added(claim)
        try:
            await bench.start(pod, f"slot-{number}")
        except Refused as error:
            refused.append(error.reason)
        pages = [
            bench.node.allocations.content(name)
            for name in bench.node.checkpoint.state.slot_allocations
        ]
        open_bytes = sum(limit.memory_bytes for page in pages for limit in page.devices)
        assert open_bytes <= DEVICE_MIB * MIB
    assert refused == [Why.OVER_CAPACITY] * 3


async def test_of_two_leaders_decisions_the_agent_starts_what_fits_and_refuses_the_rest(
    replica: Replica,
) -> None:
    former, _ = await two_leaders(replica)
    for each in (former, replica):
        each.device(memory_mib=DEVICE_MIB)
    claims = [await decide(former, "early"), await decide(replica, "later")]
    uses = [shares_of(claim).use for claim in claims]
    (device,) = {uuid for use in uses for uuid in use}
    assert sum(use[device].memory_mib for use in uses) > DEVICE_MIB  # both got the same device

    state = SlotState()
    for number in range(2):
        ids = [f"slot-{number}"]
        state, _ = allocate(state, slot_ids=ids, nonce=f"n{number}", now=float(number))
    allocatable = {device: Use(DEVICE_MIB, 100, 10)}
    names = sorted(state.slot_allocations)
    state = grant(
        state,
        claim_allocation=shares_of(claims[0]),
        bindings=[Binding(names[0], "main")],
        allocatable=allocatable,
    )
    with pytest.raises(Refused, match="does not fit on GPU"):
        grant(
            state,
            claim_allocation=shares_of(claims[1]),
            bindings=[Binding(names[1], "main")],
            allocatable=allocatable,
        )
    assert state.used()[device].memory_mib == 10_000
