"""The extender's responses to kube-scheduler on the wire."""

from __future__ import annotations

import aiohttp

from replica import Replica
from vgpu_local.ports import free_ports
from vgpu_operator.config import Address
from vgpu_operator.extender.server import ExtenderServer


async def test_a_standby_hangs_up_so_that_the_next_call_follows_the_endpointslice() -> None:
    port = free_ports(1)[0]
    standby = Replica()
    standby.leading = False
    bind = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n"}
    async with (
        ExtenderServer(
            standby.engine, standby.binder, lambda: False, Address("127.0.0.1", port), None
        ),
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/bind", json=bind) as answer,
    ):
        assert answer.status == 503
        assert answer.headers["Connection"] == "close"
