"""A device's status is written within five seconds after it first differs from the allocations.

The clock is the event loop's, in virtual time. The test computes the sums itself and uses neither
the engine's clock nor its comparison.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest

from builders import a_claim, a_device, a_node, an_allocated_device, an_allocation
from memory_api import MemoryApi
from replica import Replica
from vgpu_api.resources import Resource
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_client.clock import Clock
from virtual_time import VirtualLoop

PROMISED_S = 5.0
NEWS_TAKE_S = 0.05
_EACH_MIB = 1024


class LoopClock(Clock):
    """The time of the event loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def unix(self) -> float:
        return 1.7e9 + self.monotonic()


class Written(MemoryApi):
    """An API client that keeps the last status applied to each device."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[str, int | None] = {}
        self.writes: list[tuple[float, str]] = []
        self.replica: Replica

    async def apply(self, resource: Resource, obj: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        loop, name = asyncio.get_running_loop(), obj["metadata"]["name"]
        self.shown[name] = sum(_mib(claim["memory"]) for claim in obj["status"]["claims"])
        assert _mib(obj["status"]["allocated"]["memory"]) == self.shown[name]
        self.writes.append((loop.time(), name))
        applied = await super().apply(resource, obj)
        loop.call_later(NEWS_TAKE_S, self._watched, name, applied)
        return applied

    def _watched(self, name: str, applied: dict[str, Any]) -> None:
        for node in self.replica.ledger.nodes():
            for device in self.replica.ledger.devices(node):
                if device.metadata.name == name:
                    wire = device.to_wire()
                    wire["status"] |= applied["status"]
                    wire["metadata"]["resourceVersion"] = applied["metadata"]["resourceVersion"]
                    self.replica.news.device_changed(GPUDevice.model_validate(wire))


def _mib(size: str) -> int:
    return int(size[:-2]) * {"Gi": 1024, "Mi": 1}[size[-2:]] if size != "0" else 0


class Fleet:
    """Devices, up to 50 a node, with claims that come and go, and the age of each shown number."""

    def __init__(self, devices: int) -> None:
        self.api = Written()
        self.replica = self.api.replica = Replica(self.api, clock=LoopClock())
        for node in range(1 + devices // 50):
            self.replica.news.node_changed(a_node(f"node-{node + 1}"))
        self.held = {f"gpu-{at}": 0 for at in range(devices)}
        for at in range(devices):
            self.replica.news.device_changed(
                a_device(
                    uuid=f"GPU-{at}", index=at, memory_mib=1_000_000, node=f"node-{at // 50 + 1}"
                )
            )
        self._claims: list[tuple[int, VGPUClaim]] = []
        self._numbers = itertools.count()
        self._ended: dict[tuple[str, int | None], float] = {}
        self.oldest = 0.0

    def begin(self, device: int) -> None:
        part = an_allocated_device(uuid=f"GPU-{device}", memory_mib=_EACH_MIB)
        allocation = an_allocation(part)
        claim = self.replica.claim(a_claim(f"c-{next(self._numbers)}", allocation=allocation))
        self._claims.append((device, claim))
        self._hold(device, _EACH_MIB)

    def end(self) -> None:
        device, claim = self._claims.pop(0)
        self.replica.news.claim_gone(("default", claim.metadata.name), claim.metadata.uid)
        self._hold(device, -_EACH_MIB)

    def _hold(self, device: int, more: int) -> None:
        name = f"gpu-{device}"
        self._ended[name, self.held[name]] = asyncio.get_running_loop().time()
        self.held[name] += more

    async def watch(self) -> None:
        """Record the age of each device's status every few milliseconds."""
        began = asyncio.get_running_loop().time()
        while True:
            now = asyncio.get_running_loop().time()
            for name, held in self.held.items():
                shown = self.api.shown.get(name)
                if shown != held:
                    self.oldest = max(self.oldest, now - self._ended.get((name, shown), began))
            await asyncio.sleep(0.01)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


async def run(devices: int, pauses: list[float], ends: Random | None = None) -> Fleet:
    fleet = Fleet(devices)
    tasks = [
        asyncio.ensure_future(fleet.replica.engine.run()),
        asyncio.ensure_future(fleet.watch()),
    ]
    choose = Random(len(pauses))
    for pause in pauses:
        await asyncio.sleep(pause)
        if ends is not None and ends.random() < 0.4 and sum(fleet.held.values()):
            fleet.end()
        else:
            fleet.begin(choose.randrange(devices))
    await asyncio.sleep(PROMISED_S)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
    return fleet


def test_pods_that_come_every_seven_tenths_of_a_second_are_shown_within_five(
    loop: VirtualLoop,
) -> None:
    fleet = loop.run_until_complete(run(1, [0.7] * 32))
    assert fleet.oldest <= PROMISED_S
    assert fleet.api.shown == fleet.held
    assert len(fleet.api.writes) <= 8  # for 32 pods in 22 s, so the clock also limits the writes


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_pace_no_device_shows_an_old_number_for_longer(
    loop: VirtualLoop, seed: int
) -> None:
    """Invariant: no device differs from its allocations for more than five seconds."""
    draw = Random(seed)
    pace = draw.choice([0.05, 0.3, 0.9, 1.1, 2.4, 6.0])
    pauses = [draw.expovariate(1 / pace) for _ in range(60)]
    fleet = loop.run_until_complete(run(draw.choice([1, 3]), pauses, Random(seed)))
    assert fleet.oldest <= PROMISED_S
    assert fleet.api.shown == fleet.held


def test_a_new_device_shows_zeros_and_not_blanks(loop: VirtualLoop) -> None:
    fleet = loop.run_until_complete(run(4, []))
    assert fleet.oldest <= PROMISED_S
    assert fleet.api.shown == {f"gpu-{at}": 0 for at in range(4)}
    assert len(fleet.api.writes) == 4


def test_the_zeros_of_a_new_fleet_do_not_come_all_at_once(loop: VirtualLoop) -> None:
    fleet = loop.run_until_complete(run(100, [3.0]))
    begun = [time for time, _ in fleet.api.writes]
    assert max(sum(1 for time in begun if at <= time < at + 0.9) for at in begun) <= 33
    assert set(fleet.api.shown) == set(fleet.held)
