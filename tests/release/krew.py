"""`kubectl vgpu` as a plugin that krew installs: its manifest, and the archives that it names.

There is an archive for each kind of machine. It has the modules that the commands can load and the
packages that they need, unpacked, so that nothing is installed and the first call is like the
second. pydantic's compiled core is there for each version of Python. numpy is not: 16 MB for each
of them would be four fifths of an archive, and only `explain` and `simulate`, which decide with the
operator's own code, need it. They install it when they run first.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from manual.words import ROOT
from release.wheels import ON_DEMAND, PYTHONS, Platform, Wheels, entries

BIN = "kubectl-vgpu"
_HERE = ROOT / "tests" / "release"
_OURS = ("vgpu_api", "vgpu_client", "vgpu_operator")
_STARTED = ("vgpu_operator.cli.__main__", "vgpu_operator.cli.completion")
"""The modules that a user or a shell starts."""


def archive_name(version: str, platform: Platform) -> str:
    """Return the name of the archive for a kind of machine."""
    return f"{BIN}-{version}-{platform.name}.tar.gz"


def plain_files(version: str, wheel: Path, wheels: Wheels, lock: str) -> dict[str, bytes]:
    """Return the files that all archives have.

    Args:
        version: The version of the release.
        wheel: The project's wheel.
        wheels: The packages that the client needs.
        lock: The client's requirements, with hashes.
    """
    library = _loadable(_unpacked(wheel))
    for each in wheels.plain:
        library |= {
            name: content
            for name, content in _unpacked(each).items()
            if not name.endswith(".so") and not name.startswith("_yaml/")
        }
    named = {f"lib/{name}": content for name, content in library.items()}
    start = (_HERE / "plugin_main.py").read_text().replace("@VERSION@", version)
    return {
        BIN: (_HERE / "kubectl-vgpu.sh").read_bytes(),
        "main.py": start.encode(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
        f"{ON_DEMAND}.txt": entries(lock)[ON_DEMAND].encode() + b"\n",
        **named,
        **_compiled(named),
    }


def native_files(platform: Platform, wheels: Wheels) -> dict[str, bytes]:
    """Return the files of one kind of machine, for each version of Python."""
    return {
        f"native/{python}/{name}": content
        for python in PYTHONS
        for name, content in _unpacked(wheels.compiled[platform.name, python]).items()
    }


def manifest(version: str, archives: Sequence[tuple[Platform, Path]], base: str) -> str:
    """Return the plugin's manifest for krew, as YAML.

    Args:
        version: Of the release.
        archives: Written, one for each kind of machine.
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
                f"Needs Python {PYTHONS[0]} to {PYTHONS[-1]}: python3, or the program that "
                "VGPU_PYTHON names. explain and simulate need numpy, which the first of them "
                "installs with pip, its hash checked, below $XDG_CACHE_HOME or ~/.cache."
            ),
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": platform.os, "arch": platform.arch}},
                    "uri": f"{base}/{archive.name}",
                    "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
                    "bin": BIN,
                    "files": [{"from": f"{BIN}-{version}/*", "to": "."}],
                }
                for platform, archive in archives
            ],
        },
    }
    return yaml.safe_dump(plugin, sort_keys=False)


def _unpacked(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as packed:
        return {
            name: packed.read(name)
            for name in packed.namelist()
            if not name.endswith("/") and not name.endswith(".pyi")
        }


def _loadable(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the project's files without the modules that no command can load.

    Files beside the others are kept: these read them. So is the metadata, which has the version.
    """
    modules = {_module(name): name for name in files if name.endswith(".py")}
    found, left = set[str](), [part for module in _STARTED for part in _with_packages(module)]
    while left:
        module = left.pop()
        if module in found or module not in modules:
            continue
        found.add(module)
        left += _imported(module, ast.parse(files[modules[module]]))
    needed = {modules[module] for module in found}
    folders = {os.path.dirname(name) for name in needed}
    return {
        name: content
        for name, content in files.items()
        if name in needed
        or ".dist-info/" in name
        or (not name.endswith(".py") and _nearest(name, modules) in folders)
    }


def _nearest(name: str, modules: Mapping[str, str]) -> str:
    """Return the folder of the package that a file is in, which may have folders without any."""
    folder = os.path.dirname(name)
    while folder and f"{folder}/__init__.py" not in modules.values():
        folder = os.path.dirname(folder)
    return folder


def _imported(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a module may import, and the packages that they are in."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        for name in names:
            if name.split(".")[0] in _OURS:
                yield from _with_packages(name)


def _with_packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:size]) for size in range(1, len(parts) + 1))


def _module(name: str) -> str:
    parts = name.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _compiled(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the modules compiled for the Python that runs now; others compile what they load.

    Python takes them without looking at the sources' times, which unpacking may change.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode"]
        command += ["unchecked-hash", "-s", name, str(folder)]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run(command, check=True, env=environment)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.pyc")}
