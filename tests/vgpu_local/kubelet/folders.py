"""The folders of a simulated node, with paths that are short enough for its sockets."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vgpu_local.kubelet.checkpoint import FILE_NAME

SOCKET_PATH_MAX = 107
"""Longest path a unix socket can be bound to, in bytes."""

_LONGEST_SOCKET = "device-plugins/" + "x" * 40


@dataclass(frozen=True, slots=True)
class NodeFolders:
    """The folders of one node.

    Attributes:
        root: The node's run folder.
        sockets: The same folder, perhaps through a short symlink, for the paths of sockets.
        link: The temporary folder with the symlink, if there is one.
    """

    root: Path
    sockets: Path
    link: Path | None

    @property
    def device_plugins(self) -> Path:
        """Return the folder of the plugins' sockets and the kubelet's `kubelet.sock`."""
        return self.sockets / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """Return the folder of the PodResources socket, `kubelet.sock`."""
        return self.sockets / "pod-resources"

    @property
    def plugins_registry(self) -> Path:
        """Return the folder in which DRA drivers put the sockets by which they register."""
        return self.sockets / "plugins_registry"

    @property
    def claims_record(self) -> Path:
        """Return the file of the ResourceClaims that have to be unprepared some time."""
        return self.root / "dra_manager_state"

    @property
    def cdi(self) -> Path:
        """Return the folder of CDI spec files."""
        return self.root / "cdi"

    @property
    def checkpoint(self) -> Path:
        """Return the file of the device manager's checkpoint."""
        return self.root / "device-plugins" / FILE_NAME

    def of_pod(self, uid: str) -> Path:
        """Return a pod's folder, which exists from its admission until its object is gone."""
        return self.root / "pods" / uid

    def remove_link(self) -> None:
        """Remove the symlink, which is outside the run folder."""
        if self.link is not None:
            shutil.rmtree(self.link, ignore_errors=True)


def make_folders(root: Path) -> NodeFolders:
    """Create the folders of a node under `root`."""
    root = root.absolute()
    for name in ("device-plugins", "pod-resources", "plugins_registry", "cdi", "logs", "pods"):
        (root / name).mkdir(parents=True, exist_ok=True)
    if len(bytes(root / _LONGEST_SOCKET)) <= SOCKET_PATH_MAX:
        return NodeFolders(root, root, None)
    # Not below TMPDIR where that is long itself, which is often why we are here.
    short = len(bytes(Path(tempfile.gettempdir()) / "vgpu-12345678/n" / _LONGEST_SOCKET))
    parent = None if short <= SOCKET_PATH_MAX else "/tmp"
    link = Path(tempfile.mkdtemp(prefix="vgpu-", dir=parent))
    (link / "n").symlink_to(root)
    return NodeFolders(root, link / "n", link)
