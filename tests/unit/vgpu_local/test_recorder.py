"""The record of a real server's writes has no gap, or reports it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from vgpu_api.resources import CONFIG_MAPS
from vgpu_client.api import Api
from vgpu_client.errors import Gone
from vgpu_local.apiserver import ApiServer, Fault
from vgpu_local.recorder import Recorder

STARTING = (
    Fault(action="gone", verb="watch", resource="configmaps"),
    Fault(action="status", code=429, seconds=0.1, verb="watch", resource="configmaps"),
)


@asynccontextmanager
async def recorded(
    folder: Path, *faults: Fault
) -> AsyncIterator[tuple[ApiServer, Api, Recorder, asyncio.Task[None]]]:
    with ApiServer() as server:
        async with Api.connect(str(server.kubeconfig(folder / "kubeconfig"))) as api:
            await create(api, "before")
            for fault in faults:
                server.faults.add(fault)
            recorder = Recorder(api, [CONFIG_MAPS])
            (task,) = await recorder.start()
            yield server, api, recorder, task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def create(api: Api, name: str) -> None:
    await api.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": "default"}})


async def names_until(recorder: Recorder, last: str) -> list[str]:
    async with asyncio.timeout(10):
        while True:
            names = [event.object["metadata"]["name"] for event in recorder.history()]
            if last in names:
                return names
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("fault", STARTING)
async def test_a_server_that_cannot_watch_a_new_kind_yet_leaves_no_gap(
    tmp_path: Path, fault: Fault
) -> None:
    async with recorded(tmp_path, fault) as (server, api, recorder, task):
        await create(api, "after")
        assert await names_until(recorder, "after") == ["before", "after"]
        assert server.faults.count(fault) == 1
        assert not task.done()


async def test_a_gap_in_the_record_is_an_error(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (server, api, recorder, task):
        await create(api, "after")
        await names_until(recorder, "after")
        server.faults.add(Fault(action="gone", verb="watch", resource="configmaps"))
        server.break_watches("configmaps")
        with pytest.raises(Gone):
            await task
