"""One cluster for the whole run: the stand-in, or with VGPU_TEST_CLUSTER=real a real control plane.

Tests that only a real one can answer (CEL) are in `real/` and are not collected without it. The
tests in `local/` bring a whole cluster of their own, with our programs and the stand-in's kubelets,
and run on either. VGPU_TEST_CLUSTER=standin-only collects what a real one cannot run, and the
contract, which both servers must fulfil.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml

from agent_plane import AgentPlane, real_plane, standin_plane
from vgpu_api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from vgpu_client.api import Api
from vgpu_local.apiserver import ApiServer
from vgpu_local.cluster import LocalCluster
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.fork_server import ForkServer
from vgpu_local.programs import DRIVER_LOADER, program_environment
from vgpu_local.real_cluster import real_cluster

KIND = os.environ.get("VGPU_TEST_CLUSTER", "standin")
IS_REAL = KIND == "real"
HERE = Path(__file__).parent
CRDS = sorted((Path(__file__).parents[2] / "crds").glob("vgpu.dev_*.yaml"))

# These tests check the stand-in's own processes or bring servers of their own. On a real cluster,
# real/test_rights.py covers certificates.
OF_THE_STANDIN = [
    "local/test_local_cluster.py",
    "local/test_issued_certificates.py",
    "local/test_demo.py",
    "test_old_server.py",
]
# The API server's promises to its clients, which must hold on both servers.
CONTRACT = {str(path.relative_to(HERE)) for path in HERE.glob("contract/test_*.py")}
collect_ignore = OF_THE_STANDIN if IS_REAL else ["real"]
_LONGEST_FIRST = ("real", "local", "agent")
"""Folders whose modules take longest, in order: so that two workers end at about the same time."""
if KIND == "standin-only":
    everything = {str(p.relative_to(HERE)) for p in HERE.rglob("test_*.py")}
    collect_ignore += sorted(everything - {*OF_THE_STANDIN} - CONTRACT)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        folder = item.path.parent.name
        known = HERE in item.path.parents and folder in _LONGEST_FIRST
        return _LONGEST_FIRST.index(folder) if known else len(_LONGEST_FIRST)

    items.sort(key=place)


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster with nothing in it yet.

    Attributes:
        kubeconfig: The path of an administrator's kubeconfig.
        url: The API server's address.
        is_real: Whether it is Kubernetes itself.
    """

    kubeconfig: str
    url: str
    is_real: bool


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A process that forks our programs; those of the tests in `real/` are executed."""
    folder = tmp_path_factory.mktemp("fork_server")
    with ForkServer(program_environment(folder, DRIVER_LOADER)) as running:
        yield running


@pytest.fixture(scope="session")
def whole_cluster(fork_server: ForkServer) -> Callable[..., LocalCluster]:
    """The function that builds a cluster of nodes and options on the server under test."""
    return partial(real_cluster if IS_REAL else LocalCluster, spawn=fork_server.spawn)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """Kubernetes itself, started once for the whole run."""
    with ControlPlane(Options(controllers=True)) as real:
        yield real


@pytest.fixture(scope="session")
def bare_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    if IS_REAL:
        real: ControlPlane = request.getfixturevalue("control_plane")
        yield RunningCluster(str(real.kubeconfig), real.url, is_real=True)
    else:
        with ApiServer(bookmark_every=1.0) as standin:
            kubeconfig = standin.kubeconfig(tmp_path_factory.mktemp("standin") / "kubeconfig")
            yield RunningCluster(str(kubeconfig), standin.url, is_real=False)


@pytest.fixture(scope="session")
def cluster(bare_cluster: RunningCluster) -> RunningCluster:
    """The cluster with our kinds installed."""
    asyncio.run(_add_our_kinds(bare_cluster.kubeconfig))
    return bare_cluster


async def _add_our_kinds(kubeconfig: str) -> None:
    async with Api.connect(kubeconfig) as api:
        for path in CRDS:
            crd = yaml.safe_load(path.read_text())
            await api.apply(CUSTOM_RESOURCE_DEFINITIONS, crd, field_manager="tests")
            await _established(api, crd["metadata"]["name"])


async def _established(api: Api, name: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        crd = await api.get(CUSTOM_RESOURCE_DEFINITIONS, name)
        conditions = (crd.get("status") or {}).get("conditions") or ()
        if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            return
        assert time.monotonic() < deadline, f"{name} is not served: {conditions}"
        await asyncio.sleep(0.05)


@pytest.fixture
def agent_plane(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentPlane]:
    """An API server for a test of one agent, with our kinds and nothing else."""
    if IS_REAL:
        request.getfixturevalue("cluster")
        plane = real_plane(request.getfixturevalue("control_plane"), tmp_path)
    else:
        plane = standin_plane(tmp_path)
    with plane as own:
        if not IS_REAL:
            asyncio.run(_add_our_kinds(str(own.kubeconfig)))
        yield own


@pytest.fixture
async def api(cluster: RunningCluster) -> AsyncIterator[Api]:
    async with Api.connect(cluster.kubeconfig) as connected:
        yield connected


@pytest.fixture
async def namespace(api: Api) -> str:
    """Create a namespace for the test."""
    name = f"test-{secrets.token_hex(4)}"
    await api.create(NAMESPACES, {"metadata": {"name": name}})
    return name
