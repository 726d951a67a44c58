"""Resolves CDI device names from the spec files on disk, as a container runtime does.

The folders are read when a container is created, which has the same result as the runtime's cache.
If a name is unknown or ambiguous, the container fails, because the runtime never starts one without
all of its devices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_KIND = re.compile(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]")


class CdiError(Exception):
    """The container cannot be created; the text is the runtime's."""


@dataclass(frozen=True, slots=True)
class BindMount:
    """A file or folder of the host that a container sees under another path."""

    container_path: str
    host_path: str


@dataclass(frozen=True, slots=True)
class Edits:
    """The changes that CDI devices, or an Allocate answer, make to a container.

    Attributes:
        env: The variables in order; a later one overrides an earlier one.
        device_nodes: The paths of device nodes in the container. Only tests read them, since a
            local process has access to whatever the host allows.
    """

    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[BindMount, ...] = ()
    device_nodes: tuple[str, ...] = ()

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            self.env + other.env,
            self.mounts + other.mounts,
            self.device_nodes + other.device_nodes,
        )


def resolve(names: Sequence[str], folders: Iterable[Path]) -> Edits:
    """Look up fully qualified device names (`vendor/class=device`).

    Raises:
        CdiError: A name is unknown or ambiguous, or a spec file would crash the runtime.
    """
    if not names:
        return Edits()
    wanted = dict.fromkeys(names)
    found: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {n: [] for n in wanted}
    for spec in _specs(folders):
        for device in spec["devices"]:
            name = f"{spec['kind']}={device['name']}"
            if name in found:
                found[name].append((spec, device))
    lost = [name for name in wanted if len(found[name]) != 1]
    if lost:
        raise CdiError(
            "failed to create containerd container: CDI device injection failed: "
            f"unresolvable CDI devices {', '.join(lost)}"
        )
    result, applied = Edits(), set[int]()
    for ((spec, device),) in found.values():
        if id(spec) not in applied:
            applied.add(id(spec))
            result += _edits(spec.get("containerEdits"))
        result += _edits(device.get("containerEdits"))
    return result


def _specs(folders: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """Yield the valid specs, and skip invalid files as the runtime's cache does."""
    for folder in folders:
        for path in sorted(folder.glob("*")):
            if path.suffix not in (".json", ".yaml"):
                continue
            try:
                text = path.read_text()
                spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
            except (OSError, ValueError, yaml.YAMLError):
                continue
            if not isinstance(spec, dict) or not isinstance(spec.get("kind"), str):
                continue
            vendor, _, class_name = spec["kind"].partition("/")
            if len(vendor) == 1 or len(class_name) == 1:
                raise CdiError(
                    f"the container runtime died: {path.name} has a one-letter vendor or class, "
                    f"which panics containerd 2.2"
                )
            if _KIND.fullmatch(spec["kind"]) and spec.get("cdiVersion") and spec.get("devices"):
                yield spec


def _edits(raw: Mapping[str, Any] | None) -> Edits:
    raw = raw or {}
    pairs = (entry.partition("=") for entry in raw.get("env") or ())
    return Edits(
        env=tuple((name, value) for name, _, value in pairs),
        mounts=tuple(
            BindMount(mount["containerPath"], mount["hostPath"])
            for mount in raw.get("mounts") or ()
        ),
        device_nodes=tuple(node["path"] for node in raw.get("deviceNodes") or ()),
    )
