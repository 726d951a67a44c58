"""Computes the agent's part of a GPUDevice's status, and whether it differs from the current one.

Pure: the publisher makes the objects and writes them.
"""

from __future__ import annotations

from typing import Any

from vgpu_api import conditions
from vgpu_api.effective import Use
from vgpu_api.quantity import format_mib
from vgpu_api.v1alpha1 import (
    Amount,
    Condition,
    GPUDevice,
    GPUDeviceSpec,
    GPUDeviceStatus,
    Link,
    MigStatus,
)
from vgpu_api.v1alpha1.gpudevice import MigPlacement, MigProfile
from vgpu_nodeagent.discovery.drivers.base import PhysicalDevice
from vgpu_nodeagent.discovery.health import HealthProblem
from vgpu_nodeagent.discovery.inventory import DeviceCapacity
from vgpu_nodeagent.enforcement.toolkit import Exposure
from vgpu_nodeagent.reporting.node_devices import NodeDevices
from vgpu_nodeagent.state.plugin_standing import PluginProblem

_OWN_TYPES = (
    conditions.READY,
    conditions.HEALTHY,
    conditions.UNCLAIMED_PROCESSES,
    conditions.CONFIGURED,
    conditions.ISOLATED,
)
_OPERATORS = ("allocated", "claims")
_MESSAGE_KEPT = 1024


def said_of(device: PhysicalDevice, capacity: DeviceCapacity, *, vendor: str) -> dict[str, Any]:
    """Return the agent's fields of a device's status on the wire, without conditions.

    Args:
        device: The device as the driver shows it.
        capacity: Its capacity.
        vendor: Its vendor.
    """
    status = GPUDeviceStatus(
        vendor=vendor,
        index=device.index,
        uuid=device.uuid,
        model=device.model,
        architecture=device.architecture,
        compute_capability=device.compute_capability,
        driver_version=device.driver_version,
        runtime_version=device.runtime_version,
        pci_bus_id=device.pci_bus_id,
        numa_node=device.numa_node,
        links=[Link(peer=x.peer, type=x.type, score=x.score) for x in device.links],
        # Unknown for a GPU without a reading; 0 would look like a GPU without memory.
        capacity=_amount(capacity.capacity) if device.memory_mib else None,
        allocatable=_amount(capacity.allocatable) if device.memory_mib else None,
        mig=_mig(device, capacity),
        conditions=[],
    )
    return _own_part(status.to_wire())


def said_by(device: GPUDevice) -> dict[str, Any]:
    """Return the current status of an object in the same form."""
    return _own_part(device.status.to_wire())


def conditions_of(device: GPUDevice, gpu: PhysicalDevice, devices: NodeDevices) -> list[Condition]:
    """Return the conditions that a device should have.

    Args:
        device: The current object.
        gpu: What the driver reports of the device.
        devices: What is known of the node's devices.
    """
    inventory, uuid = devices.inventory, gpu.uuid
    if inventory.is_present(uuid):
        state = present(devices.health.problem(uuid), devices.plugin_problem)
    else:
        state = absent(inventory.driver_error)
    ignored = without_effect(device.spec, gpu)
    return [
        *state,
        *unclaimed(device, devices.unclaimed(uuid)),
        *configured(device, devices.config_fault, inventory.fault(uuid), ignored),
        *isolated(device, devices.exposure),
    ]


def present(problem: HealthProblem | None, plugin: PluginProblem | None = None) -> list[Condition]:
    """Return the conditions of a device that the driver shows.

    Args:
        problem: Why it is unhealthy; None if it is healthy.
        plugin: Why the kubelet does not offer it, which leaves the device healthy.
    """
    if problem is not None:
        return [
            _condition(conditions.READY, "False", problem.reason, problem.message),
            _condition(conditions.HEALTHY, "False", problem.reason, problem.message),
        ]
    ready = _condition(conditions.READY, "True", "Present", "the driver shows the GPU")
    if plugin is not None:
        ready = _condition(conditions.READY, "False", plugin.reason, plugin.message)
    return [
        ready,
        _condition(conditions.HEALTHY, "True", "NoErrors", "no fatal error was reported"),
    ]


def absent(driver_error: str | None) -> list[Condition]:
    """Return the conditions of a device that the driver does not show, or while none responds."""
    reason, message = "CardGone", "the driver no longer shows the GPU"
    if driver_error is not None:
        reason, message = "DriverUnavailable", driver_error
    return [
        _condition(conditions.READY, "False", reason, message),
        _condition(conditions.HEALTHY, "Unknown", reason, message),
    ]


def unclaimed(device: GPUDevice, processes: str) -> list[Condition]:
    """Return the condition for processes that have no claim; none if there have never been any.

    Args:
        device: The current object.
        processes: A sentence that lists the processes; empty if there are none.
    """
    type_ = conditions.UNCLAIMED_PROCESSES
    if processes:
        return [_condition(type_, "True", "Found", processes[:_MESSAGE_KEPT])]
    # Only an object that once had the condition needs to say that it is over.
    if conditions.find(device.status.conditions, type_) is None:
        return []
    return [_condition(type_, "False", "NoneFound", "every process belongs to a claim")]


def without_effect(spec: GPUDeviceSpec, device: PhysicalDevice) -> str:
    """Return the settings that have no effect on this device, with the remedy; empty if none.

    A device without a reading is not judged, because its mode is unknown.
    """
    if not device.memory_mib:
        return ""
    found = []
    if device.mig_enabled:
        if spec.core_policy != "Default":
            found.append(
                f'spec.corePolicy: Invalid value: "{spec.core_policy}": the GPU is in MIG mode, '
                "and an instance has its profile's compute; leave it out"
            )
    else:
        if spec.mode == "MIG":
            found.append(
                'spec.mode: Invalid value: "MIG": the GPU is not in MIG mode, so nothing is given '
                "of it; enable MIG on the node if the GPU has it (nvidia-smi -mig 1), or write "
                "Shared"
            )
        if spec.mig_instances is not None:
            found.append(
                f'spec.migInstances: Invalid value: "{spec.mig_instances}": the GPU is not in MIG '
                "mode; leave it out"
            )
    if spec.memory is not None and spec.memory_mib != device.memory_mib:
        found.append(
            f'spec.memory: Invalid value: "{spec.memory}": the driver reports '
            f"{format_mib(device.memory_mib)}, which counts; use memoryScaling to give more or less"
        )
    return "; ".join(found)


def configured(
    device: GPUDevice, fault: str, of_device: str = "", ignored: str = ""
) -> list[Condition]:
    """Return the condition about the configuration in use; none as long as it was never invalid.

    Args:
        device: The current object.
        fault: What is wrong with the configuration; empty if it is valid.
        of_device: Why the configuration does not suit this device's MIG instances.
        ignored: The settings of the object's spec without effect on this device.
    """
    type_ = conditions.CONFIGURED
    if fault:
        message = f"the last good configuration is in force: {fault}"[:_MESSAGE_KEPT]
        return [_condition(type_, "False", "ConfigurationInvalid", message)]
    if of_device:
        return [_condition(type_, "False", "MigInstancesDiffer", of_device[:_MESSAGE_KEPT])]
    if ignored:
        return [_condition(type_, "False", "NoEffect", ignored[:_MESSAGE_KEPT])]
    if conditions.find(device.status.conditions, type_) is None:
        return []
    return [_condition(type_, "True", "ConfigurationInForce", "the configuration is in force")]


def isolated(device: GPUDevice, open_: Exposure | None) -> list[Condition]:
    """Return the condition about containers without a claim; none if they never got devices.

    Args:
        device: The current object.
        open_: How such containers get devices, found when the agent started; None: they do not.
    """
    type_ = conditions.ISOLATED
    if open_ is not None:
        status = "False" if open_.is_certain else "Unknown"
        return [_condition(type_, status, open_.reason, open_.message[:_MESSAGE_KEPT])]
    if conditions.find(device.status.conditions, type_) is None:
        return []
    return [
        _condition(type_, "True", "EnvVarRefused", "no container gets a device without a claim")
    ]


def change(
    device: GPUDevice, said: dict[str, Any], desired: list[Condition], *, timestamp: str
) -> dict[str, Any] | None:
    """Return the status to apply; None if the object has it already.

    Args:
        device: The current object.
        said: The device's status (`said_of`).
        desired: The conditions that it should have.
        timestamp: The current time in the format of the API.
    """
    before = [c for c in device.status.conditions if c.type in _OWN_TYPES]
    after = before
    for condition in desired:
        timed = condition.model_copy(update={"last_transition_time": timestamp})
        after = conditions.with_condition(after, timed)
    if _untimed(said) == _untimed(said_by(device)) and after == before:
        return None
    return {
        **said,
        "observedTime": timestamp,
        "conditions": [condition.to_wire() for condition in after],
    }


def _mig(device: PhysicalDevice, capacity: DeviceCapacity) -> MigStatus:
    return MigStatus(
        enabled=device.mig_enabled,
        static=capacity.is_static,
        profiles=[
            MigProfile(
                name=profile.name,
                memory=format_mib(profile.memory_mib),
                cores=profile.cores,
                slices=profile.slices,
                placements=[MigPlacement(start=start, size=size) for start, size in profile.places],
            )
            for profile in device.mig_profiles
        ],
        instances=[instance.uuid for instance in device.mig_instances if instance.uuid],
    )


def _amount(use: Use) -> Amount:
    return Amount(memory=format_mib(use.memory_mib), cores=use.cores, slots=use.slots)


def _own_part(status: dict[str, Any]) -> dict[str, Any]:
    """Return the agent's non-empty fields of a status on the wire, without conditions."""
    return {
        key: value
        for key, value in status.items()
        if key not in (*_OPERATORS, "conditions") and value not in ("", [], None)
    }


def _untimed(status: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in status.items() if key != "observedTime"}


def _condition(type_: str, status: str, reason: str, message: str) -> Condition:
    return Condition.model_validate(
        {"type": type_, "status": status, "reason": reason, "message": message}
    )
