"""Devices of init containers: released when they have ended, and allocated again for a rerun."""

from __future__ import annotations

from vgpu_api.init_part import has_init_part, init_part_rerun, init_requests, without_init_part
from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1 import Allocation, DeviceSelector, VGPUClaim, VGPUClaimSpec
from vgpu_operator.demand import Demand
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims import lifecycle
from vgpu_operator.engine.claims.status import with_devices
from vgpu_operator.engine.claims.writes import write
from vgpu_operator.engine.effects import Effect
from vgpu_operator.engine.scheduling.kept import Yielding
from vgpu_operator.engine.state import InFlight, State
from vgpu_operator.placement import Plan
from vgpu_operator.placement.fit_device import give_back, lay
from vgpu_operator.placement.fit_node import plan_alone_on


def return_init_devices(claim: VGPUClaim, state: State) -> Effect | None:
    """Remove the devices of ended init containers from the allocation. A step of `reconcile`."""
    if claim.metadata.deletion_timestamp is not None or not lifecycle.init_devices_are_free(claim):
        return None
    assert claim.status.allocation is not None
    rest = without_init_part(claim.spec, claim.status.allocation)
    return write(claim, with_devices(claim, rest))


def refit_init_devices(claim: VGPUClaim, state: State) -> Effect | None:
    """Allocate devices again, on the pod's node, for init containers that must run again.

    The kubelet runs them again when it recreates the pod's sandbox. The agent refuses to start them
    until there is capacity beside the devices that the app containers keep. A step of `reconcile`.
    """
    allocation, key = claim.status.allocation, key_of(claim)
    if allocation is None or claim.metadata.deletion_timestamp is not None:
        return None
    if not init_part_rerun(claim):
        state.claims.init_refused.pop(key, None)
        return None
    again = allocation.model_copy(update={"init_round": allocation.init_round + 1})
    if has_init_part(claim.spec, allocation):  # not released yet: only count the new round
        return write(claim, with_devices(claim, again))
    plan = _plan_init(claim, allocation, state)
    if plan.refused:
        state.claims.init_refused[key] = plan
        state.claims.timers.set(key, state.now + lifecycle.REFIT_S)
        return None
    planned = plan.allocation().devices
    init = init_requests(claim.spec)
    order = {request.name: number for number, request in enumerate(claim.spec.requests)}
    devices = [device for device in planned if device.request in init] + allocation.devices
    devices.sort(key=lambda device: order.get(device.request, len(order)))
    refitted = again.model_copy(update={"devices": devices})
    assumption = state.ledger.assume(key, claim.spec, refitted)
    state.claims.writing[key] = InFlight(refitted, claim.spec, assumption)
    return write(claim, with_devices(claim, refitted))


def _plan_init(claim: VGPUClaim, allocation: Allocation, state: State) -> Plan:
    """Plan the whole claim on its node, with the app containers on the devices that they have.

    The node's taints and readiness do not matter, because the pod is already there.
    """
    columns, name, key = state.ledger.columns, allocation.node_name, key_of(claim)
    node = columns.node_id(name)
    if node is None:
        return Plan(None, (), {name: Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE)})
    request = Demand.of(_pinned(claim.spec, allocation), state.config)
    running = (pod for pod in state.cache.pods_of(key) if pod.is_running)
    priority = max((pod.priority for pod in running), default=0)
    with state.deciding(key, Yielding.MORE_IMPORTANT, priority=priority) as kept:
        laid = lay(columns, kept.on(node))
        outcome = plan_alone_on(columns, node, request, request.numa, state.ledger.budget_of(key))
        give_back(columns, laid)
    if isinstance(outcome, Tally):
        return Plan(None, (), {name: outcome})
    return Plan(name, outcome)


def _pinned(spec: VGPUClaimSpec, allocation: Allocation) -> VGPUClaimSpec:
    """Return the spec with the app containers' requests pinned to the devices they have."""
    devices: dict[str, list[str]] = {}
    for device in allocation.devices:
        devices.setdefault(device.request, []).append(device.uuid)
    requests = []
    for request in spec.requests:
        if request.name in devices:
            selector = request.selector or DeviceSelector()
            selector = selector.model_copy(update={"uuids": devices[request.name]})
            request = request.model_copy(update={"selector": selector})
        requests.append(request)
    return spec.model_copy(update={"requests": requests})
