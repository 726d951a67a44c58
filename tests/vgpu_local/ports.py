"""Ports for servers whose address must be known before they start.

If we let the system choose a port and closed it again, another process could get the same port
before our server starts. So ports come from below the system's ephemeral range, where no process
gets one by chance. Each is marked as taken for as long as this process runs, so clusters that start
at the same time, in any process, never share a port.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_ATTEMPTS = 200


class NoFreePort(Exception):
    """No free port was found after many tries."""


def free_ports(count: int) -> list[int]:
    """Return loopback ports on which no process listens and that no other caller was given.

    Raises:
        NoFreePort: There are not enough free ports.
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
    """Bind a socket name that marks the port as taken; the system frees it with this process."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0vgpu-local-port-{port}")
    except OSError:
        mark.close()
        return False
    mark.detach()  # open on purpose, until the end
    return True
