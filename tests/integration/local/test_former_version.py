"""Programs of the former version beside those of this one, as in the middle of an upgrade.

The former version is the commit before this one, or the commit that `VGPU_FORMER_VERSION` names,
taken from the repository's history. Its code runs unchanged, on the CRDs of this version.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from vgpu_api.resources import PODS
from vgpu_client.errors import ServerError
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster, NotReady
from vgpu_local.daemon import Daemon, Process, execute
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.programs import ROOT
from vgpu_local.steps import empty

pytestmark = pytest.mark.timeout(240)

PARTS = ("crds", "operator", "nodeagent")
CLAIMS = "vgpuclaims.vgpu.dev"
HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the former version."""
    folder = tmp_path_factory.mktemp("former")
    version = os.environ.get("VGPU_FORMER_VERSION", "HEAD^")
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", version, *PARTS], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"no history here: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


@pytest.fixture
def mixed(former: Path) -> Iterator[LocalCluster]:
    """A cluster whose `operator-0`, and the agent of node `old`, run the former version."""

    def spawn(
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        errors: Path | None = None,
    ) -> Process:
        if log.stem in ("operator-0", "agent-old"):
            environment = {**environment, "PYTHONPATH": code_path(former)}
            command = with_known_options(command, environment)
        return execute(command, environment, log, errors)

    options = ClusterOptions(lease_s=3, operators=2, linger_s=2)
    with LocalCluster([t4_node("old"), t4_node("new")], options, spawn=spawn) as cluster:
        yield cluster
        empty(cluster)
        assert excesses(cluster.server.history()) == []


def code_path(folder: Path) -> str:
    return os.pathsep.join(str(folder / part) for part in PARTS)


def with_known_options(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command without the options that came after the version that runs it."""
    program, options = list(command[:3]), list(command[3:])
    known = subprocess.run(
        [*program, "--help"], env=dict(environment), capture_output=True, check=True, text=True
    ).stdout
    pairs = zip(options[::2], options[1::2], strict=True)
    return program + [word for name, value in pairs if name in known for word in (name, value)]


def create(cluster: LocalCluster, name: str, node: str) -> None:
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "command": ["sleep", "infinity"],
                    "resources": {"limits": HALF},
                }
            ],
        },
    }
    deadline = time.monotonic() + 30
    while True:
        try:
            cluster.run(cluster.api.create(PODS, pod))
            return
        except ServerError:  # no operator leads at this moment
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def all_run(cluster: LocalCluster, *names: str) -> None:
    def runs(pod: dict[str, Any]) -> bool:
        return bool(pod["status"].get("phase") == "Running")

    for name in names:
        cluster.wait_for(PODS, name, runs, limit=90)


def wait_until(cluster: LocalCluster, holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        cluster.check()
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


def leads(cluster: LocalCluster, operator: Daemon) -> bool:
    try:
        return cluster.leader() is operator
    except NotReady:
        return False


def hand_over(cluster: LocalCluster, leader: Daemon) -> Daemon:
    """End the leader; return the other operator once it decides and the first runs again."""
    other = next(each for each in cluster.operators if each is not leader)
    leader.may_end()
    leader.signal(signal.SIGTERM)
    leader.wait(30)
    wait_until(cluster, lambda: leads(cluster, other))
    leader.start()
    return other


def test_operators_and_agents_of_two_versions_work_on_one_cluster(
    mixed: LocalCluster, former: Path
) -> None:
    """Each version decides once for one of its nodes, and takes over the other's decisions."""
    leader = mixed.leader()
    for number in range(3):
        for node in ("old", "new"):
            create(mixed, f"pod-{number}-{node}", node)
        names = [f"pod-{number}-{node}" for node in ("old", "new")]
        all_run(mixed, *names)
        leader = hand_over(mixed, leader)
        if number:
            for name in names:  # released while the other version leads
                mixed.run(mixed.api.delete(PODS, name, namespace="default", grace_s=1))
            wait_until(mixed, lambda: len(mixed.objects(CLAIMS, "default")) == 2)
    all_run(mixed, "pod-0-old", "pod-0-new")
    (old,) = (each for each in mixed.operators if each.name == "operator-0")
    assert code_path(former) in Path(f"/proc/{old.pid}/environ").read_text()
