"""The agent's settings, from its command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath

from vgpu_api.config import ClusterConfig
from vgpu_client.metrics_server import MetricsAccess

PLUGIN_SOCKET = "vgpu.sock"
KUBELET_CHECKPOINT = "kubelet_internal_checkpoint"
PLUGINS = "plugins"
PLUGINS_REGISTRY = "plugins_registry"
KUBELET_DIR = Path("/var/lib/kubelet")
DEVICE_PLUGINS_DIR = Path("/var/lib/kubelet/device-plugins")
"""A constant of the kubelet (`DevicePluginPath`), which its `--root-dir` does not move."""
CDI_DIR = Path("/var/run/cdi")
STATE_DIR = Path("/var/lib/vgpu")
LIBRARY = Path("/usr/lib/vgpu/libvgpu.so")
SYSFS = Path("/sys")
METRICS_PORT = 9394
HEALTH_PORT = 9395
HANG_LIMIT_S = 30.0
"""Longer than the liveness probe needs to notice a stuck loop."""
UNUSED_ALLOCATION_S = 30.0
"""A slot allocation that is not on the kubelet's record after this long was never used.

The kubelet records it as soon as it has our response. A kubelet that died during the call never
does.
"""


class UsageRegions(StrEnum):
    """The place of a container's usage region."""

    TMPFS = "tmpfs"
    """In a tmpfs of its own, which cannot grow; needs the right to mount."""
    DISK = "disk"
    """On the disk of the state folder, which every container can then fill."""


class LimitBackendName(StrEnum):
    """The mechanism that enforces memory limits if the device itself (MIG) does not."""

    LIBRARY = "Library"
    DRIVER = "Driver"


class OnViolation(StrEnum):
    """The action on a violation, besides reporting it."""

    REPORT = "Report"
    SIGNAL = "Signal"


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount of a file or folder of the host: its paths there and in the container."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The agent's settings, read once.

    Attributes:
        node_name: The node that this agent serves.
        kubeconfig: Path of a kubeconfig; None: $KUBECONFIG, else the pod's service account.
        cluster: The cluster's configuration.
        state_dir: Where the agent keeps its files; the same path on the host.
        kubelet_dir: The kubelet's root directory, with its pods and the PodResources socket.
        device_plugins_dir: Where device plugins register.
        cdi_dir: The runtime's directory of CDI specs.
        sysfs_dir: Where sysfs is mounted.
        library: The native library, in this process's file system.
        driver_files: Files to mount into every container.
        driver_roots: Roots on the host below which the driver may be installed.
        host_root: Where this process finds the host's root.
        limit_backend: What enforces memory limits.
        usage_regions: Where the usage regions of containers lie.
        config_path: Where the cluster's configuration is mounted.
        config_fault: What is wrong with the mounted configuration, if `cluster` is the last good
            one instead.
        health_port: Port for probes; 0 disables them.
        hang_limit_s: Kill the process if its event loop is stuck for this long; 0 disables it.
        metrics_port: Port for metrics; 0 disables them.
        metrics_access: Who may read metrics.
        unused_allocation_s: Keep a slot allocation that is not on the kubelet's record for this
            long.
        on_violation: What to do to a claim that exceeds a limit, besides reporting it.
        on_unclaimed: What to do to pod processes that use a device without a claim, besides
            reporting them.
        log_level: The name of a logging level.
        dra: Prepare ResourceClaims, too.
        resource_slices: Publish the devices as ResourceSlices, for the operator or kube-scheduler.
        instance: The name of this agent among those of the node; sockets are named by it.
    """

    node_name: str
    state_dir: Path
    library: Path
    kubeconfig: str | None = None
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    kubelet_dir: Path = KUBELET_DIR
    device_plugins_dir: Path = DEVICE_PLUGINS_DIR
    cdi_dir: Path = CDI_DIR
    sysfs_dir: Path = SYSFS
    driver_files: tuple[Mount, ...] = ()
    driver_roots: tuple[PurePosixPath, ...] = ()
    host_root: Path = Path("/")
    limit_backend: LimitBackendName = LimitBackendName.LIBRARY
    usage_regions: UsageRegions = UsageRegions.DISK
    config_path: Path | None = None
    config_fault: str = ""
    health_port: int = HEALTH_PORT
    hang_limit_s: float = HANG_LIMIT_S
    metrics_port: int = METRICS_PORT
    metrics_access: MetricsAccess = MetricsAccess.REVIEWED
    unused_allocation_s: float = UNUSED_ALLOCATION_S
    on_violation: OnViolation = OnViolation.REPORT
    on_unclaimed: OnViolation = OnViolation.REPORT
    log_level: str = "INFO"
    dra: bool = False
    resource_slices: bool = False
    instance: str = "agent"

    @property
    def resource(self) -> str:
        """Return the resource that is registered with the kubelet."""
        return self.cluster.nvidia.resource_count_name

    @property
    def plugin_socket(self) -> Path:
        """Return the device plugin's own socket."""
        return self.device_plugins_dir / PLUGIN_SOCKET

    @property
    def kubelet_socket(self) -> Path:
        """Return the socket at which device plugins register."""
        return self.device_plugins_dir / "kubelet.sock"

    @property
    def kubelet_checkpoint(self) -> Path:
        """Return the kubelet's record of allocations."""
        return self.device_plugins_dir / KUBELET_CHECKPOINT

    @property
    def pod_resources_socket(self) -> Path:
        """Return the socket at which the kubelet serves PodResources."""
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"

    @property
    def plugins_dir(self) -> Path:
        """Return the kubelet's folder of plugins."""
        return self.kubelet_dir / PLUGINS

    @property
    def plugins_registry(self) -> Path:
        """Return the folder that the kubelet watches for plugins."""
        return self.kubelet_dir / PLUGINS_REGISTRY

    @property
    def kubelet_resource_claims(self) -> Path | None:
        """Return the kubelet's record of ResourceClaims; None if the agent prepares none.

        It is read below the host's root: the kubelet replaces the file, and a mount of the file
        alone would show the old one.
        """
        if not self.dra:
            return None
        return self.host_root / str(self.kubelet_dir / "dra_manager_state").lstrip("/")

    @property
    def kubelet_pods(self) -> Path:
        """Return the kubelet's folder of pods, by UID."""
        return self.kubelet_dir / "pods"
