"""Builds the environment of a container, which also replaces its bind mounts.

A container here is a plain local process without a mount namespace. So if a variable's value is a
mounted path, or a path below one, the process gets the path on the host instead. A mount over
`/etc/ld.so.preload` becomes `LD_PRELOAD`, which has the same effect in the loader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vgpu_local.kubelet.cdi import BindMount, Edits
from vgpu_local.kubelet.podspec import Container, EnvVar, Pod

PRELOAD_FILE = "/etc/ld.so.preload"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class ConfigError(Exception):
    """The container's description cannot be turned into a process."""


def container_environment(
    pod: Pod,
    container: Container,
    *,
    image: Mapping[str, str],
    allocated: Edits,
    injected: Edits,
) -> dict[str, str]:
    """Return the environment that a container's process starts with.

    Args:
        pod: The pod, for `fieldRef`.
        container: The container with its `env`.
        image: The variables of image and machine, which all others override.
        allocated: The edits of the plugin's Allocate answer, which `env` overrides.
        injected: The edits of CDI devices, which override all others.

    Raises:
        ConfigError: `env` takes a value from a source that the stand-in does not have.
        OSError: A mounted preload file cannot be read.
    """
    result = {**image, **dict(allocated.env)}
    for entry in container.env:
        result[entry.name] = _value(pod, entry, result)
    result.update(injected.env)
    mounts = allocated.mounts + injected.mounts
    result = {name: on_host(value, mounts) for name, value in result.items()}
    return _preload(result, mounts)


def command_line(container: Container, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the process to run; images do not exist, so without a command it just sleeps."""
    words = container.command + container.args
    if not words:
        return ("sleep", "infinity")
    return tuple(_expand(word, environment) for word in words)


def on_host(value: str, mounts: Sequence[BindMount]) -> str:
    """Return the path on the host if a mount covers the value, else the value itself."""
    for mount in sorted(mounts, key=lambda m: len(m.container_path), reverse=True):
        path = mount.container_path.rstrip("/")
        if value == path or value.startswith(path + "/"):
            return mount.host_path.rstrip("/") + value[len(path) :]
    return value


def _preload(environment: dict[str, str], mounts: Sequence[BindMount]) -> dict[str, str]:
    files = [mount for mount in mounts if mount.container_path == PRELOAD_FILE]
    if not files:
        return environment
    entries = re.split(r"[\s:]+", Path(files[-1].host_path).read_text().strip())
    mapped = [on_host(entry, mounts) for entry in entries if entry]
    if own := environment.get("LD_PRELOAD"):
        mapped.append(own)
    return {**environment, "LD_PRELOAD": ":".join(mapped)}


def _value(pod: Pod, entry: EnvVar, so_far: Mapping[str, str]) -> str:
    if entry.unsupported is not None:
        raise ConfigError(f"{entry.name}: {entry.unsupported} is not played by the stand-in")
    if entry.field_path is None:
        return _expand(entry.value, so_far)
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.node,
        "status.podIP": "127.0.0.1",
        "status.hostIP": "127.0.0.1",
        **{f"metadata.labels['{key}']": value for key, value in pod.labels},
        **{f"metadata.annotations['{key}']": value for key, value in pod.annotations},
    }
    try:
        return fields[entry.field_path]
    except KeyError:
        raise ConfigError(f"{entry.name}: unsupported fieldPath {entry.field_path}") from None


def _expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; an unknown name stays as it is, `$$` is a dollar sign."""

    def replaced(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return environment.get(match[1], match[0])

    return _REFERENCE.sub(replaced, text)
