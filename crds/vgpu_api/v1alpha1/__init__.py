"""The kinds of vgpu.dev/v1alpha1, one a module."""

from vgpu_api.v1alpha1.base import ApiModel, Condition, Metadata, OwnerReference
from vgpu_api.v1alpha1.gpudevice import (
    Amount,
    DeviceClaim,
    DeviceUsage,
    GPUDevice,
    GPUDeviceSpec,
    GPUDeviceStatus,
    Link,
    MigStatus,
)
from vgpu_api.v1alpha1.vgpuclaim import (
    AllocatedDevice,
    Allocation,
    DeviceSelector,
    MigAllocation,
    Placement,
    ReservedFor,
    VGPUClaim,
    VGPUClaimSpec,
    VGPUClaimStatus,
    VGPURequest,
    Weights,
)

__all__ = [
    "AllocatedDevice",
    "Allocation",
    "Amount",
    "ApiModel",
    "Condition",
    "DeviceClaim",
    "DeviceSelector",
    "DeviceUsage",
    "GPUDevice",
    "GPUDeviceSpec",
    "GPUDeviceStatus",
    "Link",
    "Metadata",
    "MigAllocation",
    "MigStatus",
    "OwnerReference",
    "Placement",
    "ReservedFor",
    "VGPUClaim",
    "VGPUClaimSpec",
    "VGPUClaimStatus",
    "VGPURequest",
    "Weights",
]
