"""A leader whose clock stands still never finds its lease over; the agent's own sum is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import a_container, a_pod
from vgpu_api.core import Pod
from vgpu_api.effective import Use, effective_use
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.lease import Elector, Terms
from vgpu_nodeagent.deviceplugin.slots import Binding, Holding, SlotState, allocate, grant
from vgpu_nodeagent.errors import Refused

CARD_MIB = 16384


class Clock:
    """Seconds that pass only while somebody sleeps, if at all."""

    def __init__(self, *, stands: bool) -> None:
        self._stands = stands
        self.now = 100.0

    async def sleep(self, seconds: float) -> None:
        if not self._stands:
            self.now += seconds
        await asyncio.sleep(0)


def an_elector(replica: Any, name: str, clock: Clock) -> Elector:
    return Elector(
        replica.api,
        namespace="vgpu-system",
        name="vgpu-operator",
        identity=name,
        terms=Terms(),
        clock=lambda: clock.now,
        sleep=clock.sleep,
        jitter=lambda: 0.5,
    )


def a_pod_asking(name: str, mib: int) -> Pod:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    return a_pod(name, containers=[a_container(limits=limits)])


async def decide(replica: Any, name: str) -> VGPUClaim:
    """The claim that this replica gave a pod, which the other has not heard of."""
    pod = a_pod_asking(name, 10_000)
    replica.engine.pod_changed(pod)
    await replica.settle()
    claim: VGPUClaim = replica.claim_of(pod)
    return claim


def holding_of(claim: VGPUClaim) -> Holding:
    allocation, reserved = claim.status.allocation, claim.status.reserved_for
    assert allocation is not None
    assert reserved is not None
    return Holding(
        claim_uid=claim.metadata.uid,
        namespace=claim.metadata.namespace or "",
        claim_name=claim.metadata.name,
        allocated_time=allocation.allocated_time,
        pod_uid=reserved.pod_uid,
        pod_name=reserved.pod_name,
        use=dict(effective_use(claim.spec, allocation.devices)),
    )


async def test_of_two_leaders_decisions_the_agent_starts_what_fits_and_refuses_the_rest(
    replica: Any,
) -> None:
    former, former_clock = type(replica)(replica.api), Clock(stands=True)
    first = an_elector(former, "operator-0", former_clock)
    second = an_elector(replica, "operator-1", Clock(stands=False))
    await first.acquire()
    await second.acquire()
    former.leading, replica.leading = first.is_leading(), second.is_leading()
    assert (former.leading, replica.leading) == (True, True)

    for each in (former, replica):
        each.card(memory_mib=CARD_MIB)
    claims = [await decide(former, "early"), await decide(replica, "later")]
    uses = [holding_of(claim).use for claim in claims]
    (card,) = {uuid for use in uses for uuid in use}
    assert sum(use[card].memory_mib for use in uses) > CARD_MIB  # both were given the same card

    state = SlotState()
    for number in range(2):
        ids = [f"slot-{number}"]
        state, _ = allocate(state, slot_ids=ids, nonce=f"n{number}", now=float(number))
    allocatable = {card: Use(CARD_MIB, 100, 10)}
    leases = sorted(state.leases)
    state = grant(
        state,
        holding=holding_of(claims[0]),
        bindings=[Binding(leases[0], "main")],
        allocatable=allocatable,
    )
    with pytest.raises(Refused, match="does not fit on card"):
        grant(
            state,
            holding=holding_of(claims[1]),
            bindings=[Binding(leases[1], "main")],
            allocatable=allocatable,
        )
    assert state.used()[card].memory_mib == 10_000
