"""The checker finds each kind of violation; otherwise its silence would mean nothing."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from builders import (
    NODE,
    a_claim,
    a_container,
    a_device,
    a_pod,
    a_request,
    an_allocated_device,
    an_allocation,
)
from vgpu_api.core import Pod
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.v1alpha1 import (
    Condition,
    InitReleased,
    Released,
    ReservedFor,
    VGPUClaim,
    VGPUClaimStatus,
)
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.checker import breaches, excesses


def wrote(kind: str, model: Any, version: int, type_: str = "MODIFIED") -> WriteEvent:
    return WriteEvent(type_, f"{kind}.vgpu.dev", version, orjson.dumps(model.to_wire()))


def holding(name: str, mib: int, *, phase: str = "App") -> Any:
    return a_claim(
        name,
        requests=[a_request(name="main", phase=phase)],
        allocation=an_allocation(an_allocated_device(request="main", memory_mib=mib)),
    )


DEVICE = wrote("gpudevices", a_device(memory_mib=10_000, slots=10), 1)


def test_a_device_that_holds_what_it_has_is_no_excess() -> None:
    history = [DEVICE]
    history += [wrote("vgpuclaims", holding(f"c{i}", 5000), 2 + i) for i in range(2)]
    assert excesses(history) == []


def test_a_moment_of_too_much_is_found_even_when_it_passes() -> None:
    history = [
        DEVICE,
        wrote("vgpuclaims", holding("a", 5000), 2),
        wrote("vgpuclaims", holding("b", 5001), 3),
        wrote("vgpuclaims", a_claim("b", requests=[a_request(name="main")]), 4),
    ]
    (excess,) = excesses(history)
    assert (excess.uuid, excess.resource_version, excess.use.memory_mib) == ("GPU-0", 3, 10_001)


def test_a_deleted_claim_holds_nothing() -> None:
    history = [
        DEVICE,
        wrote("vgpuclaims", holding("a", 8000), 2),
        wrote("vgpuclaims", holding("a", 8000), 3, "DELETED"),
        wrote("vgpuclaims", holding("b", 8000), 4),
    ]
    assert excesses(history) == []


def test_a_device_that_was_never_published_may_hold_nothing() -> None:
    assert excesses([wrote("vgpuclaims", holding("a", 1), 1)])


def meshed(uid: str, *, sidecar: bool) -> WriteEvent:
    """Return a pod whose first container is a sidecar or an ordinary init container."""
    side = a_container("side", restart_policy="Always" if sidecar else None)
    pod = a_pod("p", uid=uid, init_containers=[side, a_container("prepare")])
    return WriteEvent("ADDED", "pods", 2, orjson.dumps(pod.to_wire()))


@pytest.mark.parametrize(("sidecar", "mib"), [(True, 10_000), (False, 7_000)])
@pytest.mark.parametrize("order", [1, -1])
def test_what_runs_together_is_counted_by_the_pod_and_not_by_the_claim(
    order: int, sidecar: bool, mib: int
) -> None:
    """This holds in any order of the claim's requests: 3,000 and 7,000 at once, then 1,000."""
    sizes = {"side": 3_000, "prepare": 7_000, "main": 1_000}
    phases = {"side": "App" if sidecar else "Init", "prepare": "Init", "main": "App"}
    devices = [an_allocated_device(request=n, memory_mib=size) for n, size in sizes.items()]
    status = VGPUClaimStatus(
        allocation=an_allocation(*devices),
        reserved_for=ReservedFor(pod_name="p", pod_uid="u1"),
        conditions=[],
    )
    requests = [a_request(name=name, phase=phase) for name, phase in phases.items()][::order]
    claim = a_claim("a", requests=requests, status=status)
    history = [DEVICE, meshed("u1", sidecar=sidecar), wrote("vgpuclaims", claim, 3)]
    assert excesses([*history, wrote("vgpuclaims", holding("b", 10_000 - mib), 4)]) == []
    (excess,) = excesses([*history, wrote("vgpuclaims", holding("b", 10_001 - mib), 4)])
    assert excess.use.memory_mib == 10_001


def test_a_pod_that_is_gone_counts_as_long_as_its_claim_stands() -> None:
    devices = [an_allocated_device(request=name, memory_mib=5_000) for name in ("side", "prepare")]
    status = VGPUClaimStatus(
        allocation=an_allocation(*devices),
        reserved_for=ReservedFor(pod_name="p", pod_uid="u1"),
        conditions=[],
    )
    requests = [a_request(name="prepare", phase="Init"), a_request(name="side")]
    claim = wrote("vgpuclaims", a_claim("a", requests=requests, status=status), 3)
    added = meshed("u1", sidecar=True)
    gone = WriteEvent("DELETED", "pods", 4, orjson.dumps(added.object))
    history = [DEVICE, added, claim, gone]
    assert excesses([*history, wrote("vgpuclaims", holding("b", 1), 5)])
    freed = wrote("vgpuclaims", a_claim("a", requests=requests), 5)
    assert excesses([*history, freed, wrote("vgpuclaims", holding("b", 10_000), 6)]) == []


# The rules of a claim's life.

PROTECTED = {"finalizers": [FINALIZER_IN_USE]}


def granted(pod_uid: str = "u1", *, protected: bool = True) -> VGPUClaim:
    status = VGPUClaimStatus(
        allocation=an_allocation(an_allocated_device(request="main", memory_mib=1)),
        reserved_for=ReservedFor(pod_name="p", pod_uid=pod_uid),
        conditions=[],
    )
    return a_claim("c", status=status, metadata=PROTECTED if protected else None)


def a_pod_of_ours(
    *, node: str = "", uid: str = "u1", phase: str = "Pending", init: bool = False
) -> Pod:
    limits = {"nvidia.com/gpu": 1}
    return a_pod(
        "p",
        uid=uid,
        node=node,
        phase=phase,
        init_containers=[a_container("prepare", limits=limits)] if init else [],
        containers=[a_container(limits=limits)],
    )


def pod_was(version: int, type_: str = "MODIFIED", **pod: Any) -> WriteEvent:
    return WriteEvent(type_, "pods", version, orjson.dumps(a_pod_of_ours(**pod).to_wire()))


def claim_was(version: int, claim: VGPUClaim, type_: str = "MODIFIED") -> WriteEvent:
    return wrote("vgpuclaims", claim, version, type_)


def test_claim_then_binding_then_end_then_release_breaks_no_rule() -> None:
    history = [
        pod_was(1),
        claim_was(2, granted()),
        pod_was(3, node=NODE),
        pod_was(4, node=NODE, phase="Succeeded"),
        claim_was(5, a_claim("c", metadata=PROTECTED)),
    ]
    assert breaches(history) == []


def test_an_allocation_without_its_finalizer_is_found() -> None:
    assert breaches([claim_was(1, granted(protected=False))]) == [
        "claim c is allocated without its finalizer (1)"
    ]


def test_a_claim_written_after_the_binding_is_found() -> None:
    assert breaches([pod_was(1), pod_was(2, node=NODE), claim_was(3, granted())]) == [
        "pod p was bound before a claim gave it devices there (2)"
    ]


def test_a_claim_of_another_pod_of_the_same_name_backs_no_binding() -> None:
    assert breaches([claim_was(1, granted("u0")), pod_was(2), pod_was(3, node=NODE)])


@pytest.mark.parametrize(
    "end",
    [
        claim_was(4, a_claim("c")),
        claim_was(4, granted("u2")),
        claim_was(4, granted(), "DELETED"),
    ],
    ids=["released", "given to another pod", "deleted"],
)
def test_a_claim_freed_under_its_pod_is_found(end: WriteEvent) -> None:
    history = [pod_was(1), claim_was(2, granted()), pod_was(3, node=NODE), end]
    assert "claim c was freed while pod p had it (4)" in breaches(history)


# In Claims mode.


def by_resource_claim(version: int, **fields: Any) -> WriteEvent:
    """Return a write of the pod that `granted` is reserved for; it names a ResourceClaim."""
    raw = orjson.loads(pod_was(version, **fields).raw)
    raw["spec"]["resourceClaims"] = [{"name": "vgpu", "resourceClaimName": "vgpu-0"}]
    return WriteEvent("MODIFIED", "pods", version, orjson.dumps(raw))


def with_status(**changed: Any) -> VGPUClaim:
    claim = granted()
    return claim.model_copy(update={"status": claim.status.model_copy(update=changed)})


def test_a_claim_that_names_its_resource_claim_late_is_not_freed() -> None:
    allocation = granted().status.allocation
    assert allocation is not None
    named = allocation.model_copy(update={"resource_claim_uid": "uid"})
    other = allocation.model_copy(update={"resource_claim_uid": "another"})
    history = [
        by_resource_claim(1),
        claim_was(2, granted()),
        by_resource_claim(3, node=NODE),
        claim_was(4, with_status(allocation=named)),
    ]
    assert breaches(history) == []
    history.append(claim_was(5, with_status(allocation=other)))
    assert breaches(history) == ["claim c was freed while pod p had it (5)"]


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_claim_is_freed_before_its_pod_shows_its_end_only_if_the_agent_says_so(
    *, is_reported: bool
) -> None:
    allocation = granted().status.allocation
    assert allocation is not None
    said = Released(allocation_id=allocation.id) if is_reported else None
    history = [
        by_resource_claim(1),
        claim_was(2, granted()),
        by_resource_claim(3, node=NODE),
        claim_was(4, with_status(released=said)),
        claim_was(5, with_status(allocation=None)),
    ]
    assert bool(breaches(history)) is not is_reported


# Init containers give back what they had, and may need it again.


def with_init(*requests: str, ended: bool = False, init_round: int = 0) -> VGPUClaim:
    """Return a claim with devices for these requests; its first round may have ended."""
    devices = [an_allocated_device(request=name, memory_mib=1) for name in requests]
    allocation = an_allocation(*devices).model_copy(update={"init_round": init_round})
    status = VGPUClaimStatus(
        allocation=allocation,
        reserved_for=ReservedFor(pod_name="p", pod_uid="u1"),
        init_released=InitReleased(allocation_id=allocation.id, round=0) if ended else None,
        conditions=[],
    )
    asked = [a_request(name="prepare", phase="Init"), a_request(name="main")]
    return a_claim("c", requests=asked, status=status, metadata=PROTECTED)


RUNNING_WITH_INIT = [
    pod_was(1, init=True),
    claim_was(2, with_init("prepare", "main")),
    pod_was(3, node=NODE, init=True),
]
ENDED_INIT = [
    *RUNNING_WITH_INIT,
    claim_was(4, with_init("prepare", "main", ended=True)),
    claim_was(5, with_init("main", ended=True)),
]


def test_init_containers_that_the_agent_says_have_ended_may_give_their_devices_back() -> None:
    assert breaches(ENDED_INIT) == []


def test_init_containers_that_run_again_may_get_devices_anew() -> None:
    again = with_init("prepare", "main", ended=True, init_round=1)
    assert breaches([*ENDED_INIT, claim_was(6, again)]) == []


@pytest.mark.parametrize(
    "history",
    [
        [*RUNNING_WITH_INIT, claim_was(4, with_init("main"))],
        [*RUNNING_WITH_INIT, claim_was(4, with_init("main", ended=True))],
        [*RUNNING_WITH_INIT, claim_was(4, with_init("prepare"))],
        [*ENDED_INIT, claim_was(6, with_init("prepare", "main", ended=True))],
    ],
    ids=["nobody said so", "said with it", "of the app containers", "anew in the same round"],
)
def test_a_part_of_a_claim_that_is_taken_from_its_pod_is_found(history: list[WriteEvent]) -> None:
    assert any("claim c was freed while pod p had it" in breach for breach in breaches(history))


def resized(mib: int, *, edits: int = 1, settled: bool = False) -> VGPUClaim:
    """Return the claim of `granted` with another amount, after so many more writes of its spec."""
    claim = granted()
    allocation = an_allocation(an_allocated_device(request="main", memory_mib=mib))
    done = Condition(type="Resized", status="True", observed_generation=1 + edits)
    status = claim.status.model_copy(
        update={"allocation": allocation, "conditions": [done] if settled else []}
    )
    metadata = claim.metadata.model_copy(update={"generation": 1 + edits})
    return claim.model_copy(update={"status": status, "metadata": metadata})


def test_a_claim_in_use_may_grow_and_shrinks_when_the_agent_is_done() -> None:
    history = [pod_was(1), claim_was(2, granted()), pod_was(3, node=NODE)]
    history += [claim_was(4, resized(1)), claim_was(5, resized(4))]  # edited, then granted
    history += [claim_was(6, resized(4, edits=2)), claim_was(7, resized(4, edits=2, settled=True))]
    assert breaches([*history, claim_was(8, resized(2, edits=2, settled=True))]) == []


@pytest.mark.parametrize(
    ("asked", "changed"),
    [(granted(), resized(4)), (resized(1), resized(0))],
    ids=["nobody asked", "before the agent was done"],
)
def test_an_amount_that_changes_out_of_turn_is_found(asked: VGPUClaim, changed: VGPUClaim) -> None:
    history = [pod_was(1), claim_was(2, granted()), pod_was(3, node=NODE)]
    history += [claim_was(4, asked), claim_was(5, changed)]
    assert "claim c was freed while pod p had it (5)" in breaches(history)
