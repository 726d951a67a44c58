"""The status that the operator writes to a claim, and how often it writes."""

from __future__ import annotations

import pytest

from builders import a_claim, an_allocation
from replica import Replica
from vgpu_api.conditions import PREPARED, READY, RESIZED, VIOLATED, find, is_true
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.v1alpha1 import Condition, VGPUClaim, VGPUClaimStatus
from vgpu_operator.engine.claims.status import DesiredStatus, status_with
from vgpu_operator.extender.wire import BindRequest


def prepared(replica: Replica, claim: VGPUClaim) -> VGPUClaim:
    """Return the claim after its agent has set the limits and the watch has reported it."""
    condition = Condition(type=PREPARED, status="True", reason="LimitsInPlace")
    status = claim.status.model_copy(
        update={"conditions": [*claim.status.conditions, condition]},
    )
    later: VGPUClaim = replica.claim(claim.model_copy(update={"status": status}))
    return later


def ready(claim: VGPUClaim) -> tuple[str, str]:
    condition = find(claim.status.conditions, READY)
    assert condition is not None
    return condition.status, condition.reason


async def test_a_pods_claim_is_made_and_written_once_from_filter_to_running(
    replica: Replica,
) -> None:
    """The operator reads the agent's Prepared and writes nothing in response."""
    replica.device()
    pod = replica.offered()
    metadata = pod.metadata
    bind = BindRequest(metadata.namespace, metadata.name, metadata.uid, "node-1")
    assert await replica.binder.bind(bind) == ""
    claim = prepared(replica, replica.claim_of(pod))
    await replica.settle()
    name = claim.metadata.name
    assert replica.api.log == [
        ("create vgpuclaims", name),
        ("patch status", name),
        ("bind", "pod-1"),
    ]


async def test_an_allocated_claim_is_ready_before_a_container_has_it(replica: Replica) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    claim = replica.claim_of(pod)
    assert (claim.status.state, ready(claim)) == ("Allocated", ("True", "Allocated"))
    assert find(claim.status.conditions, PREPARED) is None


@pytest.mark.parametrize(
    ("mode", "status"), [("WaitForFirstConsumer", "True"), ("Immediate", "False")]
)
async def test_a_claim_is_ready_while_it_waits_for_a_pod_and_not_for_devices(
    replica: Replica, mode: str, status: str
) -> None:
    replica.claim(a_claim("mine", binding_mode=mode))
    await replica.told()
    assert ready(VGPUClaim.read(replica.api.claim("mine")))[0] == status


async def test_an_immediate_claim_that_was_made_with_the_finalizer_is_written_once(
    replica: Replica,
) -> None:
    replica.device()
    metadata = {"finalizers": [FINALIZER_IN_USE]}
    replica.claim(a_claim("mine", binding_mode="Immediate", metadata=metadata))
    await replica.settle()
    assert replica.api.log == [("patch status", "mine")]
    assert VGPUClaim.read(replica.api.claim("mine")).status.allocation is not None


async def test_an_immediate_claim_without_the_finalizer_gets_it_before_its_devices(
    replica: Replica,
) -> None:
    """The claim was created without our admission."""
    replica.device()
    replica.claim(a_claim("mine", binding_mode="Immediate"))
    await replica.settle()
    assert replica.api.log == [("patch object", "mine"), ("patch status", "mine")]


@pytest.mark.parametrize(("number", "kept"), [(0, True), (1, False)])
def test_what_the_agent_said_of_an_allocation_goes_with_it(number: int, kept: bool) -> None:
    said = (PREPARED, RESIZED, VIOLATED)
    before = VGPUClaimStatus(
        allocation=an_allocation(),
        conditions=[Condition(type=type_, status="True", reason="Said") for type_ in said],
    )
    claim = a_claim("mine", status=before)
    desired = DesiredStatus.allocated(an_allocation(number=number), None)
    after = status_with(claim, claim.spec, desired, unix=0.0)
    assert [is_true(after.conditions, type_) for type_ in said] == [kept] * 3
