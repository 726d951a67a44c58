"""Ports for servers whose address is decided before they are started.

A port that the system hands out is free again once the asker lets go of it, and the next who asks
may get it before the server has started. So ports come from below the range that the system hands
out, where no process gets one by chance, and each is marked as given for as long as this process
runs: clusters that start at once, in whatever processes, never get the same.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_ATTEMPTS = 200


class NoFreePort(Exception):
    """None of many ports was free."""


def free_ports(count: int) -> list[int]:
    """Find ports on loopback on which no process listens and that no other caller was given.

    Raises:
        NoFreePort: there are not so many.
    """
    handed_out_from = int(_RANGE.read_text().split()[0])
    highest = max(handed_out_from, _LOWEST + 10_000)
    found: list[int] = []
    for port in random.SystemRandom().sample(range(_LOWEST, highest), _ATTEMPTS):
        if _is_unused(port) and _mark(port):
            found.append(port)
        if len(found) == count:
            return found
    raise NoFreePort(f"{len(found)} free ports, {count} wanted")


def _is_unused(port: int) -> bool:
    with socket.socket() as attempt:
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _mark(port: int) -> bool:
    """Take the name that stands for the port; the system lets go of it with this process."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0vgpu-local-port-{port}")
    except OSError:
        mark.close()
        return False
    mark.detach()  # open on purpose, until the end
    return True
