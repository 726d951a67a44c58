"""An agent reads the pods of its node as that node, and as itself only if it has to."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from vgpu_api.resources import PODS, Resource
from vgpu_client.api import Api
from vgpu_client.errors import Forbidden, ServerError
from vgpu_client.reads import Listing
from vgpu_client.transport import Object
from vgpu_nodeagent.state.node_pods import NodePods

NODE = "system:node:n1"


class Server:
    """An API server that answers clients that may read pods, and records the clients in order."""

    def __init__(self, *may: str) -> None:
        self.may = set(may)
        self.asked: list[tuple[str, str]] = []
        self.selectors: list[str] = []
        self.pods: list[Object] = []
        self.broken = False


class Client:
    def __init__(self, server: Server, user: str = "agent") -> None:
        self._server = server
        self._user = user

    def acting_as(self, user: str) -> Client:
        return Client(self._server, user)

    async def list(self, resource: Resource, **selection: Any) -> Listing:
        self._server.asked.append((self._user, "list"))
        self._server.selectors.append(selection["field_selector"])
        if self._server.broken:
            raise ServerError("etcdserver: no leader", status=500)
        if self._user not in self._server.may:
            raise Forbidden(f"{self._user} cannot list {resource.plural}", status=403)
        return Listing(self._server.pods, "7")

    async def watch(self, resource: Resource, **selection: Any) -> AsyncGenerator[Object, None]:
        self._server.asked.append((self._user, "watch"))
        yield {}


def own_pods(server: Server) -> NodePods:
    return NodePods(cast("Api", Client(server)), "n1")


async def read(pods: NodePods) -> None:
    await pods.list(PODS, field_selector="spec.nodeName=n1")
    async for _ in pods.watch(PODS, resource_version="7"):
        pass


async def test_pods_are_read_as_the_node_and_nothing_is_asked_as_the_agent() -> None:
    server = Server(NODE, "agent")
    await read(own_pods(server))
    assert server.asked == [(NODE, "list"), (NODE, "watch")]


async def test_where_an_agent_may_not_act_as_its_node_it_reads_as_itself_and_reports_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("agent")
    pods = own_pods(server)
    await read(pods)
    await read(pods)
    once = [(NODE, "list"), ("agent", "list"), ("agent", "watch")]
    assert server.asked == once * 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "which may read all pods: 403: system:node:n1 cannot list pods" in caplog.text


async def test_after_an_upgrade_of_the_cluster_it_reads_as_the_node_again() -> None:
    server = Server("agent")
    pods = own_pods(server)
    await read(pods)
    server.may.add(NODE)
    server.asked.clear()
    await read(pods)
    assert server.asked == [(NODE, "list"), (NODE, "watch")]


async def test_where_neither_may_the_error_names_what_the_node_was_refused() -> None:
    with pytest.raises(Forbidden, match="system:node:n1 cannot list pods"):
        await read(own_pods(Server()))


async def test_a_server_out_of_order_is_no_reason_to_read_as_the_agent() -> None:
    server = Server(NODE, "agent")
    server.broken = True
    with pytest.raises(ServerError, match="no leader"):
        await read(own_pods(server))
    assert server.asked == [(NODE, "list")]


async def test_whether_a_pod_is_bound_is_asked_for_this_node_alone() -> None:
    server = Server(NODE)
    server.pods = [{"metadata": {"name": "p", "uid": "u"}}]
    assert await own_pods(server).bound("ns", "p") == server.pods
    assert server.selectors == ["spec.nodeName=n1,metadata.name=p"]
