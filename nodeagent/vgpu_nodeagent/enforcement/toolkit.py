"""Checks if NVIDIA's container runtime gives devices to containers without a claim.

It gives an unprivileged container the devices in its variable `NVIDIA_VISIBLE_DEVICES`, unless
`accept-nvidia-visible-devices-envvar-when-unprivileged` is false. If it is the node's default
runtime, this applies to every container, and every `nvidia/cuda` image sets the variable to `all`.
Admission cannot see an image's variables, so the toolkit has to refuse them.

Source: NVIDIA Container Toolkit, `config.toml` (the key's default is true); containerd,
`docs/cri/config.md` (`default_runtime_name`, `imports`); CRI-O, `crio.conf(5)`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

KEY = "accept-nvidia-visible-devices-envvar-when-unprivileged"
TOOLKIT_CONFIGS = (
    "etc/nvidia-container-runtime/config.toml",
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
"""Paths of the package's and of the GPU Operator's configuration."""
_CONTAINERD = (
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
)
_CRIO = ("etc/crio/crio.conf", "etc/crio/crio.conf.d/*")
_PROGRAM = "nvidia-container-runtime"


@dataclass(frozen=True, slots=True)
class Exposure:
    """The reason why containers without a claim get devices, or may.

    Attributes:
        reason: `EnvVarAcceptedByDefault`, `EnvVarAccepted` or `ToolkitUnreadable`.
        message: What is wrong and how to correct it.
    """

    reason: str
    message: str

    @property
    def is_certain(self) -> bool:
        """False if a configuration could not be read."""
        return self.reason != "ToolkitUnreadable"


@dataclass(slots=True)
class _Runtimes:
    """The configurations of container runtimes."""

    default: str = ""
    programs: dict[str, str] = field(default_factory=dict)

    def default_is_nvidias(self) -> bool:
        """True if containers without a runtime class get NVIDIA's runtime."""
        return _PROGRAM in self.programs.get(self.default, "") or self.default == "nvidia"


def exposure(host: Path) -> Exposure | None:
    """Return how devices are exposed; None if the toolkit refuses the variable or is missing.

    Args:
        host: Where this process finds the host's root.
    """
    accepting = []
    try:
        for name in TOOLKIT_CONFIGS:
            config = _read(host / name)
            if config is not None and config.get(KEY, True) is not False:
                accepting.append(f"/{name}")
        if not accepting:
            return None
        by_default = _runtimes(host).default_is_nvidias()
    except (OSError, ValueError) as error:  # TOML and decoding errors are ValueErrors, too
        return Exposure("ToolkitUnreadable", f"whether NVIDIA's container toolkit refuses "
                        f"NVIDIA_VISIBLE_DEVICES is not known: {error}")  # fmt: skip
    cure = f"set {KEY} = false in {', '.join(accepting)} and restart the container runtime"
    if by_default:
        return Exposure(
            "EnvVarAcceptedByDefault",
            "NVIDIA's runtime is the node's default and gives every container the devices that "
            f"its variable NVIDIA_VISIBLE_DEVICES names, without a claim: {cure}",
        )
    return Exposure(
        "EnvVarAccepted",
        "a pod whose runtimeClassName leads to NVIDIA's runtime gets the devices that its "
        f"variable NVIDIA_VISIBLE_DEVICES names, without a claim: {cure}",
    )


def _runtimes(host: Path) -> _Runtimes:
    found = _Runtimes()
    for name in _CONTAINERD:
        for config in _with_imports(host, host / name):
            for plugin in (config.get("plugins") or {}).values():
                _add_containerd(plugin, found)
    for pattern in _CRIO:
        for path in sorted(host.glob(pattern)):
            runtime = ((_read(path) or {}).get("crio") or {}).get("runtime") or {}
            found.default = runtime.get("default_runtime", found.default)
            for name, entry in (runtime.get("runtimes") or {}).items():
                found.programs[name] = str(entry.get("runtime_path", ""))
    return found


def _add_containerd(plugin: object, found: _Runtimes) -> None:
    """Add containerd's runtimes; the CRI plugin has another name in each config version."""
    table = plugin.get("containerd") if isinstance(plugin, dict) else None
    if not isinstance(table, dict):
        return
    found.default = table.get("default_runtime_name", found.default)
    for name, entry in (table.get("runtimes") or {}).items():
        options = entry.get("options") or {}
        binary = [str(value) for key, value in options.items() if key == "BinaryName"]
        found.programs[name] = "".join(binary)


def _with_imports(host: Path, path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield a configuration, then its imports, which override it."""
    config = _read(path)
    if config is None:
        return
    yield config
    for pattern in config.get("imports") or ():
        inside = str(PurePosixPath(path.relative_to(host).parent) / pattern).lstrip("/")
        for imported in sorted(host.glob(inside)):
            if imported != path and (more := _read(imported)) is not None:
                yield more


def _read(path: Path) -> Mapping[str, Any] | None:
    """Read a TOML file; return None if it does not exist.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not valid TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
