"""A file or folder of the host that a container gets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mount:
    """One bind mount: paths on the host and in the container."""

    host_path: str
    container_path: str
    read_only: bool = True
