"""The handover from an agent that ends to its waiting, ready successor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from agent_node import GPU_0, GPU_1, ObedientDriver, a_driver_device
from set_clock import SetClock
from vgpu_api.config import ClusterConfig
from vgpu_client.api import Api
from vgpu_nodeagent.agent import Agent
from vgpu_nodeagent.config import AgentConfig
from vgpu_nodeagent.lifecycle.releases import Releases
from vgpu_nodeagent.state.node_pods import NodePods
from vgpu_nodeagent.state.node_view import NodeView
from vgpu_nodeagent.state.serving_lock import ServingLock


class SilentApi:
    """An API server that accepts every request and answers none."""

    def acting_as(self, user: str) -> SilentApi:
        """Return an API that is as silent to another user."""
        return self

    def __getattr__(self, name: str) -> Any:
        async def never(*args: Any, **keywords: Any) -> NoReturn:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

        return never


class LoadedError(Exception):
    """The agent has read its state from disk."""


def an_agent(folder: Path, driver: ObedientDriver, *, fault: str = "") -> Agent:
    library = folder / "libvgpu.so"
    library.write_bytes(b"")
    config = AgentConfig(
        node_name="n1",
        state_dir=folder / "state",
        library=library,
        cluster=ClusterConfig(),
        kubelet_dir=folder / "kubelet",
        device_plugins_dir=folder / "kubelet" / "device-plugins",
        cdi_dir=folder / "cdi",
        config_fault=fault,
        metrics_port=0,
        health_port=0,
    )
    return Agent(config, cast("Api", SilentApi()), driver)


def test_an_agent_that_serves_is_ready_with_a_bad_configuration_but_not_without_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServingLock, "is_held", True)
    clock = SetClock()
    view = NodeView("n1", clock=clock)
    agent = an_agent(tmp_path, ObedientDriver([a_driver_device()]), fault="a bad value")
    agent._view = view
    assert agent.unready() == "not registered with the kubelet"
    agent.registered.set()
    assert agent.unready() == ""
    api: Any = SilentApi()
    reflector = view.reflector(NodePods(api, "n1"))
    reflector.restarted("broken")
    clock.time += 20
    assert agent.unready() == ""
    clock.time += 1
    assert agent.unready() == "the node's pods have not been readable for 21 s"
    reflector.listed(7, ())
    assert agent.unready() == ""


async def test_devices_that_changed_while_it_waited_are_known_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous agent may have partitioned a device; records must match the devices."""
    known: list[frozenset[str]] = []

    async def load(agent: Agent) -> NoReturn:
        known.append(frozenset(agent._inventory.present))
        raise LoadedError

    monkeypatch.setattr(Agent, "_load", load)
    driver = ObedientDriver([a_driver_device()])
    agent = an_agent(tmp_path, driver)
    before = ServingLock(tmp_path / "state")
    await before.acquire()
    running = asyncio.ensure_future(agent.run())
    await asyncio.sleep(0.1)
    assert not running.done()
    driver.present = (a_driver_device(), a_driver_device(GPU_1, 1))
    before.release()
    with pytest.RaisesGroup(LoadedError):
        await running
    assert known == [frozenset({GPU_0, GPU_1})]


async def test_its_sweep_has_ended_when_it_lets_the_next_one_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    async def load(agent: Agent) -> NoReturn:
        raise LoadedError

    async def close(releases: Releases) -> None:
        await asyncio.sleep(0)
        order.append("sweep")

    release = ServingLock.release

    def let_go(lock: ServingLock) -> None:
        order.append("lock")
        release(lock)

    monkeypatch.setattr(Agent, "_load", load)
    monkeypatch.setattr(Releases, "close", close)
    monkeypatch.setattr(ServingLock, "release", let_go)
    with pytest.RaisesGroup(LoadedError):
        await an_agent(tmp_path, ObedientDriver([a_driver_device()])).run()
    assert order == ["sweep", "lock"]
