"""Reads the repair that an NVIDIA device needs from NVML.

Sources: nvml.h, `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION` and `nvmlDeviceGpuRecoveryAction_t`;
NVIDIA's GPU memory error management (row remapping) and dynamic page retirement guides. Drivers
before R570 report no action, but they report remapped rows and retired pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pynvml

from vgpu_nodeagent.discovery.drivers.base import Repair
from vgpu_nodeagent.discovery.drivers.nvml import optional

ACTIONS: Mapping[int, tuple[str, str]] = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: ("GPUResetRequired", "reset the GPU"),
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: ("NodeRebootRequired", "reboot the node"),
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: (
        "DrainP2PRequired",
        "stop all peer-to-peer traffic, then reset the GPU",
    ),
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: (
        "DrainAndResetRequired",
        "drain the GPU, then reset it",
    ),
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: (
        "IMEXDomainRecoveryRequired",
        "recover its IMEX domain",
    ),
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: ("BusResetRequired", "reset its bus"),
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: (
        "SystemRebootRequired",
        "reboot the system",
    ),
}


def repair_of(handle: Any) -> Repair | None:
    """Return the repair that a device needs; None if none, or if the driver reports none."""
    return _by_action(handle) or _by_rows(handle) or _by_pages(handle)


def _by_action(handle: Any) -> Repair | None:
    action = _action(handle)
    if action in (None, pynvml.NVML_GPU_RECOVERY_ACTION_NONE):
        return None
    reason, need = ACTIONS.get(action, ("RecoveryRequired", f"recovery action {action}"))
    return Repair(reason, f"NVML's recovery action for the GPU: {need}")


def _by_rows(handle: Any) -> Repair | None:
    rows = optional(partial(pynvml.nvmlDeviceGetRemappedRows, handle), None)
    if rows is None:
        return None
    _, _, pending, failed = rows
    if failed:
        return Repair(
            "RowRemapFailed", "a memory row could not be remapped: the GPU needs to be replaced"
        )
    if pending:
        return Repair("RowRemapPending", "a memory row is to be remapped: the GPU needs a reset")
    return None


def _by_pages(handle: Any) -> Repair | None:
    """Return the repair that retired pages call for: GPUs before Ampere cannot remap rows."""
    if optional(partial(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle), 0):
        return Repair(
            "PageRetirementPending",
            "a memory page is to be retired: the GPU needs a reset, or the node a reboot",
        )
    return None


def _action(handle: Any) -> int | None:
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    values = optional(partial(pynvml.nvmlDeviceGetFieldValues, handle, [field]), None)
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)
