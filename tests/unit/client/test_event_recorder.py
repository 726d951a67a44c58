"""Events: one per reason and object, rate-limited, with the latest text, and never blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from set_clock import SetClock
from vgpu_client.errors import NotFound, ServerError
from vgpu_client.recorder import AGAIN_S, BURST, RATE, Recorder, Regarding


class Server:
    """Accepts events, and refuses those that the test names."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.error: Exception | None = None

    async def create(self, resource: Any, event: Mapping[str, Any]) -> None:
        self._answer("create")
        self.events[event["metadata"]["name"]] = dict(event)

    async def merge_patch(
        self, resource: Any, name: str, changes: Mapping[str, Any], *, namespace: str
    ) -> None:
        self._answer("patch")
        if name not in self.events:
            raise NotFound("no such event", status=404)
        self.events[name].update(changes)

    def _answer(self, verb: str) -> None:
        self.writes.append(verb)
        if self.error is not None:
            raise self.error


class World:
    """A recorder whose time the test advances."""

    def __init__(self) -> None:
        self.clock = SetClock(1_700_000_000.0)
        self.dropped = 0
        self.server = Server()
        self.recorder = Recorder(
            self.server,  # type: ignore[arg-type]
            "vgpu-operator",
            clock=self.clock,
            on_drop=self._dropped,
        )

    def _dropped(self) -> None:
        self.dropped += 1

    def record(self, pod: str, note: str, reason: str = "CardInsufficientMemory") -> None:
        regarding = Regarding("v1", "Pod", "default", pod, f"uid-of-{pod}")
        self.recorder.record(
            regarding, type="Warning", reason=reason, action="Scheduling", note=note
        )

    async def write(self) -> None:
        await self.recorder._write_due()


@pytest.fixture
def world() -> World:
    return World()


async def test_twenty_waiting_pods_and_twenty_changes_are_twenty_events(world: World) -> None:
    for change in range(20):
        for pod in range(20):
            world.record(f"pod-{pod}", f"{change}/160 CardInsufficientMemory")
        await world.write()
        world.clock.time += 0.1
    assert world.server.writes == ["create"] * 20
    world.clock.time += AGAIN_S
    await world.write()
    assert world.server.writes == ["create"] * 20 + ["patch"] * 20
    for event in world.server.events.values():
        assert (event["count"], event["message"]) == (20, "19/160 CardInsufficientMemory")
        assert event["firstTimestamp"] < event["lastTimestamp"]


async def test_the_same_words_again_are_no_event(world: World) -> None:
    for _ in range(3):
        world.record("pod-1", "no room")
        await world.write()
        world.clock.time += 2 * AGAIN_S
    assert world.server.writes == ["create"]


async def test_another_reason_is_another_event(world: World) -> None:
    world.record("pod-1", "no room")
    world.record("pod-1", "no quota", reason="CardQuotaExceeded")
    await world.write()
    assert len(world.server.events) == 2


async def test_beyond_a_burst_events_are_written_at_a_rate(world: World) -> None:
    for pod in range(BURST + 60):
        world.record(f"pod-{pod}", "no room")
    await world.write()
    assert len(world.server.writes) == BURST
    world.clock.time += 1.0
    await world.write()
    assert len(world.server.writes) == BURST + RATE


async def test_when_too_many_wait_the_oldest_is_dropped_and_counted(world: World) -> None:
    for pod in range(1_001):
        world.record(f"pod-{pod}", "no room")
    assert world.dropped == 1
    await world.write()
    named = {event["involvedObject"]["name"] for event in world.server.events.values()}
    assert "pod-0" not in named
    assert "pod-1" in named


async def test_an_event_that_the_server_has_forgotten_is_made_anew(world: World) -> None:
    world.record("pod-1", "first")
    await world.write()
    world.server.events.clear()
    world.clock.time += AGAIN_S
    world.record("pod-1", "second")
    await world.write()
    (event,) = world.server.events.values()
    assert (event["count"], event["message"]) == (1, "second")


async def test_a_server_that_takes_no_events_stops_nothing(world: World) -> None:
    world.server.error = ServerError("no", status=500)
    world.record("pod-1", "first")
    await world.write()
    assert world.dropped == 1
    world.server.error = None
    world.clock.time += AGAIN_S
    world.record("pod-1", "second")
    await world.write()
    (event,) = world.server.events.values()
    assert event["message"] == "second"


async def test_a_note_is_cut_to_what_the_server_takes(world: World) -> None:
    world.record("pod-1", "x" * 5_000)
    await world.write()
    (event,) = world.server.events.values()
    assert len(event["message"]) == 1_024


async def test_words_that_were_lost_are_written_when_they_are_said_again(world: World) -> None:
    world.server.error = ServerError("no", status=500)
    world.record("pod-1", "no room")
    await world.write()
    world.server.error = None
    world.clock.time += AGAIN_S
    world.record("pod-1", "no room")
    await world.write()
    assert [event["message"] for event in world.server.events.values()] == ["no room"]


async def test_words_that_were_dropped_are_written_when_they_are_said_again(world: World) -> None:
    for pod in range(1_001):
        world.record(f"pod-{pod}", "no room")
    world.record("pod-0", "no room")
    for _ in range(60):
        world.clock.time += 1.0
        await world.write()
    named = {event["involvedObject"]["name"] for event in world.server.events.values()}
    assert "pod-0" in named


async def test_an_event_does_not_wait_for_anothers_next_turn(world: World) -> None:
    """A repeated series waits a minute; the first event of another pod comes meanwhile."""

    class Passing(SetClock):
        async def sleep(self, seconds: float) -> None:
            self.time += seconds
            await super().sleep(seconds)
            if len(self.slept) == 1:
                world.record("pod-2", "evicted", reason="Evicted")

    recorder = world.recorder
    recorder._clock = world.clock = Passing(world.clock.time)
    world.record("pod-1", "first words")
    running = asyncio.ensure_future(recorder.run())
    await asyncio.sleep(0)
    world.record("pod-1", "second words")
    began = world.clock.time
    for _ in range(20):
        await asyncio.sleep(0)
        if len(world.server.events) == 2:
            break
    running.cancel()
    assert len(world.server.events) == 2
    assert world.clock.time - began < 5
