from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from vgpu_local.pki import Authority, Leaf


def handshake(leaf: Leaf, trusted: Authority, name: str) -> None:
    """Make a TLS handshake over a socket pair; the client knows the server as `name`."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with leaf.server_context().wrap_socket(theirs, server_side=True) as server:
                server.recv(1)
        except ssl.SSLError:
            theirs.close()  # the client refused, and only its side is tested

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with trusted.client_context().wrap_socket(ours, server_hostname=name) as client:
            client.send(b"x")
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "hook.ns.svc"])
def test_a_leaf_is_trusted_under_each_of_its_names(name: str):
    authority = Authority()
    leaf = authority.leaf(names=("localhost", "hook.ns.svc"))
    handshake(leaf, authority, name)


def test_a_leaf_is_not_trusted_under_another_name_nor_by_another_authority():
    authority = Authority()
    leaf = authority.leaf()
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(leaf, authority, "example.dev")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(leaf, Authority(), "localhost")


def test_a_key_on_disk_is_for_its_owner_alone(tmp_path: Path):
    certificate, key = Authority().leaf().write(tmp_path, name="web")
    assert (certificate.name, key.name) == ("web.crt", "web.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
