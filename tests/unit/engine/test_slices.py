"""A round runs in slices of bounded length, between which the engine answers others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builders import a_container, a_device, a_node, a_pod
from replica import Replica
from vgpu_api.resources import PODS, Resource
from vgpu_client.api import Api
from vgpu_operator.engine import engine as engine_module
from vgpu_operator.engine import slices
from vgpu_operator.engine.effects import RecordEvent
from vgpu_operator.engine.informers import InSlices
from vgpu_operator.ledger import ClaimKey

LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}


async def test_a_new_leader_judges_its_pods_some_at_a_time(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    judge_pod = engine_module.judge_pod

    def counted(state: Any, uid: str) -> None:
        judged.append(uid)
        judge_pod(state, uid)

    replica.leading = False
    for number in range(200):
        containers = [a_container(limits=LIMITS)]
        replica.news.pod_changed(a_pod(f"pod-{number}", node="node-1", containers=containers))
    replica.leading = True
    replica.engine.lead()
    monkeypatch.setattr(engine_module, "judge_pod", counted)
    sizes, before = [], 0
    for _ in replica.engine.round():
        sizes.append(len(judged) - before)
        before = len(judged)
    assert len(judged) == 200
    assert max(sizes) <= 64


async def test_links_of_many_nodes_are_compared_node_by_node(replica: Replica) -> None:
    for node in ("node-1", "node-2", "node-3"):
        ends = (f"GPU-a-{node}", f"GPU-b-{node}")
        replica.news.node_changed(a_node(node))
        for index, (uuid, peer) in enumerate((ends, ends[::-1])):
            links = {peer: 50 + index}
            replica.news.device_changed(a_device(uuid=uuid, node=node, index=index, links=links))
    events = [
        sum(isinstance(effect, RecordEvent) for effect in effects)
        for effects in replica.engine.round()
    ]
    assert sum(events) == 3
    assert max(events) == 1


async def test_claims_are_reconciled_one_by_one_also_where_there_is_nothing_to_write(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding the reason of a refusal takes milliseconds even if the claim does not change."""
    looked_at: list[Any] = []
    monkeypatch.setattr(engine_module, "reconcile", lambda key, _: looked_at.append(key))
    for number in range(20):
        replica.state.claims.look_at(ClaimKey("default", f"claim-{number}"))
    sizes, before = [], 0
    for _ in replica.engine.round():
        sizes.append(len(looked_at) - before)
        before = len(looked_at)
    assert len(looked_at) == 20
    assert max(sizes) == 1


def every_look_ends_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0.0, 1e6)
    monkeypatch.setattr(slices, "_PART", 0.0)
    monkeypatch.setattr(slices, "time", SimpleNamespace(perf_counter=lambda: next(now)))


class Calls:
    """Calls that take as many turns of the loop as an HTTPS request.

    Attributes:
        slices: The number of slices of other work that have started.
        waited: The number of these that started before the answer, by call.
    """

    def __init__(self) -> None:
        self.slices = 0
        self.waited: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []

    def come(self) -> None:
        """Start a call."""
        self._tasks.append(asyncio.create_task(self._call()))

    async def answered(self) -> None:
        """Wait until all calls are answered."""
        await asyncio.gather(*self._tasks)

    async def _call(self) -> None:
        began = self.slices
        for _ in range(4):
            await asyncio.sleep(0)
        self.waited.append(self.slices - began)


async def test_a_call_is_answered_between_two_slices(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call takes several turns of the loop, all in the same gap."""
    calls, done = Calls(), asyncio.Event()

    def long_round() -> Iterator[tuple[()]]:
        for calls.slices in range(1, 41):
            if calls.slices % 10 == 0:
                calls.come()
            yield ()
        done.set()

    every_look_ends_a_slice(monkeypatch)
    monkeypatch.setattr(replica.engine, "round", long_round)
    loop = asyncio.create_task(replica.engine.run())
    replica.news.node_changed(a_node("node-1"))  # some work for the engine
    await done.wait()
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    await calls.answered()
    assert calls.waited == [0, 0, 0, 0]


async def test_a_call_waits_for_one_of_the_tasks_that_can_wait_not_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every_look_ends_a_slice(monkeypatch)
    calls, turns = Calls(), slices.Slices()

    async def work() -> None:
        mine = slices.Slice(turns)
        for number in range(40):
            calls.slices += 1
            if number % 10 == 9:
                calls.come()
            assert mine.is_over()
            await mine.next()

    await asyncio.gather(*(work() for _ in range(5)))
    await calls.answered()
    # All five had started before the first calls; from then on they take turns.
    assert len(calls.waited) == 20
    assert max(calls.waited) <= 1


async def test_a_burst_of_events_lets_calls_go_before(monkeypatch: pytest.MonkeyPatch) -> None:
    every_look_ends_a_slice(monkeypatch)
    calls = Calls()

    class Burst:
        """An API server that delivers many events at once."""

        async def watch(self, resource: Resource, **_: Any) -> AsyncGenerator[dict[str, str], None]:
            for number in range(40):
                yield {"type": "MODIFIED", "object": str(number)}

    source = InSlices(cast(Api, Burst()), slices.Slices())
    seen = []
    async for event in source.watch(PODS, resource_version="1"):
        seen.append(event["object"])
        calls.slices += 1
        if calls.slices % 10 == 0:
            calls.come()
    await calls.answered()
    assert seen == [str(number) for number in range(40)]
    assert calls.waited == [0, 0, 0, 0]


async def test_who_waited_for_something_else_has_a_whole_slice_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Single events cost no additional turns of the loop."""
    now = [0.0]
    monkeypatch.setattr(slices, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    mine = slices.Slice(slices.Slices())
    now[0] += 2 * slices.SLICE_S
    assert mine.is_over()
    await asyncio.sleep(0)
    assert not mine.is_over()
    now[0] += 2 * slices.SLICE_S
    assert mine.is_over()


async def test_who_waits_has_a_fifth_of_a_loop_that_calls_keep_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(slices, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    async def answer() -> None:
        while True:
            now[0] += 0.010
            await asyncio.sleep(0)

    answering = asyncio.create_task(answer())
    mine = slices.Slice(slices.Slices())
    before = now[0]
    await mine.next()
    calls_s = now[0] - before
    now[0] += 0.2 * calls_s
    assert not mine.is_over()
    now[0] += 0.1 * calls_s
    assert mine.is_over()
    answering.cancel()
