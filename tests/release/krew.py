"""`kubectl vgpu` as a plugin that krew installs: its manifest, and the archive that it names.

The archive has the wheel, the versions of all that the client needs with their hashes, and a
launcher: the commands are Python with compiled dependencies, which pip chooses for the machine, and
krew only unpacks. A single file for all machines would need each of them for four systems and four
versions of Python, 30 MB each: `explain` and `simulate` decide with the operator's own code, which
takes numpy, and pydantic reads every object.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml

from manual.words import ROOT

BIN = "kubectl-vgpu"
_LAUNCHER = ROOT / "tests" / "release" / "kubectl-vgpu.sh"
_PLATFORMS = [
    {"key": "os", "operator": "In", "values": ["linux", "darwin"]},
    {"key": "arch", "operator": "In", "values": ["amd64", "arm64"]},
]


def archive_name(version: str) -> str:
    """Return the name of the archive."""
    return f"{BIN}-{version}.tar.gz"


def contents(version: str, wheel: Path, lock: str) -> dict[str, bytes]:
    """Return the archive's files.

    Args:
        version: The version of the release.
        wheel: The project's wheel.
        lock: The wheel's requirements, with hashes.
    """
    launcher = _LAUNCHER.read_text().replace("@VERSION@", version).replace("@WHEEL@", wheel.name)
    return {
        BIN: launcher.encode(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
        "requirements.txt": lock.encode(),
        wheel.name: wheel.read_bytes(),
    }


def manifest(version: str, archive: Path, base: str) -> str:
    """Return the plugin's manifest for krew, as YAML.

    Args:
        version: Of the release.
        archive: Written.
        base: URL of the folder that the release is published in.
    """
    plugin: dict[str, Any] = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "vgpu"},
        "spec": {
            "version": f"v{version}",
            "homepage": base,
            "shortDescription": "See, explain and manage slices of GPUs",
            "description": (
                "Lists slices, devices and nodes, shows live use, explains why a pod waits, asks "
                "what would become of a pod, drains nodes and devices, and finds what is wrong."
            ),
            "caveats": (
                "Needs Python 3.11 or newer with venv. The first call installs the packages that "
                "it needs, with hashes checked, below $XDG_CACHE_HOME or ~/.cache."
            ),
            "platforms": [
                {
                    "selector": {"matchExpressions": _PLATFORMS},
                    "uri": f"{base}/{archive.name}",
                    "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
                    "bin": BIN,
                    "files": [{"from": f"{BIN}-{version}/*", "to": "."}],
                }
            ],
        },
    }
    return yaml.safe_dump(plugin, sort_keys=False)
