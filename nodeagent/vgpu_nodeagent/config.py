"""The agent's command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath

from vgpu_api.config import ClusterConfig
from vgpu_client.metrics_server import MetricsAccess

PLUGIN_SOCKET = "vgpu.sock"
KUBELET_CHECKPOINT = "kubelet_internal_checkpoint"
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
"""Longer than the liveness probe takes to find a loop stuck."""
UNUSED_ALLOCATION_S = 30.0
"""A slot allocation that no pod on the kubelet's record holds after so long was never used.

The kubelet writes it down as soon as it has our answer; one that died under the call never does.
"""


class UsageRegions(StrEnum):
    """On what a container's usage region lies."""

    TMPFS = "tmpfs"
    """A tmpfs of its own, which cannot grow; needs the right to mount."""
    DISK = "disk"
    """The disk of the state folder, which every container can then fill."""


class LimitBackendName(StrEnum):
    """What keeps claims within their memory, where the device itself does not (MIG)."""

    LIBRARY = "Library"
    DRIVER = "Driver"


class OnViolation(StrEnum):
    """What is done about what takes more of a device than it may, besides reporting it."""

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
    """Arguments and environment, read once.

    Attributes:
        node_name: The node that this agent serves.
        kubeconfig: Path of a kubeconfig; None: the environment's, or the pod's service account.
        cluster: The cluster's configuration.
        state_dir: Where the agent keeps what must survive it; the same path on the host.
        kubelet_dir: The kubelet's root folder, where it keeps pods and serves PodResources.
        device_plugins_dir: Where device plugins register.
        cdi_dir: The runtime's folder of CDI specs.
        sysfs_dir: Where sysfs is mounted.
        library: The native library, in this process's file system.
        driver_files: Files that every container gets.
        driver_roots: Roots on the host below which the driver's files may be installed.
        host_root: Where this process has the host's root.
        limit_backend: What keeps claims within their memory.
        usage_regions: On what containers keep their usage regions.
        config_path: Where the cluster's configuration is mounted.
        config_fault: What is wrong with the configuration that was given, where `cluster` is the
            last good one instead.
        health_port: Port of the probes; 0 for none.
        hang_limit_s: How long the event loop may stand still before the process is killed; 0: for
            ever.
        metrics_port: Port of the metrics; 0 for none.
        metrics_access: Who may read them.
        unused_allocation_s: How long a slot allocation is kept that the kubelet has not put on
            record.
        on_violation: What is done to a claim that holds more than it may, besides reporting it.
        on_unclaimed: What is done to processes of pods that use a device without a claim.
        log_level: Name of a logging level.
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

    @property
    def resource(self) -> str:
        """The resource that is registered with the kubelet."""
        return self.cluster.nvidia.resource_count_name

    @property
    def plugin_socket(self) -> Path:
        """The device plugin's own socket."""
        return self.device_plugins_dir / PLUGIN_SOCKET

    @property
    def kubelet_socket(self) -> Path:
        """Where device plugins register."""
        return self.device_plugins_dir / "kubelet.sock"

    @property
    def kubelet_checkpoint(self) -> Path:
        """The kubelet's record of allocations."""
        return self.device_plugins_dir / KUBELET_CHECKPOINT

    @property
    def pod_resources_socket(self) -> Path:
        """Where PodResources is served."""
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"

    @property
    def kubelet_pods(self) -> Path:
        """The kubelet's folder of pods, by UID."""
        return self.kubelet_dir / "pods"
