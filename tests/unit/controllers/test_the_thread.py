"""Kopf's own thread starts again after a failure, and ends with the leader."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from vgpu_client.errors import ClientError
from vgpu_client.recorder import Recorder
from vgpu_operator import kopf_frame
from vgpu_operator.certificates.keeper import Keeper
from vgpu_operator.config import OperatorConfig, parse
from vgpu_operator.controllers import controllers
from vgpu_operator.controllers.controllers import Controllers


class Kopf:
    """Fails the given number of times, then runs until it is stopped."""

    def __init__(self, *, failures: int) -> None:
        self.failures = failures
        self.threads: list[str] = []
        self.runs = threading.Event()
        self.stopped = False

    async def watch(self, *_: object, stop: asyncio.Event, **__: object) -> None:
        self.threads.append(threading.current_thread().name)
        if len(self.threads) <= self.failures:
            raise RuntimeError("configmaps is forbidden")
        self.runs.set()
        await stop.wait()
        self.stopped = True


class IdleKeeper:
    """Has nothing to do, or fails for an unforeseen reason."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def step(self) -> bool:
        if self.error is not None:
            raise self.error
        return False


def the_controllers(keeper: IdleKeeper) -> Controllers:
    config: OperatorConfig = parse([], {})
    return Controllers(config, cast(Recorder, None), cast(Keeper, keeper))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "RESTART_S", 0.001)


async def until_it_runs(kopf: Kopf) -> None:
    async with asyncio.timeout(30):
        await asyncio.to_thread(kopf.runs.wait)


async def test_kopf_is_started_again_after_a_failure_and_the_leader_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kopf = Kopf(failures=2)
    monkeypatch.setattr(kopf_frame, "watch", kopf.watch)
    task = asyncio.create_task(the_controllers(IdleKeeper()).run())
    await until_it_runs(kopf)
    assert kopf.threads == ["controllers"] * 3
    assert caplog.text.count("configmaps is forbidden") == 2
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})
    assert kopf.stopped
    assert task.cancelled()


async def test_an_unforeseen_error_of_the_rotation_ends_the_thread_and_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kopf = Kopf(failures=0)
    monkeypatch.setattr(kopf_frame, "watch", kopf.watch)
    with pytest.raises(ExceptionGroup) as raised:
        await the_controllers(IdleKeeper(ZeroDivisionError("a bug"))).run()
    assert raised.group_contains(ZeroDivisionError)
    assert "controllers" not in {thread.name for thread in threading.enumerate()}


async def test_an_api_server_that_is_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kopf = Kopf(failures=0)
    monkeypatch.setattr(kopf_frame, "watch", kopf.watch)
    task = asyncio.create_task(the_controllers(IdleKeeper(ClientError("no answer"))).run())
    await until_it_runs(kopf)
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})
