"""`python -m vgpu_local.apiserver`: a server to try kubectl on, until it is interrupted."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from vgpu_local.apiserver import ApiServer


def main() -> None:
    """Serve, write a kubeconfig, and wait for SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="vgpu_local.apiserver", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--kubeconfig", type=Path, default=Path("kubeconfig"))
    parser.add_argument("--http", action="store_true", help="without TLS")
    options = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with ApiServer(port=options.port, tls=not options.http) as server:
        server.kubeconfig(options.kubeconfig)
        print(f"{server.url}\nexport KUBECONFIG={options.kubeconfig.resolve()}", flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
