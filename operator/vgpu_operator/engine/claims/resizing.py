"""The operator's part of an in-place resize.

It grants larger amounts if they fit, and frees capacity once the agent has applied smaller ones.
`vgpu_api.resize` describes how operator and agent share the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_api.effective import Use, effective_use
from vgpu_api.names import ANNOTATION_REQUEUE
from vgpu_api.resize import granted, is_resized, target, was_changed
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim
from vgpu_operator.demand import ALL_CORES
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.effects import MarkPod
from vgpu_operator.engine.state import State

_MARK_AGAIN_S = 1.0


def resized(claim: VGPUClaim, state: State) -> Allocation | None:
    """Return the allocation with the amounts that the claim should have now; None if it has them.

    Nothing changes while the claim has a reservation, because its pod gets the amounts that were
    decided.
    """
    allocation = claim.status.allocation
    if (
        allocation is None
        or not was_changed(claim)
        or claim.metadata.deletion_timestamp is not None
        or state.reservations.of_claim(key_of(claim)) is not None
        or claim.is_mirror
    ):
        return None
    desired = target(claim.spec, allocation)
    may_shrink = claim.status.reserved_for is None or is_resized(claim)
    devices = desired if may_shrink else granted(desired, allocation.devices)
    if devices == allocation.devices:
        return None
    return allocation.model_copy(update={"devices": list(devices)})


def mark_resize(claim: VGPUClaim, state: State) -> None:
    """Mark the pod of a resized claim, because its agent watches pods and no claims.

    The mark names the version of the spec and the allocated amounts, so a new leader does not write
    it again. It is written again every second until the pod shows it.
    """
    key, allocation, reserved = key_of(claim), claim.status.allocation, claim.status.reserved_for
    pod = None if reserved is None else state.cache.pod(reserved.pod_uid)
    if not was_changed(claim) or allocation is None or pod is None or pod.pod.is_terminal:
        state.claims.marked.pop(key, None)
        return None
    mark = _mark_of(claim, allocation)
    is_shown = pod.pod.metadata.annotations.get(ANNOTATION_REQUEUE) == mark
    if is_shown or pod.pod.spec.node_name != allocation.node_name:
        state.claims.marked.pop(key, None)
        return None
    sent, until = state.claims.marked.get(key, ("", state.now))
    if sent != mark or until <= state.now:
        until = state.now + _MARK_AGAIN_S
        state.claims.marked[key] = mark, until
        metadata = pod.pod.metadata
        state.outbox.append(MarkPod(metadata.namespace or "", metadata.name, pod.uid, mark))
    state.claims.timers.set(key, until)
    return None


def _mark_of(claim: VGPUClaim, allocation: Allocation) -> str:
    amounts = "+".join(f"{each.memory_mib}Mi/{each.cores}%" for each in allocation.devices)
    return f"generation {claim.metadata.generation}: {amounts}"


def fits(claim: VGPUClaim, new: Allocation, state: State) -> bool:
    """Return True if devices and quotas allow the amounts that the allocation adds."""
    assert claim.status.allocation is not None
    before = effective_use(claim.spec, claim.status.allocation.devices)
    after = effective_use(claim.spec, new.devices)
    added = {uuid: use - before.get(uuid, Use()) for uuid, use in after.items()}
    budget = state.ledger.budget_of(key_of(claim))
    memory = sum(max(0, use.memory_mib) for use in added.values())
    cores = sum(max(0, use.cores) for use in added.values())
    if (budget.memory_mib is not None and memory > max(0, budget.memory_mib)) or (
        budget.cores is not None and cores > max(0, budget.cores)
    ):
        return False
    return all(
        _has_room(after[uuid], use, _used_and_given(new.devices, uuid, state))
        for uuid, use in added.items()
    )


def _has_room(after: Use, added: Use, of_device: tuple[Use, Use] | None) -> bool:
    if added.memory_mib <= 0 and added.cores <= 0:
        return True
    if of_device is None:
        return False
    used, has = of_device
    if added.cores > 0 and after.cores >= ALL_CORES and used.slots > after.slots:
        return False  # a claim can have all of the compute only if it is alone on the device
    return (
        used.memory_mib + max(0, added.memory_mib) <= has.memory_mib
        and used.cores + max(0, added.cores) <= has.cores
    )


def _used_and_given(
    devices: Sequence[AllocatedDevice], uuid: str, state: State
) -> tuple[Use, Use] | None:
    """Return the used and the total amounts of a device, or None if the device is unknown.

    Placement uses the same amounts: a device with an invalid claim counts as full.
    """
    columns = state.ledger.columns
    name = next((device.name for device in devices if device.uuid == uuid), "")
    node = columns.node_id(state.ledger.node_of(name) or "")
    numbers = () if node is None else columns.node_devices[node]
    number = next((number for number in numbers if columns.name[number] == name), None)
    if number is None:
        return None
    slots, cores, memory = columns.used(number)
    return Use(memory, cores, slots), Use(
        columns.memory[number], columns.cores[number], columns.slots[number]
    )
