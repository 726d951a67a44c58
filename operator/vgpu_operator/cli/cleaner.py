"""Derives the DaemonSet that cleans hosts from the agents' DaemonSet. No I/O.

It runs on the same nodes and with the same image as the agents. Its init container is retried until
the host is clean, so a ready pod means a clean host.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from vgpu_client.transport import Object

CLEANER = "vgpu-cleaner"
_DEFAULTS = {
    "--state-dir": "/var/lib/vgpu",
    "--cdi-dir": "/var/run/cdi",
    "--device-plugins-dir": "/var/lib/kubelet/device-plugins",
    "--kubelet-dir": "/var/lib/kubelet",
}
"""The defaults of the agent's options (`vgpu_nodeagent.config`)."""
_STATE_PARENT = "/host-state"
_LABELS = {"app.kubernetes.io/name": "vgpu", "app.kubernetes.io/component": "cleaner"}
_COMMAND = ["vgpu-nodeagent", "clean"]
_OF_POD = (
    "serviceAccountName",
    "priorityClassName",
    "imagePullSecrets",
    "nodeSelector",
    "affinity",
    "tolerations",
)
_OF_CONTAINER = ("image", "imagePullPolicy", "securityContext")


def cleaner_of(agents: Object) -> Object:
    """Return the DaemonSet that cleans the hosts of the given agents."""
    pod = agents["spec"]["template"]["spec"]
    (agent,) = (c for c in pod["containers"] if c["name"] == "nodeagent")
    folders = {
        option: _given(agent.get("args") or (), option) or default
        for option, default in _DEFAULTS.items()
    }
    parent, name = posixpath.split(folders["--state-dir"])
    sockets, kubelet = folders["--device-plugins-dir"], folders["--kubelet-dir"]
    drivers = [posixpath.join(kubelet, name) for name in ("plugins", "plugins_registry")]
    # Mount the parent folder, because a mount point cannot be removed from inside the mount. Use a
    # separate path, because a mount below a Bidirectional mount would appear on the host, too.
    hosts = {
        "state": (parent, _STATE_PARENT, {"mountPropagation": "Bidirectional"}),
        "cdi": (folders["--cdi-dir"], folders["--cdi-dir"], {}),
        "device-plugins": (sockets, sockets, {}),
        "plugins": (drivers[0], drivers[0], {}),
        "plugins-registry": (drivers[1], drivers[1], {}),
    }
    container = _kept(agent, _OF_CONTAINER)
    arguments = {**folders, "--state-dir": posixpath.join(_STATE_PARENT, name)}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": CLEANER,
            "namespace": agents["metadata"]["namespace"],
            "labels": {**_LABELS, "app.kubernetes.io/part-of": "vgpu"},
        },
        "spec": {
            "selector": {"matchLabels": dict(_LABELS)},
            "template": {
                "metadata": {"labels": dict(_LABELS)},
                "spec": {
                    **_kept(pod, _OF_POD),
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": 1,
                    "initContainers": [
                        {
                            **container,
                            "name": "clean",
                            "command": list(_COMMAND),
                            "args": [f"{option}={path}" for option, path in arguments.items()],
                            "volumeMounts": [
                                {"name": volume, "mountPath": inside, **rest}
                                for volume, (_, inside, rest) in hosts.items()
                            ],
                        }
                    ],
                    "containers": [{**container, "name": "stay", "command": [*_COMMAND, "--stay"]}],
                    "volumes": [
                        {"name": volume, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
                        for volume, (path, *_) in hosts.items()
                    ],
                },
            },
        },
    }


def _kept(given: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: given[key] for key in keys if key in given}


def _given(arguments: Sequence[str], option: str) -> str:
    """Return the value of an option, given as `--option=value` or as two arguments."""
    for number, word in enumerate(arguments):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and number + 1 < len(arguments):
            return arguments[number + 1]
    return ""
