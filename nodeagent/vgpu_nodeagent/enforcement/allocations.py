"""The files of each allocation: its folder with limit page and usage region, and its CDI spec.

    <state>/slots/NAME/limits          mounted read-only over the container's limit page
    <state>/slots/NAME/usage/region    in the folder mounted over the container's usage folder,
                                          a file system of its own (`usage_folders.py`)

The Allocate answer contains only these two mounts; everything else is in the CDI spec, which exists
only while the page grants. A share of a ResourceClaim has no Allocate answer, so its CDI spec has
the two mounts as well.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vgpu_api import names
from vgpu_nodeagent.config import Mount
from vgpu_nodeagent.discovery.drivers.device_nodes import DeviceNode
from vgpu_nodeagent.enforcement import page, reclaim, region
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.enforcement.cdi import Edits, SpecFolder
from vgpu_nodeagent.enforcement.driver_files import ConfiguredDriver, DriverSource
from vgpu_nodeagent.enforcement.grants import ContainerGrant
from vgpu_nodeagent.enforcement.host_nodes import numbered
from vgpu_nodeagent.enforcement.library import Library
from vgpu_nodeagent.enforcement.processes import ProcessTable, processes_mapping, processes_of_pod
from vgpu_nodeagent.enforcement.usage_folders import PlainFolders, UsageFolders
from vgpu_nodeagent.errors import PageDamaged
from vgpu_nodeagent.state.cdi_device import is_share

logger = logging.getLogger(__name__)

_CONTROL_NODES = ("nvidiactl", "nvidia-uvm")
"""The device nodes that compute needs besides the devices.

`nvidia-uvm-tools` shows a process the faults and migrations of others, and `nvidia-modeset` sets
displays. Programs of claims need neither, and each is one more way into the kernel.
"""
_NOTHING_FROM_THE_RUNTIME = "void"


@dataclass(frozen=True, slots=True)
class HostFolders:
    """The folders in which this process finds the host's device nodes and processes."""

    dev: Path = Path("/dev")
    proc: Path = Path("/proc")


class Allocations:
    """Creates, opens and closes allocations on disk.

    Args:
        root: The folder of all allocations.
        specs: The runtime's CDI folder.
        library: The library for interposed containers.
        driver: Finds the driver's files.
        usage: Makes the folders of usage regions.
        host: Where this process finds the host's device nodes and processes.

    Attributes:
        proc: The host's processes.
    """

    def __init__(
        self,
        root: Path,
        specs: SpecFolder,
        *,
        library: Library,
        driver: DriverSource = ConfiguredDriver(),  # noqa: B008 - a value, and frozen
        usage: UsageFolders = PlainFolders(),  # noqa: B008 - has no state
        host: HostFolders = HostFolders(),
    ) -> None:
        self._root = root
        self._specs = specs
        self._library = library
        self._driver = driver
        self._usage_folders = usage
        self._dev = host.dev
        self.proc = host.proc
        self._context_bytes: dict[str, int] = {}

    def create(self, allocation: str) -> tuple[Mount, Mount]:
        """Make a denying page and an empty region, and return the mounts for the Allocate response.

        Raises:
            OSError: They cannot be written.
        """
        folder = self._root / allocation
        usage = folder / "usage"
        folder.mkdir(parents=True)
        self._usage_folders.make(usage)
        page.create_page(folder / "limits", name=allocation)
        region.create_region(usage / "region", extend=self._usage_folders.extend)
        return self._own_mounts(allocation)

    def _own_mounts(self, allocation: str) -> tuple[Mount, Mount]:
        folder = self._root / allocation
        return (
            Mount(str(folder / "limits"), names.CONTAINER_LIMITS),
            Mount(str(folder / "usage"), names.CONTAINER_USAGE, read_only=False),
        )

    def create_share(self, share: str) -> None:
        """Create the files of a share, replacing any that a killed agent left incomplete.

        Raises:
            OSError: They cannot be written.
        """
        self.close(share)
        self.create(share)

    def check(self, allocation: str) -> None:
        """Check that page and region are whole; replace a damaged page by a denying one.

        Raises:
            DriverFilesMissing: There is no driver for the container.
            PageDamaged: The page was damaged; the next attempt finds it replaced.
            OSError: A file cannot be written.
        """
        self._driver.files()
        folder = self._root / allocation
        try:
            page.read_page(folder / "limits")
        except PageDamaged:
            folder.mkdir(parents=True, exist_ok=True)
            page.remake_page(folder / "limits", name=allocation)
            raise
        self._usage_folders.make(folder / "usage")  # its mount does not survive a reboot
        if not self.region_path(allocation).exists():
            region.create_region(self.region_path(allocation), extend=self._usage_folders.extend)
        self.reclaim(allocation)

    def reclaim(self, allocation: str) -> None:
        """Clear the slots of dead processes of earlier containers in the usage region."""
        try:
            count = reclaim.clear_dead(self._root / allocation / "usage" / "region")
        except PageDamaged as error:
            logger.warning("cannot clear the slots of dead processes: %s", error)
            return
        if count:
            logger.info("allocation %s: cleared %d slots of dead processes", allocation, count)

    def open(
        self, allocation: str, grant: ContainerGrant, *, nodes: Mapping[str, Sequence[DeviceNode]]
    ) -> None:
        """Fill the page, then write the CDI spec, so that no container starts before its limits.

        Args:
            allocation: The allocation.
            grant: The grant of its container.
            nodes: The device nodes by UUID of the device or instance.

        Raises:
            DriverFilesMissing: There is no driver for the container.
            PageDamaged: The page does not belong to this allocation.
            OSError: A file cannot be written.
        """
        driver = self._driver.files()
        # The page first: while there is no spec, the runtime cannot create the container.
        limits = self._with_context_bytes(grant.limits)
        page.grant(self._root / allocation / "limits", limits, name=allocation)
        if not grant.limits:
            # The container has a slot but no device: it starts, and sees none.
            self._specs.write(allocation, Edits(env=grant.env(), mounts=(), device_nodes=()))
            return
        mounts = self._library.before(driver.mounts) if grant.interposed else driver.mounts
        if is_share(allocation):
            mounts = (*self._own_mounts(allocation), *mounts)
        env = grant.env()
        if driver.complete:
            # NVIDIA's runtime would mount its driver over the shadow
            # (docs/design/node-and-grants.md).
            env[names.ENV_VISIBLE_DEVICES] = _NOTHING_FROM_THE_RUNTIME
        control = map(DeviceNode, _CONTROL_NODES)
        own = (node for limit in grant.limits for node in nodes[limit.uuid])
        desired = numbered(dict.fromkeys((*own, *control)), proc=self.proc)
        self._specs.write(
            allocation,
            Edits(
                env=env,
                mounts=mounts,
                device_nodes=[
                    replace(node, name=f"/dev/{node.name}")
                    for node in desired
                    if node.major or (self._dev / node.name).exists()
                ],
            ),
        )

    def close(self, allocation: str) -> None:
        """Close the page, then remove spec and folder. May be repeated."""
        folder = self._root / allocation
        # The page first: it decides for a container that a runtime starts with a stale spec.
        try:
            page.close(folder / "limits", name=allocation)
        except PageDamaged as error:
            if folder.exists():
                logger.warning("cannot close the page of allocation %s: %s", allocation, error)
        self._specs.remove(allocation)
        try:
            self._usage_folders.remove(folder / "usage")
        except OSError as error:
            logger.error(
                "allocation %s stays on disk until the agent restarts: %s", allocation, error
            )
            return
        shutil.rmtree(folder, ignore_errors=True)

    def shut(self, allocation: str) -> None:
        """Close the page and remove the spec, but keep the folder, so that it may be opened again.

        For init containers that have ended: the kubelet may restart them with the same mounts.

        Raises:
            PageDamaged: The page does not belong to this allocation.
        """
        page.close(self._root / allocation / "limits", name=allocation)
        self._specs.remove(allocation)

    def users(self, allocation: str, pod_uid: str) -> ProcessTable:
        """Return the processes of the pod that use the allocation, or may.

        A mapped page counts as well: a container can unmap the region, but not the page.

        Args:
            allocation: The allocation.
            pod_uid: The pod; empty if unknown.
        """
        folder = self._root / allocation
        files = [folder / "limits", folder / "usage" / "region"]
        return processes_mapping(files, pod_uid=pod_uid, proc=self.proc)

    def pod_processes(self, pod_uid: str) -> frozenset[int]:
        """Return the processes in the pod's cgroup, with or without the library."""
        return processes_of_pod(pod_uid, proc=self.proc)

    def page_path(self, allocation: str) -> Path:
        """Return the path of the limit page."""
        return self._root / allocation / "limits"

    def region_path(self, allocation: str) -> Path:
        """Return the path of an allocation's usage region."""
        return self._root / allocation / "usage" / "region"

    def content(self, allocation: str) -> page.PageContent:
        """Return the content of an allocation's page.

        Raises:
            PageDamaged: The page is missing or damaged.
        """
        return page.read_page(self._root / allocation / "limits")

    def throttle(self, allocation: str, ceilings: Mapping[str, int]) -> None:
        """Set temporary ceilings on the container's compute.

        Args:
            allocation: The allocation; one that is not open stays as it is.
            ceilings: Percent of compute by UUID; other devices have no ceiling.

        Raises:
            PageDamaged: The page is missing or damaged.
        """
        path = self._root / allocation / "limits"
        content = page.read_page(path)
        if content.state is not PageState.GRANT:
            return
        devices = [replace(limit, ceiling=ceilings.get(limit.uuid, 0)) for limit in content.devices]
        page.grant(path, devices, name=allocation, host_bytes=content.host_bytes)

    def resize(self, allocation: str, limits: Sequence[page.DeviceLimit]) -> None:
        """Change the limits of an open allocation; its processes see them at once.

        Raises:
            PageDamaged: The page is missing or damaged.
        """
        path = self._root / allocation / "limits"
        content = page.read_page(path)
        if content.state is PageState.GRANT:
            limits = self._with_context_bytes(limits)
            page.grant(path, limits, name=allocation, host_bytes=content.host_bytes)

    def set_context_bytes(self, context_bytes: Mapping[str, int]) -> None:
        """Set the memory of a context by UUID of the device, for pages written from now on."""
        self._context_bytes = dict(context_bytes)

    def vouch(self, allocation: str, until_ns: Mapping[str, int]) -> None:
        """Write into an allocation's page until when it is alone on each device.

        Raises:
            PageDamaged: The page is missing or damaged.
        """
        page.vouch(self._root / allocation / "limits", until_ns)

    def _with_context_bytes(
        self, limits: Sequence[page.DeviceLimit]
    ) -> tuple[page.DeviceLimit, ...]:
        known = self._context_bytes
        return tuple(
            replace(limit, context_bytes=known.get(limit.uuid, limit.context_bytes))
            for limit in limits
        )

    def usage(self, allocation: str) -> tuple[region.DeviceUse, ...]:
        """Return the usage that the processes of an allocation recorded.

        Raises:
            PageDamaged: The region is missing, or its container has damaged it.
        """
        return region.read_region(self._root / allocation / "usage" / "region")

    def on_disk(self) -> frozenset[str]:
        """Return every allocation with a folder or a spec, leftovers included."""
        return self.folders() | self.specs()

    def folders(self) -> frozenset[str]:
        """Return every allocation with a folder."""
        found = self._root.iterdir() if self._root.is_dir() else ()
        return frozenset(folder.name for folder in found)

    def specs(self) -> frozenset[str]:
        """Return every allocation with a CDI spec."""
        return self._specs.allocations()
