"""Listening sockets on all addresses of a pod, whichever IP family the cluster uses."""

from __future__ import annotations

import errno
import socket

_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: An address, or a name with an IPv4 address; empty: all addresses, IPv6 and IPv4.
        port: The port; 0: any free one.

    Raises:
        OSError: The port is taken, or the address is not ours.
    """
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:  # the kernel supports IPv6, but a sysctl disables it
            if error.errno not in _NO_IPV6:
                raise
    return socket.create_server(("", port))
