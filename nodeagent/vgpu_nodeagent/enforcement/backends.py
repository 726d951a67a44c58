"""The backends that enforce memory limits: three ways behind one interface.

| backend | memory | compute | from |
|---|---|---|---|
| `Library` | libvgpu in the container | libvgpu | any driver |
| `Driver` | the driver, by the pod's cgroup | libvgpu, where a share is to be kept | r615 |
| `Instance` | the device | the device | MIG |

`Instance` is used for MIG instances. The node's administrator chooses between the other two
(`--limit-backend`); with a driver that cannot limit memory, containers are refused rather than left
without a limit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from vgpu_api.effective import effective_use
from vgpu_api.quantity import MIB
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_nodeagent.config import LimitBackendName
from vgpu_nodeagent.discovery.drivers.base import Driver
from vgpu_nodeagent.enforcement.grants import ContainerGrant
from vgpu_nodeagent.errors import LimitsUnsupported
from vgpu_nodeagent.state.instances import Instances

_CGROUPS = (
    "kubepods/pod{uid}",
    "kubepods/*/pod{uid}",
    "kubepods.slice/kubepods-pod{name}.slice",
    "kubepods.slice/*/kubepods-*-pod{name}.slice",
)
_BELOW = ("", "kubelet/", "kubelet.slice/kubelet-")
"""Possible cgroup roots of the kubelet; nodes in containers (kind) do not use the root."""


class LimitBackend(Protocol):
    """One way to enforce limits."""

    @property
    def resizes(self) -> bool:
        """True if rewriting the page changes the limit of a running container."""

    def shape(self, grant: ContainerGrant) -> ContainerGrant:
        """Return the grant with or without the library, as this backend needs it."""

    async def limit(self, pod_uid: str, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Apply the limits that must exist before a container of the pod starts. May be repeated.

        Returns:
            True if it awaited something, so that what was read before may have changed.

        Raises:
            LimitsUnsupported: This node cannot enforce them.
            DriverUnavailable: The driver does not respond, or did not accept them.
            Refused: A MIG instance cannot be made.
        """


class LibraryBackend:
    """libvgpu enforces memory and compute by the page."""

    resizes = True

    def shape(self, grant: ContainerGrant) -> ContainerGrant:
        """Return the grant unchanged: limited containers have the library already."""
        return grant

    async def limit(self, pod_uid: str, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Do nothing and return False: the page has every limit."""
        return False


class InstanceBackend:
    """The device enforces both: an allocation of a device in MIG mode becomes an instance."""

    resizes = False

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    def shape(self, grant: ContainerGrant) -> ContainerGrant:
        """Return the grant unchanged: a grant of instances has no library (`grants.py`)."""
        return grant

    async def limit(self, pod_uid: str, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Make the claim's instances.

        Raises:
            Refused: An instance cannot be made.
        """
        if all(device.mig is None for device in allocation.devices):
            return False
        await self._instances.make(claim, allocation)
        return True


class DriverBackend:
    """The driver enforces memory per cgroup, and the library everything else.

    Args:
        driver: The driver that limits memory.
        cgroups: Where this process finds the host's unified cgroup hierarchy.
    """

    def __init__(self, driver: Driver, cgroups: Path) -> None:
        self._driver = driver
        self._cgroups = cgroups

    @property
    def resizes(self) -> bool:
        """False: the driver's limits are set when a container starts and cannot change."""
        return False

    def shape(self, grant: ContainerGrant) -> ContainerGrant:
        """Drop the library if only memory is limited: the driver then shows the limit, too."""
        needed = any(
            limit.limits_compute
            or limit.priority  # throttled while a higher priority computes
            or limit.physical_bytes  # only the library places memory beyond the device's own
            for limit in grant.limits
        )
        return replace(grant, interposed=grant.interposed and needed)

    async def limit(self, pod_uid: str, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Limit the pod's cgroup, for all containers together.

        The limit ends with the cgroup.

        Raises:
            LimitsUnsupported: The driver cannot limit memory, or the pod has no version 2 cgroup.
            DriverUnavailable: The driver does not respond, or did not accept the limits.
        """
        claim_instance = {device.uuid for device in allocation.devices if device.mig is not None}
        use = effective_use(claim.spec, allocation.devices)
        memory = {
            uuid: of.memory_mib * MIB for uuid, of in use.items() if uuid not in claim_instance
        }
        if not memory:
            return False
        await self._driver.limit_memory(self._cgroup_of(pod_uid), memory)
        return True

    def _cgroup_of(self, pod_uid: str) -> Path:
        if not (self._cgroups / "cgroup.controllers").exists():
            raise LimitsUnsupported(
                f"{self._cgroups} is not a version 2 cgroup hierarchy, which the driver's limits "
                "need: use --limit-backend=Library"
            )
        for below in _BELOW:
            for pattern in _CGROUPS:
                desired = below + pattern.format(uid=pod_uid, name=pod_uid.replace("-", "_"))
                if below.endswith("-"):
                    desired = desired.replace("/kubepods-", "/kubelet-kubepods-")
                for found in self._cgroups.glob(desired):
                    return found
        raise LimitsUnsupported(f"pod {pod_uid} has no cgroup below {self._cgroups}")


class Backends:
    """The backends of a node as one: instances, and the configured backend for the rest.

    Args:
        shared: For devices that several claims share.
        instances: For devices in MIG mode.
    """

    def __init__(self, shared: LimitBackend, instances: InstanceBackend) -> None:
        self._shared = shared
        self._instances = instances

    @property
    def resizes(self) -> bool:
        """True if rewriting the page changes the limit of a running container."""
        return self._shared.resizes

    def shape(self, grant: ContainerGrant) -> ContainerGrant:
        """Return the grant with or without the library."""
        return self._shared.shape(self._instances.shape(grant))

    async def limit(self, pod_uid: str, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Apply the limits of both backends."""
        made = await self._instances.limit(pod_uid, claim, allocation)
        return await self._shared.limit(pod_uid, claim, allocation) or made


def backends(
    name: LimitBackendName, driver: Driver, instances: Instances, host_root: Path
) -> Backends:
    """Return the backends that the configuration selects."""
    shared: LimitBackend = LibraryBackend()
    if name is LimitBackendName.DRIVER:
        shared = DriverBackend(driver, host_root / "sys" / "fs" / "cgroup")
    return Backends(shared, InstanceBackend(instances))
