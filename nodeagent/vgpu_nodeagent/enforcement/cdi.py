"""Writes the CDI spec files through which a container runtime applies a grant.

Each allocation has one file with a device name that is never reused. So a runtime with a stale
cache finds nothing, and the kubelet retries, but it never finds another pod's grant. The temporary
file is in the same folder and does not end in `.json`, because the CDI library of containerd 2.2
never notices a file renamed in from elsewhere. Vendor and class have more than one letter, because
a single letter in any spec file crashes that runtime.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpu_nodeagent.config import Mount
from vgpu_nodeagent.discovery.drivers.device_nodes import DeviceNode
from vgpu_nodeagent.state.cdi_device import KINDS, kind_of

_VERSION = "0.6.0"
_SUFFIX = ".json"
_UNFINISHED = ".new"
"""The suffix of a file that is being written; the runtime reads only .json."""


@dataclass(frozen=True, slots=True)
class Edits:
    """Everything that a container gets beyond its image and pod spec."""

    env: Mapping[str, str]
    mounts: Sequence[Mount]
    device_nodes: Sequence[DeviceNode]


class SpecFolder:
    """The spec files of this agent in the runtime's CDI folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, allocation: str, edits: Edits) -> None:
        """Write or replace the spec of an allocation.

        Raises:
            OSError: It cannot be written; no half-written file remains.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._unfinished(allocation)
        try:
            with open(temporary, "w") as file:
                json.dump(_document(allocation, edits), file, indent=1)
                # After a crash the runtime must not find an empty file under the final name.
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, self._path(allocation))
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def remove(self, allocation: str) -> None:
        """Remove the spec of an allocation."""
        self._path(allocation).unlink(missing_ok=True)
        self._unfinished(allocation).unlink(missing_ok=True)

    def allocations(self) -> frozenset[str]:
        """Return the allocations that have a file, leftovers of an earlier agent included.

        These include files that it was writing when it was killed.
        """
        if not self._folder.is_dir():
            return frozenset()
        return frozenset().union(*map(self._with_prefix, map(_prefix, KINDS)))

    def _with_prefix(self, prefix: str) -> frozenset[str]:
        done = {file.name for file in self._folder.glob(f"{prefix}*{_SUFFIX}")}
        begun = self._folder.glob(f".{prefix}*{_SUFFIX}{_UNFINISHED}")
        done |= {file.name[1 : -len(_UNFINISHED)] for file in begun}
        return frozenset(name[len(prefix) : -len(_SUFFIX)] for name in done)

    def _path(self, allocation: str) -> Path:
        return self._folder / _file_name(allocation)

    def _unfinished(self, allocation: str) -> Path:
        return self._folder / f".{_file_name(allocation)}{_UNFINISHED}"


def _prefix(kind: str) -> str:
    return f"{kind.replace('/', '-')}_"


def _file_name(allocation: str) -> str:
    return f"{_prefix(kind_of(allocation))}{allocation}{_SUFFIX}"


def _node(node: DeviceNode) -> dict[str, Any]:
    if not node.major:
        return {"path": node.name}
    # Given the link's target, the runtime does not search the host for it.
    return {"path": node.name, "type": "c", "major": node.major, "minor": node.minor}


def _document(allocation: str, edits: Edits) -> dict[str, Any]:
    return {
        "cdiVersion": _VERSION,
        "kind": kind_of(allocation),
        "devices": [
            {
                "name": allocation,
                "containerEdits": {
                    "env": [f"{name}={value}" for name, value in edits.env.items()],
                    "deviceNodes": [_node(node) for node in edits.device_nodes],
                    "mounts": [
                        {
                            "hostPath": mount.host_path,
                            "containerPath": mount.container_path,
                            "options": [
                                "ro" if mount.read_only else "rw",
                                "nosuid",
                                "nodev",
                                "rbind",
                            ],
                        }
                        for mount in edits.mounts
                    ],
                },
            }
        ],
    }
