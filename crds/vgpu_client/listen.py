"""Listening sockets: on every address of a pod, of whichever IP family the cluster has."""

from __future__ import annotations

import errno
import socket

_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Args:
        host: An address, or a name that has one of IPv4; empty: all addresses, IPv6 and IPv4.
        port: 0: one that is free.

    Raises:
        OSError: The port is taken, or the address none of ours.
    """
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:  # the kernel has IPv6, and a sysctl has switched it off
            if error.errno not in _NO_IPV6:
                raise
    return socket.create_server(("", port))
