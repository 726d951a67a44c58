"""What keeps a claim within its memory: one interface, and three ways.

| backend | memory | compute | from |
|---|---|---|---|
| `Library` | libvgpu in the container | libvgpu | any driver |
| `Driver` | the driver, by the pod's cgroup | libvgpu, where a share is to be kept | r615 |
| `Instance` | the device | the device | MIG |

`Instance` follows from what a claim was given. Between the other two the node's administrator
chooses (`--limit-backend`); a driver that lacks its part refuses containers instead of leaving them
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
"""Where the kubelet's `cgroupRoot` is not the root: as nodes in containers have it (kind)."""


class LimitBackend(Protocol):
    """One way to keep containers within their limits."""

    @property
    def resizes(self) -> bool:
        """Whether the page alone changes the limit of a container that runs."""

    def shape(self, grant: ContainerGrant) -> ContainerGrant:
        """The grant with the library in it, or without, as this backend needs it."""

    async def limit(self, pod_uid: str, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Put in force what must be before a container of the pod starts. May be repeated.

        Returns:
            Whether it awaited anything: what was read before may have changed.

        Raises:
            LimitsUnsupported: This node cannot keep them.
            DriverUnavailable: The driver does not answer, or did not take them.
            Refused: An instance cannot be made.
        """


class LibraryBackend:
    """libvgpu keeps memory and compute, by the page."""

    resizes = True

    def shape(self, grant: ContainerGrant) -> ContainerGrant:
        """Every container that has less than all gets the library already."""
        return grant

    async def limit(self, pod_uid: str, claim: VGPUClaim, allocation: Allocation) -> bool:
        """The page has every limit."""
        return False


class InstanceBackend:
    """The device keeps both: what was given of devices in MIG mode is made an instance."""

    resizes = False

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    def shape(self, grant: ContainerGrant) -> ContainerGrant:
        """A grant of instances alone has no library in it already (`grants.py`)."""
        return grant

    async def limit(self, pod_uid: str, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Make the claim's instances.

        Raises:
            Refused: One cannot be made.
        """
        if all(device.mig is None for device in allocation.devices):
            return False
        await self._instances.make(claim, allocation)
        return True


class DriverBackend:
    """The driver keeps memory by cgroup; the library keeps what else there is to keep.

    Args:
        driver: Whose limits.
        cgroups: Where this process has the host's unified hierarchy.
    """

    def __init__(self, driver: Driver, cgroups: Path) -> None:
        self._driver = driver
        self._cgroups = cgroups

    @property
    def resizes(self) -> bool:
        """The driver is asked before a start only."""
        return False

    def shape(self, grant: ContainerGrant) -> ContainerGrant:
        """Without the library where it would keep memory alone: the driver shows the slice, too."""
        needed = any(
            limit.limits_compute
            or limit.priority  # held back by ceilings while a more urgent one computes
            or limit.physical_bytes  # what is beside the device's memory is the library's to place
            for limit in grant.limits
        )
        return replace(grant, interposed=grant.interposed and needed)

    async def limit(self, pod_uid: str, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Have the driver limit the pod's cgroup, for all containers together.

        The limit ends with the cgroup.

        Raises:
            LimitsUnsupported: The driver has no such limits, or the pod no cgroup of version 2.
            DriverUnavailable: The driver does not answer, or did not take them.
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
                f"{self._cgroups} is no cgroup hierarchy of version 2, which the driver's limits "
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
    """All that is in force on a node, as one backend: instances, and what keeps the rest.

    Args:
        shared: For devices that several claims share.
        instances: For devices in MIG mode.
    """

    def __init__(self, shared: LimitBackend, instances: InstanceBackend) -> None:
        self._shared = shared
        self._instances = instances

    @property
    def resizes(self) -> bool:
        """Whether the page alone changes the limit of a container that runs."""
        return self._shared.resizes

    def shape(self, grant: ContainerGrant) -> ContainerGrant:
        """The grant with the library in it, or without."""
        return self._shared.shape(self._instances.shape(grant))

    async def limit(self, pod_uid: str, claim: VGPUClaim, allocation: Allocation) -> bool:
        """Put both in force."""
        made = await self._instances.limit(pod_uid, claim, allocation)
        return await self._shared.limit(pod_uid, claim, allocation) or made


def backends(
    name: LimitBackendName, driver: Driver, instances: Instances, host_root: Path
) -> Backends:
    """The backends that the configuration asks for."""
    shared: LimitBackend = LibraryBackend()
    if name is LimitBackendName.DRIVER:
        shared = DriverBackend(driver, host_root / "sys" / "fs" / "cgroup")
    return Backends(shared, InstanceBackend(instances))
