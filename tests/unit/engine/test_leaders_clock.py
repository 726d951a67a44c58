"""A leader compares and writes the API server's time, because its own clock may be wrong."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any
from unittest.mock import Mock

import pytest

from builders import a_claim, a_pod, a_request
from fixed_credentials import FixedCredentials
from replica import Replica
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.connection import Connection
from vgpu_client.server_time import ServerTime
from vgpu_client.transport import Transport
from vgpu_operator.app import Operator
from vgpu_operator.config import parse
from vgpu_operator.extender.wire import BindRequest

HOUR_S = 3600.0
TTL_S = 600
ARGUMENTS = [
    "--certificates=secrets",
    "--service-name=vgpu-extender",
    "--advertise-address=10.0.0.1",
]
EITHER_WAY = pytest.mark.parametrize("wrong_s", [-25 * HOUR_S, -HOUR_S, HOUR_S, 25 * HOUR_S])


class World:
    """An API server with a right clock, and leaders with wrong ones."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.api: Any = None
        self.replica: Any = None

    def lead(self, *, wrong_s: float) -> None:
        """Let a replica with a wrong clock take over, after it has seen every claim."""
        world = self

        class WrongClock(Clock):
            def monotonic(self) -> float:
                return world.now

        class Machine(WrongClock):
            def unix(self) -> float:
                return 1.7e9 + world.now + wrong_s

        of_server = ServerTime(Machine())
        of_server.observe(formatdate(1.7e9 + self.now, usegmt=True), sent=self.now)
        self.replica = Replica(self.api, clock=WrongClock(of_server))
        self.api = self.replica.api
        self.replica.device()
        for key, raw in list(self.api.objects.items()):
            if key[0] == VGPU_CLAIMS.plural:
                self.replica.news.claim_changed(VGPUClaim.read(raw))

    async def use(self, claim: str) -> None:
        """Let a pod use the claim and end, and the agent report it."""
        replica = self.replica
        replica.claim(a_claim(claim, requests=[a_request()], ttl_seconds_after_unused=TTL_S))
        annotations = {ANNOTATION_CLAIM: claim, ANNOTATION_SLOTS_ADDED: "main"}
        pod = a_pod("user", annotations=annotations)
        replica.api.put(PODS, pod.to_wire())
        replica.news.pod_changed(pod)
        await replica.settle()
        bind = BindRequest("default", "user", pod.metadata.uid, "node-1")
        assert await replica.binder.bind(bind) == ""
        raw = self.api.claim(claim)
        raw["status"]["released"] = {"allocationID": raw["status"]["allocation"]["id"]}
        replica.claim(VGPUClaim.read(raw))
        replica.news.pod_gone(pod.metadata.uid)
        await replica.settle()
        assert self.api.claim(claim)["status"]["state"] == "Released"

    async def has(self, claim: str) -> bool:
        await self.replica.settle()
        return (VGPU_CLAIMS.plural, "default", claim) in self.api.objects


@EITHER_WAY
async def test_a_claim_lives_for_its_ttl_whatever_its_leaders_clock_shows(wrong_s: float) -> None:
    world = World()
    world.lead(wrong_s=wrong_s)
    await world.use("mine")
    world.now += TTL_S - 1
    assert await world.has("mine")
    world.now += 1
    assert not await world.has("mine")


@EITHER_WAY
async def test_a_claim_lives_for_its_ttl_under_a_successor_with_another_clock(
    wrong_s: float,
) -> None:
    world = World()
    world.lead(wrong_s=-wrong_s)
    await world.use("mine")
    world.now += TTL_S - 5
    world.lead(wrong_s=wrong_s)
    assert await world.has("mine")
    world.now += 5
    assert not await world.has("mine")


@EITHER_WAY
async def test_the_operators_clocks_show_the_api_servers_time(wrong_s: float) -> None:
    """The engine's decisions, its timestamps and the certificates use that time."""
    connection = Connection("http://server", None, None, None, FixedCredentials())
    api = Api(Transport(Mock(), connection))
    operator = Operator(api, api, parse(ARGUMENTS, {}))
    server = time.time() - wrong_s
    connection.time.observe(formatdate(server, usegmt=True), sent=time.monotonic())

    operator.engine.observe_all()
    assert operator.engine.state.unix == pytest.approx(server, abs=5)
    keeper = operator._controllers._keeper
    assert keeper is not None
    assert keeper._now().timestamp() == pytest.approx(server, abs=5)
