"""What holds for every test."""

from __future__ import annotations

import grpc.aio


def pytest_configure() -> None:
    # grpc.aio ends its poller when its last object goes, in whatever test the garbage collector
    # finds that object, and was seen to hang in it. One user more keeps it to the process's end.
    grpc.aio.init_grpc_aio()
