"""Plays the agents of all nodes in a process of its own: reports on each pod that is bound.

It writes with the real agent's `Reports`, with a token that is bound to the pod's node. The pods'
containers do not exist, so a pod counts as started as soon as it has a node.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import replace

import aiohttp

from fixed_credentials import FixedCredentials
from perf.cluster_bench.load import LABEL
from vgpu_api.names import pod_claim_name
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.background import Background
from vgpu_client.connection import Connection, login
from vgpu_client.reflector import ObjectIdentity, Reflector, Scope
from vgpu_client.session import PooledHttp, open_session
from vgpu_client.transport import Object, Transport
from vgpu_local.accounts import AGENT, token
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state.node_view import NodeView


class PlayedAgents:
    """Plays all agents of the cluster.

    Args:
        api: An administrator's client.
        as_node: A client with the rights of a node's agent, from its token.
    """

    def __init__(self, api: Api, as_node: AsNode) -> None:
        self._api = api
        self._as_node = as_node
        self._nodes: dict[str, asyncio.Task[tuple[NodeView, Reports]]] = {}
        self._background = Background()
        self._bound: dict[tuple[str, str], str] = {}  # claim: node
        self._claims: dict[tuple[str, str], Object] = {}

    async def run(self) -> None:
        """Play the agents until cancelled."""
        pods = Reflector(
            self._api, PODS, _Told(self._pod), decode=_raw, scope=Scope(label_selector=LABEL)
        )
        claims = Reflector(self._api, VGPU_CLAIMS, _Told(self._claim), decode=_raw)
        await asyncio.gather(pods.run(), claims.run())

    def _pod(self, pod: Object) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName")
        claim = metadata["namespace"], pod_claim_name(metadata["name"], metadata["uid"])
        if node and claim not in self._bound:
            self._bound[claim] = node
            self._start(claim)

    def _claim(self, raw: Object) -> None:
        claim = raw["metadata"]["namespace"], raw["metadata"]["name"]
        was_known = claim in self._claims
        if not (raw.get("status") or {}).get("allocation"):
            return
        self._claims[claim] = raw
        if not was_known:
            self._start(claim)

    def _start(self, claim: tuple[str, str]) -> None:
        if claim in self._bound and claim in self._claims:
            self._background.start(self._report(claim))

    async def _report(self, place: tuple[str, str]) -> None:
        node = self._bound[place]
        if node not in self._nodes:
            self._nodes[node] = asyncio.create_task(self._agent(node))
        view, reports = await asyncio.shield(self._nodes[node])
        claim = VGPUClaim.read(self._claims[place])
        view.claims.modified(claim)
        message = f"limits are in place: {claim.status.summary}"
        reports.prepared(claim, message, took_s=0.0)

    async def _agent(self, node: str) -> tuple[NodeView, Reports]:
        api = self._as_node.client(await token(self._api, AGENT, node=node))
        view = NodeView(node)
        reports = Reports(api, view)
        self._background.start(reports.run())
        return view, reports


class AsNode:
    """Creates clients that share a session's connections and differ in their identity.

    Args:
        session: The session whose connections are used.
        connection: The address of the server.
    """

    def __init__(self, session: aiohttp.ClientSession, connection: Connection) -> None:
        self._session = session
        self._connection = connection

    def client(self, bearer: str) -> Api:
        """Return a client that logs in with a token."""
        mine = replace(self._connection, credentials=FixedCredentials(bearer))
        return Api(Transport(PooledHttp(self._session), mine))


class _Told:
    """Calls a function with every version of an object."""

    def __init__(self, take: Callable[[Object], None]) -> None:
        self._take = take

    def added(self, obj: Object) -> None:
        """Pass it on."""
        self._take(obj)

    def modified(self, obj: Object) -> None:
        """Pass it on."""
        self._take(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        """Do nothing: none is deleted while measuring."""

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """Never called, because nothing is decoded."""
        raise error


def _raw(obj: Object) -> Object:
    return obj


async def main() -> None:
    """Read the arguments and play the agents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    options = parser.parse_args()
    connection = await login(options.kubeconfig)
    async with Api.connect(options.kubeconfig) as api, open_session() as session:
        await PlayedAgents(api, AsNode(session, connection)).run()


if __name__ == "__main__":
    asyncio.run(main())
