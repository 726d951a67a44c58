"""A real kubelet for tests, on a simulated container runtime; it needs root.

It has its own mount namespace, in which its folder is `/var/lib/kubelet`, because that path is a
constant for device plugins. It changes no kernel setting: those that it would change are shown to
it as set already.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from vgpu_local.ports import free_ports

_KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_START = """
mount --bind "$FOLDER" /var/lib/kubelet
mount --bind "$LOGS" /var/log
for name in $KERNEL; do mount --bind "$SYSCTL/$name" "/proc/sys/$name"; done
exec "$KUBELET" "$@"
"""


@dataclass(slots=True)
class RealKubelet:
    """The kubelet of one node.

    Attributes:
        program: The kubelet's path.
        kubeconfig: The kubeconfig of an administrator.
        node: The node's name.
        root: The folder for everything on disk.
    """

    program: Path
    kubeconfig: Path
    node: str
    root: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def folder(self) -> Path:
        """Return its root directory, as others see it."""
        return self.root / "kubelet"

    @property
    def runtime_socket(self) -> Path:
        """Return the socket of the container runtime."""
        return self.root / "cri.sock"

    @property
    def log(self) -> Path:
        """Return its log."""
        return self.root / "kubelet.log"

    def start(self) -> None:
        """Start it, and return at once."""
        for folder in (self.folder, self.root / "logs"):
            folder.mkdir(parents=True, exist_ok=True)
        Path("/var/lib/kubelet").mkdir(parents=True, exist_ok=True)  # the mount point
        for name, value in _KERNEL.items():
            path = self.root / "sysctl" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        (port,) = free_ports(1)
        config = self.root / "kubelet.yaml"
        config.write_text(yaml.safe_dump(self._config(port)))
        arguments = [
            f"--config={config}",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={self.node}",
            "--cert-dir=/var/lib/kubelet/pki",
            "--v=4",
        ]
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "FOLDER": str(self.folder),
            "LOGS": str(self.root / "logs"),
            "SYSCTL": str(self.root / "sysctl"),
            "KERNEL": " ".join(_KERNEL),
            "KUBELET": str(self.program),
        }
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [
                    "unshare",
                    "--mount",
                    "--propagation=private",
                    "sh",
                    "-ec",
                    _START,
                    "sh",
                    *arguments,
                ],
                env=environment,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        """Kill it; processes that it started stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _config(self, port: int) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": port,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.runtime_socket}",
            "imageServiceEndpoint": f"unix://{self.runtime_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "1s",
            "syncFrequency": "5s",
            "maxPods": 110,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0.1%"},
            "localStorageCapacityIsolation": False,
            "contentType": "application/json",  # the stand-in API server reads nothing else from it
        }
