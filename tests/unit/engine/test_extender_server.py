"""What kube-scheduler meets on the wire."""

from __future__ import annotations

import aiohttp

from vgpu_local.ports import free_ports
from vgpu_operator.config import Address
from vgpu_operator.errors import NotLeading
from vgpu_operator.extender.server import ExtenderServer
from vgpu_operator.extender.wire import BindRequest, FilterAnswer, FilterRequest


class Standby:
    """A replica that does not lead."""

    def filter(self, request: FilterRequest) -> FilterAnswer:
        raise NotLeading("another replica leads")

    async def bind(self, request: BindRequest) -> str:
        raise NotLeading("another replica leads")

    def is_ready(self) -> bool:
        return False


async def test_a_standby_hangs_up_so_that_the_next_call_follows_the_endpointslice() -> None:
    port = free_ports(1)[0]
    bind = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n"}
    async with (
        ExtenderServer(Standby(), Address("127.0.0.1", port), None),
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/bind", json=bind) as answer,
    ):
        assert answer.status == 503
        assert answer.headers["Connection"] == "close"
