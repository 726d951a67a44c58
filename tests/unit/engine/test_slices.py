"""A round ends in slices, between which others are answered: none is as long as the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from builders import a_container, a_device, a_node, a_pod
from replica import Replica
from vgpu_operator.engine import engine as engine_module
from vgpu_operator.engine.effects import RecordEvent
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
    """Why a claim is refused takes milliseconds to find out, and may be what it shows already."""
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


async def test_a_call_is_answered_between_two_slices(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its connection to its answer it takes several turns of the loop, not one in each gap."""
    slices = 0
    answered_after: list[int] = []

    async def call() -> None:
        """As many turns as an HTTP request by TLS has been seen to take."""
        began = slices
        for _ in range(4):
            await asyncio.sleep(0)
        answered_after.append(slices - began)

    def long_round() -> Iterator[tuple[()]]:
        nonlocal slices
        for slices in range(1, 41):
            if slices % 10 == 0:
                calls.append(asyncio.create_task(call()))
            yield ()
        done.set()

    calls: list[asyncio.Task[None]] = []
    done = asyncio.Event()
    monkeypatch.setattr(engine_module, "SLICE_S", 0.0)
    monkeypatch.setattr(replica.engine, "round", long_round)
    loop = asyncio.create_task(replica.engine.run())
    replica.news.node_changed(a_node("node-1"))  # something to do
    await done.wait()
    loop.cancel()
    await asyncio.gather(*calls, loop, return_exceptions=True)
    assert answered_after == [0, 0, 0, 0]
